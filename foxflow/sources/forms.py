"""How a file writes its times: the words for it that readers of text and of numbers share."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["date", "local", "utc"]
# What --date-format accepts beside a pattern of strftime.
ORDERS = ("dmy", "mdy", "ymd")
NUMBERS = ("epoch-s", "epoch-ms", "epoch-us", "epoch-ns", "excel", "day-ms")


@dataclass(frozen=True)
class Form:
    """How a file writes its times.

    Attributes
    ----------
    kind
        What is written: a `date`, a `local` time, or an instant in `utc` (an offset, an epoch).
    date
        The way of a date (a key of the patterns of `dates`), or one of `NUMBERS`, `epoch` (unit by size) or `pattern`.
    order
        Of a numeric date: day, month and year.
    pattern
        A pattern of strftime: the user's, or one that parses this form faster.
    day
        The date of milliseconds since midnight.
    notes
        What was settled by evidence, for the reader of a report.
    """

    kind: Kind
    date: str
    order: str = "ymd"
    pattern: str | None = None
    day: str | None = None
    notes: tuple[str, ...] = ()
