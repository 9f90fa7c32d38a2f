"""Fit per fold, forecast out of sample, final fit: one function for the backtest and the night.

Every fit and forecast runs in a spawned process with one thread, so equal input gives equal bits whatever runs beside
it. The seed of a fit derives from (config seed, cut), never from the fold's number.
"""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from foxflow import dataset, processes, registry, state
from foxflow.bars import TS
from foxflow.dataset import Dataset, Floats, Scaler
from foxflow.errors import DataError, PluginError, plugin_call
from foxflow.model import Epoch, Fitted
from foxflow.provenance import code_sha256
from foxflow.splits import Fold

# Of every model; a model's own follow them.
HISTORY_COLUMNS = ("fold", "epoch", "is_best", "train_loss", "valid_loss", "seconds")
FORECAST_SCHEMA = pl.Schema({"symbol": pl.String(), "ts": TS, "fold": pl.Int32(), "forecast": pl.Float64()})


@dataclass(frozen=True)
class Recipe:
    """What is fitted: a plugin, its options, the config seed and the clip of scaled features."""

    model: str
    options: Mapping[str, object]
    seed: int
    clip: float


@dataclass(frozen=True)
class FoldResult:
    """A fit and its out-of-sample forecasts.

    `rows`: training rows per symbol. `entered`: test bars forecast per symbol, 0 for one that is not warm yet.
    `members`: the symbols that are members at a bar of the test span, as known then; None without a universe table.
    `residual_variance`: mean squared forecast error over the validation tail, in squared label units.
    `checkpoints`: where the fit would have gone on after an interruption; no longer needed once the run is written.
    `state_gap`: how far a re-warmed state's forecasts lie from a carried one's (`state.gap`).
    """

    fold: Fold
    forecasts: pl.DataFrame
    rows: Mapping[str, int]
    entered: Mapping[str, int]
    members: tuple[str, ...] | None
    history: tuple[Epoch, ...]
    best_epoch: int
    residual_variance: float
    scaler: Scaler
    warmup_bars: int
    state_gap: float
    seconds: float
    checkpoints: Path | None

    @property
    def cut(self) -> int:
        """The newest bar that may touch the fit (int64 us)."""
        return self.fold.cut

    @property
    def untrained_loss(self) -> float:
        """The validation loss before anything was learned."""
        return self._valid_loss(0)

    @property
    def best_loss(self) -> float:
        """The validation loss of the kept parameters."""
        return self._valid_loss(self.best_epoch)

    @property
    def has_learned(self) -> bool:
        """Whether the kept parameters beat the untrained model on the validation tail."""
        return self.best_loss < self.untrained_loss

    def _valid_loss(self, number: int) -> float:
        return next(e.valid_loss for e in self.history if e.number == number)


@dataclass(frozen=True)
class FoldEvent:
    """An epoch that ended, or, without `epoch`, a fold that ended; of `n_folds` fits with `planned` epochs."""

    fold: int
    n_folds: int
    epoch: Epoch | None
    planned: int


FoldProgress = Callable[[FoldEvent], None]
SamplesAsOf = Callable[[int], Dataset]
"""Returns the samples as they were known at a cut (int64 us)."""
EpochProgress = Callable[[int, Epoch, int], None]
"""Called with the fold's number, the epoch and the number of epochs planned."""


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
        scaler=scaler,
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
                    "ts": pl.Series(series.ts[keep]).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
                    "fold": np.full(int(keep.sum()), fold.number, dtype=np.int32),
                    "forecast": scaler.unscale(forecast[keep]),
                },
                schema=FORECAST_SCHEMA,
            )
        )
    return pl.concat(frames) if frames else _empty()


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


def require_forecasts(data: Dataset, folds: Sequence[Fold], recipe: Recipe) -> list[str]:
    """Return the symbols that will be forecast.

    Raises
    ------
    DataError
        Where there is none, for no member has lookback and warm-up behind it in any test span.
    """
    warmup_bars = registry.build(recipe.model, recipe.options).warmup_bars
    need = data.lookback - 1 + warmup_bars
    first, last = min(f.test_start for f in folds), max(f.test_end for f in folds)
    found = []
    for s in data.series:
        ready = (s.ts >= first) & (s.ts <= last) & s.valid & data.universe.decides_on(s.symbol, s.ts)
        if ready[need:].any():
            found.append(s.symbol)
    if found:
        return found
    longest = max(len(s) for s in data.series)
    members = " of a member of the recorded universe" if data.universe.is_recorded else ""
    raise DataError(
        f"no symbol has a valid bar{members} in a test span with {need} bars behind it ({data.lookback} of lookback, "
        f"{warmup_bars} of warm-up); the longest has {longest} bars: import more bars, use fewer features or lower "
        "the model's warmup_bars"
    )


