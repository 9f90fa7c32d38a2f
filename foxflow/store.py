"""The store: bars, splits and dividends in one DuckDB file; the only SQL for bars.

Both tables are append-only and bitemporal: a row says what was known from `known_at` on, a correction is a new row
with a later `known_at`. A bulk import sets `known_at = ts + delay`, never the clock, so a past night can be replayed.
"""
# ruff: noqa: S608 - the only names put into SQL are constants of this module; values are parameters.

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from foxflow.bars import BAR_SCHEMA, EVENT_KINDS, EVENT_SCHEMA, TS, bar_length, require
from foxflow.errors import DataError, unknown

LIST_SCHEMA = pl.Schema({"symbol": pl.String(), "bar": pl.String(), "rows": pl.Int64(), "first_ts": TS, "last_ts": TS})
WAIT_S = 30.0
_NO_DELAY = timedelta(0)
# No PRIMARY KEY: its index makes the file eight times larger and inserts six times slower. Every write checks keys.
_TABLES = """
create table if not exists bars (
    symbol varchar not null, bar varchar not null, ts timestamptz not null,
    open double not null, high double not null, low double not null, close double not null, volume double not null,
    known_at timestamptz not null
);
create table if not exists events (
    symbol varchar not null, ts timestamptz not null, kind varchar not null, value double not null,
    known_at timestamptz not null
);
"""


@dataclass(frozen=True)
class Counts:
    """What a write did: rows added, and rows skipped because they stood there already."""

    added: int
    present: int


@dataclass(frozen=True)
class Transaction:
    """An open store: writes given it are kept together or not at all."""

    path: Path
    connection: duckdb.DuckDBPyConnection


@dataclass(frozen=True)
class _Table:
    name: str
    key: tuple[str, ...]
    values: tuple[str, ...]


_BARS = _Table("bars", key=("symbol", "bar", "ts"), values=("open", "high", "low", "close", "volume"))
_EVENTS = _Table("events", key=("symbol", "ts", "kind"), values=("value",))


@contextmanager
def connect(path: str | Path, *, read_only: bool, wait_s: float = WAIT_S) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection in UTC, waiting at most `wait_s` seconds for a process that holds the file.

    Raises
    ------
    DataError
        When the file stays locked (naming its holder), or is absent, damaged or no DuckDB database.
    """
    path = Path(path)
    if read_only and not path.exists():
        raise DataError(f"no store at {str(path)!r}; import bars into it first, or give the path of an existing store")
    connection = _open(path, read_only=read_only, wait_s=wait_s)
    try:
        connection.execute("set TimeZone = 'UTC'")
        yield connection
    except duckdb.Error as e:
        raise _unusable(path, e) from e
    finally:
        connection.close()


def _open(path: Path, *, read_only: bool, wait_s: float) -> duckdb.DuckDBPyConnection:
    end, pause = time.monotonic() + wait_s, 0.02
    while True:
        try:
            return duckdb.connect(path, read_only=read_only)
        except duckdb.Error as e:
            found = re.search(r"held in (.+?) \(PID (\d+)\)", str(e))
            holder = f"process {found[2]} ({found[1]})" if found else "another process"
            if isinstance(e, duckdb.ConnectionException):
                # DuckDB refuses a reader beside a writer (and the reverse) inside one process.
                holder = "this very process, for reading or for writing"
            elif "Could not set lock" not in str(e):
                raise _unusable(path, e) from e
            if time.monotonic() > end:
                raise DataError(
                    f"{path} is locked by {holder}, still after waiting {wait_s:g} s; close what holds it and run again"
                ) from e
        time.sleep(min(pause, max(0.0, end - time.monotonic()) + 0.01))
        pause = min(pause * 1.7, 1.0)


def _unusable(path: Path, e: duckdb.Error) -> DataError:
    reason = str(e).strip().splitlines()[0].rstrip(".!")
    return DataError(
        f"{path} cannot be used as a store: {reason}; where the file is damaged, restore a copy or move it away and "
        "import again"
    )


@contextmanager
def transaction(path: str | Path, *, wait_s: float = WAIT_S) -> Iterator[Transaction]:
    """Yield an open store, created when absent; all writes given it are committed together when the block ends well.

    Raises as `connect` does.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise DataError(f"no store can be made at {str(path)!r}: {e}; give a path in a folder you can write to") from e
    with connect(path, read_only=False, wait_s=wait_s) as connection:
        # A block that fails skips the commit, and closing the connection rolls back.
        connection.execute("begin")
        connection.execute(_TABLES)
        yield Transaction(path, connection)
        connection.execute("commit")


