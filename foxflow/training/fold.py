"""One fold: fit on what was known at its cut, forecast the test span after it."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from foxflow import dataset, registry, state
from foxflow.bars import instants
from foxflow.dataset import Dataset, Floats, Scaler
from foxflow.errors import PluginError, plugin_call
from foxflow.model import Epoch, Fitted
from foxflow.provenance import code_sha256
from foxflow.splits import Fold
from foxflow.training.results import FORECAST_SCHEMA, HISTORY_COLUMNS, VALIDATION_SCHEMA, FoldResult

EpochProgress = Callable[[int, Epoch, int], None]
"""Called with the fold's number, the epoch and the number of epochs planned."""


@dataclass(frozen=True)
class Recipe:
    """What is fitted: a plugin, its options, the config seed and the clip of scaled features."""

    model: str
    options: Mapping[str, object]
    seed: int
    clip: float


def fit_seed(seed: int, cut: int) -> int:
    """Return the seed of the fit with that cut: 63 bits of sha256 over both."""
    digest = hashlib.sha256(f"foxflow {seed} {cut}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def fit_key(train: Dataset, valid: Dataset, recipe: Recipe, *, seed: int) -> str:
    """Return the sha256 of all that decides a fit: what it reads, its recipe, the code and the versions it runs on."""
    decided = [recipe.model, recipe.options, seed, code_sha256(recipe.model)]
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode())
    for data in (train, valid):
        digest.update(json.dumps([data.feature_names, data.label_name, data.horizon, data.lookback]).encode())
        for series in data.series:
            digest.update(f"{series.symbol} {series.features.shape}".encode())
            for array in (series.ts, series.features, series.valid, series.label, series.label_end, series.weight):
                digest.update(array.tobytes())
    return digest.hexdigest()


def fit_fold(
    data: Dataset,
    fold: Fold,
    recipe: Recipe,
    *,
    folder: Path | None,
    checkpoints: Path | None = None,
    progress: EpochProgress,
) -> FoldResult:
    """Return one fold's fit and forecasts.

    Parameters
    ----------
    folder
        Where the fitted model is saved; None saves none.
    checkpoints
        Where fits keep what they need to go on after an interruption, each in a folder named by its `fit_key`.
    """
    started = time.monotonic()
    model = registry.build(recipe.model, recipe.options)
    pieces = dataset.parts(data, fold, warmup_bars=model.warmup_bars)
    scaler = Scaler.fit(pieces.train, clip=recipe.clip)
    train, valid = scaler.apply(pieces.train), scaler.apply(pieces.valid)
    seed = fit_seed(recipe.seed, fold.cut)
    if checkpoints is not None:
        checkpoints = checkpoints / fit_key(train, valid, recipe, seed=seed)
    with plugin_call(recipe.model, f"the fit of fold {fold.number}"):
        fitted = model.fit(
            train,
            valid,
            seed=seed,
            checkpoints=checkpoints,
            progress=lambda epoch, planned: progress(fold.number, epoch, planned),
        )
        numbers = {e.number for e in fitted.history}
        if not {0, fitted.best_epoch} <= numbers:
            raise PluginError(
                f"model {recipe.model!r} has best_epoch = {fitted.best_epoch} and epochs {sorted(numbers)}; "
                "expected both epoch 0, the untrained model, and the best epoch among them"
            )
        taken = {name for e in fitted.history for name in e.detail} & set(HISTORY_COLUMNS)
        if taken:
            raise PluginError(
                f"model {recipe.model!r} records {', '.join(sorted(taken))} in an epoch's detail; expected other names "
                "than those every epoch has: rename it"
            )
    state_gap = state.require_warm(
        lambda part: _forecast(fitted, part, recipe.model),
        scaler.apply(dataset.seen(data, cut=fold.cut)),
        warmup_bars=model.warmup_bars,
        where=f"model {recipe.model!r}, fold {fold.number}",
    )
    if folder is not None:
        folder.mkdir(parents=True)
        with plugin_call(recipe.model, "save"):
            fitted.save(folder)
    outcome = _forecast(fitted, valid, recipe.model)
    errors = np.concatenate([(f - s.label)[s.weight > 0] for f, s in zip(outcome, valid.series, strict=True)])
    weights = np.concatenate([s.weight[s.weight > 0] for s in valid.series])
    forecasts = (
        _empty()
        if fold.is_final
        else _out_of_sample(fitted, data, fold, scaler=scaler, warmup_bars=model.warmup_bars, name=recipe.model)
    )
    counts = dict(forecasts.group_by("symbol").len().iter_rows())
    return FoldResult(
        fold=fold,
        forecasts=forecasts,
        rows={s.symbol: int((s.weight > 0).sum()) for s in pieces.train.series},
        entered={s.symbol: counts.get(s.symbol, 0) for s in data.series},
        members=_members(data, fold),
        history=fitted.history,
        best_epoch=fitted.best_epoch,
        residual_variance=float(np.average(errors**2, weights=weights)) * scaler.label_scale**2,
        validation=_validation(pieces.valid, outcome, scaler),
        train_end=dataset.newest_label_end(pieces.train),
        valid_end=dataset.newest_label_end(pieces.valid),
        scaler=scaler,
        scaler_span=dataset.span(pieces.train),
        warmup_bars=model.warmup_bars,
        state_gap=state_gap,
        seconds=time.monotonic() - started,
        checkpoints=checkpoints,
    )


