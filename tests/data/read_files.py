"""Reading a file in a test: its options as keywords."""

import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from foxflow import ingest, sources
from foxflow.sources import Options


def read(path: Path, **given: Any) -> pl.DataFrame:
    """Return the bars of a file read with these options."""
    return sources.read(path, Options(**given))


def understood(path: Path, **given: Any) -> dict[str, Any]:
    """Return what `foxflow bars import --dry-run --json` prints of a file."""
    options = Options(**given)
    with tempfile.TemporaryDirectory() as folder:
        return ingest.summary(ingest.understand([path], options, Path(folder)), options)
