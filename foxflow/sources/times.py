"""From times as written to `ts`, the UTC instant a bar is complete; nothing is guessed."""

import math
import zoneinfo
from datetime import date, time, timedelta

import polars as pl

from foxflow.bars import bar_length, session_closes
from foxflow.errors import DataError
from foxflow.sources.table import Table

# So many multiples of a longer length are no accident of bars without trades.
ENOUGH_GAPS = 20

_DATE = r"^\d{4}-\d{2}-\d{2}$"
_LOCAL = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$"
_OFFSET = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})$"


def instants(
    table: Table,
    column: str,
    symbols: pl.Series,
    *,
    bar: str,
    stamp: str | None,
    tz: str | None,
    calendar: str | None,
) -> pl.Series:
    """Return each row's `ts`: a session's close for dates, the stamp (plus the bar where it is an open) for times."""
    length = bar_length(bar)
    values = table.frame[column]
    kind = _kind(table, column, values)
    # A daily bar stamped at midnight means its day; taken as an instant, its close would be known a day early.
    dates = kind == "date" or (bar.endswith("d") and _all_at_midnight(values))
    if dates:
        for option, given in (("--stamp", stamp), ("--tz", tz)):
            if given is not None:
                table.refuse(f"{option} {given} has no effect on dates without a time of day; leave it out")
        if bar != "1d":
            table.refuse(f"{column} holds dates without a time of day, which cannot place bars of {bar}; use --bar 1d")
        if calendar is None:
            table.refuse(f"{column} holds dates; name the exchange whose sessions they are, as in --calendar XNYS")
        return _closes(table, column, calendar=calendar)
    if calendar is not None:
        table.refuse(f"--calendar {calendar} has no effect on times of day; leave it out")
    if stamp not in ("open", "close"):
        given = "" if stamp is None else f" (not {stamp!r})"
        table.refuse(f"{column} holds times: say whether they are a bar's open or its close, --stamp open|close{given}")
    utc = _localised(table, values, kind, column, tz=tz)
    _refuse_closer(table, utc, symbols, bar=bar)
    _refuse_wider(table, utc, symbols, bar=bar)
    return utc + length if stamp == "open" else utc


def closes(table: Table, column: str, *, calendar: str) -> pl.Series:
    """Return the close in UTC of the session each row's date names; a time of day is refused."""
    values = table.frame[column]
    if (kind := _kind(table, column, values)) != "date":
        table.refuse(f"{column} holds times ({kind}), the first {str(values[0])!r}; expected dates as in 2024-03-14")
    return _closes(table, column, calendar=calendar)


def _closes(table: Table, column: str, *, calendar: str) -> pl.Series:
    values = table.frame[column]
    if values.dtype == pl.String:
        dates = values.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    else:
        dates = values.dt.date()
    table.refuse_where(dates.is_null(), values, f"{column} {{}}; expected a date as in 2024-03-14")
    try:
        sessions = _sessions(calendar, dates.sort()[0], dates.sort()[-1])
    except DataError as e:
        raise DataError(f"{table.file}: {e}") from e
    ts = pl.DataFrame({"session": dates}).join(sessions, on="session", how="left", maintain_order="left")["ts"]
    table.refuse_where(
        ts.is_null(), dates, f"{{}} is no session of {calendar}; remove the row, or name the calendar of its exchange"
    )
    return ts


def _sessions(calendar: str, first: date, last: date) -> pl.DataFrame:
    """Return the closes of whole years, so that files of one exchange share a calendar: each takes half a second."""
    try:
        return session_closes(calendar, first.replace(month=1, day=1), last.replace(month=12, day=31))
    except DataError:
        # Some calendars end within this year.
        return session_closes(calendar, first, last)


def _kind(table: Table, column: str, values: pl.Series) -> str:
    """Return what the column holds: `date`, `local` time or time with `offset`; one kind throughout."""
    if values.dtype == pl.Date:
        kind = "date"
    elif isinstance(values.dtype, pl.Datetime):
        kind = "local" if values.dtype.time_zone is None else "offset"
    elif values.dtype == pl.String:
        kinds = pl.select(
            pl.when(values.str.contains(_DATE))
            .then(pl.lit("date"))
            .when(values.str.contains(_LOCAL))
            .then(pl.lit("local"))
            .when(values.str.contains(_OFFSET))
            .then(pl.lit("offset"))
        ).to_series()
        table.refuse_where(
            kinds.is_null(), values, f"{column} {{}}; expected an ISO date or time: 2024-03-14 or 2024-03-14T15:30:00Z"
        )
        kind = kinds[0]
        table.refuse_where(
            kinds != kind, values, f"{column} {{}}; expected every row written like the first, {values[0]!r}"
        )
    else:
        table.refuse(f"column {column} is {values.dtype}; expected dates or times")
    table.refuse_where(values.is_null(), values, f"{column} {{}}; expected a date or a time")
    return kind


