"""Bars into the store: add what is new, count what stands there, and settle what differs under a named rule."""
# ruff: noqa: S608 - the only names put into SQL are constants of this package; values are parameters.

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
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
# A number that is none is above every other to SQL, so the bounds leave it out too; what is null is not true.
_SOUND = (
    "open between low and high and close between low and high and low > '-inf'::double and high < 'inf'::double "
    "and coalesce(volume, 0) between 0 and 1.7976931348623157e308 and symbol is not null and ts is not null"
)
_WITHIN = "symbol between $from_symbol and $to_symbol and ts between $first and $last"
_JUDGED = (
    "create or replace temp table judged (symbol varchar, ts timestamptz, "
    + "".join(f"{v} double, " for v in BARS.values)
    + "same bool, newest_same bool, repeated bool, stored_known_at timestamptz, newest_known_at timestamptz, "
    + "newest struct("
    + ", ".join(f"{v} double" for v in BARS.values)
    + "))"
)
PIECE_ROWS = 2_000_000
_IN_ORDER = "before is null or before < symbol or (before = symbol and before_ts < ts)"


def write_bars(
    store: str | Path | Transaction,
    bars: pl.DataFrame | Path,
    *,
    bar: str,
    shift: timedelta = NO_DELAY,
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
    shift
        What to add to each ts of a Parquet file: a bar, where it has their opens.
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
    with within(store) as inside, _incoming(inside.connection, rows, where, shift=shift) as spans:
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


@dataclass(frozen=True)
class _Span:
    """A number of rows that lie between two symbols and two times."""

    from_symbol: str
    to_symbol: str
    first: datetime
    last: datetime
    rows: int

    def limits(self) -> dict[str, object]:
        """Return the parameters of `_WITHIN`."""
        return {name: value for name, value in asdict(self).items() if name != "rows"}


def _joined(spans: list[_Span]) -> _Span:
    return _Span(
        spans[0].from_symbol,
        spans[-1].to_symbol,
        min(s.first for s in spans),
        max(s.last for s in spans),
        sum(s.rows for s in spans),
    )


def _known_at(conflict: str, known_at: datetime | None) -> datetime | None:
    if conflict not in CONFLICTS:
        raise DataError(f"conflict = {conflict!r}; expected {', '.join(CONFLICTS)}")
    if (conflict == "correct") == (known_at is None):
        raise DataError(
            f"known_at = {known_at} with conflict = {conflict!r}; expected a time exactly where bars are corrected"
        )
    return None if known_at is None else aware(known_at, "known_at")


@contextmanager
def _incoming(
    con: duckdb.DuckDBPyConnection, rows: pl.DataFrame | Path, where: str, *, shift: timedelta = NO_DELAY
) -> Iterator[list[_Span]]:
    """Give SQL the rows as `incoming` and their `spans`; yield that of each symbol."""
    if isinstance(rows, Path):
        con.execute(f"create or replace temp view incoming as {_scan(rows, where, shift)}")
    else:
        con.register("incoming", rows)
    try:
        # One pass over the rows in the order they stand in; a lag without an order needs no memory.
        con.execute(
            "create or replace temp table spans as select symbol, min(ts) as first_ts, max(ts) as last_ts, "
            f"count(*) as rows, count(*) - count(*) filter ({_SOUND}) as unsound, "
            f"count(*) filter (not ({_IN_ORDER})) as stray "
            "from (select *, lag(symbol) over () as before, lag(ts) over () as before_ts from incoming) group by symbol"
        )
        spans = con.execute("select * from spans order by symbol").fetchall()
        if isinstance(rows, Path):
            _require_sound(con, spans, where)
        yield [_Span(symbol, symbol, *span) for symbol, *span in (s[:4] for s in spans)]
    finally:
        con.execute("drop table if exists spans")
        if isinstance(rows, Path):
            con.execute("drop view if exists incoming")
        else:
            con.unregister("incoming")


def _scan(path: Path, where: str, shift: timedelta) -> str:
    """Return the SQL that reads a Parquet file of bars."""
    try:
        schema = pl.scan_parquet(path, glob=False).collect_schema()
    except (OSError, pl.exceptions.PolarsError) as e:
        raise DataError(f"{where}: {path} cannot be read: {str(e).splitlines()[0]}; expected a Parquet file") from e
    if {name: schema.get(name) for name in BAR_SCHEMA} != dict(BAR_SCHEMA):
        raise DataError(f"{where}: columns {dict(schema)}; expected {dict(BAR_SCHEMA)}")
    # A name is a pattern to DuckDB.
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in str(path)).replace("'", "''")
    columns = _COLUMNS
    if shift:
        columns = columns.replace("ts", f"ts + interval {shift // timedelta(microseconds=1)} microsecond as ts", 1)
    return f"select {columns} from read_parquet('{literal}', hive_partitioning = false)"


