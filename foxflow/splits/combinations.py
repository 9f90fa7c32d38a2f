"""Combinatorial purged splits: every choice of test groups, and the backtest paths that they make up together.

Source: López de Prado, Advances in Financial Machine Learning (2018), chapter 12 (purging and embargo: chapter 7).
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foxflow.errors import DataError, LeakageError
from foxflow.splits.folds import Mask, Times

UNKNOWN_END = np.iinfo(np.int64).max
"""The `label_end` of a row whose label has not come."""


@dataclass(frozen=True)
class Combination:
    """One choice of test groups.

    Attributes
    ----------
    number
        Its place among all choices, which come in lexicographic order.
    test_groups
        The groups tested, ascending.
    trains, tests
        `(n_rows,)`: the rows to learn from and those to test on; a row may be neither.
    group
        `(n_rows,)`: the group of each row.
    embargo
        How many bar times after each test span are not learned from.
    """

    number: int
    test_groups: tuple[int, ...]
    trains: Mask
    tests: Mask
    group: NDArray[np.intp]
    embargo: int

    def prove(self, times: Times, label_end: Times) -> None:
        """Raise LeakageError where a training row's [ts, label_end] meets a test span or its embargo.

        A test span runs from a group's first bar time to the newest label_end of its rows, the embargo from there over
        as many bar times. Looked at row by row, not as the split is made.
        """
        if (self.trains & self.tests).any():
            raise LeakageError(
                f"combination {self.number}: a row is both learned from and tested; report this as a bug"
            )
        for group in self.test_groups:
            _prove(self.trains, times, label_end, tested=self.group == group, embargo=self.embargo)


def combinatorial(
    times: Times, label_end: Times, *, n_groups: int, n_test_groups: int, embargo: int
) -> Iterator[Combination]:
    """Return every choice of `n_test_groups` of `n_groups` runs of bar times, proven, in lexicographic order.

    Groups are as equal in bar times as can be, the longer ones first. Not learned from is a row whose [ts, label_end]
    meets a test span, which runs to the newest label_end in it, or whose ts is among the `embargo` bar times after that
    span. Each group is tested in `comb(n_groups - 1, n_test_groups - 1)` choices.

    Parameters
    ----------
    times
        `(n_rows,)` int64, in any order and unit; rows of several symbols share a time.
    label_end
        `(n_rows,)` int64 in the same unit: when the last thing a row's label reads was known; `UNKNOWN_END` where the
        label has not come, of which nothing can be learned.

    Raises
    ------
    DataError
        Where the arrays do not fit, the numbers make no split or a choice leaves nothing to learn from.
    """
    times, label_end = np.asarray(times, dtype=np.int64), np.asarray(label_end, dtype=np.int64)
    if times.ndim != 1 or times.shape != label_end.shape:
        raise DataError(
            f"times of shape {times.shape} and label_end of shape {label_end.shape}; expected one of each a row"
        )
    if (label_end < times).any():
        row = int(np.flatnonzero(label_end < times)[0])
        raise DataError(f"row {row}: label_end = {label_end[row]} lies before its time {times[row]}; mend the labels")
    unique, at = np.unique(times, return_inverse=True)
    if not 2 <= n_groups <= len(unique):
        raise DataError(
            f"n_groups = {n_groups}; expected 2 to {len(unique)}, for there are {len(unique)} bar time(s): choose one"
        )
    if not 1 <= n_test_groups < n_groups:
        raise DataError(f"n_test_groups = {n_test_groups}; expected 1 to {n_groups - 1}, for one must be left to train")
    if embargo < 0:
        raise DataError(f"embargo = {embargo}; expected 0 or more bar times")
    parts = np.array_split(np.arange(len(unique)), n_groups)
    group = np.repeat(np.arange(n_groups), [len(p) for p in parts])[at]
    has_label = label_end != UNKNOWN_END
    # For each group the rows that can be learned from while it is tested.
    apart = np.empty((n_groups, len(times)), dtype=np.bool_)
    for number, part in enumerate(parts):
        ends = label_end[(group == number) & has_label]
        end = int(ends.max(initial=unique[part[-1]]))
        first_after = int(np.searchsorted(unique, end, side="right")) + embargo
        apart[number] = has_label & ((at >= first_after) | (label_end < unique[part[0]]))
        # What is apart from each of several groups is apart from all of them.
        _prove(apart[number], times, label_end, tested=group == number, embargo=embargo)
    return _combinations(apart, group, n_test_groups=n_test_groups, embargo=embargo)


def paths(*, n_groups: int, n_test_groups: int) -> NDArray[np.intp]:
    """Return the backtest paths: `(n_paths, n_groups)`, the number of the combination that tests a group in a path.

    Every group of every combination is in one path, so that there are `comb(n_groups - 1, n_test_groups - 1)` paths,
    each over all groups (section 12.4.1).

    Examples
    --------
    >>> paths(n_groups=3, n_test_groups=2)
    array([[0, 0, 1],
           [1, 2, 2]])
    """
    chosen = list(itertools.combinations(range(n_groups), n_test_groups))
    tested = [[number for number, groups in enumerate(chosen) if group in groups] for group in range(n_groups)]
    return np.array(tested, dtype=np.intp).reshape(n_groups, math.comb(n_groups - 1, n_test_groups - 1)).T


def _combinations(
    apart: NDArray[np.bool_], group: NDArray[np.intp], *, n_test_groups: int, embargo: int
) -> Iterator[Combination]:
    for number, tested in enumerate(itertools.combinations(range(len(apart)), n_test_groups)):
        chosen = list(tested)
        trains = np.logical_and.reduce(apart[chosen], axis=0)
        if not trains.any():
            raise DataError(
                f"testing groups {', '.join(map(str, tested))} of {len(apart)} leaves nothing to learn from after "
                f"purging and an embargo of {embargo}; use more bars, fewer groups or a shorter horizon"
            )
        yield Combination(number, tested, trains, np.isin(group, chosen), group, embargo)


def _prove(trains: Mask, times: Times, label_end: Times, *, tested: Mask, embargo: int) -> None:
    """Raise LeakageError where a row learned from meets the span of the rows tested, or its embargo."""
    end = max(
        int(times[tested].max()),
        int(label_end[tested & (label_end != UNKNOWN_END)].max(initial=np.iinfo(np.int64).min)),
    )
    after = np.unique(times[times > end])[:embargo]
    start, until = int(times[tested].min()), int(after[-1]) if len(after) else end
    met = np.flatnonzero(trains & (times <= until) & (label_end >= start))
    if len(met):
        row = int(met[0])
        raise LeakageError(
            f"a training row from {times[row]} to {label_end[row]} meets a test span from {start} to {until}, the "
            "embargo in it; the purge is wrong: report this as a bug"
        )
