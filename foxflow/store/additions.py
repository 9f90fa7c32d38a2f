"""Bars into the store: add what is new, count what stands there, and settle what differs under a named rule."""
# ruff: noqa: S608 - the only names put into SQL are constants of this package; values are parameters.

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import duckdb
import polars as pl

from foxflow.bars import BAR_SCHEMA, require
from foxflow.errors import DataError
from foxflow.store.bars import BARS, bar_name
from foxflow.store.connection import Transaction, within
from foxflow.store.tables import NO_DELAY, Counts, aware, conflict_of, equal, nonnegative, utc

Conflict = Literal["refuse", "keep", "correct"]
CONFLICTS = ("refuse", "keep", "correct")
_COLUMNS = ", ".join(BAR_SCHEMA)
_ROW = "{" + ", ".join(f"'{v}': h.{v}" for v in BARS.values) + "}"
_SOUND = (
    "coalesce(isfinite(open) and isfinite(high) and isfinite(low) and isfinite(close) "
    "and high >= greatest(open, low, close) and low <= least(open, close), false) "
    "and coalesce(isfinite(volume) and volume >= 0, true) and symbol is not null and ts is not null"
)
_IN_ORDER = "before is null or before < symbol or (before = symbol and before_ts < ts)"


def write_bars(
    store: str | Path | Transaction,
    bars: pl.DataFrame | Path,
    *,
    bar: str,
    delay: timedelta = NO_DELAY,
    where: str = "bars to write",
    conflict: Conflict = "refuse",
    known_at: datetime | None = None,
) -> Counts:
    """Add bars known `delay` after their `ts`, all or none; skip those already there.

    Parameters
    ----------
    bars
        Raw, `BAR_SCHEMA`; or a Parquet file of them, ascending by (symbol, ts), which is never held in memory whole.
    where
        What a message calls them: the file they come from.
    conflict
        What to do with a bar that differs from the stored one: `refuse` the whole write, `keep` the stored values, or
        `correct` them by a revision known from `known_at` on, which only that needs.

    Raises
    ------
    DataError
        On bars that break an invariant, or a conflict that is refused: naming the count and the first.
    """
    name, delay, known_at = bar_name(bar), nonnegative(delay), _known_at(conflict, known_at)
    rows = bars if isinstance(bars, Path) else require(bars, where=where)
    with within(store) as inside, _incoming(inside.connection, rows, where) as spans:
        return _write(inside, spans, bar=name, delay=delay, where=where, conflict=conflict, known_at=known_at)


def correct_bars(store: str | Path | Transaction, bars: pl.DataFrame, *, bar: str, known_at: datetime) -> Counts:
    """Add other values for stored bars, as learned at `known_at`; skip bars whose newest values are the same.

    Raises
    ------
    DataError
        When a bar is not stored, or `known_at` is not after that of its stored values.
    """
    name, where, learned = bar_name(bar), "bars to correct", aware(known_at, "known_at")
    rows = require(bars, where=where)
    with within(store) as inside, _incoming(inside.connection, rows, where) as spans:
        absent = inside.connection.sql(
            "select symbol, ts, count(*) over () as absent from incoming "
            "anti join (select symbol, ts from bars where bar = $bar) using (symbol, ts) order by symbol, ts limit 1",
            params={"bar": name},
        ).fetchall()
        if absent:
            symbol, ts, count = absent[0]
            raise DataError(
                f"{inside.path}: {count} of {len(rows)} correction(s) as of {utc(learned)} refused, first {symbol} "
                f"{name} at {utc(ts)}: no such bar is stored; import it first"
            )
        return _write(inside, spans, bar=name, delay=NO_DELAY, where=where, conflict="correct", known_at=learned)


def _known_at(conflict: str, known_at: datetime | None) -> datetime | None:
    if conflict not in CONFLICTS:
        raise DataError(f"conflict = {conflict!r}; expected {', '.join(CONFLICTS)}")
    if (conflict == "correct") == (known_at is None):
        raise DataError(
            f"known_at = {known_at} with conflict = {conflict!r}; expected a time exactly where bars are corrected"
        )
    return None if known_at is None else aware(known_at, "known_at")


