"""One fold: fit on what was known at its cut, forecast the test span after it."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow import cache, dataset, registry, state
from foxflow.bars import instants
from foxflow.dataset import Dataset, Floats, Scaler
from foxflow.errors import DataError, PluginError, plugin_call
from foxflow.model import Epoch, Fitted, Model
from foxflow.provenance import code_sha256
from foxflow.scratch import scratch
from foxflow.splits import Fold
from foxflow.training.kept import Keys, read_fit, write_fit, write_result
from foxflow.training.results import (
    FORECAST_SCHEMA,
    HISTORY_COLUMNS,
    VALIDATION_SCHEMA,
    Fit,
    FoldResult,
    Recipe,
    fit_seed,
)

EpochProgress = Callable[[int, Epoch, int], None]
"""Called with the fold's number, the epoch and the number of epochs planned."""


Forecaster = Callable[[str, Fitted, Scaler, Dataset], tuple[Floats, ...]]
"""Returns one `(n_bars,)` array of forecasts per series, in label units, of a plugin's fitted model over raw bars.

It forecasts a test span in the model's place, in another process: a function of a module, not one inside a function.
"""


def fit_key(train: Dataset, valid: Dataset, recipe: Recipe, *, seed: int) -> str:
    """Return the sha256 of all that decides a fit: what it reads, its recipe, the code and the versions it runs on."""
    decided = [recipe.model, recipe.options, seed, code_sha256(registry.package(recipe.model))]
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode())
    for data in (train, valid):
        digest.update(dataset.sha256(data))
    return digest.hexdigest()


def fit_fold(
    data: Dataset,
    fold: Fold,
    recipe: Recipe,
    *,
    folder: Path | None,
    checkpoints: Path | None = None,
    kept: Keys | None = None,
    forecaster: Forecaster | None = None,
    progress: EpochProgress,
) -> FoldResult:
    """Return one fold's fit and forecasts.

    Parameters
    ----------
    folder
        Where the fitted model is saved; None saves none.
    checkpoints
        Where fits keep what they need to go on after an interruption, each in a folder named by its `fit_key`.
    kept
        Where the fit is read if it was kept, and where it and the result are kept if not.
    forecaster
        What forecasts the test span; None for the fitted model itself.
    """
    started = time.monotonic()
    model = registry.build(recipe.model, recipe.options)
    found, note = (None, "") if kept is None else _kept_fit(model, recipe, kept)
    if found is None:
        fitted, fit, checkpoints = _fit(
            model, data, fold, recipe, checkpoints=checkpoints, progress=progress, kept=kept
        )
    else:
        (fitted, fit), checkpoints = found, None
    if folder is not None:
        folder.mkdir(parents=True)
        with plugin_call(recipe.model, "save"):
            fitted.save(folder)
    forecasts, counts = _empty(), dict[str, int]()
    if not fold.is_final:
        forecasts, counts = _out_of_sample(fitted, data, fold, name=recipe.model, fit=fit, forecaster=forecaster)
    result = FoldResult(
        **vars(fit),
        fold=fold,
        forecasts=forecasts,
        entered={s.symbol: counts.get(s.symbol, 0) for s in data.series},
        members=_members(data, fold),
        seconds=time.monotonic() - started,
        checkpoints=checkpoints,
        source="computed" if found is None else "cached fit",
        key=None if kept is None else kept.result,
        note=note,
    )
    if kept is not None:
        write_result(kept, result, {} if folder is None else cache.take(folder))
    return result


def _kept_fit(model: Model, recipe: Recipe, kept: Keys) -> tuple[tuple[Fitted, Fit] | None, str]:
    """Return the model and the facts of a kept fit, None where there is none to use, and what was wrong with it."""
    try:
        found = read_fit(kept)
    except DataError as e:
        return None, str(e)
    if found is None:
        return None, ""
    with scratch(kept.folder) as work:
        cache.put(found[1], work)
        with plugin_call(recipe.model, "load"):
            return (model.load(work), found[0]), ""


def _keep_fit(model: Model, fitted: Fitted, fit: Fit, *, valid: Dataset, name: str, kept: Keys) -> None:
    """Keep a fit whose saved model forecasts the very bits of the fitted one, so that it may go on in its place."""
    with scratch(kept.folder) as work:
        with plugin_call(name, "save"):
            fitted.save(work)
        with plugin_call(name, "load"):
            loaded = model.load(work)
        # A model on a GPU is loaded on the CPU, which rounds in another way.
        both = zip(*(_forecast(m, valid, name) for m in (fitted, loaded)), strict=True)
        if all(one.tobytes() == other.tobytes() for one, other in both):
            write_fit(kept, fit, cache.take(work))


