"""Fit per fold, forecast out of sample, final fit: one function for the backtest and the night.

Every fit and forecast runs in a spawned process with one thread, so equal input gives equal bits whatever runs beside
it. The seed of a fit derives from (config seed, cut), never from the fold's number.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from foxflow import processes, registry
from foxflow.dataset import Dataset
from foxflow.errors import DataError, PluginError
from foxflow.model import Epoch
from foxflow.splits import Fold
from foxflow.training.fold import Recipe, fit_fold, fit_key, fit_seed
from foxflow.training.results import (
    FORECAST_SCHEMA,
    HISTORY_COLUMNS,
    VALIDATION_SCHEMA,
    FoldResult,
    forecasts_of,
    forecasts_sha256,
    history_of,
)

__all__ = [
    "FORECAST_SCHEMA",
    "HISTORY_COLUMNS",
    "VALIDATION_SCHEMA",
    "FoldEvent",
    "FoldProgress",
    "FoldResult",
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
