"""From the columns of times to dates, local times or instants: written or typed, a date and a time of day joined."""

import datetime as dt
from collections.abc import Callable

import polars as pl

from foxflow.errors import DataError
from foxflow.sources import dates
from foxflow.sources.chunks import Opened
from foxflow.sources.forms import Form
from foxflow.sources.roles import Roles
from foxflow.sources.table import Table
from foxflow.sources.understanding import Understanding


def times_of(
    table: Table,
    roles: Roles,
    opened: Opened,
    seen: Understanding,
    nothing: pl.Series,
    *,
    date_format: str | None,
    day: str | None,
) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Return the times as they stand in the file, what they are, and where there is none; the first rows settle how."""
    written = table.frame[str(roles.positions["ts"])]
    if isinstance(written.dtype, pl.Date | pl.Datetime) and "clock" not in roles.positions:
        return written, *_typed(table, written, seen)
    time = _time(table, roles, opened, seen)
    if seen.form is None:
        known = ~nothing & has_digits(time)
        if not known.any():
            raise DataError(f"{opened.file} has no row with a time and prices; expected at least one bar")
        seen.example = time.filter(known)[0]
        seen.form = dates.settle(table.filter(known), time.filter(known), declared=date_format, day=day)
    return time, *dates.parse(time, seen.form)


def _time(table: Table, roles: Roles, opened: Opened, seen: Understanding) -> pl.Series:
    """Return the times as text, a date and a time of day joined."""
    text = _written(table, table.frame[str(roles.positions["ts"])])
    if "clock" not in roles.positions:
        return text
    clock = _written(table, table.frame[str(roles.positions["clock"])]).str.strip_chars()
    if len(clock) and clock.str.contains(r"^\d+$").all():
        # Written as a number, 9:30 has lost its leading zero.
        if seen.clock_digits is None:
            seen.clock_digits = _clock_digits(table, roles, opened, clock)
        clock = clock.str.zfill(seen.clock_digits)
        if seen.clock_digits == 2:
            clock += ":00"
        clock = clock.str.replace(r"^(\d\d)(\d\d)(\d\d)?$", "${1}:${2}:${3}").str.strip_suffix(":")
    return text.str.strip_chars().str.replace(r"[ T]00:00(:00(\.0+)?)?$", "") + " " + clock


def _clock_digits(table: Table, roles: Roles, opened: Opened, clock: pl.Series) -> int:
    """Return how many digits a time of day has that is written as a number: hours, or with minutes, or seconds too."""
    longest = int(clock.str.len_chars().max() or 0)  # type: ignore[arg-type]
    if longest > 2:
        return 4 if longest <= 4 else 6
    if bool((clock.cast(pl.Int64) > 24).any()):
        return 4
    name = opened.names[roles.positions["clock"]] if opened.names else ""
    if "hour" not in name.lower():
        table.refuse(f"times of day such as {clock[0]!r} may be hours or minutes; write them as in 09:30")
    return 2


def _typed(table: Table, column: pl.Series, seen: Understanding) -> tuple[pl.Series, pl.Series]:
    """Return times that are typed as such, in microseconds, and where there is none."""
    if column.dtype == pl.Date:
        seen.form = seen.form or Form("date", "typed")
        return column, column.is_null()
    assert isinstance(column.dtype, pl.Datetime)
    us = column.dt.cast_time_unit("us")
    seen.example = seen.example or next((str(v) for v in column.drop_nulls().head(1)), None)
    table.refuse_where(
        (us.dt.cast_time_unit("ns") != column.dt.cast_time_unit("ns")).fill_null(value=False),
        column,
        "time {} is finer than a microsecond; round it",
    )
    if seen.form is None:
        # Bars that all start at midnight, in the zone they are written in, are days.
        midnight = bool((us.dt.time() == dt.time(0)).all())
        seen.form = Form("date" if midnight else "local" if column.dtype.time_zone is None else "utc", "typed")
    if seen.form.kind == "date":
        off = (us.dt.time() != dt.time(0)).fill_null(value=False)
        return pl.select(pl.when(~off).then(us.dt.date())).to_series(), us.is_null() | off
    return us.dt.convert_time_zone("UTC") if seen.form.kind == "utc" else us, us.is_null()


def days_of(
    times: pl.Series, untimely: pl.Series, seen: Understanding, zone: Callable[[], str | None]
) -> tuple[pl.Series, pl.Series]:
    """Return instants as days where all are the midnights of a zone, as daily bars come out of a conversion to UTC."""
    if not seen.has_begun:
        known = times.drop_nulls()
        # A zone has two offsets in a year; more times of day are no midnights.
        if known.dt.time().n_unique() <= 2 and (name := zone()) is not None:
            local = known.dt.convert_time_zone(name)
            if len(local) and (local.dt.time() == dt.time(0)).all():
                seen.day_zone = name
                seen.notes.append(f"times are midnights of {name}, so days")
    seen.has_begun = True
    if seen.day_zone is None:
        return times, untimely
    local = times.dt.convert_time_zone(seen.day_zone)
    off = (local.dt.time() != dt.time(0)).fill_null(value=False)
    return pl.select(pl.when(~off).then(local.dt.date())).to_series(), untimely | off


def _written(table: Table, column: pl.Series) -> pl.Series:
    kind = column.dtype
    if kind == pl.String or kind.is_integer():
        return column.cast(pl.String)
    if kind.is_float():
        whole = (column == column.floor()).fill_null(value=True).all()
        return column.cast(pl.Int64, strict=False).cast(pl.String) if whole else column.cast(pl.String)
    if kind == pl.Date:
        return column.dt.to_string("%Y-%m-%d")
    if kind == pl.Time:
        return column.dt.to_string("%H:%M:%S%.f")
    if not isinstance(kind, pl.Datetime | pl.Categorical | pl.Enum):
        table.refuse(f"the column of times is {kind}; expected dates, times, text or numbers of an epoch")
    return column.dt.to_string("%Y-%m-%d %H:%M:%S%.f") if isinstance(kind, pl.Datetime) else column.cast(pl.String)


def has_digits(text: pl.Series) -> pl.Series:
    """Return where a text has a digit."""
    return text.str.contains(r"\d").fill_null(value=False)
