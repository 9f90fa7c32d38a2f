"""Dates and times as people write them, into calendar dates, local times or instants in UTC."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import time, timedelta

import polars as pl

from foxflow.errors import DataError
from foxflow.sources import epochs
from foxflow.sources.forms import NUMBERS, ORDERS, Form, Kind
from foxflow.sources.table import Table

# The first day of the year 1, counted from 1970.
_FIRST_DAY, _DAY_US = -719_162, 86_400_000_000
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATES = {
    "iso": r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})",
    "numeric": r"(?P<a>\d{1,2})[-/.](?P<b>\d{1,2})[-/.](?P<c>\d{4}|\d{2})",
    "month first": r"(?P<mon>[A-Za-z]{3,9})\.? (?P<d>\d{1,2}),? ?(?P<y>\d{4}|\d{2})",
    "month named": r"(?P<d>\d{1,2})[-/. ]?(?P<mon>[A-Za-z]{3,9})\.?[-/., ]*(?P<y>\d{4}|\d{2})",
    "compact": r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})",
}
_TIME = (
    r"(?:(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2})(?:[.,](?P<f>\d{1,9}))?)?(?: ?(?P<ap>[AaPp])\.?[Mm]\.?)?"
    r"|(?P<H2>\d{2})(?P<M2>\d{2})(?P<S2>\d{2})?)"
)
_OFFSET = r"(?: ?(?P<z>Z|z|UTC|GMT|(?:UTC|GMT)?[+-]\d{2}:?\d{2}|[+-]\d{2}))?"
_WEEKDAY = r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\.?,? "
_OFFSET_END = re.compile(r"(?:Z|[+-]\d{2}:?\d{2})$")
# What most files hold, and Polars parses many times faster than a regular expression.
_FAST = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d", "%Y%m%d")


def settle(table: Table, text: pl.Series, *, declared: str | None, day: str | None) -> Form:
    """Return the one form in which a file's first rows are times.

    `declared`: the user's --date-format; `day`: the date of times that are milliseconds since midnight.

    Raises
    ------
    DataError
        When the rows fit no form, or two that give different dates, naming line and option.
    """
    if declared is not None and declared not in (*ORDERS, *NUMBERS):
        if "%" not in declared:
            table.refuse(
                f"--date-format {declared!r}; expected dmy, mdy, ymd, {', '.join(NUMBERS)}, or a pattern such as "
                "%d.%m.%Y %H:%M"
            )
        return _declared_pattern(table, text, declared)
    plain = _plain(text) if declared is None else None
    if plain is not None:
        return plain
    text = _clean(text)
    numeric = bool(text.str.contains(r"^\d+(\.\d+)?$").all())
    if declared in NUMBERS or (numeric and declared is None):
        found = epochs.settle(table, text, declared=declared, day=day)
        if found is not None:
            return found
    form = _written(table, text, declared)
    text = text.filter(_matches(text, form.date))
    clock, offset, _ = _clock_offset(text, form)
    # Bars that all start at midnight are days, whatever the clock of their offset did between them.
    kind: Kind = "date" if not bool((clock != 0).any()) else "utc" if offset.is_not_null().any() else "local"
    return _fastest(text, replace(form, kind=kind))


def parse(text: pl.Series, form: Form) -> tuple[pl.Series, pl.Series]:
    """Return times (Date; or Datetime in microseconds, UTC where `utc`), and where a text is none of them."""
    if form.pattern is not None:
        values = _patterned(text, form.pattern, form.kind)
        if form.date == "pattern" or not values.null_count():
            return values, values.is_null()
    text = _clean(text)
    if form.date == "epoch" or form.date in NUMBERS:
        return epochs.parse(text, form)
    date, clock, bad = _components(text, form)
    if form.kind == "date":
        if clock.is_not_null().any():
            bad |= clock.fill_null(0) != 0
        return epochs.kept_where(~bad, date), bad
    _, offset, _ = _clock_offset(text, form)
    bad |= clock.is_null() | (offset.is_null() if form.kind == "utc" else offset.is_not_null())
    local = date.cast(pl.Datetime("us")).dt.epoch("us") + clock
    if form.kind == "utc":
        local -= offset.cast(pl.Int64) * 1_000_000
    moments = epochs.kept_where(~bad, local).cast(pl.Datetime("us"))
    return moments.dt.replace_time_zone("UTC") if form.kind == "utc" else moments, bad


def _clean(text: pl.Series) -> pl.Series:
    if text.str.contains(r"[A-Za-z\[]|  |^ | $").any():
        text = text.str.strip_chars().str.replace_all(r"\s+", " ").str.replace(_WEEKDAY, "")
        return text.str.replace(r"\[[A-Za-z_/+-]+\]$", "").str.replace(r"^(.{8,10})[Tt](\d)", "${1} ${2}")
    return text


def _declared_pattern(table: Table, text: pl.Series, pattern: str) -> Form:
    kind: Kind = (
        "utc" if "%z" in pattern or "%s" in pattern else "local" if "%H" in pattern or "%I" in pattern else "date"
    )
    values = _patterned(text, pattern, kind)
    table.refuse_where(values.is_null(), text, "time {} is not written as --date-format " + pattern)
    return Form(kind, "pattern", pattern=pattern)


def _patterned(text: pl.Series, pattern: str, kind: Kind) -> pl.Series:
    ends = _OFFSET_END.search(pattern)
    try:
        if kind == "date":
            return _in_range(text.str.to_date(pattern, strict=False))
        values = text.str.to_datetime(pattern, time_unit="us", strict=False)
    except pl.exceptions.PolarsError as e:
        raise DataError(f"--date-format {pattern!r}: {str(e).splitlines()[0]}") from e
    if kind == "utc" and ends is not None:
        return _in_range((values - _offset_of(ends[0])).dt.replace_time_zone("UTC"))
    return _in_range(values.dt.convert_time_zone("UTC") if kind == "utc" else values)


def _in_range(values: pl.Series) -> pl.Series:
    """Return times without those before the year 1, which no calendar has, though a pattern takes a minus for them."""
    first = values.to_physical().min()
    per_day = 1 if values.dtype == pl.Date else _DAY_US
    if isinstance(first, int) and first < _FIRST_DAY * per_day:
        return epochs.kept_where(values.to_physical() >= _FIRST_DAY * per_day, values)
    return values


def _plain(text: pl.Series) -> Form | None:
    """Return the form of ISO times that fit one pattern; days written with their midnight are left to the rest."""
    text = text.drop_nulls()
    if text.is_empty() or not text.str.contains(r"^\d{4}-\d{2}-\d{2}(?:$|[T ]\d{2}:)").all():
        return None
    found = _OFFSET_END.search(text[0])
    # One offset throughout is part of the pattern: to read it anew in every row takes four times as long.
    ends = "" if found is None else found[0] if text.str.ends_with(found[0]).all() else "%z"
    for pattern in _FAST:
        if "%H" not in pattern and ends:
            continue
        kind: Kind = "date" if "%H" not in pattern else "utc" if ends else "local"
        values = _patterned(text, pattern + ends, kind)
        if values.null_count():
            continue
        if kind == "local" and not bool((values.dt.time() != time(0)).any()):
            return None
        if kind == "utc" and text.str.contains(r"[T ]00:00(:00(\.0+)?)?(Z|[+-]\d{2}:?\d{2})$").all():
            return None
        return Form(kind, "iso", pattern=pattern + ends)
    return None


def _offset_of(text: str) -> timedelta:
    """Return how far an offset such as +05:30 or Z is ahead of UTC."""
    digits = text.replace(":", "")
    if digits == "Z":
        return timedelta(0)
    ahead = timedelta(hours=int(digits[1:3]), minutes=int(digits[3:5]))
    return -ahead if digits[0] == "-" else ahead


def _fastest(text: pl.Series, form: Form) -> Form:
    """Return the form with a pattern that gives the same values faster, where there is one."""
    if form.date not in ("iso", "compact") or form.kind == "utc":
        return form
    right, _ = parse(text, form)
    for pattern in _FAST:
        if ("%H" in pattern) == (form.kind == "local") and _patterned(text, pattern, form.kind).equals(right):
            return replace(form, pattern=pattern)
    return form


def _written(table: Table, text: pl.Series, declared: str | None) -> Form:
    counts = {name: int(_matches(text, name).sum()) for name in _DATES}
    found = max(counts, key=lambda name: counts[name])
    if not counts[found]:
        table.refuse_where(
            pl.repeat(value=True, n=len(text), eager=True),
            text,
            "{} is no date or time that is known here; expected as in 2024-03-14 or 2024-03-14T15:30:00Z, or give its "
            "--date-format, as in %d.%m.%Y",
        )
    known = _matches(text, found)
    table, text = table.filter(known), text.filter(known)
    if found != "numeric":
        if declared is not None and declared != "ymd":
            table.refuse(f"--date-format {declared} has no effect on dates such as {text[0]!r}; leave it out")
        return Form("local", found)
    fits = {order: ~_components(text, Form("local", found, order))[2] for order in ORDERS}
    if declared is not None:
        return Form("local", found, declared)
    right = [order for order, good in fits.items() if good.all()]
    if len(right) == 1:
        others = [fits[o] for o in ORDERS if o not in right]
        rows = pl.select(pl.all_horizontal([~o for o in others])).to_series().arg_true()
        why = f" ({table.unit} {table.numbers[rows[0]]}: {text[rows[0]]!r})" if len(rows) else ""
        name = {"dmy": "day first", "mdy": "month first", "ymd": "year first"}[right[0]]
        _refuse_swapped(table, text, fits, right[0])
        return Form("local", found, right[0], notes=(f"dates are {name}, as the file itself shows{why}",))
    if len(right) > 1:
        table.refuse(
            f"dates such as {text[0]!r} can be read as {' or '.join(right)} in every row, and nothing in the file "
            f"settles it; say it with --date-format {right[0]} or {right[1]}"
        )
    some = {o: good for o, good in fits.items() if good.any()}
    if {"dmy", "mdy"} <= set(some):
        first = (~some["dmy"]).arg_true()[0], (~some["mdy"]).arg_true()[0]
        raise DataError(
            f"{table.file}: {table.unit} {table.numbers[first[1]]} ({text[first[1]]!r}) can only be day first, "
            f"{table.unit} {table.numbers[first[0]]} ({text[first[0]]!r}) only month first; the file mixes both orders"
        )
    # Some row is no date at all; it is told of where rows are parsed.
    return Form("local", found, max(fits, key=lambda order: int(fits[order].sum())))


def _refuse_swapped(table: Table, text: pl.Series, fits: Mapping[str, pl.Series], order: str) -> None:
    """Refuse dates that run in order only where day and month change places in some, as a spreadsheet leaves them."""
    if order not in ("dmy", "mdy"):
        return
    other = {"dmy": "mdy", "mdy": "dmy"}[order]
    form, swapped = Form("local", "numeric", order), Form("local", "numeric", other)
    right = _components(text, form)[0]
    mixed = pl.select(pl.when(fits[other]).then(_components(text, swapped)[0]).otherwise(right)).to_series()
    if mixed.equals(right) or _is_in_order(right) or not _is_in_order(mixed):
        return
    row = (mixed != right).arg_true()[0]
    table.refuse(
        f"{table.unit} {table.numbers[row]} ({text[row]!r}) is out of order read as {order}, as most dates are "
        f"written, and in order as {other}: day and month changed places where both fit, as a spreadsheet does; "
        "export the file again with dates as in 2024-03-14"
    )


def _is_in_order(dates: pl.Series) -> bool:
    return dates.is_sorted() or dates.is_sorted(descending=True)


def _regex(name: str) -> str:
    between = "*" if name == "compact" else "+"
    return rf"^{_DATES[name]}(?:[ T,:-]{between}{_TIME}{_OFFSET})?$"


def _matches(text: pl.Series, name: str) -> pl.Series:
    return text.str.contains(_regex(name)).fill_null(value=False)


def _components(text: pl.Series, form: Form) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Return date, microseconds since midnight (null without a time of day), and where a text is not of the form."""
    parts = text.str.extract_groups(_regex(form.date)).struct.unnest()
    if form.date == "numeric":
        year, month, day = (parts["abc"[form.order.index(x)]] for x in "ymd")
    else:
        year, day = parts["y"], parts["d"]
        month = parts["m"] if "m" in parts.columns else parts["mon"]
    if "mon" in parts.columns:
        short = month.str.to_lowercase().str.slice(0, 3)
        months = short.replace_strict({m: i for i, m in enumerate(_MONTHS, 1)}, default=None, return_dtype=pl.Int32)
    else:
        months = month.cast(pl.Int32, strict=False)
    years = year.cast(pl.Int32, strict=False)
    short_year = year.str.len_chars() == 2
    # Two digits mean 1969 to 2068, as in POSIX.
    years = pl.select(
        pl.when(short_year & (years >= 69)).then(years + 1900).when(short_year).then(years + 2000).otherwise(years)
    ).to_series()
    written = pl.select(pl.format("{}-{}-{}", years, months, day.cast(pl.Int32, strict=False))).to_series()
    date = written.str.to_date("%Y-%m-%d", strict=False)
    clock, _, wrong = _clock_offset(text, form)
    return date, clock, date.is_null() | wrong


