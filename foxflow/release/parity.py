"""The released graphs against the fitted float64 model: a release that differs is never given its name."""

import importlib.util
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foxflow.dataset import UNKNOWN_END, Dataset, Floats, Scaler, Series
from foxflow.errors import ReleaseError
from foxflow.model import Fitted

if TYPE_CHECKING:
    import onnxruntime

Singles = NDArray[np.float32]
# Of a state's largest number: float32 rounds differently in one long product and in many short ones.
STATE_TOLERANCE = 1e-4


def require_runtime() -> None:
    """Raise ReleaseError where ONNX Runtime is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise ReleaseError(
            "ONNX Runtime is not installed; install the extra foxflow[onnx] (CPU) or foxflow[onnx-gpu], never both"
        )


@dataclass(frozen=True)
class Graph:
    """A released graph in ONNX Runtime on one CPU thread, with the names of its states."""

    session: "onnxruntime.InferenceSession"
    past: dict[str, tuple[int, ...]]

    @classmethod
    def load(cls, content: bytes | str) -> "Graph":
        """Return the graph of serialised bytes or a file."""
        require_runtime()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        past = {i.name: tuple(i.shape[1:]) for i in session.get_inputs() if i.name.startswith("past_")}
        return cls(session, past)

    def zero_state(self, batch: int = 1) -> dict[str, Singles]:
        """Return the state before the first bar."""
        return {name: np.zeros((batch, *shape), np.float32) for name, shape in self.past.items()}

    def run(
        self, features: Singles, state: dict[str, Singles]
    ) -> tuple[Singles, NDArray[np.bool_], dict[str, Singles]]:
        """Return forecast (without its last axis), valid, and the state after."""
        outputs: list[Any] = self.session.run(None, {"features": features, **state})
        names = [o.name for o in self.session.get_outputs()]
        found = dict(zip(names, outputs, strict=True))
        after = {name: found["present_" + name.removeprefix("past_")] for name in self.past}
        return found["forecast"][..., 0], found["valid"], after


def stream(
    step: Graph, features: Singles, state: dict[str, Singles] | None = None
) -> tuple[Singles, NDArray[np.bool_], dict[str, Singles]]:
    """Return what `step` says bar by bar over `(n_bars, n_features)` from a state, else from zero."""
    state = step.zero_state() if state is None else state
    forecast, valid = np.empty(len(features), np.float32), np.empty(len(features), np.bool_)
    for i in range(len(features)):
        one, ok, state = step.run(features[i : i + 1], state)
        forecast[i], valid[i] = one[0], ok[0]
    return forecast, valid, state


@dataclass(frozen=True)
class Parity:
    """The largest difference of each comparison, in units of the forecast's standard deviation."""

    forecast_std: float
    tolerance: float
    worst: dict[str, float]


def reference(fitted: Fitted, data: Dataset, scaler: Scaler, features: Floats) -> Floats:
    """Return the fitted model's forecasts, label units, over raw `(n_bars, n_features)` from the zero state.

    `data` says only what the features are.
    """
    n_bars = len(features)
    unknown_end = np.full(n_bars, UNKNOWN_END)
    valid = np.asarray(np.isfinite(features).all(axis=1), dtype=np.bool_)
    nothing = np.full(n_bars, np.nan)
    series = Series("window", np.arange(n_bars), features, valid, nothing, unknown_end, np.zeros(n_bars))
    scaled = scaler.apply(replace(data, series=(series,)))
    return scaler.unscale(fitted.forecast(scaled)[0])


def check(fitted: Fitted, data: Dataset, scaler: Scaler, *, since: int, step: Graph, window: Graph) -> Parity:
    """Return how far the graphs are from the fitted model; all must be within 1e-3 of the forecast's deviation.

    Compared: `window` with the model on random, constant and bad windows and over the bars of every symbol from `since`
    (int64 us) on; `step` bar by bar with `window` over the same bars; both going on from the state that `window` has
    half way; the states after the last bar; a batch of windows with each alone.

    Raises
    ------
    ReleaseError
        Where a difference exceeds the tolerance, a sign differs though |forecast| exceeds it, or `valid` differs.
    """
    spans = {s.symbol: s.features[s.ts >= since] for s in data.series if (s.ts >= since).any()}
    truth = {symbol: reference(fitted, data, scaler, f) for symbol, f in spans.items()}
    seen = np.concatenate([t[np.isfinite(spans[s]).all(axis=1)] for s, t in truth.items()])
    gate = _Gate.of(float(seen.std()), scaler)
    for name, features in windows(scaler).items():
        found, valid, _ = window.run(features[None].astype(np.float32), window.zero_state())
        gate.valid(f"{name} window", valid[0], features)
        gate.forecast(f"{name} window", found[0], reference(fitted, data, scaler, features))
    for symbol, features in spans.items():
        _check_span(gate, symbol, features, truth[symbol], step=step, window=window)
    batch = np.stack([w.astype(np.float32) for w in windows(scaler).values()])
    together, _, _ = window.run(batch, window.zero_state(len(batch)))
    for alone, found in zip(batch, together, strict=True):
        gate.forecast("batch of windows", found, window.run(alone[None], window.zero_state())[0][0])
    return Parity(gate.std, gate.tolerance, gate.worst)


