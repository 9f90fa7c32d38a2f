"""From a file's columns to memberships: symbol, from, to and, where there are any, known_at and delisting_return."""

from datetime import time, timedelta
from pathlib import Path
from typing import Literal

import polars as pl

from foxflow.bars import TS, session_closes
from foxflow.errors import DataError
from foxflow.sources.table import Table
from foxflow.sources.tables import read_table
from foxflow.sources.times import OFFSET, with_offset
from foxflow.universe import UNIVERSE_SCHEMA, require_rows

# No exchange was closed for longer since its calendar begins.
_LONGEST_PAUSE = timedelta(days=40)
_DATE = r"^\d{4}-\d{2}-\d{2}$"
# What a date means: the close before its session, the close of its session, or of the next one where it is none.
_Place = Literal["before", "session", "next"]


def read_universe(path: str | Path, *, calendar: str | None = None) -> pl.DataFrame:
    """Return memberships (`universe.UNIVERSE_SCHEMA`) of a CSV or Parquet file: a row each, or each revision.

    Columns: symbol, `from` and `to` (the first and the last session as a member; an empty `to`: no end is known), and
    if there are any `known_at` and `delisting_return`. A date is a session of the calendar; a time with an offset is
    the instant a membership starts or ends. Without `known_at` a start is known when it begins and an end, with its
    return, when it has come.

    Raises
    ------
    DataError
        As `sources.read`, and as `universe.require_rows`.
    """
    return to_universe(read_table(path), calendar=calendar)


def to_universe(table: Table, *, calendar: str | None) -> pl.DataFrame:
    """Return the memberships of a table, sorted; see `read_universe`."""
    found = {column.strip().lower(): column for column in table.frame.columns}
    for name in ("symbol", "from", "to"):
        if name not in found:
            table.refuse(f"no column {name} among {', '.join(map(repr, table.frame.columns))[:300]}; add it")
    symbols = table.frame[found["symbol"]].cast(pl.String)
    times = [found[name] for name in ("from", "to", "known_at") if name in found]
    for column in times:
        if column != found["to"]:
            empty = table.frame[column].is_null()
            table.refuse_where(empty, table.frame[column], f"{column} {{}}; expected a date or a time in every row")
    since = _instants(table, found["from"], "before", calendar)
    until = _instants(table, found["to"], "session", calendar)
    if calendar is not None and not any(_is_dated(table, column) for column in times):
        table.refuse(f"--calendar {calendar} has no effect on times of day; leave it out")
    gain = _fractions(table, found.get("delisting_return"))
    early = (until <= since).fill_null(value=False)
    table.refuse_where(early, table.frame[found["to"]], "to {} is not after from; mend one of them")
    table.refuse_where(
        gain.is_not_null() & until.is_null(), gain, "delisting_return {} without a to; give the last day as a member"
    )
    rows = pl.DataFrame({"symbol": symbols, "since": since, "until": until, "delisting_return": gain})
    if "known_at" in found:
        rows = rows.with_columns(known_at=_instants(table, found["known_at"], "next", calendar))
        _refuse_repeated(table, rows.select("symbol", "since", "known_at"))
        return require_rows(rows.cast(UNIVERSE_SCHEMA), where=table.file)
    _refuse_repeated(table, rows.select("symbol", "since"))
    # Nobody said when a thing was known: a start when it began; an end, with its return, when it had come.
    nothing = {"until": pl.lit(None, TS), "delisting_return": pl.lit(None, pl.Float64)}
    starts = rows.with_columns(**nothing, known_at=pl.col("since"))
    ends = rows.filter(pl.col("until").is_not_null()).with_columns(known_at=pl.col("until"))
    return require_rows(pl.concat([starts, ends]).cast(UNIVERSE_SCHEMA), where=table.file)


def _refuse_repeated(table: Table, keys: pl.DataFrame) -> None:
    names = " and ".join(keys.columns).replace("since", "from")
    table.refuse_where(keys.is_duplicated(), keys["symbol"], f"{{}} stands in another row with the same {names}")


