"""Numbers, times and names as a reader wants them; "n/a" for what is not known."""

import html
import math
from collections.abc import Iterable
from itertools import groupby

NOT_KNOWN = "n/a"
# No such number exists.
NONE = "\u2013"
TIMES = "\u00d7"


def known(value: object) -> float | None:
    """Return the value as a finite float, None for anything else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def number(value: object, digits: int = 2, *, sign: str = "-") -> str:
    """Return the number with thousands separated; `sign` "+" shows the sign of a positive one too.

    >>> number(1234.567), number(-0.001), number(float("nan")), number(2, 1, sign="+")
    ('1,234.57', '0.00', 'n/a', '+2.0')
    """
    found = known(value)
    if found is None:
        return NOT_KNOWN
    shown = round(found, digits)
    # A rounded zero has no sign.
    return f"{shown:{sign},.{digits}f}" if shown else f"{0:.{digits}f}"


def percent(fraction: object, digits: int = 1, *, sign: str = "-") -> str:
    """Return the fraction in percent.

    >>> percent(0.328074, sign="+"), percent(None)
    ('+32.8 %', 'n/a')
    """
    found = known(fraction)
    return NOT_KNOWN if found is None else f"{number(100 * found, digits, sign=sign)} %"


def interval(low: object, high: object) -> tuple[str, str]:
    """Return both bounds, with more digits where two would show a bound beside 0 as 0.

    >>> interval(-0.3282, 0.9126), interval(0.0012, 1.5)
    (('-0.33', '0.91'), ('0.0012', '1.5000'))
    """
    bounds = [known(low), known(high)]
    digits = 4 if any(b is not None and 0 < abs(b) < 0.005 for b in bounds) else 2
    return number(low, digits), number(high, digits)


def count(n: int, noun: str) -> str:
    """Return how many there are of a noun.

    >>> count(1, "fold"), count(1200, "fold")
    ('1 fold', '1,200 folds')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def day(instant: object) -> str:
    """Return the date of a time in ISO 8601, as the summary holds it in UTC.

    >>> day("2003-03-07T21:00:00Z")
    '2003-03-07'
    """
    return str(instant)[:10] if instant else NOT_KNOWN


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers with runs of three or more joined.

    >>> ranges([1, 2, 3, 4, 6, 8, 9])
    '1-4, 6, 8, 9'
    """
    runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def names(values: Iterable[object], *, limit: int) -> str:
    """Return the first `limit` names, and how many more there are.

    >>> names(["A", "B", "C"], limit=2)
    'A, B and 1 more'
    """
    every = [str(v) for v in values]
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(every[:limit]) + more


def escape(value: object) -> str:
    """Return the value safe inside HTML text, a quoted attribute or a Plotly label."""
    return html.escape(str(value), quote=True)
