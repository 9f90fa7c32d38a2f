"""Short connections to the store's file, in UTC, with bounded waiting for whoever holds it."""

import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import duckdb

from foxflow.errors import DataError
from foxflow.store.schema import FIRST_TABLES, migrate

WAIT_S = 30.0
COMMAND_WIDTH = 100
# DuckDB would take most of the machine's memory for a large import; what does not fit goes to a folder beside the file.
MEMORY = "512MB"


@dataclass(frozen=True)
class Transaction:
    """An open store: writes given it are kept together or not at all."""

    path: Path
    connection: duckdb.DuckDBPyConnection


@contextmanager
def connect(path: str | Path, *, read_only: bool, wait_s: float = WAIT_S) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection in UTC, waiting at most `wait_s` seconds for a process that holds the file.

    Raises
    ------
    DataError
        When the file stays locked (naming its holder), or is absent, damaged or no DuckDB database.
    """
    path = Path(path)
    # DuckDB takes these for the query of an address and for a folder: it would write elsewhere, or its log nowhere.
    for mark in "?\\":
        if mark in str(path.absolute()):
            raise DataError(
                f"{str(path.absolute())!r} can't be a store: DuckDB takes no path with {mark}; give another"
            )
    if read_only and not path.exists():
        raise DataError(f"no store at {str(path)!r}; import bars into it first, or give the path of an existing store")
    connection = _open(path, read_only=read_only, wait_s=wait_s)
    try:
        connection.execute("set TimeZone = 'UTC'")
        # It would be written among what a command prints.
        connection.execute("set enable_progress_bar = false")
        # Text as Polars holds it, which then need not be copied.
        connection.execute("set produce_arrow_string_view = true")
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
            holder = f"process {found[2]} ({_command(found[2]) or found[1]})" if found else "another process"
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


def _command(pid: str) -> str:
    """Return the command line of a process in one short line, empty where the system does not tell."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    line = " ".join(" ".join(words).split())
    return line if len(line) <= COMMAND_WIDTH else f"{line[: COMMAND_WIDTH - 3]}..."


def _unusable(path: Path, e: duckdb.Error) -> DataError:
    reason = str(e).strip().splitlines()[0].rstrip(".!")
    if "Permission denied" in reason:
        return DataError(f"{path} cannot be used as a store: {reason}; give yourself the right, or another --out")
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
        connection.execute(f"set memory_limit = '{MEMORY}'")
        connection.execute("begin")
        has_tables(connection, path)
        migrate(connection)
        yield Transaction(path, connection)
        connection.execute("commit")


def within(store: str | Path | Transaction) -> AbstractContextManager[Transaction]:
    """Return an open store as it is, and a path as a transaction of its own."""
    return nullcontext(store) if isinstance(store, Transaction) else transaction(store)


def has_tables(con: duckdb.DuckDBPyConnection, path: str | Path) -> bool:
    """Return whether the store has its tables yet; a database of other tables is refused."""
    tables = {row[0] for row in con.sql("select table_name from duckdb_tables()").fetchall()}
    if tables and not tables >= FIRST_TABLES:
        raise DataError(f"{path} is a database of other tables ({', '.join(sorted(tables))}); give a store of foxflow")
    return bool(tables)
