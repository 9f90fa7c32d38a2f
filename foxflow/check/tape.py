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
        """The number of the session each bar belongs to, in `schedule`; bars outside all sessions go to the next."""
        if self.is_daily:
            return np.arange(len(self.ts))
        return np.searchsorted(self.schedule.close, self.opened, side="right")

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


def tapes(bars: pl.DataFrame, events: pl.DataFrame, *, bar: str, calendar: str | None) -> Iterator[Tape]:
    """Yield each symbol's tape, one at a time, from bars sorted by (symbol, ts)."""
    length = bar_length(bar) // timedelta(microseconds=1)
    is_daily = bar.endswith("d")
    stops = bars["symbol"].rle_id().search_sorted(pl.Series(range(1, bars["symbol"].n_unique() + 1)))
    start = 0
    for stop in stops if len(bars) else ():
        rows = bars.slice(start, stop - start)
        start = stop
        symbol = str(rows["symbol"][0])
        ts = rows["ts"].dt.timestamp("us").to_numpy()
        split, dividend = _events(events.filter(pl.col("symbol") == symbol), ts)
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


def _events(events: pl.DataFrame, ts: Ints) -> tuple[Floats, Floats]:
    split, dividend = np.ones(len(ts)), np.zeros(len(ts))
    for _, when, kind, value in events.iter_rows():
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
    assert severity in SEVERITIES
    first, last = int(span[0]), int(span[1])
    return pl.DataFrame(
        [
            (
                tape.symbol,
                instant(int(tape.ts[first])),
                instant(int(tape.ts[last])),
                check,
                severity,
                last - first + 1 if count is None else count,
                detail,
            )
        ],
        schema=FINDING_SCHEMA,
        orient="row",
    )
