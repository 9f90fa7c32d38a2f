"""What only the user can know of a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Options:
    """What only the user can know of a file.

    Attributes
    ----------
    bar
        Length of a bar, as in `1m`; else that of the smallest gap, where all others are multiples of it.
    symbol
        The symbol of a file that names none, or the one to take from a file of many.
    stamp
        Whether a time is the bar's `open` or its `close`.
    tz
        Zone of times without an offset, and of dates without a calendar.
    calendar
        Exchange whose session a date means, as in `XNYS`; `ts` is that session's close.
    format
        What the file must hold: csv, jsonl, parquet, feather or dbn; else told by its content.
    columns
        Role (ts, clock, open, high, low, close, volume, symbol) to name or position from 1, or all names by position.
    date_format, date
        Order or pattern of dates, or what their numbers count; the day of times that are milliseconds since midnight.
    decimal
        The decimal mark, `.` or `,`.
    scale
        What a written price of 1 is worth, as in 0.0001 where prices are ten-thousandths.
    keep
        Which of two different rows of one symbol and time is right: the `first` or the `last` in the file.
    quarantine
        Whether rows that are no bars are put aside; else they refuse the file.
    """

    bar: str | None = None
    symbol: str | None = None
    stamp: str | None = None
    tz: str | None = None
    calendar: str | None = None
    format: str | None = None
    columns: Mapping[str, str | int] | tuple[str, ...] | None = None
    date_format: str | None = None
    date: str | None = None
    decimal: str | None = None
    scale: float = 1.0
    keep: Literal["first", "last"] | None = None
    quarantine: bool = False