def _fit(
    model: Model,
    data: Dataset,
    fold: Fold,
    recipe: Recipe,
    *,
    checkpoints: Path | None,
    progress: EpochProgress,
    kept: Keys | None,
) -> tuple[Fitted, Fit, Path | None]:
    """Return a fold's fitted model, the facts of its fit and where its checkpoints lie."""
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
        _require_history(fitted, recipe.model)
    state_gap = state.require_warm(
        lambda part: _forecast(fitted, part, recipe.model),
        scaler.apply(dataset.seen(data, cut=fold.cut)),
        warmup_bars=model.warmup_bars,
        where=f"model {recipe.model!r}, fold {fold.number}",
    )
    outcome = _forecast(fitted, valid, recipe.model)
    errors = np.concatenate([(f - s.label)[s.weight > 0] for f, s in zip(outcome, valid.series, strict=True)])
    weights = np.concatenate([s.weight[s.weight > 0] for s in valid.series])
    fit = Fit(
        rows={s.symbol: int((s.weight > 0).sum()) for s in pieces.train.series},
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
    )
    if kept is not None:
        _keep_fit(model, fitted, fit, valid=valid, name=recipe.model, kept=kept)
    return fitted, fit, checkpoints


def _require_history(fitted: Fitted, name: str) -> None:
    """Raise PluginError where a model's history lacks an epoch it speaks of, or takes a name that all models have."""
    numbers = {e.number for e in fitted.history}
    if not {0, fitted.best_epoch} <= numbers:
        raise PluginError(
            f"model {name!r} has best_epoch = {fitted.best_epoch} and epochs {sorted(numbers)}; "
            "expected both epoch 0, the untrained model, and the best epoch among them"
        )
    taken = {detail for e in fitted.history for detail in e.detail} & set(HISTORY_COLUMNS)
    if taken:
        raise PluginError(
            f"model {name!r} records {', '.join(sorted(taken))} in an epoch's detail; expected other names "
            "than those every epoch has: rename it"
        )


def _out_of_sample(
    fitted: Fitted, data: Dataset, fold: Fold, *, name: str, fit: Fit, forecaster: Forecaster | None
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the forecasts of the test span, in label units: valid bars of members that are warm; and their number."""
    scaler, warmup_bars = fit.scaler, fit.warmup_bars
    stream = dataset.test_data(data, fold, warmup_bars=warmup_bars)
    if forecaster is None:
        forecasts = tuple(scaler.unscale(f) for f in _forecast(fitted, scaler.apply(stream), name))
    else:
        forecasts = _checked(forecaster(name, fitted, scaler, stream), stream, name)
    if not stream.series:
        return _empty(), {}
    whole = {s.symbol: s.ts for s in data.series}
    columns = []
    for number, (series, forecast) in enumerate(zip(stream.series, forecasts, strict=True)):
        # A symbol enters at its first bar with the features' lookback and the model's warm-up behind it.
        warm = np.searchsorted(whole[series.symbol], series.ts) >= data.lookback - 1 + warmup_bars
        member = data.universe.decides_on(series.symbol, series.ts)
        keep = warm & member & series.valid & fold.tests_on(series.ts)
        columns.append((np.full(int(keep.sum()), number), series.ts[keep], forecast[keep]))
    symbol, ts, forecast = _joined(stream, columns)
    frame = pl.DataFrame(
        {"symbol": symbol, "ts": ts, "fold": np.full(len(ts), fold.number, np.int32), "forecast": forecast},
        schema=FORECAST_SCHEMA,
    )
    return frame, {s.symbol: len(kept[1]) for s, kept in zip(stream.series, columns, strict=True)}


def _joined(data: Dataset, columns: Sequence[tuple[NDArray[Any], ...]]) -> tuple[Any, ...]:
    """Return the columns of all series, one after the other: the symbol of a series' number, ts, and numbers."""
    number, ts, *rest = (np.concatenate(column) for column in zip(*columns, strict=True))
    symbols = pl.Series([s.symbol for s in data.series], dtype=pl.String)
    return symbols.gather(number), instants(ts), *rest


def _validation(raw: Dataset, scaled: Sequence[Floats], scaler: Scaler) -> pl.DataFrame:
    """Return the forecasts and labels of the rows that count (`VALIDATION_SCHEMA`), in label units."""
    columns = []
    for number, (series, forecast) in enumerate(zip(raw.series, scaled, strict=True)):
        counts = series.weight > 0
        values = scaler.unscale(forecast[counts]), series.label[counts]
        columns.append((np.full(int(counts.sum()), number), series.ts[counts], *values))
    symbol, ts, forecasts, labels = _joined(raw, columns)
    return pl.DataFrame({"symbol": symbol, "ts": ts, "forecast": forecasts, "label": labels}, schema=VALIDATION_SCHEMA)


def _members(data: Dataset, fold: Fold) -> tuple[str, ...] | None:
    if not data.universe.is_recorded:
        return None
    return tuple(s.symbol for s in data.series if data.universe.decides_on(s.symbol, s.ts[fold.tests_on(s.ts)]).any())


def _empty() -> pl.DataFrame:
    return pl.DataFrame(schema=FORECAST_SCHEMA)


def _forecast(fitted: Fitted, data: Dataset, name: str) -> tuple[Floats, ...]:
    with plugin_call(name, "forecast"):
        forecasts = fitted.forecast(data)
    return _checked(forecasts, data, name)


def _checked(forecasts: tuple[Floats, ...], data: Dataset, name: str) -> tuple[Floats, ...]:
    """Return the forecasts; raise PluginError where they are not one finite number a bar of every series."""
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
