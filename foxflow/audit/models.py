"""Attacks on a fitted model and on its fit: no forecast reads a later bar, another symbol, or the test span."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from foxflow import dataset, registry, training
from foxflow.audit.checks import Check, accuse
from foxflow.audit.corruption import at, first_difference, noise, shown, with_later_features
from foxflow.config import Config
from foxflow.dataset import Dataset, Floats, Scaler, Series
from foxflow.errors import LeakageError, PluginError, plugin_call
from foxflow.model import Fitted
from foxflow.release import graphs, parity
from foxflow.splits import Fold
from foxflow.training import FoldResult, Recipe

# Of the forecasts' standard deviation, where arrays have other shapes: float32 rounds differently in other blocks.
TOLERANCE = 1e-4
# Of ONNX against the model, as a release is held to.
ONNX_TOLERANCE = 1e-3
MOST_ROWS = 256
MOST_SYMBOLS = 3

Change = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Fit:
    """A small fit of the experiment's own model: its fold, the model, its scaler, and the raw samples it saw.

    `result` is None where the fit was refused before it had one.
    """

    fold: Fold
    result: FoldResult | None
    fitted: Fitted
    scaler: Scaler
    data: Dataset


def recipe_of(config: Config) -> Recipe:
    """Return what the experiment fits."""
    return Recipe(config.model.name, config.model.options, config.experiment.seed, config.features.clip)


def fit(config: Config, data: Dataset, fold: Fold) -> Fit:
    """Return the fit of one fold, in this process.

    Raises
    ------
    LeakageError, PluginError
        The second where the model breaks its contract in another way than by reading later bars.
    """
    model = registry.build(config.model.name, config.model.options)
    with tempfile.TemporaryDirectory(prefix="foxflow-audit-") as folder:
        saved = Path(folder) / "model"
        try:
            result = training.fit_fold(data, fold, recipe_of(config), folder=saved, progress=_quiet)
        except PluginError:
            # A model that reads later bars also seems to remember more than it warms up over: it is told which.
            attack_forecasts(config, _bare_fit(config, data, fold))
            raise
        with plugin_call(config.model.name, "load"):
            return Fit(fold, result, model.load(saved), result.scaler, data)


def _bare_fit(config: Config, data: Dataset, fold: Fold) -> Fit:
    model = registry.build(config.model.name, config.model.options)
    pieces = dataset.parts(data, fold, warmup_bars=model.warmup_bars)
    scaler = Scaler.fit(pieces.train, clip=config.features.clip)
    seed = training.fit_seed(config.experiment.seed, fold.cut)
    with plugin_call(config.model.name, f"the fit of fold {fold.number}"):
        fitted = model.fit(scaler.apply(pieces.train), scaler.apply(pieces.valid), seed=seed, progress=_quiet)
    return Fit(fold, None, fitted, scaler, data)


def _quiet(*_: object) -> None:
    return None


def attack_fit(config: Config, made: Fit, bars: pl.DataFrame, build: Callable[[pl.DataFrame], Dataset]) -> list[Check]:
    """Return the checks that a refit withstood, with all bars after the middle of the test span corrupted.

    Scaler, losses and validation forecasts belong to the fit; forecasts up to that middle must not move either.

    Raises
    ------
    LeakageError
        Naming the model, the fold and what moved first.
    """
    times = made.data.series[0].ts
    inside = times[made.fold.tests_on(times)]
    if not len(inside) or made.result is None:
        return []
    middle = int(inside[len(inside) // 2])
    other = training.fit_fold(build(noise(bars, middle)), made.fold, recipe_of(config), folder=None, progress=_quiet)
    one, name = made.result, f"model {config.model.name!r}, fold {made.fold.number}"
    what = f"bars after {shown(middle)}, in its test span, are corrupted"
    _require_same_scaler(name, what, one.scaler, other.scaler)
    if [(e.train_loss, e.valid_loss) for e in one.history] != [(e.train_loss, e.valid_loss) for e in other.history]:
        raise _accused(f"{name}: the losses of the fit are others once {what}", "the same bits", "fit")
    _require_same_frames(name, what, one.validation, other.validation, "validation forecast")
    until = pl.Series(at(one.forecasts) <= middle)
    same = other.forecasts.filter(pl.Series(at(other.forecasts) <= middle))
    _require_same_frames(name, what, one.forecasts.filter(until), same, "forecast")
    return [Check("refit with later bars corrupted", name, 1, f"scaler, losses and {int(until.sum())} forecasts")]


def attack_fitted_scaler(
    config: Config, made: Fit, bars: pl.DataFrame, build: Callable[[pl.DataFrame], Dataset]
) -> list[Check]:
    """Return the check that a fit's scaler withstood all bars after its last training label being others.

    Raises
    ------
    LeakageError
        Naming the fold, where the fit scales by its validation tail or by later bars.
    """
    if made.result is None:
        return []
    until = made.result.train_end
    other = training.fit_fold(build(noise(bars, until)), made.fold, recipe_of(config), folder=None, progress=_quiet)
    name = f"model {config.model.name!r}, fold {made.fold.number}"
    what = f"bars after {shown(until)}, where its last training label ends, are corrupted"
    _require_same_scaler(name, what, made.result.scaler, other.scaler)
    return [Check("refit with validation and later bars corrupted", f"scaler of {name}", 1)]


def _require_same_scaler(name: str, what: str, one: Scaler, other: Scaler) -> None:
    for field in ("median", "scale", "label_mean", "label_scale"):
        if not np.array_equal(getattr(one, field), getattr(other, field)):
            raise accuse(
                f"{name}: the {field} of the scaler that it was fitted with is another once {what}",
                "the same bits, of training rows alone",
                "mend training.fit_fold or Scaler.fit",
            )


def _require_same_frames(name: str, what: str, one: pl.DataFrame, other: pl.DataFrame, kind: str) -> None:
    if not one.select("symbol", "ts").equals(other.select("symbol", "ts")):
        raise _accused(f"{name}: there are other {kind}s once {what}", "the same rows", "fit")
    for (symbol,), rows in one.partition_by("symbol", as_dict=True).items():
        others = other.filter(pl.col("symbol") == symbol)
        found = first_difference([(str(symbol), at(rows), rows["forecast"].to_numpy(), others["forecast"].to_numpy())])
        if found is not None:
            raise _accused(
                f"{name}: the {kind} of {found.when} is {found.before:.9g}, and {found.after:.9g} once {what}",
                "the same number to the bit",
                "fit or forecast",
            )


def attack_forecasts(config: Config, made: Fit) -> list[Check]:
    """Return the checks that the fitted model's forecasts withstood on scaled samples around its cut.

    Raises
    ------
    LeakageError
        Naming the model, the feature where one alone does it, and the first bar.
    """
    data = _around(made)
    name = f"model {config.model.name!r}"
    base = _forecast(config, made.fitted, data)
    again = _forecast(config, made.fitted, data)
    _require_equal(data, base, again, f"{name}: a second call of forecast gives another number", until=None)
    done = [Check("asked twice", name, 1)]
    moments = _moments(data)
    for how, change in _changes().items():
        for moment in moments:
            other = _forecast(config, made.fitted, with_later_features(data, moment, change))
            seen = f"{name} reads later bars: with the features after {shown(moment)} changed ({how})"
            _require_equal(data, base, other, seen, until=moment)
        done.append(Check(f"later features: {how}", name, len(moments)))
    for i, feature in enumerate(data.feature_names):
        moment = moments[i % len(moments)]
        other = _forecast(config, made.fitted, with_later_features(data, moment, _shifted(i)))
        seen = f"{name} reads later bars: with feature {feature!r} after {shown(moment)} shifted by a bar"
        _require_equal(data, base, other, seen, until=moment)
    done.append(Check("one feature shifted by a bar", name, len(data.feature_names)))
    done += _attack_neighbours(config, made.fitted, data, base)
    done += _attack_cuts(config, made.fitted, data, base, moments)
    return done


def _around(made: Fit) -> Dataset:
    """Return the last bars of some symbols up to the end of the test span, scaled and without labels."""
    whole = dataset.seen(made.data, cut=max(made.fold.test_end, made.fold.cut))
    chosen = tuple(s.slice(max(0, len(s) - MOST_ROWS), len(s)) for s in whole.series[:MOST_SYMBOLS])
    return made.scaler.apply(replace(whole, series=chosen))


def _moments(data: Dataset) -> list[int]:
    longest = max(data.series, key=len).ts
    return [int(longest[int(len(longest) * share)]) for share in (0.3, 0.6, 0.9)]


def _changes() -> dict[str, Change]:
    random = np.random.default_rng(7)
    return {
        "noise": lambda rows: rows + random.standard_normal(rows.shape),
        "times 1000": lambda rows: rows * 1000.0,
        "zero": np.zeros_like,
    }


def _shifted(column: int) -> Change:
    def change(rows: Floats) -> Floats:
        moved = rows.copy()
        moved[:-1, column] = rows[1:, column]
        moved[-1:, column] += 1.0
        return moved

    return change


def _attack_neighbours(config: Config, fitted: Fitted, data: Dataset, base: Sequence[Floats]) -> list[Check]:
    """Move an impulse through the symbols: no earlier forecast, and no other symbol's, may move with it."""
    n, name = 0, f"model {config.model.name!r}"
    for number, series in enumerate(data.series):
        for share in (0.0, 0.5, 1.0):
            row = int((len(series) - 1) * share)
            hit = series.features.copy()
            hit[row] += 3.0
            chosen = [replace(s, features=hit) if i == number else s for i, s in enumerate(data.series)]
            other = _forecast(config, fitted, replace(data, series=tuple(chosen)))
            for i, (s, one, two) in enumerate(zip(data.series, base, other, strict=True)):
                stop = row if i == number else len(s)
                found = first_difference([(s.symbol, s.ts[:stop], one[:stop], two[:stop])])
                if found is not None:
                    raise _accused(
                        f"{name}: the forecast of {found.when} moves from {found.before:.9g} to {found.after:.9g} with "
                        f"the bar of {series.symbol} at {shown(int(series.ts[row]))}",
                        "no forecast of another symbol or an earlier bar to move",
                        "forecast",
                    )
            n += 1
    return [Check("impulse at one bar of one symbol", name, n)]


