"""A store as a folder of Parquet files, which DuckDB, Polars and any other tool read, and a store made of it again.

`bars/bar=1m/period=2024-03/bars.parquet` holds the first values known of one month of bars (of one year where bars are
days), by (symbol, ts); every other table is one file. `foxflow.json` lists all files with their sha256, so that what
is read back is what was written. A file of one symbol each would be as fast to read, but a symbol may hold a `/`, and a
night would touch every file.
"""
# ruff: noqa: S608 - the only names put into SQL are constants of this package, and paths, quoted.

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from foxflow.errors import DataError
from foxflow.scratch import scratch
from foxflow.store.connection import MEMORY, Transaction, connect, has_tables, within
from foxflow.store.schema import TABLES, source
from foxflow.store.tables import Counts

LIST = "foxflow.json"
FORMAT = 1


def export(path: str | Path, folder: str | Path) -> dict[str, int]:
    """Write a store's tables to a new folder and return the rows of each; the folder appears whole or not at all.

    Raises
    ------
    DataError
        When the store cannot be read or is empty, or the folder is there already.
    """
    folder = Path(folder)
    if folder.exists():
        raise DataError(f"{str(folder)!r} is there already; give a folder that is not, or move it away")
    with connect(path, read_only=True) as con, scratch(folder.absolute().parent) as work:
        con.execute(f"set memory_limit = '{MEMORY}'")
        if not has_tables(con, path):
            raise DataError(f"{path} holds no bars; import some first")
        lake = work / "lake"
        lake.mkdir()
        stored = {row[0] for row in con.sql("select table_name from duckdb_tables()").fetchall()}
        rows = {table: _write(con, table, lake) for table in TABLES if table in stored | {"revisions"}}
        files = {str(file.relative_to(lake)): _sha256(file) for file in sorted(lake.rglob("*.parquet"))}
        listed = {"format": FORMAT, "rows": rows, "files": files}
        (lake / LIST).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        lake.rename(folder)
    return rows


def is_export(folder: str | Path) -> bool:
    """Return whether a path is a folder that `export` wrote."""
    return (Path(folder) / LIST).is_file()


def restore(folder: str | Path, store: str | Path | Transaction) -> dict[str, Counts]:
    """Fill a new or empty store from a folder that `export` wrote; one that holds just that already stays as it is.

    Returns
    -------
    For each table, its rows as added or as present.

    Raises
    ------
    DataError
        When a file is absent, changed or not listed, or the store holds anything else.
    """
    folder = Path(folder)
    rows = _checked(folder)
    with within(store) as inside:
        return {table: _read(inside, folder, table, rows[table]) for table in rows}


def _write(con: duckdb.DuckDBPyConnection, table: str, lake: Path) -> int:
    if table != "bars":
        # In one order whatever order the rows came in, so that equal stores give equal files.
        return _copy(con, f"select * from {source(con, table)} order by all", lake / f"{table}.parquet")
    total = 0
    bars = source(con, "bars")
    spans = con.sql(f"select bar, min(ts), max(ts) from {bars} group by bar order by bar").fetchall()
    for bar, first, last in spans:
        for period, start, end in _periods(first, last, years=bar.endswith("d")):
            file = lake / "bars" / f"bar={bar}" / f"period={period}" / "bars.parquet"
            file.parent.mkdir(parents=True)
            rows = _copy(
                con,
                f"select * exclude (bar) from {bars} where bar = '{bar}' and ts >= '{start}' and ts < '{end}' "
                "order by symbol, ts",
                file,
            )
            total += rows
            if not rows:
                file.unlink()
                file.parent.rmdir()
    return total


def _periods(first: datetime, last: datetime, *, years: bool) -> Iterator[tuple[str, datetime, datetime]]:
    """Yield name, start and end of each year or month, in UTC, from that of `first` to that of `last`."""
    months = 12 if years else 1
    at = (first.year * 12 + first.month - 1) // months * months
    while at <= last.year * 12 + last.month - 1:
        start, end = (datetime(m // 12, m % 12 + 1, 1, tzinfo=UTC) for m in (at, at + months))
        yield f"{start:%Y}" if years else f"{start:%Y-%m}", start, end
        at += months


def _copy(con: duckdb.DuckDBPyConnection, select: str, file: Path) -> int:
    """Write the rows of a query to a Parquet file and return how many."""
    rows: int = con.execute(f"copy ({select}) to {_quoted(file)} (format parquet, compression zstd)").fetchall()[0][0]
    return rows


def _read(inside: Transaction, folder: Path, table: str, rows: int) -> Counts:
    con = inside.connection
    named = con.execute(f"select column_name from duckdb_columns() where table_name = '{table}'").fetchall()
    columns = ", ".join(f'"{name}"' for (name,) in named)
    files = sorted(folder.glob("bars/*/*/bars.parquet") if table == "bars" else folder.glob(f"{table}.parquet"))
    if files:
        partitions = "true, hive_types_autocast = false" if table == "bars" else "false"
        listed = ", ".join(_quoted(file, pattern=True) for file in files)
        lake = f"select {columns} from read_parquet([{listed}], hive_partitioning = {partitions})"
    else:
        lake = f"select {columns} from {table} where false"
    stored: int = con.execute(f"select count(*) from {table}").fetchall()[0][0]
    if stored:
        here = f"select {columns} from {table}"
        differing = con.execute(
            f"select count(*) from (({here} except all ({lake})) union all (({lake}) except all {here}))"
        ).fetchall()[0][0]
        if differing:
            raise DataError(
                f"{inside.path}: its table {table} holds {stored} row(s) and differs from {folder} in {differing}; a "
                "folder of foxflow bars export goes into a new or empty store: give another --out"
            )
        return Counts(added=0, present=stored)
    order = "symbol, bar, ts" if table in {"bars", "revisions"} else "all"
    added = con.execute(f"insert into {table} by name {lake} order by {order}").fetchall()[0][0]
    if added != rows:
        raise DataError(f"{folder}: table {table} has {added} row(s), {LIST} says {rows}; export again")
    return Counts(added=added, present=0)


def _checked(folder: Path) -> dict[str, int]:
    """Return the rows of each table, if the folder holds the files that its list says, and no others."""
    again = "copy the folder or export again"
    try:
        listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
        version, rows, files = listed["format"], listed["rows"], listed["files"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DataError(f"{folder}: no readable {LIST} ({e}); expected a folder of foxflow bars export") from e
    unknown = sorted(rows.keys() - TABLES.keys())
    if version != FORMAT or unknown:
        raise DataError(
            f"{folder} is an export of format {version} with tables {', '.join(rows)}; this foxflow reads format "
            f"{FORMAT} with {', '.join(TABLES)}: use the version that wrote it, or a newer one"
        )
    there = {str(file.relative_to(folder)) for file in folder.rglob("*.parquet")}
    for name in sorted(there ^ files.keys()):
        state = "absent" if name in files else "not listed"
        raise DataError(f"{folder}: the file {name} is {state}; {again}")
    for name, sha256 in files.items():
        if _sha256(folder / name) != sha256:
            raise DataError(f"{folder}: the file {name} was changed since it was written; {again}")
    return {table: rows[table] for table in TABLES if table in rows}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _quoted(file: Path, *, pattern: bool = False) -> str:
    """Return a path as SQL text; as a pattern, what DuckDB would take for a wildcard stands for itself."""
    text = "".join(f"[{c}]" if pattern and c in "*?[" else c for c in str(file))
    return "'" + text.replace("'", "''") + "'"