def run(
    data: Dataset,
    folds: Sequence[Fold],
    recipe: Recipe,
    *,
    workers: int,
    as_of: SamplesAsOf | None = None,
    folder: Path | None = None,
    checkpoints: Path | None = None,
    progress: FoldProgress | None = None,
) -> list[FoldResult]:
    """Return the result of every fold, in their order, fitted in spawned one-thread processes.

    Parameters
    ----------
    as_of
        What a fold sees, asked for once a fold; None where no bar was ever corrected, so that all see `data`.
    folder
        Where the final fold's fitted model is saved (it must not exist yet).
    checkpoints
        As in `fit_fold`.

    Raises
    ------
    FoxflowError
        The first error of any fold; the processes of the others are stopped.
    """
    # The final fit has the most rows: it starts first, so that it never runs alone at the end.
    order = sorted(folds, key=lambda f: (not f.is_final, f.number))
    waiting, futures = deque(order), dict[Future[FoldResult], Fold]()
    with processes.workers(min(workers, len(order))) as pool:
        try:
            pending: set[Future[FoldResult]] = set()
            while waiting or pending:
                # No more samples are held at a time than the processes will soon ask for: each fold may have its own.
                while waiting and len(pending) <= workers:
                    fold = waiting.popleft()
                    seen = data if as_of is None else as_of(fold.cut)
                    future = pool.submit(_work, seen, fold, recipe, folder if fold.is_final else None, checkpoints)
                    futures[future] = fold
                    pending.add(future)
                done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
                for number, epoch, planned in pool.told():
                    if progress is not None:
                        progress(FoldEvent(number, len(order), epoch, planned))
                for future in done:
                    future.result()
                    if progress is not None:
                        progress(FoldEvent(futures[future].number, len(order), None, 0))
        except BrokenProcessPool as e:
            raise PluginError(
                f"a process that fits model {recipe.model!r} was killed, most likely for memory, or could not start; "
                "lower [experiment] workers or the model's size, and let a script of your own start under "
                'if __name__ == "__main__"'
            ) from e
        results = {fold.number: future.result() for future, fold in futures.items()}
    return [results[fold.number] for fold in folds]


def _work(data: Dataset, fold: Fold, recipe: Recipe, folder: Path | None, checkpoints: Path | None) -> FoldResult:
    def progress(number: int, epoch: Epoch, planned: int) -> None:
        processes.tell((number, epoch, planned))

    return fit_fold(data, fold, recipe, folder=folder, checkpoints=checkpoints, progress=progress)


def history_of(results: Sequence[FoldResult]) -> pl.DataFrame:
    """Return one row an epoch: fold, epoch, losses, seconds and all that the model recorded; `is_best` was kept."""
    rows = [
        {
            **epoch.detail,
            "fold": result.fold.number,
            "epoch": epoch.number,
            "is_best": epoch.number == result.best_epoch,
            "train_loss": epoch.train_loss,
            "valid_loss": epoch.valid_loss,
            "seconds": epoch.seconds,
        }
        for result in results
        for epoch in result.history
    ]
    return pl.DataFrame(rows, infer_schema_length=None).select(*HISTORY_COLUMNS, pl.exclude(HISTORY_COLUMNS))


def forecasts_of(results: Sequence[FoldResult]) -> pl.DataFrame:
    """Return the forecasts of all folds, sorted by (symbol, ts)."""
    return pl.concat([r.forecasts for r in results]).sort("symbol", "ts")


def forecasts_sha256(forecasts: pl.DataFrame) -> str:
    """Return the sha256 over rows by (symbol, ts): symbol, NUL, ts as int64 us, forecast as float64; little-endian."""
    digest = hashlib.sha256()
    rows = forecasts.sort("symbol", "ts").select("symbol", pl.col("ts").dt.timestamp("us"), "forecast")
    for symbol, ts, forecast in rows.iter_rows():
        digest.update(symbol.encode() + b"\0")
        digest.update(np.array([ts], "<i8").tobytes() + np.array([forecast], "<f8").tobytes())
    return digest.hexdigest()
