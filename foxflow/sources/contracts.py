"""From a file's columns to futures contracts, and to figures of their open interest."""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from foxflow.bars import TS
from foxflow.futures import CONTRACT_REVISION_SCHEMA, OPEN_INTEREST_SCHEMA, require_open_interest
from foxflow.sources.table import Table
from foxflow.sources.tables import read_table
from foxflow.sources.times import OFFSET, with_offset

# The rules of an exchange name a contract's expiry before its first trade.
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = r"^\d{4}-\d{2}-\d{2}$"


def read_contracts(path: str | Path) -> pl.DataFrame:
    """Return futures contracts (`futures.CONTRACT_REVISION_SCHEMA`) of a CSV or Parquet file.

    Columns: root, symbol, expiry (the last day of trading), and if there are any multiplier and known_at (a time with
    an offset). Without known_at a contract counts as known from before its first trade.

    Raises
    ------
    DataError
        As `sources.read`.
    """
    return to_contracts(read_table(path))


def read_open_interest(path: str | Path) -> pl.DataFrame:
    """Return open interest (`futures.OPEN_INTEREST_SCHEMA`) of a file with symbol, known_at and open_interest.

    `known_at` is when a figure was published, a time with an offset: exchanges do so on the morning after.

    Raises
    ------
    DataError
        As `sources.read`.
    """
    return to_open_interest(read_table(path))


def to_contracts(table: Table) -> pl.DataFrame:
    """Return the contracts of a table (`futures.CONTRACT_REVISION_SCHEMA`); see `read_contracts`."""
    root, symbol, expiry = (_column(table, name) for name in ("root", "symbol", "expiry"))
    found = {column.strip().lower(): column for column in table.frame.columns}
    rows = pl.DataFrame(
        {
            "root": _texts(table, root),
            "symbol": _texts(table, symbol),
            "expiry": _dates(table, expiry),
            "multiplier": _numbers(table, found["multiplier"], empty=True) if "multiplier" in found else None,
            "known_at": _instants(table, found["known_at"]) if "known_at" in found else ALWAYS,
        },
        schema=CONTRACT_REVISION_SCHEMA,
    )
    repeated = rows.select("symbol", "known_at").is_duplicated()
    table.refuse_where(
        repeated, rows["symbol"], "symbol {} stands in another row too; keep one, or date them by known_at"
    )
    return rows


def to_open_interest(table: Table) -> pl.DataFrame:
    """Return the figures of a table (`futures.OPEN_INTEREST_SCHEMA`); see `read_open_interest`."""
    symbol, known_at, figure = (_column(table, name) for name in ("symbol", "known_at", "open_interest"))
    rows = pl.DataFrame(
        {
            "symbol": _texts(table, symbol),
            "ts": _instants(table, known_at),
            "open_interest": _numbers(table, figure, empty=False),
        },
        schema=OPEN_INTEREST_SCHEMA,
    )
    return require_open_interest(rows, where=table.file)


def _column(table: Table, name: str) -> str:
    found = next((column for column in table.frame.columns if column.strip().lower() == name), None)
    if found is None:
        table.refuse(f"no column {name} among {', '.join(map(repr, table.frame.columns))[:300]}; add it")
    return found


def _texts(table: Table, column: str) -> pl.Series:
    values = table.frame[column].cast(pl.String)
    table.refuse_where(values.is_null(), values, f"{column} {{}}; expected a name in every row")
    return values


def _dates(table: Table, column: str) -> pl.Series:
    raw = table.frame[column]
    if raw.dtype == pl.Date:
        dates = raw
    elif raw.dtype == pl.String:
        iso = pl.select(pl.when(raw.str.contains(_DATE)).then(raw)).to_series()
        dates = iso.str.to_date("%Y-%m-%d", strict=False)
    else:
        table.refuse(f"column {column} is {raw.dtype}; expected the last day of trading as a date, as in 2024-03-15")
    table.refuse_where(dates.is_null(), raw, f"{column} {{}}; expected the last day of trading, as in 2024-03-15")
    return dates


def _instants(table: Table, column: str) -> pl.Series:
    raw = table.frame[column]
    if isinstance(raw.dtype, pl.Datetime) and raw.dtype.time_zone is not None:
        instants = raw.cast(TS)
    elif raw.dtype == pl.String:
        instants = with_offset(pl.select(pl.when(raw.str.contains(OFFSET)).then(raw)).to_series())
    else:
        table.refuse(f"column {column} is {raw.dtype}; expected times with an offset, as in 2024-03-14T20:00:00Z")
    table.refuse_where(
        instants.is_null(), raw, f"{column} {{}}; expected a time with an offset, as in 2024-03-14T20:00:00Z"
    )
    return instants


def _numbers(table: Table, column: str, *, empty: bool) -> pl.Series:
    raw = table.frame[column]
    values = raw.cast(pl.Float64, strict=False)
    known = values.is_finite().fill_null(value=False) | (raw.is_null() if empty else False)
    table.refuse_where(~known, raw, f"{column} {{}}; expected a number")
    return values
