"""Build, verify and load a release: what a live trader loads. ONNX Runtime lives here."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from foxflow import registry
from foxflow.bars import instant, iso
from foxflow.dataset import Dataset, Floats, Series
from foxflow.errors import DataError, plugin_call
from foxflow.model import CHECKPOINT, Fitted
from foxflow.release import bundle, graphs, parity
from foxflow.release.bundle import Release, find, list_releases, load, verify
from foxflow.release.forecaster import forecast_by_graph
from foxflow.release.kept import keep, name_of, read
from foxflow.release.parity import Graph, Singles, require_runtime
from foxflow.training import FoldResult

__all__ = [
    "Release",
    "build",
    "find",
    "forecast_by_graph",
    "keep",
    "list_releases",
    "load",
    "name_of",
    "read",
    "require_runtime",
    "verify",
]

GOLDEN_BARS = 256


def build(
    fitted: Fitted,
    data: Dataset,
    result: FoldResult,
    *,
    since: int,
    checkpoint: Path,
    config: Mapping[str, Any],
    folder: Path,
) -> Release:
    """Return the release of a final fit under `folder`, verified against the fitted model before it has its name.

    Parameters
    ----------
    data
        The experiment's raw samples.
    result
        The final fit, whose scaler and warm-up go into the release.
    since
        Where the out-of-sample span starts (int64 us): the graphs are compared from there on.
    checkpoint
        The folder `fitted` was saved to.
    config
        The experiment as plain values, stored as `config.toml`.

    Raises
    ------
    PluginError, ReleaseError
        Where the plugin's graphs break the contract, or differ from its forecasts.
    """
    name = config["model"]["name"]
    cut = instant(result.cut)
    about = {
        "schema": str(bundle.SCHEMA),
        "experiment": config["experiment"]["name"],
        "model": name,
        "features": list(data.feature_names),
        "label": data.label_name,
        "horizon_bars": data.horizon,
        "bar": config["data"]["bar"],
        "calendar": config["data"]["calendar"],
        "symbols": [s.symbol for s in data.series],
        "cut": iso(cut),
        "warmup_bars": result.warmup_bars,
        "lookback_bars": data.lookback,
        "state_policy": "carry",
        "dtype": "float32",
    }
    with plugin_call(name, "to_onnx"):
        unscaled = fitted.to_onnx()
        files = {
            f"{kind}.onnx": graphs.released(content, kind, scaler=result.scaler, metadata=about, plugin=name)
            for kind, content in (("step", unscaled.step), ("window", unscaled.window))
        }
    step, window = (Graph.load(files[f"{kind}.onnx"]) for kind in ("step", "window"))
    found = parity.check(fitted, data, result.scaler, since=since, step=step, window=window)
    golden, golden_files = _golden(fitted, data, result, window, found.tolerance)
    files |= golden_files
    if window.past:
        files["state.safetensors"] = _states(data, result, window)
    with plugin_call(name, f"save, which left no {CHECKPOINT}"):
        files[CHECKPOINT] = (checkpoint / CHECKPOINT).read_bytes()
    files["config.toml"] = tomli_w.dumps(config).encode()
    facts = {
        **about,
        "schema": bundle.SCHEMA,
        "model": {"name": name, **_distribution(name), "options": config["model"]},
        "inputs": {
            "features": ["batch", len(data.feature_names)],
            **{k: ["batch", *v] for k, v in window.past.items()},
        },
        "opset": graphs.OPSET,
        "ir_version": graphs.IR_VERSION,
        "training_rows": dict(result.rows),
        "best_epoch": result.best_epoch,
        "has_learned": result.has_learned,
        "scaler": {
            "median": result.scaler.median.tolist(),
            "scale": result.scaler.scale.tolist(),
            "clip": result.scaler.clip,
            "label_mean": result.scaler.label_mean,
            "label_scale": result.scaler.label_scale,
        },
        "forecast_std": found.forecast_std,
        "parity": found.worst,
        "golden": golden,
        "versions": {p: version(p) for p in ("foxflow", "numpy", "onnx", "onnxruntime", "polars")},
    }
    return bundle.write(folder, files, facts, cut=f"{cut:%Y%m%dT%H%M%SZ}")


def _distribution(name: str) -> dict[str, str]:
    found = registry.installed()[name].dist
    return {"distribution": found.name, "version": found.version} if found else {}


def _golden(
    fitted: Fitted, data: Dataset, result: FoldResult, window: Graph, tolerance: float
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return golden vectors: one symbol's newest 256 consecutive valid bars from the zero state, and bad bars apart.

    Forecasts are the fitted float64 model's, rounded to float32 once; states are those after the last bar.
    """
    series, start = _longest_valid_run(data)
    features = series.features[start : start + GOLDEN_BARS].astype(np.float32)
    bad = parity.windows(result.scaler)["bad-bar"].astype(np.float32)
    files: dict[str, bytes] = {}
    for prefix, rows in (("", features), ("bad_", bad)):
        forecast = parity.reference(fitted, data, result.scaler, rows.astype(np.float64))
        files[f"golden/{prefix}features.f32"] = _raw(rows)
        files[f"golden/{prefix}forecast.f32"] = _raw(forecast)
        files[f"golden/{prefix}valid.u8"] = np.isfinite(rows).all(axis=1).astype(np.uint8).tobytes()
    facts: dict[str, Any] = {
        "symbol": series.symbol,
        "first_ts": iso(instant(series.ts[start])),
        "n_bars": len(features),
        "n_bad_bars": len(bad),
        "n_features": features.shape[1],
        "byte_order": "little",
        "tolerance": tolerance,
    }
    if window.past:
        _, _, state = window.run(features[None], window.zero_state())
        flat = np.concatenate([s.ravel() for s in state.values()])
        files["golden/state_after.f32"] = _raw(flat)
        facts["state_order"] = list(state)
        facts["state_tolerance"] = parity.STATE_TOLERANCE * float(max(np.abs(flat).max(), 1.0))
    return facts, files


def _longest_valid_run(data: Dataset) -> tuple[Series, int]:
    """Return the symbol and first bar of the newest 256 consecutive valid bars, or of the longest run there is."""
    best: tuple[int, int, Series, int] | None = None
    for series in data.series:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], series.valid.astype(np.int8), [0]])))
        for first, stop in zip(edges[::2], edges[1::2], strict=True):
            start = max(int(first), int(stop) - GOLDEN_BARS)
            candidate = (int(stop) - start, int(series.ts[start]), series, start)
            if best is None or candidate[:2] > best[:2]:
                best = candidate
    if best is None:
        raise DataError("no bar has all its features, so a release has nothing to prove itself on; import more bars")
    return best[2], best[3]


def _states(data: Dataset, result: FoldResult, window: Graph) -> bytes:
    """Return each symbol's state at the cut: from zero over its last `warmup_bars` bars, in safetensors."""
    from safetensors.numpy import save

    tensors: dict[str, Singles] = {}
    for series in data.series:
        stop = int(np.searchsorted(series.ts, result.cut, side="right"))
        bars = series.features[max(0, stop - result.warmup_bars) : stop].astype(np.float32)
        if len(bars):
            _, _, state = window.run(bars[None], window.zero_state())
            tensors |= {f"{series.symbol}/{name}": np.ascontiguousarray(value) for name, value in state.items()}
    return save(tensors, metadata={"cut": str(result.cut)})


def _raw(values: Floats | Singles) -> bytes:
    return values.astype("<f4").tobytes()
