"""Expanding walk-forward: purge from `label_end`, an embargo, and a proof of both on every fold.

Source: López de Prado, Advances in Financial Machine Learning (2018), chapter 7: purging and embargo.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foxflow.config import WalkForward
from foxflow.dataset import UNKNOWN_END, Dataset, Series
from foxflow.errors import DataError, LeakageError


@dataclass(frozen=True)
class Fold:
    """One train and test pair; all times int64 microseconds in UTC, bounds inclusive.

    A training row has `ts < valid_start` and `label_end <= train_limit`; a validation row has `ts >= valid_start`
    and `label_end <= valid_limit`; a test row has `test_start <= ts <= test_end`. The final fit is a fold whose test
    span is empty (`test_start > test_end`).
    """

    number: int
    train_limit: int
    valid_start: int
    valid_limit: int
    test_start: int
    test_end: int

    @property
    def is_final(self) -> bool:
        """Whether nothing is tested: the fit a release is made of."""
        return self.test_start > self.test_end


def walk_forward(times: NDArray[np.int64], rule: WalkForward) -> list[Fold]:
    """Return the folds over the bar times of the universe (sorted, unique), the last one as long as the bars last."""
    starts = range(rule.train, len(times), rule.every)
    if not starts:
        raise DataError(
            f"{len(times)} bar time(s) in the universe; expected more than [walk_forward] train = {rule.train}: "
            "import more bars or lower train"
        )
    return [
        _fold(times, number, start, min(start + rule.every, len(times)), rule) for number, start in enumerate(starts)
    ]


def final(times: NDArray[np.int64], rule: WalkForward, *, number: int) -> Fold:
    """Return the fold of the final fit: as of the newest bar, nothing tested."""
    return _fold(times, number, len(times), len(times), rule)


def _fold(times: NDArray[np.int64], number: int, start: int, stop: int, rule: WalkForward) -> Fold:
    valid_start = start - round(start * rule.validation)
    train_limit, valid_limit = valid_start - 1 - rule.embargo, start - 1 - rule.embargo
    if train_limit < 0 or valid_limit < valid_start:
        raise DataError(
            f"fold {number}: {start} bar times before its test leave no room for validation = {rule.validation} and "
            f"embargo = {rule.embargo}; raise [walk_forward] train or lower them"
        )
    return Fold(
        number=number,
        train_limit=int(times[train_limit]),
        valid_start=int(times[valid_start]),
        valid_limit=int(times[valid_limit]),
        test_start=int(times[start]) if start < len(times) else int(times[-1]) + 1,
        test_end=int(times[stop - 1]),
    )


def bar_times(data: Dataset) -> NDArray[np.int64]:
    """Return the bar times of the universe: sorted, unique, int64 microseconds."""
    return np.unique(np.concatenate([s.ts for s in data.series]))


@dataclass(frozen=True)
class Parts:
    """A fold's data, raw: `train` and `valid` with weights, and the `cut` (newest bar that touches the fit)."""

    train: Dataset
    valid: Dataset
    cut: int


def parts(data: Dataset, fold: Fold, *, warmup_bars: int) -> Parts:
    """Return the training and validation data of a fold, proven free of the test span.

    Rows count equally per date, then per symbol; a row that is not valid or whose label is not known counts for
    nothing. `valid` has `warmup_bars` bars of context in front of each symbol's first validation row, features only.

    Raises
    ------
    DataError
        Where nothing is left to train or validate on.
    LeakageError
        Where a label reaches into the span after it.
    """
    train = _counted(data, fold, lambda s: (s.ts < fold.valid_start) & (s.label_end <= fold.train_limit))
    valid = _counted(data, fold, lambda s: (s.ts >= fold.valid_start) & (s.label_end <= fold.valid_limit))
    newest = {name: max(int(s.label_end[s.weight > 0].max()) for s in part.series if s.weight.any())
              for name, part in (("train", train), ("valid", valid))}
    for name, until in (("train", fold.valid_start), ("valid", fold.test_start)):
        if newest[name] >= until:
            raise LeakageError(
                f"fold {fold.number}: a {name} label ends at {newest[name]} us, at or after {until} us where the next "
                "span starts; the purge is wrong: report this as a bug"
            )
    cut = max(newest.values())
    return Parts(
        train=_clipped(train, lambda s: (0, int(np.searchsorted(s.ts, fold.valid_start)))),
        valid=_clipped(valid, lambda s: _with_context(s, fold.valid_start, cut, warmup_bars)),
        cut=cut,
    )


def test_data(data: Dataset, fold: Fold, *, cut: int, warmup_bars: int) -> Dataset:
    """Return the bars a fold's model streams over, without labels: `warmup_bars` up to the cut, then to the test's end.

    A symbol with fewer bars starts at its first one. The core keeps the forecasts of the test span only.
    """
    blank = replace(data, series=tuple(_without_label(s) for s in data.series))
    return _clipped(blank, lambda s: _with_context(s, cut + 1, fold.test_end, warmup_bars))


def _without_label(series: Series) -> Series:
    unknown_end = np.full(len(series), UNKNOWN_END)
    return replace(series, label=np.full(len(series), np.nan), label_end=unknown_end, weight=np.zeros(len(series)))


def _with_context(series: Series, start: int, end: int, context: int) -> tuple[int, int]:
    first = int(np.searchsorted(series.ts, start))
    return max(0, first - context), int(np.searchsorted(series.ts, end, side="right"))


def _clipped(data: Dataset, bounds: Callable[[Series], tuple[int, int]]) -> Dataset:
    """Return the data without the bars outside `bounds` and without the symbols that then have none."""
    series = tuple(s.slice(*bounds(s)) for s in data.series)
    return replace(data, series=tuple(s for s in series if len(s)))


def _counted(data: Dataset, fold: Fold, chosen: Callable[[Series], NDArray[np.bool_]]) -> Dataset:
    masks = [chosen(s) & s.valid & np.isfinite(s.label) for s in data.series]
    times, counts = np.unique(np.concatenate([s.ts[m] for s, m in zip(data.series, masks, strict=True)]), return_counts=True)
    if not len(times):
        raise DataError(
            f"fold {fold.number}: no bar of {', '.join(s.symbol for s in data.series)} has its {data.lookback} bars of "
            f"lookback and a known label inside the training or validation span; import more bars or raise "
            "[walk_forward] train"
        )
    series = []
    for s, mask in zip(data.series, masks, strict=True):
        weight = np.zeros(len(s))
        weight[mask] = counts.sum() / len(times) / counts[np.searchsorted(times, s.ts[mask])]
        # A row that does not count keeps its features as context but shows no label.
        series.append(
            replace(
                s,
                weight=weight,
                label=np.where(mask, s.label, np.nan),
                label_end=np.where(mask, s.label_end, UNKNOWN_END),
            )
        )
    return replace(data, series=tuple(series))
