"""From times as written to `ts`, the UTC instant a bar is complete; nothing is guessed."""

from datetime import date

import polars as pl

from foxflow.bars import session_closes
from foxflow.errors import DataError
from foxflow.sources.table import Table

_DATE = r"^\d{4}-\d{2}-\d{2}$"
_LOCAL = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$"
OFFSET = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})$"


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
        sessions = sessions_of_years(calendar, dates.sort()[0], dates.sort()[-1])
    except DataError as e:
        raise DataError(f"{table.file}: {e}") from e
    ts = pl.DataFrame({"session": dates}).join(sessions, on="session", how="left", maintain_order="left")["ts"]
    table.refuse_where(
        ts.is_null(), dates, f"{{}} is no session of {calendar}; remove the row, or name the calendar of its exchange"
    )
    return ts


def sessions_of_years(calendar: str, first: date, last: date) -> pl.DataFrame:
    """Return the closes of whole years, so that files of one exchange share a calendar: each takes half a second."""
    try:
        return session_closes(calendar, first.replace(month=1, day=1), last.replace(month=12, day=31))
    except DataError:
        # Some calendars end within this year.
        return session_closes(calendar, first, last)


def with_offset(text: pl.Series) -> pl.Series:
    """Return times written in the form of `OFFSET` as instants in UTC; null where one is no time of any day."""
    text = text.str.replace("T", " ", literal=True).str.replace(r"Z$", "+00:00")
    text = text.str.replace(r"^(.{16})($|[+-])", "${1}:00${2}")
    parsed = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", time_unit="us", strict=False)
    return parsed.dt.convert_time_zone("UTC")


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
            .when(values.str.contains(OFFSET))
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