def _all_at_midnight(values: pl.Series) -> bool:
    if values.dtype == pl.String:
        return bool(values.str.contains(r"^.{10}[T ]00:00(:00(\.0+)?)?(Z|[+-]\d{2}:?\d{2})?$").all())
    return bool((values.dt.time() == time(0)).all()) if isinstance(values.dtype, pl.Datetime) else False


def _localised(table: Table, values: pl.Series, kind: str, column: str, *, tz: str | None) -> pl.Series:
    """Return the instants in UTC; a local time that the zone skips or has twice is refused."""
    if kind == "offset":
        if tz is not None:
            table.refuse(f"--tz {tz} has no effect on times with an offset; leave it out")
        return _parsed(table, values, column, "%Y-%m-%d %H:%M:%S%.f%z").dt.convert_time_zone("UTC")
    if tz is None:
        table.refuse(
            f"{column} holds times without an offset or zone, the first {str(values[0])!r}; name the zone, as in "
            "--tz America/New_York or --tz UTC"
        )
    if tz not in zoneinfo.available_timezones():
        table.refuse(f"--tz {tz!r}; expected a zone name, as in America/New_York or UTC")
    local = _parsed(table, values, column, "%Y-%m-%d %H:%M:%S%.f")
    shown = local.dt.to_string("%Y-%m-%d %H:%M:%S")
    somehow = local.dt.replace_time_zone(tz, ambiguous="earliest", non_existent="null")
    table.refuse_where(
        somehow.is_null(),
        shown,
        f"{{}} does not exist in {tz}, where clocks go forward over it; name another --tz or write times in UTC",
    )
    once = local.dt.replace_time_zone(tz, ambiguous="null", non_existent="null")
    table.refuse_where(
        once.is_null(),
        shown,
        f"{{}} comes twice in the zone {tz}, where clocks go back over it; write times with their offset, or in UTC",
    )
    return once.dt.convert_time_zone("UTC")


def _parsed(table: Table, values: pl.Series, column: str, form: str) -> pl.Series:
    """Return the column as Datetime in microseconds; a finer time is refused."""
    if values.dtype == pl.String:
        text = values.str.replace("T", " ", literal=True).str.replace(r"Z$", "+00:00")
        text = text.str.replace(r"^(.{16})($|[+-])", "${1}:00${2}")
        parsed = text.str.to_datetime(form, time_unit="us", strict=False)
        table.refuse_where(parsed.is_null(), values, f"{column} {{}} is no time of any day; mend it")
        return parsed
    parsed = values.dt.cast_time_unit("us")
    table.refuse_where(
        parsed.dt.cast_time_unit("ns") != values.dt.cast_time_unit("ns"),
        values,
        f"{column} {{}} is finer than a microsecond; round it",
    )
    return parsed


def _refuse_closer(table: Table, utc: pl.Series, symbols: pl.Series, *, bar: str) -> None:
    """Refuse two times of a symbol closer than a bar: the bar length is not the one declared."""
    rows = pl.DataFrame({"symbol": symbols, "utc": utc, "number": table.numbers}).sort("symbol", "utc")
    gap = pl.col("utc").diff().over("symbol", order_by="utc")
    closer = rows.with_columns(gap=gap).filter((pl.col("gap") > timedelta(0)) & (pl.col("gap") < bar_length(bar)))
    if len(closer):
        first = closer.row(0, named=True)
        table.refuse(
            f"{table.unit} {first['number']}, {first['symbol']} at {first['utc']:%Y-%m-%d %H:%M:%S}Z is {first['gap']} "
            f"after the bar before it, less than a bar of {bar}; give the length the bars have with --bar"
        )


def _refuse_wider(table: Table, utc: pl.Series, symbols: pl.Series, *, bar: str) -> None:
    """Refuse times that all lie a whole number of longer bars apart: a close would be known before it is.

    Bars without trades leave gaps, but not so many gaps that are all multiples of one longer length.
    """
    gaps = pl.DataFrame({"symbol": symbols, "utc": utc}).sort("symbol", "utc")
    lengths = gaps.select(pl.col("utc").diff().over("symbol", order_by="utc").dt.total_microseconds()).to_series()
    positive = lengths.filter(lengths > 0)
    step = timedelta(microseconds=math.gcd(*positive.unique().to_list()))
    if len(positive) >= ENOUGH_GAPS and step > bar_length(bar):
        table.refuse(
            f"all {len(positive)} gaps between bars are multiples of {step}, more than a bar of {bar}; "
            "give the length the bars have with --bar"
        )
