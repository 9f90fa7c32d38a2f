"""Futures contracts and their open interest in the store: append-only, a revision a row."""
# ruff: noqa: S608 - the only names put into SQL are constants of this package.

from pathlib import Path

import polars as pl

from foxflow.errors import DataError
from foxflow.futures import (
    CONTRACT_REVISION_SCHEMA,
    OPEN_INTEREST_SCHEMA,
    known_contracts,
    require_contracts,
    require_open_interest,
)
from foxflow.store.connection import Transaction, connect, has_tables, within
from foxflow.store.tables import Counts


def write_contracts(
    store: str | Path | Transaction, contracts: pl.DataFrame, *, where: str = "contracts to write"
) -> Counts:
    """Add revisions of contracts (`CONTRACT_REVISION_SCHEMA`), all or none; skip those already there.

    Raises
    ------
    DataError
        Where a row says something else of the same symbol and `known_at` than a stored one, or the contracts that are
        known after it break a rule of `futures.require_contracts`.
    """
    if contracts.schema != CONTRACT_REVISION_SCHEMA:
        raise DataError(f"{where}: columns {dict(contracts.schema)}; expected {dict(CONTRACT_REVISION_SCHEMA)}")
    with within(store) as inside:
        stored = _stored(inside, "contracts", CONTRACT_REVISION_SCHEMA)
        new, counts = _news(contracts, stored, key=["symbol", "known_at"], where=f"{where} against {inside.path}")
        both = pl.concat([stored, new])
        for at in new["known_at"].unique().sort():
            then = known_contracts(both.filter(pl.col("known_at") <= at), at=at)
            require_contracts(then, where=f"{where} with what {inside.path} holds")
        _insert(inside, "contracts", new)
        return counts


def write_open_interest(
    store: str | Path | Transaction, figures: pl.DataFrame, *, where: str = "open interest to write"
) -> Counts:
    """Add figures of open interest (`OPEN_INTEREST_SCHEMA`), all or none; skip those already there.

    Raises
    ------
    DataError
        On a figure below zero, or one that differs from the stored one of the same symbol and `ts`.
    """
    rows = require_open_interest(figures, where=where)
    with within(store) as inside:
        stored = _stored(inside, "open_interest", OPEN_INTEREST_SCHEMA)
        new, counts = _news(rows, stored, key=["symbol", "ts"], where=f"{where} against {inside.path}")
        _insert(inside, "open_interest", new)
        return counts


def read_contracts(path: str | Path) -> pl.DataFrame:
    """Return every revision of every contract (`CONTRACT_REVISION_SCHEMA`), sorted; none is a valid answer.

    What was known when is for `futures.known_contracts` to say.
    """
    return _read(path, "contracts", CONTRACT_REVISION_SCHEMA).sort("root", "expiry", "symbol", "known_at")


def read_open_interest(path: str | Path) -> pl.DataFrame:
    """Return all figures of open interest (`OPEN_INTEREST_SCHEMA`), sorted; none is a valid answer."""
    return _read(path, "open_interest", OPEN_INTEREST_SCHEMA).sort("symbol", "ts")


def _read(path: str | Path, table: str, schema: pl.Schema) -> pl.DataFrame:
    with connect(path, read_only=True) as con:
        has_tables(con, path)
        if not con.sql(f"select count(*) from duckdb_tables() where table_name = '{table}'").fetchall()[0][0]:
            return schema.to_frame()
        frame: pl.DataFrame = con.sql(f"select {', '.join(schema)} from {table}").pl()
        return frame.cast(schema)


def _stored(inside: Transaction, table: str, schema: pl.Schema) -> pl.DataFrame:
    frame: pl.DataFrame = inside.connection.sql(f"select {', '.join(schema)} from {table}").pl()
    return frame.cast(schema)


def _news(rows: pl.DataFrame, stored: pl.DataFrame, *, key: list[str], where: str) -> tuple[pl.DataFrame, Counts]:
    """Return the rows that are new and the counts; rows that differ from the stored ones are refused."""
    rows = rows.unique()
    new = rows.join(stored, on=key, how="anti").sort(key)
    same = rows.join(stored, on=rows.columns, how="semi", nulls_equal=True)
    differing = rows.join(pl.concat([new, same]), on=key, how="anti").sort(key)
    for bad, other in ((differing, stored), (new.filter(new.select(key).is_duplicated()), new)):
        if len(bad):
            first, was = bad.row(0), other.join(bad.head(1), on=key, how="semi").row(-1)
            raise DataError(
                f"{where}: {len(bad)} row(s) say something else of the same {' and '.join(key)}, first {_shown(first)} "
                f"and {_shown(was)}; nothing was written: what was learned later is a row with a later {key[-1]}"
            )
    return new, Counts(added=len(new), present=len(same))


def _shown(row: tuple[object, ...]) -> str:
    return " ".join("(none)" if value is None else str(value) for value in row)


def _insert(inside: Transaction, table: str, rows: pl.DataFrame) -> None:
    inside.connection.register("incoming", rows)
    inside.connection.execute(f"insert into {table} by name select * from incoming")
    inside.connection.unregister("incoming")