def _require_sound(con: duckdb.DuckDBPyConnection, spans: list[tuple[Any, ...]], where: str) -> None:
    unsound, stray = (sum(span[n] for span in spans) for n in (4, 5))
    if unsound:
        first = con.sql(f"select * from incoming where ({_SOUND}) is not true limit 1").fetchall()[0]
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
    spans: list[_Span],
    *,
    bar: str,
    delay: timedelta,
    where: str,
    conflict: str,
    known_at: datetime | None,
) -> Counts:
    con, total = inside.connection, sum(span.rows for span in spans)
    fixed = {"bar": bar, "delay": delay}
    new = f"insert into bars select symbol, $bar, ts, {', '.join(BARS.values)}, ts + $delay from incoming"
    if not spans or not _overlaps(con, spans, bar):
        if spans:
            con.execute(new, fixed)
        return Counts(added=total, present=0)
    con.execute(_JUDGED)
    # One piece after another, so that no join outgrows the memory.
    with_new = [p for p in _pieces(spans) if _judge(con, p, bar=bar, delay=delay, known_at=known_at)]
    corrected = kept = added = 0
    if conflict == "refuse":
        _refuse(inside, bar=bar, delay=delay, where=where)
    elif conflict == "keep":
        kept = con.execute("select count(*) from judged where not same").fetchall()[0][0]
    else:
        corrected = _correct(inside, bar=bar, known_at=known_at)
    for piece in with_new:
        added += con.execute(
            f"{new} anti join (select symbol, ts from bars where bar = $bar and {_WITHIN}) using (symbol, ts) "
            f"where {_WITHIN} order by symbol, ts",
            fixed | piece.limits(),
        ).fetchall()[0][0]
    con.execute("drop table judged")
    return Counts(added=added, present=total - added - corrected - kept, corrected=corrected, kept=kept)


def _overlaps(con: duckdb.DuckDBPyConnection, spans: list[_Span], bar: str) -> bool:
    """Return whether a stored bar lies within the times of an incoming symbol: else every row is new."""
    # The outermost symbols and times are constants that whole blocks of the table can be skipped by.
    found = con.sql(
        "select 1 from bars b join spans s on b.symbol = s.symbol and b.ts between s.first_ts and s.last_ts "
        f"where b.bar = $bar and b.{_WITHIN.replace(' and ts', ' and b.ts')} limit 1",
        params={"bar": bar} | _joined(spans).limits(),
    ).fetchall()
    return bool(found)


def _pieces(spans: list[_Span]) -> Iterator[_Span]:
    """Yield spans that together hold every row once, each of about `PIECE_ROWS` or fewer."""
    several: list[_Span] = []
    for span in spans:
        if several and sum(s.rows for s in several) + span.rows > PIECE_ROWS:
            yield _joined(several)
            several = []
        several.append(span)
        if span.rows > PIECE_ROWS:
            yield from _cut(several.pop())
    if several:
        yield _joined(several)


def _cut(span: _Span) -> Iterator[_Span]:
    """Yield parts of equal time of one symbol's span."""
    n = -(-span.rows // PIECE_ROWS)
    step, tick = (span.last - span.first) / n, timedelta(microseconds=1)
    for i in range(n):
        last = span.last if i == n - 1 else span.first + (i + 1) * step - tick
        yield replace(span, first=span.first + i * step, last=last, rows=span.rows // n)


def _judge(
    con: duckdb.DuckDBPyConnection, piece: _Span, *, bar: str, delay: timedelta, known_at: datetime | None
) -> bool:
    """Add to `judged` each bar of a piece that is stored otherwise or has a revision; return whether any is new."""
    fixed = {"bar": bar} | piece.limits()
    stored = f"(select * from bars where bar = $bar and {_WITHIN})"
    later = f"(select * from revisions where bar = $bar and {_WITHIN})"
    incoming = f"(select * from incoming where {_WITHIN})"
    otherwise = f"not ({equal(BARS)}) or b.known_at <> i.ts + $delay"
    new, differing = con.execute(
        f"select count(*) filter (b.known_at is null), count(*) filter (b.known_at is not null and ({otherwise})) "
        f"from {incoming} i left join {stored} b using (symbol, ts)",
        fixed | {"delay": delay},
    ).fetchall()[0]
    revised = con.execute(f"select count(*) from {later}", fixed).fetchall()[0][0]
    if differing or revised:
        con.execute(
            f"insert into judged with touched as (select i.symbol, i.ts from {incoming} i join {stored} b "
            f"using (symbol, ts) where {otherwise} union "
            f"select symbol, ts from {incoming} semi join {later} using (symbol, ts)), "
            f"history as (from {stored} union all by name from {later}) "
            f"select symbol, ts, {', '.join(f'any_value(i.{v})' for v in BARS.values)}, "
            f"bool_or({equal(BARS, stored='h')}), "
            f"arg_max({equal(BARS, stored='h')}, h.known_at), "
            f"bool_or({equal(BARS, stored='h')} and h.known_at = $known_at), "
            f"min(h.known_at), max(h.known_at), arg_max({_ROW}, h.known_at) "
            f"from {incoming} i semi join touched using (symbol, ts) join history h using (symbol, ts) "
            "group by symbol, ts",
            fixed | {"delay": delay, "known_at": known_at},
        )
    return bool(new)


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