def _attack_cuts(
    config: Config, fitted: Fitted, data: Dataset, base: Sequence[Floats], moments: Sequence[int]
) -> list[Check]:
    """Leave bars and symbols away: what is forecast of the others is the same but for rounding."""
    name = f"model {config.model.name!r}"
    slack = TOLERANCE * max(float(np.concatenate(base).std()), 1e-9)
    for moment in moments:
        stops = [int(np.searchsorted(s.ts, moment, side="right")) for s in data.series]
        kept = [(s.slice(0, stop), b[:stop]) for s, b, stop in zip(data.series, base, stops, strict=True) if stop]
        part = replace(data, series=tuple(s for s, _ in kept))
        seen = f"{name} reads later bars: with the bars after {shown(moment)} cut off"
        _require_equal(part, [b for _, b in kept], _forecast(config, fitted, part), seen, until=None, tolerance=slack)
    for series, forecast in zip(data.series, base, strict=True):
        alone = replace(data, series=(series,))
        seen = f"{name} reads other symbols: alone"
        _require_equal(alone, [forecast], _forecast(config, fitted, alone), seen, until=None, tolerance=slack)
    turned = replace(data, series=data.series[::-1])
    seen = f"{name} reads other symbols: in another order"
    _require_equal(turned, base[::-1], _forecast(config, fitted, turned), seen, until=None, tolerance=slack)
    return [
        Check("later bars cut off", name, len(moments)),
        Check("each symbol alone, and in another order", name, len(data.series) + 1),
    ]