def write_bars(
    store: str | Path | Transaction,
    bars: pl.DataFrame,
    *,
    bar: str,
    delay: timedelta = _NO_DELAY,
    where: str = "bars to write",
) -> Counts:
    """Add bars (`BAR_SCHEMA`, raw) known `delay` after their `ts`, all or none; skip those already there.

    A message calls them by `where`: the file they come from.

    Raises
    ------
    DataError
        On bars that break an invariant, or that differ from the stored ones: naming the count and the first.
    """
    rows = require(bars, where=where).with_columns(bar=pl.lit(_bar_name(bar)))
    with _within(store) as inside:
        return _append(inside, _BARS, _known(rows, delay), where=where)


def correct_bars(store: str | Path | Transaction, bars: pl.DataFrame, *, bar: str, known_at: datetime) -> Counts:
    """Add other values for stored bars, as learned at `known_at`; skip bars whose newest values are the same.

    Raises
    ------
    DataError
        When a bar is not stored, or `known_at` is not after that of its stored values.
    """
    rows = require(bars, where="bars to correct").with_columns(
        bar=pl.lit(_bar_name(bar)), known_at=pl.lit(_aware(known_at, "known_at")).cast(TS)
    )
    with _within(store) as inside:
        con = inside.connection
        con.register("incoming", rows)
        newest = con.sql(
            f"select i.symbol, i.ts, i.known_at, max(b.known_at) as newest, {_equal(_BARS, newest=True)} as same "
            "from incoming i left join bars b using (symbol, bar, ts) group by all order by i.symbol, i.ts"
        ).pl()
        for fault, what in (
            (pl.col("newest").is_null(), "no such bar is stored; import it first"),
            (
                (pl.col("known_at") <= pl.col("newest")) & ~pl.col("same"),
                "its stored values were not known before that; give a later known_at",
            ),
        ):
            bad = newest.filter(fault)
            if len(bad):
                raise DataError(
                    f"{inside.path}: {len(bad)} of {len(rows)} correction(s) as of {_utc(known_at)} refused, first "
                    f"{bad['symbol'][0]} {bar} at {_utc(bad['ts'][0])}: {what}"
                )
        changed = rows.join(newest.filter(~pl.col("same")), on=["symbol", "ts"], how="semi").sort("symbol", "ts")
        con.register("incoming", changed)
        con.execute("insert into bars by name select * from incoming")
        con.unregister("incoming")
        return Counts(added=len(changed), present=len(rows) - len(changed))


def write_events(
    store: str | Path | Transaction,
    events: pl.DataFrame,
    *,
    delay: timedelta = _NO_DELAY,
    where: str = "events to write",
) -> Counts:
    """Add splits and dividends (`EVENT_SCHEMA`) known `delay` after their `ts`, all or none; skip those already there.

    Raises
    ------
    DataError
        On a kind that is neither `split` nor `dividend`, a value that is not positive, two events of one kind on one
        bar, or an event that differs from the stored one.
    """
    if events.schema != EVENT_SCHEMA:
        raise DataError(f"{where}: columns {dict(events.schema)}; expected {dict(EVENT_SCHEMA)}")
    rows = events.sort("symbol", "ts", "kind")
    sound = pl.col("kind").is_in(EVENT_KINDS) & (pl.col("value") > 0) & pl.col("value").is_finite()
    once = ~pl.struct("symbol", "ts", "kind").is_duplicated()
    bad = rows.filter(~(sound & once & pl.all_horizontal(pl.all().is_not_null())).fill_null(False))
    if len(bad):
        raise DataError(
            f"{where}: {len(bad)} bad event(s), first {bad.row(0)}; expected kind {' or '.join(EVENT_KINDS)}, a "
            "positive value, and one event of a kind on a bar (the total of several)"
        )
    with _within(store) as inside:
        return _append(inside, _EVENTS, _known(rows, delay), where=where)


