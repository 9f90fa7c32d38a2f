"""Splits and dividends by table: a header with symbol, session, kind and value."""

from pathlib import Path

import polars as pl

from foxflow.bars import EVENT_KINDS, EVENT_SCHEMA
from foxflow.sources.columns import TIMES, column_of, numbers_of, refuse_repeated, symbols_of, texts_of
from foxflow.sources.table import Table
from foxflow.sources.tables import read_table
from foxflow.sources.times import closes


def read_events(path: str | Path, *, calendar: str) -> pl.DataFrame:
    """Return splits and dividends (`EVENT_SCHEMA`) of a CSV or Parquet file with symbol, session, kind and value.

    `ts` is the close of the session, the first that trades without the dividend or after the split.

    Raises
    ------
    DataError
        On anything that is not understood: naming the file, the place and the fault.
    """
    return to_events(read_table(path), calendar=calendar)


def to_events(table: Table, *, calendar: str) -> pl.DataFrame:
    """Return the splits and dividends of a table, sorted by (symbol, ts, kind); see `read_events`."""
    session, kind, value = (column_of(table, names) for names in (("session", *TIMES), ("kind",), ("value",)))
    symbols = symbols_of(table)
    kinds, values = texts_of(table, kind), numbers_of(table, value)
    table.refuse_where(~kinds.is_in(EVENT_KINDS), kinds, "kind {}; expected split or dividend")
    table.refuse_where(values <= 0, values, "value {}; expected new shares per old share, or money per share")
    ts = closes(table, session, calendar=calendar)
    events = pl.DataFrame({"symbol": symbols, "ts": ts, "kind": kinds, "value": values}, schema=EVENT_SCHEMA)
    refuse_repeated(table, events, ("symbol", "ts", "kind"))
    return events.sort("symbol", "ts", "kind")
