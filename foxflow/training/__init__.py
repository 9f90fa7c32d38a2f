"""Fit per fold, forecast out of sample, final fit: one function for the backtest and the night.

Every fit and forecast runs in a spawned process with one thread, so equal input gives equal bits whatever runs beside
it. The seed of a fit derives from (config seed, cut), never from the fold's number.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from foxflow import cache, processes, registry
from foxflow.dataset import Dataset
from foxflow.errors import DataError, PluginError
from foxflow.model import Epoch
from foxflow.provenance import code_of
from foxflow.scratch import scratch
from foxflow.splits import Fold
from foxflow.training.fold import Forecaster, fit_fold, fit_key
from foxflow.training.kept import Keys, keys, read_result
from foxflow.training.results import (
    FORECAST_SCHEMA,
    HISTORY_COLUMNS,
    VALIDATION_SCHEMA,
    Fit,
    Fits,
    FoldResult,
    Recipe,
    fit_seed,
    forecasts_of,
    forecasts_sha256,
    history_of,
)
from foxflow.training.shared import Shared, Shelf, read

__all__ = [
    "FORECAST_SCHEMA",
    "HISTORY_COLUMNS",
    "VALIDATION_SCHEMA",
    "Fit",
    "Fits",
    "FoldEvent",
    "FoldProgress",
    "FoldResult",
    "Forecaster",
    "Recipe",
    "SamplesAsOf",
    "fit_fold",
    "fit_key",
    "fit_seed",
    "forecasts_of",
    "forecasts_sha256",
    "history_of",
    "require_forecasts",
    "run",
]


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
    kept: Path | None = None,
    forecaster: Forecaster | None = None,
    pool: processes.Workers | None = None,
    progress: FoldProgress | None = None,
) -> list[FoldResult]:
    """Return the result of every fold, in their order, fitted in spawned one-thread processes.

    Parameters
    ----------
    as_of
        What a fold sees, asked for once a fold; None where no bar was ever corrected, so that all see `data`.
    folder
        Where the final fold's fitted model is saved (it must not exist yet).
    checkpoints, forecaster
        As in `fit_fold`.
    kept
        The folder of the cache, where folds that were computed before are read, and new ones kept; None for none. No
        process is started where all are read.
    pool
        `workers` processes that are there already, and go on after this; None starts some and ends them.

    Raises
    ------
    FoxflowError
        The first error of any fold; the processes of the others are stopped.
    """
    # The final fit has the most rows: it starts first, so that it never runs alone at the end.
    order = sorted(folds, key=lambda f: (not f.is_final, f.number))
    if kept is not None:
        cache.forget(kept)
    results: dict[int, FoldResult] = {}

    def ended(fold: Fold, result: FoldResult) -> None:
        results[fold.number] = result
        if progress is not None:
            progress(FoldEvent(fold.number, len(order), None, 0))

    work = Work(recipe, folder, checkpoints, kept, forecaster)
    missing = _missing(order, work, as_of or (lambda _: data), ended)
    first = next(missing, None)
    if first is not None:
        # Nothing is started before there is work for it.
        n = workers if pool is not None else min(workers, len(order))
        with contextlib.nullcontext(pool) if pool is not None else processes.workers(n) as there:
            _compute(chain([first], missing), work, n, ended, progress, pool=there, n_folds=len(order))
    return [results[fold.number] for fold in folds]


@dataclass(frozen=True)
class Work:
    """What all folds of a walk-forward share: parameters of `fit_fold`, and the folder of the cache."""

    recipe: Recipe
    folder: Path | None
    checkpoints: Path | None
    kept: Path | None
    forecaster: Forecaster | None

    def folder_of(self, fold: Fold) -> Path | None:
        """Return where the model of a fold is saved."""
        return self.folder if fold.is_final else None


@dataclass(frozen=True)
class Missing:
    """A fold to compute: what it sees, what names it in the cache, and what was wrong with what was kept of it."""

    fold: Fold
    data: Dataset
    keys: Keys | None
    note: str


Ended = Callable[[Fold, FoldResult], None]


def _missing(order: Sequence[Fold], work: Work, as_of: SamplesAsOf, ended: Ended) -> Iterator[Missing]:
    """Yield the folds that are not kept, each asked for when it is due; the others end at once."""
    model = registry.build(work.recipe.model, work.recipe.options)
    how = work.forecaster
    name = "model" if how is None else f"{how.__module__}.{how.__qualname__}"
    code = None if work.kept is None else code_of(registry.package(work.recipe.model))
    for fold in order:
        seen = as_of(fold.cut)
        if work.kept is None or code is None:
            yield Missing(fold, seen, None, "")
            continue
        named = keys(seen, fold, work.recipe, model=model, folder=work.kept, code=code, forecaster=name)
        note, found = "", None
        try:
            found = read_result(named, fold)
        except DataError as e:
            note = str(e)
        if found is None:
            yield Missing(fold, seen, named, note)
            continue
        result, model_files = found
        target = work.folder_of(fold)
        if target is not None:
            cache.put(model_files, target)
        ended(fold, result)


def _compute(
    missing: Iterator[Missing],
    work: Work,
    n: int,
    ended: Ended,
    progress: FoldProgress | None,
    *,
    pool: processes.Workers,
    n_folds: int,
) -> None:
    """Compute folds in the `n` processes of a pool."""
    temporary = Path(tempfile.gettempdir()) / f"foxflow-{os.getuid()}"
    # What an earlier walk-forward in these processes told last.
    list(pool.told())
    with scratch(work.kept or temporary) as folder:
        shelf, lent = Shelf(folder), dict[Future[FoldResult], tuple[Fold, Shared]]()
        try:
            while True:
                # No more samples are held at a time than the processes will soon ask for: each fold may have its own.
                while len(lent) <= n and (due := next(missing, None)) is not None:
                    shared = shelf.lend(due.data)
                    lent[pool.submit(_work, shared, due.fold, due.keys, due.note, work)] = due.fold, shared
                if not lent:
                    return
                done, _ = wait(lent, timeout=0.1, return_when=FIRST_COMPLETED)
                for number, epoch, planned in pool.told():
                    if progress is not None:
                        progress(FoldEvent(number, n_folds, epoch, planned))
                for future in done:
                    fold, shared = lent.pop(future)
                    result = future.result()
                    shelf.returned(shared)
                    ended(fold, result)
        except BrokenProcessPool as e:
            raise PluginError(
                f"a process that fits model {work.recipe.model!r} was killed, most likely for memory, or could not "
                "start; lower [experiment] workers or the model's size, and let a script of your own start under "
                'if __name__ == "__main__"'
            ) from e


def _work(samples: Shared, fold: Fold, named: Keys | None, note: str, work: Work) -> FoldResult:
    def progress(number: int, epoch: Epoch, planned: int) -> None:
        processes.tell((number, epoch, planned))

    result = fit_fold(
        read(samples),
        fold,
        work.recipe,
        folder=work.folder_of(fold),
        checkpoints=work.checkpoints,
        kept=named,
        forecaster=work.forecaster,
        progress=progress,
    )
    return replace(result, note=" ".join(n for n in (note, result.note) if n))