def attack_graphs(config: Config, made: Fit) -> list[Check]:
    """Return the checks that the exported graphs withstood in ONNX Runtime: later bars, batch neighbours, streaming.

    Raises
    ------
    LeakageError
        Naming the graph and the first bar.
    """
    name = f"model {config.model.name!r}"
    with plugin_call(config.model.name, "to_onnx"):
        plain = made.fitted.to_onnx()
        step, window = (
            parity.Graph.load(graphs.released(content, kind, scaler=made.scaler, metadata={}, plugin=config.model.name))
            for kind, content in (("step", plain.step), ("window", plain.window))
        )
    series = max(made.data.series, key=lambda s: int(s.valid.sum()))
    rows = series.features[np.flatnonzero(series.valid)[-128:]].astype(np.float32)
    base = window.run(rows[None], window.zero_state())[0][0]
    half = len(rows) // 2
    bent = rows.copy()
    bent[half:] = bent[half:] * 1000.0 + 1.0
    pair = np.stack([rows, bent])
    together = window.run(pair, window.zero_state(2))[0]
    slack = ONNX_TOLERANCE * max(float(base.std()), 1e-9)
    alone = window.run(bent[None], window.zero_state())[0][0]
    attacks = {
        "window graph, later bars corrupted": (alone[:half], base[:half], 0.0),
        "window graph, beside another window": (together[0], base, slack),
        "step graph, bar by bar": (parity.stream(step, rows)[0], base, slack),
    }
    _, _, state = window.run(rows[None, :half], window.zero_state())
    attacks["window graph, in two pieces"] = (window.run(rows[None, half:], state)[0][0], base[half:], slack)
    done = []
    for attack, (found, expected, tolerance) in attacks.items():
        wrong = np.flatnonzero(~(np.abs(found.astype(np.float64) - expected) <= tolerance))
        if len(wrong):
            i = int(wrong[0])
            raise _accused(
                f"{name}, {attack}: bar {i} of {len(found)} is forecast as {found[i]:.9g} and as {expected[i]:.9g}",
                "one forecast, whatever comes later, beside it, or in how many pieces it is asked for",
                "to_onnx",
            )
        done.append(Check(attack, name, len(found)))
    return done


