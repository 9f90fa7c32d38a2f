"""What the store knows of the ledger of trials: how far it had come. It outlives the deletion of ledger and runs.

It is not exported: an export carries bars, not what was tried on them.
"""

from pathlib import Path
from typing import TypeAlias

import duckdb

from foxflow.store.connection import connect, has_tables
from foxflow.store.schema import own_ddl

# A ledger's id, how many records it had, and the hash of the last of them.
Height: TypeAlias = tuple[str, int, str]


def read_heights(path: str | Path, *, wait_s: float) -> list[Height]:
    """Return every height that `write_height` left; a store that does not exist has none.

    Raises
    ------
    DataError
        As `connect` does, where the store stays locked for `wait_s` seconds or can't be read.
    """
    if not Path(path).exists():
        return []
    with connect(path, read_only=True, wait_s=wait_s) as con:
        return _heights(con)


def write_height(path: str | Path, height: Height, *, wait_s: float) -> None:
    """Add a height to an existing store; one that holds nothing yet stays empty. Raises as `read_heights` does.

    An older store is left at its version: only who writes bars brings it up to date.
    """
    with connect(path, read_only=False, wait_s=wait_s) as con:
        if has_tables(con, path):
            con.execute("begin")
            con.execute(own_ddl("ledger_heights"))
            con.execute("insert into ledger_heights values (?, ?, ?)", height)
            con.execute("commit")


def _heights(con: duckdb.DuckDBPyConnection) -> list[Height]:
    if not con.sql("select 1 from duckdb_tables() where table_name = 'ledger_heights'").fetchall():
        return []
    return [(str(i), int(n), str(h)) for i, n, h in con.sql("select * from ledger_heights").fetchall()]