@contextmanager
def _incoming(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame | Path, where: str) -> Iterator[list[tuple[Any, ...]]]:
    """Give SQL the rows as `incoming` and their `spans`; yield (symbol, first ts, last ts, rows) of each symbol."""
    if isinstance(rows, Path):
        con.execute(f"create or replace temp view incoming as {_scan(rows, where)}")
    else:
        con.register("incoming", rows)
    try:
        # One pass over the rows in the order they stand in; a lag without an order needs no memory.
        con.execute(
            "create or replace temp table spans as select symbol, min(ts) as first_ts, max(ts) as last_ts, "
            f"count(*) as rows, count(*) filter (not ({_SOUND})) as unsound, "
            f"count(*) filter (not ({_IN_ORDER})) as stray "
            "from (select *, lag(symbol) over () as before, lag(ts) over () as before_ts from incoming) group by symbol"
        )
        spans = con.execute("select * from spans order by symbol").fetchall()
        if isinstance(rows, Path):
            _require_sound(con, spans, where)
        yield [span[:4] for span in spans]
    finally:
        con.execute("drop table if exists spans")
        if isinstance(rows, Path):
            con.execute("drop view if exists incoming")
        else:
            con.unregister("incoming")


def _scan(path: Path, where: str) -> str:
    """Return the SQL that reads a Parquet file of bars."""
    try:
        schema = pl.scan_parquet(path, glob=False).collect_schema()
    except (OSError, pl.exceptions.PolarsError) as e:
        raise DataError(f"{where}: {path} cannot be read: {str(e).splitlines()[0]}; expected a Parquet file") from e
    if schema != BAR_SCHEMA:
        raise DataError(f"{where}: columns {dict(schema)}; expected {dict(BAR_SCHEMA)}")
    # A name is a pattern to DuckDB.
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in str(path)).replace("'", "''")
    return f"select {_COLUMNS} from read_parquet('{literal}', hive_partitioning = false)"


def _require_sound(con: duckdb.DuckDBPyConnection, spans: list[tuple[Any, ...]], where: str) -> None:
    unsound, stray = (sum(span[n] for span in spans) for n in (4, 5))
    if unsound:
        first = con.sql(f"select * from incoming where not ({_SOUND}) limit 1").fetchall()[0]
        values = ", ".join(f"{name} {value}" for name, value in zip(BAR_SCHEMA, first, strict=True))
        raise DataError(
            f"{where}: {unsound} bad bar(s), first {values}; expected finite prices within high and low, and a volume "
            "that is unknown or not negative: mend or remove the row(s) in the file"
        )
    if stray:
        symbol, ts = con.sql(
            "select symbol, ts from (select *, lag(symbol) over () as before, lag(ts) over () as before_ts "
            f"from incoming) where not ({_IN_ORDER}) limit 1"
        ).fetchall()[0]
        raise DataError(
            f"{where}: {stray} bar(s) repeated or out of order, first {symbol} at {utc(ts)}; expected one bar a symbol "
            "and time, ascending by (symbol, ts)"
        )


def _write(
    inside: Transaction,
    spans: list[tuple[Any, ...]],
    *,
    bar: str,
    delay: timedelta,
    where: str,
    conflict: str,
    known_at: datetime | None,
) -> Counts:
    con, total = inside.connection, sum(span[3] for span in spans)
    new = f"select symbol, $bar, ts, {', '.join(BARS.values)}, ts + $delay from incoming"
    if not spans or not _overlaps(con, spans, bar):
        if spans:
            con.execute(f"insert into bars {new}", {"bar": bar, "delay": delay})
        return Counts(added=total, present=0)
    _judge(con, spans, bar=bar, delay=delay, known_at=known_at)
    corrected = kept = 0
    if conflict == "refuse":
        _refuse(inside, bar=bar, delay=delay, where=where)
    elif conflict == "keep":
        kept = con.execute("select count(*) from judged where not same").fetchall()[0][0]
    else:
        corrected = _correct(inside, bar=bar, known_at=known_at)
    added = con.execute(
        f"insert into bars {new} anti join (select symbol, ts from bars where bar = $bar) using (symbol, ts) "
        "order by symbol, ts",
        {"bar": bar, "delay": delay},
    ).fetchall()[0][0]
    con.execute("drop table judged")
    return Counts(added=added, present=total - added - corrected - kept, corrected=corrected, kept=kept)