def _fractions(table: Table, column: str | None) -> pl.Series:
    """Return the delisting returns as fractions, null where the field is empty or there is no such column."""
    if column is None:
        return pl.repeat(None, len(table.frame), dtype=pl.Float64, eager=True)
    raw = table.frame[column]
    values = raw.cast(pl.Float64, strict=False)
    good = (values.is_finite() & (values >= -1)).fill_null(value=False) | raw.is_null()
    expected = "expected a fraction of -1 or more, as in -0.6 for a loss of 60 %"
    table.refuse_where(~good, raw, f"delisting_return {{}}; {expected}")
    return values


def _is_dated(table: Table, column: str) -> bool:
    values = table.frame[column]
    if isinstance(values.dtype, pl.Datetime):
        # As pandas writes dates.
        return values.dtype.time_zone is None and bool((values.dt.time() == time(0)).all())
    return values.dtype == pl.Date or (values.dtype == pl.String and bool(values.str.contains(_DATE).any()))


def _instants(table: Table, column: str, place: _Place, calendar: str | None) -> pl.Series:
    """Return a column of dates, or of times with an offset, as instants in UTC; null where a field is empty."""
    raw = table.frame[column]
    if raw.is_null().all():
        return pl.repeat(None, len(raw), dtype=TS, eager=True)
    if _is_dated(table, column):
        if calendar is None:
            table.refuse(f"{column} holds dates; name the exchange whose sessions they are, as in --calendar XNYS")
        return _closes(table, column, place, calendar)
    if isinstance(raw.dtype, pl.Datetime) and raw.dtype.time_zone is not None:
        return raw.cast(TS)
    what = f"{column} {{}}; expected dates as in 2024-03-14, or times with an offset as in 2024-03-14T20:00:00Z"
    if raw.dtype != pl.String:
        table.refuse(what.format(f"is {raw.dtype}"))
    table.refuse_where(~(raw.str.contains(OFFSET) | raw.is_null()), raw, what)
    parsed = with_offset(raw)
    table.refuse_where(parsed.is_null() & raw.is_not_null(), raw, f"{column} {{}} is no time of any day; mend it")
    return parsed


def _closes(table: Table, column: str, place: _Place, calendar: str) -> pl.Series:
    raw = table.frame[column]
    dates = raw.str.to_date("%Y-%m-%d", strict=False) if raw.dtype == pl.String else raw.cast(pl.Date)
    what = f"{column} {{}}; expected a date as in 2024-03-14, as in the other rows"
    table.refuse_where(dates.is_null() & raw.is_not_null(), raw, what)
    try:
        sessions = _sessions(calendar, dates.drop_nulls().sort())
    except DataError as e:
        raise DataError(f"{table.file}: {e}") from e
    if place == "next":
        at = sessions["session"].search_sorted(dates, side="left")
        ts = sessions["ts"].gather(at.clip(0, len(sessions) - 1).set(at >= len(sessions), None))
        table.refuse_where(ts.is_null(), dates, f"{column} {{}} lies after the last session of {calendar}")
        return ts
    found = pl.DataFrame({"session": dates}).join(sessions, on="session", how="left", maintain_order="left")
    no_session = found["ts"].is_null() & dates.is_not_null()
    table.refuse_where(
        no_session, dates, f"{column} {{}} is no session of {calendar}; give one, or the calendar of its exchange"
    )
    if place == "session":
        return found["ts"]
    table.refuse_where(found["before"].is_null(), dates, f"{column} {{}} is the first session {calendar} knows")
    return found["before"]


def _sessions(calendar: str, dates: pl.Series) -> pl.DataFrame:
    """Return the sessions around sorted dates: `session`, its close `ts`, and the close `before` it."""
    first, last = dates[0], dates[-1]
    for start, end in (
        (first - _LONGEST_PAUSE, last + _LONGEST_PAUSE),
        # Some calendars end, or begin, within these margins.
        (first - _LONGEST_PAUSE, last),
        (first, last + _LONGEST_PAUSE),
    ):
        try:
            closes = session_closes(calendar, start, end)
            break
        except DataError:
            continue
    else:
        closes = session_closes(calendar, first, last)
    return closes.sort("session").with_columns(before=pl.col("ts").shift(1))
