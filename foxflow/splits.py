"""Expanding walk-forward: purge from `label_end`, an embargo, and a proof of both on every fold.

Source: López de Prado, Advances in Financial Machine Learning (2018), chapter 7: purging and embargo.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foxflow.config import WalkForward
from foxflow.errors import DataError, LeakageError

Times = NDArray[np.int64]
Mask = NDArray[np.bool_]


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
    def cut(self) -> int:
        """The newest bar that may touch the fit in any way: the fit is made of what was known then."""
        return self.valid_limit

    @property
    def is_final(self) -> bool:
        """Whether nothing is tested: the fit a release is made of."""
        return self.test_start > self.test_end

    def trains_on(self, ts: Times, label_end: Times) -> Mask:
        """Return which rows the fit may learn from."""
        return (ts < self.valid_start) & (label_end <= self.train_limit)

    def validates_on(self, ts: Times, label_end: Times) -> Mask:
        """Return which rows decide when to stop."""
        return (ts >= self.valid_start) & (label_end <= self.valid_limit)

    def tests_on(self, ts: Times) -> Mask:
        """Return which rows are forecast out of sample."""
        return (ts >= self.test_start) & (ts <= self.test_end)

    def prove(self, *, train_end: int, valid_end: int) -> None:
        """Raise LeakageError where the newest training or validation label ends inside the span after it."""
        for name, end, until in (("train", train_end, self.valid_start), ("valid", valid_end, self.test_start)):
            if end >= until:
                raise LeakageError(
                    f"fold {self.number}: a {name} label ends at {end} us, at or after {until} us where the next span "
                    "starts; the purge is wrong: report this as a bug"
                )


def walk_forward(times: Times, rule: WalkForward) -> list[Fold]:
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


def final(times: Times, rule: WalkForward, *, number: int) -> Fold:
    """Return the fold of the final fit: as of the newest bar, nothing tested."""
    return _fold(times, number, len(times), len(times), rule)


def _fold(times: Times, number: int, start: int, stop: int, rule: WalkForward) -> Fold:
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
