"""Walk-forward: purge from `label_end`, an embargo, and a proof of both on every fold.

Every so many bars or on a schedule, from all bars before the test span or the newest of them.

Source: López de Prado, Advances in Financial Machine Learning (2018), chapter 7: purging and embargo.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foxflow import bars, cron
from foxflow.config import Schedule, WalkForward
from foxflow.errors import ConfigError, DataError, LeakageError

Times = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Fold:
    """One train and test pair; all times int64 microseconds in UTC, bounds inclusive.

    A training row has `train_start <= ts < valid_start` and `label_end <= train_limit`; a validation row has
    `ts >= valid_start` and `label_end <= valid_limit`; a test row has `test_start <= ts <= test_end`. The final fit is
    a fold whose test span is empty (`test_start > test_end`).
    """

    number: int
    train_start: int
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
        return (ts >= self.train_start) & (ts < self.valid_start) & (label_end <= self.train_limit)

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


def walk_forward(
    times: Times, rule: WalkForward, *, schedule: Schedule | None = None, known: Times | None = None
) -> list[Fold]:
    """Return the folds over the bar times of the universe, the last one as long as the bars last.

    With a schedule a test span starts at the first bar time after a fire at which a bar was known that the retraining
    before had not seen; the fit sees the bars known at the fire. A retraining that another follows before the next bar
    forecasts nothing and is no fold.

    Parameters
    ----------
    times
        `(n_times,)` int64 us in UTC, sorted, unique.
    schedule
        Where `rule.every` is not given.
    known
        `(n_times,)` int64 us: when all bars of a time were known, `times` where None. Only a schedule asks.

    Raises
    ------
    ConfigError
        Where neither or both say when to retrain.
    DataError
        Where the bars are too few for one fold.
    """
    if (rule.every is None) == (schedule is None):
        raise ConfigError("[walk_forward] every and [schedule]; expected exactly one to say when to retrain")
    if len(times) <= rule.train:
        raise DataError(
            f"{len(times)} bar time(s) in the universe; expected more than [walk_forward] train = {rule.train}: "
            "import more bars or lower train"
        )
    if schedule is None:
        assert rule.every is not None
        starts = {start: start for start in range(rule.train, len(times), rule.every)}
    else:
        starts = dict(_retrainings(times, times if known is None else known, rule, schedule))
    if not starts:
        assert schedule is not None
        raise DataError(
            f"[schedule] cron = {schedule.cron!r} in {schedule.time_zone} never fires between the {rule.train} bar "
            f"times of [walk_forward] train and the newest bar at {bars.instant(int(times[-1])):%Y-%m-%d %H:%M}Z; "
            "expected a fire with bars behind and before it: import more bars, lower train or fire more often"
        )
    spans = pairwise((*starts, len(times)))
    return [
        _fold(times, rule, number=number, seen=starts[start], start=start, stop=stop)
        for number, (start, stop) in enumerate(spans)
    ]


def final(times: Times, rule: WalkForward, *, number: int) -> Fold:
    """Return the fold of the final fit: as of the newest bar, nothing tested."""
    return _fold(times, rule, number=number, seen=len(times), start=len(times), stop=len(times))


def _retrainings(times: Times, known: Times, rule: WalkForward, schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Yield where a test span starts and how many bar times its fit sees; of one start the last is meant."""
    # A bar time counts as known when all before it are.
    reached = np.maximum.accumulate(np.maximum(known, times))
    seen = rule.train - 1
    while seen < len(times):
        at = bars.instant(int(reached[seen]))
        # A fire is a whole second.
        fire = int(cron.next_fire(schedule.cron, schedule.time_zone, at=at).timestamp()) * 1_000_000
        start = int(np.searchsorted(times, fire, side="right"))
        if start == len(times):
            return
        seen = int(np.searchsorted(reached, fire, side="right"))
        yield start, seen


def _fold(times: Times, rule: WalkForward, *, number: int, seen: int, start: int, stop: int) -> Fold:
    """Return the fold that tests times `start` to `stop - 1` and was fitted when the first `seen` were known."""
    n_window = min(seen, rule.train) if rule.window == "rolling" else seen
    valid_start = seen - round(n_window * rule.validation)
    train_limit, valid_limit = valid_start - 1 - rule.embargo, min(seen, start - rule.embargo) - 1
    if train_limit < seen - n_window or valid_limit < valid_start:
        raise DataError(
            f"fold {number}: {n_window} bar times before its test leave no room for validation = {rule.validation} and "
            f"embargo = {rule.embargo}; raise [walk_forward] train or lower them"
        )
    return Fold(
        number=number,
        train_start=int(times[seen - n_window]),
        train_limit=int(times[train_limit]),
        valid_start=int(times[valid_start]),
        valid_limit=int(times[valid_limit]),
        test_start=int(times[start]) if start < len(times) else int(times[-1]) + 1,
        test_end=int(times[stop - 1]),
    )