def _overlaps(con: duckdb.DuckDBPyConnection, spans: list[tuple[Any, ...]], bar: str) -> bool:
    """Return whether a stored bar lies within the times of an incoming symbol: else every row is new."""
    # The outermost times are constants that whole blocks of the table can be skipped by.
    found = con.sql(
        "select 1 from bars b join spans s on b.symbol = s.symbol and b.ts between s.first_ts and s.last_ts "
        "where b.bar = $bar and b.ts between $first and $last limit 1",
        params={"bar": bar, "first": min(span[1] for span in spans), "last": max(span[2] for span in spans)},
    ).fetchall()
    return bool(found)


def _judge(
    con: duckdb.DuckDBPyConnection,
    spans: list[tuple[Any, ...]],
    *,
    bar: str,
    delay: timedelta,
    known_at: datetime | None,
) -> None:
    """Make the table `judged`: each incoming bar that is stored with other values, another time, or a revision."""
    values = ", ".join(f"i.{v}" for v in BARS.values)
    stored = ", ".join(f"b.{v}" for v in BARS.values)
    con.execute(
        f"create or replace temp table judged as with stored as (select * from bars where bar = $bar "
        "and ts between $first and $last), later as (select * from revisions where bar = $bar), touched as ("
        f"select i.symbol, i.ts from incoming i join stored b using (symbol, ts) "
        f"where not ({equal(BARS)}) or b.known_at <> i.ts + $delay "
        "union select symbol, ts from incoming semi join later using (symbol, ts)), "
        f"history as (select b.symbol, b.ts, b.known_at, {stored} from stored b semi join touched using (symbol, ts) "
        f"union all select b.symbol, b.ts, b.known_at, {stored} from later b semi join touched using (symbol, ts)) "
        f"select symbol, ts, {', '.join(f'any_value(i.{v}) as {v}' for v in BARS.values)}, "
        f"bool_or({equal(BARS, stored='h')}) as same, "
        f"arg_max({equal(BARS, stored='h')}, h.known_at) as newest_same, "
        f"bool_or({equal(BARS, stored='h')} and h.known_at = $known_at) as repeated, "
        f"min(h.known_at) as stored_known_at, max(h.known_at) as newest_known_at, "
        f"arg_max({_ROW}, h.known_at) as newest "
        f"from (select symbol, ts, {values} from incoming i) i join history h using (symbol, ts) group by symbol, ts",
        {
            "bar": bar,
            "delay": delay,
            "known_at": known_at,
            "first": min(span[1] for span in spans),
            "last": max(span[2] for span in spans),
        },
    )


def _refuse(inside: Transaction, *, bar: str, delay: timedelta, where: str) -> None:
    stored = ", ".join(f"newest.{v} as stored_{v}" for v in BARS.values)
    conflicts = inside.connection.sql(
        f"select *, ts + $delay as known_at, $bar as bar, {stored}, count(*) over (partition by same) as conflicts "
        "from judged where not same or stored_known_at <> ts + $delay order by same, symbol, ts limit 1",
        params={"bar": bar, "delay": delay},
    ).pl()
    if len(conflicts):
        raise conflict_of(f"{where} against {inside.path}", BARS, conflicts.row(0, named=True))


def _correct(inside: Transaction, *, bar: str, known_at: datetime | None) -> int:
    """Add a revision for each judged bar whose newest values differ; return how many."""
    con = inside.connection
    late = con.sql(
        "select symbol, ts, newest_known_at, count(*) over () as late from judged "
        "where not newest_same and not repeated and newest_known_at >= $known_at order by symbol, ts limit 1",
        params={"known_at": known_at},
    ).fetchall()
    if late and known_at is not None:
        symbol, ts, newest, count = late[0]
        raise DataError(
            f"{inside.path}: {count} correction(s) as of {utc(known_at)} refused, first {symbol} {bar} at {utc(ts)}: "
            f"its stored values were not known before that, but at {utc(newest)}; give a later known_at"
        )
    corrected: int = con.execute(
        f"insert into revisions select symbol, $bar, ts, {', '.join(BARS.values)}, $known_at from judged "
        "where not newest_same and not repeated order by symbol, ts",
        {"bar": bar, "known_at": known_at},
    ).fetchall()[0][0]
    return corrected
