"""Readers of files: each gives bars (`BAR_SCHEMA`, raw) or refuses, naming file, place, fault and what to do."""

import tempfile
from pathlib import Path

import polars as pl

from foxflow.bars import BAR_SCHEMA
from foxflow.sources.contracts import read_contracts, read_open_interest
from foxflow.sources.events import read_events
from foxflow.sources.options import Options
from foxflow.sources.reading import Staged, stage
from foxflow.sources.staging import by_symbol
from foxflow.sources.universe import read_universe

__all__ = [
    "Options",
    "Staged",
    "by_symbol",
    "read",
    "read_contracts",
    "read_events",
    "read_open_interest",
    "read_universe",
    "stage",
]


def read(path: str | Path, options: Options | None = None) -> pl.DataFrame:
    """Return the bars of a file, sorted by (symbol, ts); the whole file in memory, which `stage` avoids.

    Raises
    ------
    DataError
        On anything that is not understood: naming the file, the place, the fault and the option that would help.
    """
    with tempfile.TemporaryDirectory() as folder:
        staged = stage(path, options or Options(), Path(folder))
        frame = pl.read_parquet(staged.path, columns=BAR_SCHEMA.names()).cast(BAR_SCHEMA)
        return frame.with_columns(pl.col("ts") + staged.shift).rechunk()