def _check_span(gate: "_Gate", symbol: str, features: Floats, truth: Floats, *, step: Graph, window: Graph) -> None:
    """Compare both graphs over one symbol's bars, from the zero state and going on from half way."""
    single = features.astype(np.float32)
    whole, flags, after = window.run(single[None], window.zero_state())
    bar_by_bar, step_flags, step_after = stream(step, single)
    gate.forecast("window over the out-of-sample span", whole[0], truth)
    gate.forecast("step bar by bar", bar_by_bar, whole[0])
    gate.valid(f"{symbol} by window", flags[0], features)
    gate.valid(f"{symbol} by step", step_flags, features)
    gate.states(f"{symbol}: step after the last bar", step_after, after)
    # A trader warms up with the window and goes on from its state, bar by bar or by window.
    half = len(single) // 2
    if half:
        _, _, middle = window.run(single[None, :half], window.zero_state())
        gate.forecast("window from the window's state", window.run(single[None, half:], middle)[0][0], whole[0, half:])
        gate.forecast("step from the window's state", stream(step, single[half:], middle)[0], whole[0, half:])


@dataclass(frozen=True)
class _Gate:
    """What a difference may be, and the worst seen of each comparison in units of the forecast's deviation."""

    std: float
    tolerance: float
    unit: float
    worst: dict[str, float]

    @classmethod
    def of(cls, std: float, scaler: Scaler) -> "_Gate":
        # A model that learned nothing forecasts a constant: its own spread is no measure then, float32's is.
        floor = max(1e-6 * scaler.label_scale, 4 * float(np.finfo(np.float32).eps) * abs(scaler.label_mean))
        return cls(std, max(1e-3 * std, floor), max(std, 1e3 * floor), {})

    def forecast(self, name: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
        difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        sign = (np.sign(found) != np.sign(expected)) & (np.abs(expected) > self.tolerance)
        if not (difference <= self.tolerance).all() or sign.any():
            raise ReleaseError(
                f"{name}: the graph differs from the model by up to {difference.max():.3g}, {int(sign.sum())} sign(s) "
                f"differ; expected at most {self.tolerance:.3g} (1e-3 of the forecast's standard deviation "
                f"{self.std:.3g}); the plugin's to_onnx does not say what its forecast says"
            )
        self.worst[name] = max(self.worst.get(name, 0.0), float(difference.max()) / self.unit)

    def valid(self, name: str, found: NDArray[np.bool_], features: Floats) -> None:
        if (found != np.isfinite(features).all(axis=1)).any():
            raise ReleaseError(f"{name}: the graph's valid flags are wrong; report this as a bug")

    def states(self, name: str, found: dict[str, Singles], expected: dict[str, Singles]) -> None:
        for state, value in expected.items():
            limit = STATE_TOLERANCE * max(float(np.abs(value).max()), 1.0)
            if not (np.abs(found[state] - value) <= limit).all():
                raise ReleaseError(f"{name}: {state} is another than window's; check the plugin's to_onnx")


def windows(scaler: Scaler) -> dict[str, Floats]:
    """Return raw windows of 160 bars: random, constant, extreme, and with bad bars at start, middle and end."""
    generator = np.random.default_rng(20)
    shape = (160, len(scaler.median))
    random = scaler.median + scaler.scale * generator.normal(size=shape)
    bad = random.copy()
    bad[0, 0], bad[1, -1], bad[70:75], bad[-1, 0] = np.nan, np.inf, np.nan, -np.inf
    return {
        "random": random,
        "constant": np.broadcast_to(scaler.median, shape).copy(),
        "extreme": scaler.median + scaler.scale * 100.0 * generator.choice([-1.0, 1.0], size=shape),
        "bad-bar": bad,
    }