def _forecast(config: Config, fitted: Fitted, data: Dataset) -> tuple[Floats, ...]:
    with plugin_call(config.model.name, "forecast"):
        return tuple(np.array(f, dtype=np.float64) for f in fitted.forecast(data))


def _rows(
    data: Dataset, one: Sequence[Floats], other: Sequence[Floats], until: int | None
) -> Iterator[tuple[str, Series, Floats, Floats]]:
    for s, before, after in zip(data.series, one, other, strict=True):
        stop = len(s) if until is None else int(np.searchsorted(s.ts, until, side="right"))
        yield s.symbol, s.slice(0, stop), before[:stop], after[:stop]


def _require_equal(
    data: Dataset,
    one: Sequence[Floats],
    other: Sequence[Floats],
    seen: str,
    *,
    until: int | None,
    tolerance: float = 0.0,
) -> None:
    pairs = [(symbol, s.ts, before, after) for symbol, s, before, after in _rows(data, one, other, until)]
    found = first_difference(pairs, tolerance=tolerance)
    if found is not None:
        raise _accused(
            f"{seen}, the forecast of {found.when} is {found.after:.9g} in place of {found.before:.9g}",
            "a forecast of the bars of its own symbol up to its ts",
            "forecast",
        )


def _accused(seen: str, expected: str, part: str) -> LeakageError:
    return accuse(
        seen,
        expected,
        f"mend the plugin's {part}: no statistic over time or batch, no pass backward over bars, no state kept between "
        "calls",
    )