def _append(inside: Transaction, table: _Table, rows: pl.DataFrame, *, where: str) -> Counts:
    con, key = inside.connection, ", ".join(table.key)
    con.register("incoming", rows)
    pairs = ", ".join(f"any_value(i.{v}) as {v}, arg_max(b.{v}, b.known_at) as stored_{v}" for v in table.values)
    # A row is there already when its values are any revision's: a file imported again after a correction is no news.
    conflict = con.sql(
        f"with seen as (select {key}, {_equal(table)} as same, any_value(i.known_at) as known_at, "
        f"min(b.known_at) as stored_known_at, {pairs} "
        f"from incoming i join {table.name} b using ({key}) group by {key}) "
        "select *, count(*) over () as conflicts from seen where not same or stored_known_at <> known_at "
        "order by symbol, ts limit 1"
    ).pl()
    if len(conflict):
        raise _conflict(f"{where} against {inside.path}", table, conflict.row(0, named=True))
    inserted = con.execute(
        f"insert into {table.name} by name select i.* from incoming i anti join {table.name} using ({key})"
    ).fetchall()
    con.unregister("incoming")
    added = int(inserted[0][0])
    return Counts(added=added, present=len(rows) - added)


def _equal(table: _Table, *, newest: bool = False) -> str:
    """Return the SQL that tells whether a new row's values are those of any stored revision, or of the newest."""
    equal = " and ".join(f"b.{v} = i.{v}" for v in table.values)
    return f"arg_max({equal}, b.known_at)" if newest else f"bool_or({equal})"


def _conflict(place: str, table: _Table, row: dict[str, Any]) -> DataError:
    what = f"{row['symbol']} {row.get('bar') or row['kind']} at {_utc(row['ts'])}"
    differing = [v for v in table.values if row[v] != row[f"stored_{v}"]]
    if row["same"]:
        return DataError(
            f"{place}: {row['conflicts']} of the {table.name} are stored with another known_at, first {what}: stored "
            f"{_utc(row['stored_known_at'])}, new {_utc(row['known_at'])}; import with the delay used before"
        )
    stored = ", ".join(f"{v} {row[f'stored_{v}']}" for v in differing)
    new = ", ".join(f"{v} {row[v]}" for v in differing)
    return DataError(
        f"{place}: {row['conflicts']} of the {table.name} differ from the stored ones, first {what}: stored {stored}, "
        f"new {new}; nothing was written: mend the file, or import it into another store"
    )


def read_bars(
    path: str | Path, *, bar: str, symbols: Sequence[str] = (), as_of: datetime | None = None
) -> pl.DataFrame:
    """Return bars (`BAR_SCHEMA`, raw) sorted by (symbol, ts), the newest revision of each, all symbols by default.

    Parameters
    ----------
    as_of
        Return only what was known at this instant.

    Raises
    ------
    DataError
        When the store is absent, damaged or empty, has no bars of that length or symbol, or none known by `as_of`.
    """
    name = _bar_name(bar)
    with connect(path, read_only=True) as con:
        frame = _read(con, path, _BARS, BAR_SCHEMA, bar=name, symbols=symbols, as_of=as_of)
        if frame.is_empty() or not set(symbols) <= set(frame["symbol"].unique()):
            _explain_missing(_listing(con, path), path, name, symbols)
        if frame.is_empty():
            raise DataError(f"{path} holds no bars of {name} that were known at {as_of}; ask for a later time")
        return frame


def _explain_missing(present: pl.DataFrame, path: str | Path, bar: str, symbols: Sequence[str]) -> None:
    """Raise a DataError when bars asked for are not stored at all, and not just unknown by some time."""
    lengths = present["bar"].unique().sort().to_list()
    if not lengths:
        raise DataError(f"{path} holds no bars; import some first")
    if bar not in lengths:
        raise DataError(f"{path} holds no bars of {bar}; it holds {', '.join(lengths)}")
    known = present.filter(pl.col("bar") == bar)["symbol"].to_list()
    for symbol in symbols:
        if symbol not in known:
            raise DataError(f"{path}, bars of {bar}: {unknown('symbol', symbol, known)}")


