"""A table of values by key, append-only and bitemporal: appending rows, and reading the newest revision of each."""
# ruff: noqa: S608 - the only names put into SQL are constants of this package; values are parameters.

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from foxflow.errors import DataError
from foxflow.store.connection import Transaction, has_tables

NO_DELAY = timedelta(0)


@dataclass(frozen=True)
class Counts:
    """What a write did with its rows: their sum is the number of rows written.

    `present` stood there already, with these values; `kept` stood there with others, which stay; `corrected` stood
    there with others, which now have a later revision.
    """

    added: int
    present: int
    corrected: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Keyed:
    """A table of the store: what a row is found by, and what it says."""

    name: str
    key: tuple[str, ...]
    values: tuple[str, ...]


def append(inside: Transaction, table: Keyed, rows: pl.DataFrame, *, where: str) -> Counts:
    """Add rows that are new, skip those that stand there already, and refuse those that differ."""
    con, key = inside.connection, ", ".join(table.key)
    con.register("incoming", rows)
    pairs = ", ".join(f"any_value(i.{v}) as {v}, arg_max(b.{v}, b.known_at) as stored_{v}" for v in table.values)
    # A row is there already when its values are any revision's: a file imported again after a correction is no news.
    conflict = con.sql(
        f"with seen as (select {key}, bool_or({equal(table)}) as same, any_value(i.known_at) as known_at, "
        f"min(b.known_at) as stored_known_at, {pairs} "
        f"from incoming i join {table.name} b using ({key}) group by {key}) "
        "select *, count(*) over () as conflicts from seen where not same or stored_known_at <> known_at "
        "order by symbol, ts limit 1"
    ).pl()
    if len(conflict):
        raise conflict_of(f"{where} against {inside.path}", table, conflict.row(0, named=True))
    inserted = con.execute(
        f"insert into {table.name} by name select i.* from incoming i anti join {table.name} using ({key})"
    ).fetchall()
    con.unregister("incoming")
    added = int(inserted[0][0])
    return Counts(added=added, present=len(rows) - added)


def equal(table: Keyed, *, stored: str = "b") -> str:
    """Return the SQL that tells whether a new row `i` has the values of a stored one."""
    return " and ".join(f"{stored}.{v} is not distinct from i.{v}" for v in table.values)


def conflict_of(place: str, table: Keyed, row: dict[str, Any]) -> DataError:
    """Return the error for rows that differ from the stored ones; `row` is the first."""
    what = f"{row['symbol']} {row.get('bar') or row['kind']} at {utc(row['ts'])}"
    differing = [v for v in table.values if row[v] != row[f"stored_{v}"]]
    if row["same"]:
        return DataError(
            f"{place}: {row['conflicts']} of the {table.name} are stored with another known_at, first {what}: stored "
            f"{utc(row['stored_known_at'])}, new {utc(row['known_at'])}; import with the delay used before"
        )
    stored = ", ".join(f"{v} {row[f'stored_{v}']}" for v in differing)
    new = ", ".join(f"{v} {row[v]}" for v in differing)
    resolve = "say with --on-conflict which are right, " if table.name == "bars" else ""
    return DataError(
        f"{place}: {row['conflicts']} of the {table.name} differ from the stored ones, first {what}: stored {stored}, "
        f"new {new}; nothing was written: {resolve}mend the file, or import it into another store"
    )


def read(
    con: duckdb.DuckDBPyConnection,
    path: str | Path,
    table: Keyed,
    schema: pl.Schema,
    *,
    symbols: Sequence[str],
    as_of: datetime | None,
    bar: str | None = None,
) -> pl.DataFrame:
    """Return the newest revision of each key that was known at `as_of`, sorted by key."""
    if not has_tables(con, path):
        return schema.to_frame()
    conditions: dict[str, tuple[str, object]] = {}
    if bar is not None:
        conditions["bar"] = ("bar = $bar", bar)
    if symbols:
        conditions["symbols"] = ("symbol in (select unnest($symbols))", list(symbols))
    if as_of is not None:
        conditions["as_of"] = ("known_at <= $as_of", aware(as_of, "as_of"))
    where = " and ".join(sql for sql, _ in conditions.values()) or "true"
    key = [column for column in table.key if column in schema]
    frame: pl.DataFrame = con.sql(
        f"select {', '.join(schema)} from {table.name} where {where} order by {', '.join(key)}, known_at",
        params={name: value for name, (_, value) in conditions.items()},
    ).pl()
    # The last of a key's revisions; three times faster here than as a window in SQL.
    newest = pl.any_horizontal(pl.col(c) != pl.col(c).shift(-1) for c in key).fill_null(value=True)
    return frame.cast(schema).filter(newest).rechunk()


def known(rows: pl.DataFrame, delay: timedelta) -> pl.DataFrame:
    """Return rows with the time they were known, `delay` after their `ts`."""
    return rows.with_columns(known_at=pl.col("ts") + nonnegative(delay))


def nonnegative(delay: timedelta) -> timedelta:
    """Return a delay; one below zero is refused."""
    if delay < NO_DELAY:
        raise DataError(f"delay = {delay}; expected zero or more, for nothing is known before its ts")
    return delay


def aware(instant: datetime, name: str) -> datetime:
    """Return a time in UTC; one without a zone is refused."""
    if instant.tzinfo is None:
        raise DataError(f"{name} = {instant} has no time zone; give it in UTC, as in {instant.replace(tzinfo=UTC)}")
    return instant.astimezone(UTC)


def utc(instant: datetime) -> str:
    """Return a time as a message shows it."""
    return f"{instant:%Y-%m-%d %H:%M}Z"
