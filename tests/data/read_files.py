"""Reading a file in a test: its options as keywords."""

from pathlib import Path
from typing import Any

import polars as pl

from foxflow import sources
from foxflow.sources import Options


def read(path: Path, **given: Any) -> pl.DataFrame:
    """Return the bars of a file read with these options."""
    return sources.read(path, Options(**given))