def read_events(path: str | Path, *, symbols: Sequence[str] = (), as_of: datetime | None = None) -> pl.DataFrame:
    """Return splits and dividends (`EVENT_SCHEMA`) sorted by (symbol, ts, kind); none is a valid answer.

    `as_of` is that of `read_bars`.
    """
    with connect(path, read_only=True) as con:
        return _read(con, path, _EVENTS, EVENT_SCHEMA, symbols=symbols, as_of=as_of)


def list_bars(path: str | Path) -> pl.DataFrame:
    """Return what the store holds (`LIST_SCHEMA`): a row a symbol and bar length, sorted; none for an empty store."""
    with connect(path, read_only=True) as con:
        return _listing(con, path)


def _has_tables(con: duckdb.DuckDBPyConnection, path: str | Path) -> bool:
    tables = {row[0] for row in con.sql("select table_name from duckdb_tables()").fetchall()}
    if tables and not {"bars", "events"} <= tables:
        raise DataError(f"{path} is a database of other tables ({', '.join(sorted(tables))}); give a store of foxflow")
    return bool(tables)


def _listing(con: duckdb.DuckDBPyConnection, path: str | Path) -> pl.DataFrame:
    if not _has_tables(con, path):
        return LIST_SCHEMA.to_frame()
    listing: pl.DataFrame = con.sql(
        "select symbol, bar, count(distinct ts) as rows, min(ts) as first_ts, max(ts) as last_ts "
        "from bars group by symbol, bar"
    ).pl()
    return listing.cast(LIST_SCHEMA).sort("symbol", "bar")


def _read(
    con: duckdb.DuckDBPyConnection,
    path: str | Path,
    table: _Table,
    schema: pl.Schema,
    *,
    symbols: Sequence[str],
    as_of: datetime | None,
    bar: str | None = None,
) -> pl.DataFrame:
    if not _has_tables(con, path):
        return schema.to_frame()
    conditions: dict[str, tuple[str, object]] = {}
    if bar is not None:
        conditions["bar"] = ("bar = $bar", bar)
    if symbols:
        conditions["symbols"] = ("symbol in (select unnest($symbols))", list(symbols))
    if as_of is not None:
        conditions["as_of"] = ("known_at <= $as_of", _aware(as_of, "as_of"))
    where = " and ".join(sql for sql, _ in conditions.values()) or "true"
    key = [column for column in table.key if column in schema]
    frame: pl.DataFrame = con.sql(
        f"select {', '.join(schema)} from {table.name} where {where} order by {', '.join(key)}, known_at",
        params={name: value for name, (_, value) in conditions.items()},
    ).pl()
    # The last of a key's revisions; three times faster here than as a window in SQL.
    newest = pl.any_horizontal(pl.col(c) != pl.col(c).shift(-1) for c in key).fill_null(value=True)
    return frame.cast(schema).filter(newest).rechunk()


def _within(store: str | Path | Transaction) -> AbstractContextManager[Transaction]:
    return nullcontext(store) if isinstance(store, Transaction) else transaction(store)


def _known(rows: pl.DataFrame, delay: timedelta) -> pl.DataFrame:
    if delay < _NO_DELAY:
        raise DataError(f"delay = {delay}; expected zero or more, for nothing is known before its ts")
    return rows.with_columns(known_at=pl.col("ts") + delay)


def _bar_name(bar: str) -> str:
    """Return the name a bar length is stored under: `60m` is `1h`; days stay days, for a session is not 24 hours."""
    seconds = int(bar_length(bar).total_seconds())
    if bar.endswith("d"):
        return bar
    size, unit = next((s, u) for s, u in ((3600, "h"), (60, "m"), (1, "s")) if seconds % s == 0)
    return f"{seconds // size}{unit}"


def _aware(instant: datetime, name: str) -> datetime:
    if instant.tzinfo is None:
        raise DataError(f"{name} = {instant} has no time zone; give it in UTC, as in {instant.replace(tzinfo=UTC)}")
    return instant.astimezone(UTC)


def _utc(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M}Z"