def _out_of_sample(
    fitted: Fitted, data: Dataset, fold: Fold, *, scaler: Scaler, warmup_bars: int, name: str
) -> pl.DataFrame:
    """Return the forecasts of the test span, in label units: valid bars of members that are warm."""
    stream = dataset.test_data(data, fold, warmup_bars=warmup_bars)
    scaled = _forecast(fitted, scaler.apply(stream), name)
    whole = {s.symbol: s for s in data.series}
    frames = []
    for series, forecast in zip(stream.series, scaled, strict=True):
        # A symbol enters at its first bar with the features' lookback and the model's warm-up behind it.
        warm = np.searchsorted(whole[series.symbol].ts, series.ts) >= data.lookback - 1 + warmup_bars
        member = data.universe.decides_on(series.symbol, series.ts)
        keep = warm & member & series.valid & fold.tests_on(series.ts)
        frames.append(
            pl.DataFrame(
                {
                    "symbol": [series.symbol] * int(keep.sum()),
                    "ts": instants(series.ts[keep]),
                    "fold": np.full(int(keep.sum()), fold.number, dtype=np.int32),
                    "forecast": scaler.unscale(forecast[keep]),
                },
                schema=FORECAST_SCHEMA,
            )
        )
    return pl.concat(frames) if frames else _empty()


def _validation(raw: Dataset, scaled: Sequence[Floats], scaler: Scaler) -> pl.DataFrame:
    """Return the forecasts and labels of the rows that count (`VALIDATION_SCHEMA`), in label units."""
    frames = [
        pl.DataFrame(
            {
                "symbol": [series.symbol] * int((series.weight > 0).sum()),
                "ts": instants(series.ts[series.weight > 0]),
                "forecast": scaler.unscale(forecast[series.weight > 0]),
                "label": series.label[series.weight > 0],
            },
            schema=VALIDATION_SCHEMA,
        )
        for series, forecast in zip(raw.series, scaled, strict=True)
    ]
    return pl.concat(frames)


def _members(data: Dataset, fold: Fold) -> tuple[str, ...] | None:
    if not data.universe.is_recorded:
        return None
    return tuple(s.symbol for s in data.series if data.universe.decides_on(s.symbol, s.ts[fold.tests_on(s.ts)]).any())


def _empty() -> pl.DataFrame:
    return pl.DataFrame(schema=FORECAST_SCHEMA)


def _forecast(fitted: Fitted, data: Dataset, name: str) -> tuple[Floats, ...]:
    with plugin_call(name, "forecast"):
        forecasts = fitted.forecast(data)
    shapes = [np.shape(f) for f in forecasts]
    expected = [(len(s),) for s in data.series]
    if shapes != expected:
        raise PluginError(f"model {name!r} forecast arrays of shape {shapes}; expected {expected}: one per series")
    for forecast, series in zip(forecasts, data.series, strict=True):
        broken = int((~np.isfinite(forecast)).sum())
        if broken:
            raise PluginError(
                f"model {name!r} gave {broken} forecast(s) that are not finite for {series.symbol}; expected a number "
                "for every bar: features are always finite"
            )
    return forecasts
