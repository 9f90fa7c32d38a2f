"""One symbol's bars as arrays, and the sessions they fall into: what every check reads."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import SupportsInt

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.bars import FINDING_SCHEMA, PRICES, bar_length, instant
from foxflow.check.sessions import Schedule, schedule

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
DAY_US = 86_400_000_000
SEVERITIES = ("severe", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Tape:
    """One symbol's bars in time order.

    Attributes
    ----------
    ts, opened
        `(n_bars,)` int64, microseconds since 1970 in UTC: the instant the bar is complete, and the one it begins. A
        bar of days begins at an unknown time: there `opened` is a microsecond before its end.
    open, high, low, close, volume
        `(n_bars,)`; a volume that is not known is NaN.
    split, dividend
        `(n_bars,)`: recorded events of the bar; 1 and 0 where there is none.
    length
        The bar's length in microseconds.
    """

    symbol: str
    ts: Ints
    opened: Ints
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats
    split: Floats
    dividend: Floats
    length: int
    is_daily: bool
    calendar: str | None

    def __len__(self) -> int:
        return len(self.ts)

    @cached_property
    def schedule(self) -> Schedule:
        """The sessions around the bars."""
        return schedule(self.calendar, instant(int(self.opened[0])).date(), instant(int(self.ts[-1])).date())

    @cached_property
    def session(self) -> Ints:
        """The number of the session each bar belongs to; what trades outside its hours goes to the nearest.

        In `schedule` where the calendar is known, else the days between the hours in which nothing trades.
        """
        if self.is_daily:
            return np.arange(len(self.ts))
        if self.schedule.is_known:
            turns = (self.schedule.close[:-1] + self.schedule.open[1:]) // 2
            return np.searchsorted(turns, self.opened, side="right").astype(np.int64)
        day: Ints = (self.opened - _quiet_hour(self.opened)) // DAY_US
        return day

    @cached_property
    def starts(self) -> Ints:
        """The position of the first bar of each session that has bars."""
        return np.flatnonzero(np.diff(self.session, prepend=-1) != 0)

    def by_session(self) -> "Tape":
        """Return the bars of whole sessions, `ts` being that of each one's first bar."""
        if self.is_daily:
            return self
        starts = self.starts
        last = np.append(starts[1:], len(self)) - 1
        return replace(
            self,
            ts=self.ts[starts],
            opened=self.opened[starts],
            open=self.open[starts],
            high=np.maximum.reduceat(self.high, starts),
            low=np.minimum.reduceat(self.low, starts),
            close=self.close[last],
            volume=np.add.reduceat(self.volume, starts),
            split=np.multiply.reduceat(self.split, starts),
            dividend=np.add.reduceat(self.dividend, starts),
            is_daily=True,
        )

    def select(self, keep: Mask) -> "Tape":
        """Return the bars where `keep` is true."""
        arrays = ("ts", "opened", *PRICES, "volume", "split", "dividend")
        return replace(self, **{name: getattr(self, name)[keep] for name in arrays})

    def day(self, i: SupportsInt) -> str:
        """Return when bar `i` is complete, as a message shows it: the date alone where bars are days."""
        moment = instant(int(self.ts[int(i)]))
        return f"{moment:%Y-%m-%d}" if self.is_daily and self.length >= DAY_US else f"{moment:%Y-%m-%d %H:%M}Z"


def _quiet_hour(opened: Ints) -> int:
    """Return the middle of the longest stretch of hours of the day without a bar, in microseconds; 0 where all have."""
    idle = np.bincount(opened // 3_600_000_000 % 24, minlength=24) == 0
    if not idle.any() or idle.all():
        return 0
    longest, middle = 0, 0
    for hour in range(24):
        n = 0
        while idle[(hour + n) % 24] and n < 24:
            n += 1
        if n > longest:
            longest, middle = n, (2 * hour + n) * 1_800_000_000 % DAY_US
    return middle


def tapes(bars: pl.DataFrame, events: pl.DataFrame, *, bar: str, calendar: str | None) -> Iterator[Tape]:
    """Yield each symbol's tape, one at a time, from bars sorted by (symbol, ts)."""
    length = bar_length(bar) // timedelta(microseconds=1)
    is_daily = bar.endswith("d")
    stops = bars["symbol"].rle_id().search_sorted(pl.Series(range(1, bars["symbol"].n_unique() + 1)))
    recorded = {str(symbol): rows for (symbol,), rows in events.partition_by("symbol", as_dict=True).items()}
    start = 0
    for stop in stops if len(bars) else ():
        rows = bars.slice(start, stop - start)
        start = stop
        symbol = str(rows["symbol"][0])
        ts = rows["ts"].dt.timestamp("us").to_numpy()
        split, dividend = _events(recorded.get(symbol), ts)
        volume = rows["volume"]
        yield Tape(
            symbol=symbol,
            ts=ts,
            opened=ts - (1 if is_daily else length),
            open=rows["open"].to_numpy(),
            high=rows["high"].to_numpy(),
            low=rows["low"].to_numpy(),
            close=rows["close"].to_numpy(),
            volume=(volume.fill_null(float("nan")) if volume.null_count() else volume).to_numpy(),
            split=split,
            dividend=dividend,
            length=length,
            is_daily=is_daily,
            calendar=calendar,
        )


def _events(events: pl.DataFrame | None, ts: Ints) -> tuple[Floats, Floats]:
    split, dividend = np.ones(len(ts)), np.zeros(len(ts))
    for _, when, kind, value in () if events is None else events.iter_rows():
        at = int(np.searchsorted(ts, int(when.timestamp() * 1_000_000)))
        if at < len(ts) and kind == "split":
            split[at] *= value
        elif at < len(ts):
            dividend[at] += value
    return split, dividend


def finding(
    tape: Tape,
    span: tuple[SupportsInt, SupportsInt],
    check: str,
    severity: str,
    detail: str,
    *,
    count: int | None = None,
) -> pl.DataFrame:
    """Return one finding over a span of bars, first and last, of as many bars as lie there or of `count`."""
    first, last = int(span[0]), int(span[1])
    ends = int(tape.ts[first]), int(tape.ts[last])
    return between(tape.symbol, ends, check, severity, detail, count=last - first + 1 if count is None else count)


def between(symbol: str, ends: tuple[int, int], check: str, severity: str, detail: str, *, count: int) -> pl.DataFrame:
    """Return one finding between two times in microseconds, where a bar need not be."""
    assert severity in SEVERITIES
    row = (symbol, instant(ends[0]), instant(ends[1]), check, severity, count, detail)
    return pl.DataFrame([row], schema=FINDING_SCHEMA, orient="row")
