"""Rows of imported files that are no bars: kept as they were written, with the reason, so that they stay countable."""

from pathlib import Path

import polars as pl

from foxflow.store.connection import Transaction, connect, has_tables, within

QUARANTINE_SCHEMA = pl.Schema(
    {
        "file": pl.String(),
        "sha256": pl.String(),
        "number": pl.Int64(),
        "kind": pl.String(),
        "when": pl.String(),
        "text": pl.String(),
        "reason": pl.String(),
    }
)


def write_quarantine(store: str | Path | Transaction, rows: pl.DataFrame, *, file: str, sha256: str) -> int:
    """Add rows put aside (number, kind, when, text, reason) of a file, and return how many are new.

    A row is there already when the same file, by its content, was imported before.
    """
    named = rows.with_columns(file=pl.lit(file), sha256=pl.lit(sha256)).select(QUARANTINE_SCHEMA.names())
    with within(store) as inside:
        con = inside.connection
        con.register("aside", named.cast(QUARANTINE_SCHEMA))
        added = con.execute(
            "insert into quarantine by name select a.* from aside a anti join quarantine using (sha256, number)"
        ).fetchall()
        con.unregister("aside")
        return int(added[0][0])


def read_quarantine(path: str | Path) -> pl.DataFrame:
    """Return the rows put aside (`QUARANTINE_SCHEMA`), sorted by file and number; none for a store without any."""
    with connect(path, read_only=True) as con:
        if (
            not has_tables(con, path)
            or not con.sql("select 1 from duckdb_tables() where table_name = 'quarantine'").fetchall()
        ):
            return QUARANTINE_SCHEMA.to_frame()
        frame: pl.DataFrame = con.sql("select * from quarantine").pl()
        return frame.cast(QUARANTINE_SCHEMA).sort("file", "sha256", "number")
