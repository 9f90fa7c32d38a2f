"""Parquet with one row a bar."""

from pathlib import Path

import polars as pl

from foxflow.errors import DataError
from foxflow.sources.table import Table


def read(path: Path) -> Table:
    """Return the file's columns as they are typed.

    Raises
    ------
    DataError
        When the file is damaged or has no rows.
    """
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as e:
        raise DataError(f"{path} is damaged Parquet: {str(e).splitlines()[0]}; fetch or write the file again") from e
    if not len(frame):
        raise DataError(f"{path} has no rows; expected at least one bar")
    return Table(str(path), frame, "row", pl.int_range(1, len(frame) + 1, eager=True))