def _clock_offset(text: pl.Series, form: Form) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Return microseconds since midnight, the offset from UTC in seconds, and where the time of day is none."""
    parts = text.str.extract_groups(_regex(form.date)).struct.unnest()
    hour, minute, second = (parts[x].fill_null(parts[f"{x}2"]).cast(pl.Int64, strict=False) for x in ("H", "M", "S"))
    half = parts["ap"].str.to_lowercase()
    wrong = half.is_not_null() & ~hour.is_between(1, 12)
    hour = pl.select(
        pl.when(half == "p").then(hour % 12 + 12).when(half == "a").then(hour % 12).otherwise(hour)
    ).to_series()
    digits = parts["f"].fill_null("").str.pad_end(9, "0")
    micro = digits.str.slice(0, 6).cast(pl.Int64, strict=False)
    second = second.fill_null(0)
    # 24:00 is how some write the midnight that ends a day.
    wrong |= (
        (digits.str.slice(6) != "000")
        | (hour > 24)
        | ((hour == 24) & (minute + second > 0))
        | (minute > 59)
        | (second > 59)
    )
    clock = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro
    zone = parts["z"].str.replace(r"^(Z|z|UTC|GMT)$", "+0000").str.replace_all(r"^(UTC|GMT)|:", "")
    sign = pl.select(pl.when(zone.str.starts_with("-")).then(-1).otherwise(1)).to_series()
    hours = zone.str.slice(1, 2).cast(pl.Int32, strict=False)
    minutes = zone.str.slice(3, 2).replace("", "0").cast(pl.Int32, strict=False)
    offset = sign * (hours * 3600 + minutes * 60)
    return clock, offset, wrong.fill_null(value=False)
