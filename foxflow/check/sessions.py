"""When an exchange trades: the sessions of a calendar as arrays of UTC instants."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from foxflow.bars import exchange, sessions_around

Ints = NDArray[np.int64]
# exchange_calendars has no calendar of foreign exchange: its `24/5` ends on Friday at midnight UTC and knows no Sunday.
# Quotes run from Sunday to Friday, 17:00 in New York.
FX, FX_ZONE, FX_TURN = "24/5", ZoneInfo("America/New_York"), time(17)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Schedule:
    """Sessions in time order: `open`, `close`, `pause`, `resume` in int64 microseconds of UTC; no pause: both = close.

    `day` is the date each is named after, `zone` that of the exchange. `is_known` is false where no calendar was given:
    the sessions are then the days of UTC, and nothing tells whether the exchange was open.
    """

    day: list[date]
    open: Ints
    close: Ints
    pause: Ints
    resume: Ints
    zone: ZoneInfo
    is_known: bool

    def __len__(self) -> int:
        return len(self.day)


@cache
def schedule(calendar: str | None, first: date, last: date) -> Schedule:
    """Return the sessions that touch the days from `first` to `last`, and at least one before and after them.

    Raises
    ------
    DataError
        On a calendar that is not known or does not cover the days.
    """
    if calendar is None or calendar == "24/7":
        days = [first + n * DAY for n in range(-1, (last - first).days + 3)]
        bounds = np.array([_us(datetime.combine(d, time(), UTC)) for d in days])
        return Schedule(
            days[:-1], bounds[:-1], bounds[1:], bounds[1:], bounds[1:], ZoneInfo("UTC"), calendar is not None
        )
    if calendar == FX:
        days = [first + n * DAY for n in range(-4, (last - first).days + 5)]
        days = [d for d in days if d.weekday() < 5]
        opens = np.array([_us(datetime.combine(d - DAY, FX_TURN, FX_ZONE)) for d in days])
        closes = np.array([_us(datetime.combine(d, FX_TURN, FX_ZONE)) for d in days])
        return Schedule(days, opens, closes, closes, closes, FX_ZONE, is_known=True)
    table = sessions_around(calendar, *(datetime.combine(d, time(), UTC) for d in (first - DAY, last + DAY)))
    opens, pause, resume, closes = (
        table[c].fill_null(table["close"]).dt.timestamp("us").to_numpy()
        for c in ("open", "break_start", "break_end", "close")
    )
    # A few days are made at once, years take half a second.
    zone = ZoneInfo(str(exchange(calendar, last, last).tz))
    return Schedule(table["session"].to_list(), opens, closes, pause, resume, zone, is_known=True)


def _us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000
