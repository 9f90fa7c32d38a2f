"""Small tables that go with bars (events, universe, contracts): CSV with a header line, plain or gz, or Parquet."""

from pathlib import Path

from foxflow.errors import DataError
from foxflow.sources import csv, parquet
from foxflow.sources.content import identify
from foxflow.sources.table import Table


def read_table(path: str | Path) -> Table:
    """Return a table's columns, as text (CSV) or typed (Parquet).

    Raises
    ------
    DataError
        When the file cannot be read, is of another kind, or no regular table.
    """
    content = identify(path)
    if content.kind == "parquet" and not content.packing:
        return parquet.read(content.path)
    if content.kind == "csv" and content.packing in ((), ("gz",)):
        return csv.read(content.path)
    raise DataError(f"{path} holds {content.kind}; expected CSV with a header line, or Parquet")
