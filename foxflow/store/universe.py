"""Memberships of the universe in the store: append-only, a revision a row."""

from pathlib import Path

import polars as pl

from foxflow.errors import DataError
from foxflow.store.connection import Transaction, connect, has_tables, within
from foxflow.store.tables import Counts
from foxflow.universe import ORDER, UNIVERSE_SCHEMA, require, require_rows, shown

_SELECT = f"select {', '.join(UNIVERSE_SCHEMA)} from universe"  # noqa: S608  (names of a constant)


def write_universe(
    store: str | Path | Transaction, rows: pl.DataFrame, *, where: str = "memberships to write"
) -> Counts:
    """Add revisions of memberships (`UNIVERSE_SCHEMA`), all or none; skip those already there.

    Raises
    ------
    DataError
        Where the rows together with the stored ones break a rule of `universe.require`, or say something
        else of the same symbol, start and `known_at` than a stored row.
    """
    rows = require_rows(rows, where=where)
    with within(store) as inside:
        con = inside.connection
        stored = con.sql(_SELECT).pl().cast(UNIVERSE_SCHEMA)
        new = rows.join(stored, on=ORDER, how="anti")
        same = rows.join(stored, on=list(UNIVERSE_SCHEMA), how="semi", nulls_equal=True)
        differing = rows.join(pl.concat([new, same]), on=ORDER, how="anti").sort(ORDER)
        if len(differing):
            first = differing.row(0, named=True)
            was = stored.join(differing.head(1), on=ORDER, how="semi").row(0, named=True)
            raise DataError(
                f"{where} against {inside.path}: {len(differing)} of the memberships differ from the stored ones, "
                f"first {shown(first)}; stored: {shown(was)}; nothing was written: what was learned later is a row "
                "with a later known_at"
            )
        require(pl.concat([stored, new]), where=f"{where} with what {inside.path} holds")
        con.register("incoming", new.sort(ORDER))
        con.execute("insert into universe by name select * from incoming")
        con.unregister("incoming")
        return Counts(added=len(new), present=len(rows) - len(new))


def read_universe(path: str | Path) -> pl.DataFrame:
    """Return every revision of every membership (`UNIVERSE_SCHEMA`), sorted; none is a valid answer.

    What was known when is for `universe.Universe` to say: an early time at which nothing was known yet is not a store
    without a universe.
    """
    with connect(path, read_only=True) as con:
        if not has_tables(con, path):
            return UNIVERSE_SCHEMA.to_frame()
        if not con.sql("select count(*) from duckdb_tables() where table_name = 'universe'").fetchall()[0][0]:
            return UNIVERSE_SCHEMA.to_frame()
        table: pl.DataFrame = con.sql(_SELECT).pl()
        return table.cast(UNIVERSE_SCHEMA).sort(ORDER)
