"""What every reader of a format gives: a file's columns in chunks of bounded size, and the lines that are no rows."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import polars as pl

# `kind`: `blank` (a row that says nothing), `words` (a line of words, as in a footer), `header` (the header line
# again), `comment`, `bad` (anything else).
FAULT_SCHEMA = pl.Schema(
    {"number": pl.Int64(), "kind": pl.String(), "when": pl.String(), "text": pl.String(), "reason": pl.String()}
)


Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items, the next one made in a thread while one is used."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(next, items, end)
        while (item := pending.result()) is not end:
            pending = pool.submit(next, items, end)
            yield item  # type: ignore[misc]


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file.

    Attributes
    ----------
    frame
        One column for each of the file's, called by its position ("0", "1", ...): text, or typed.
    numbers
        `(n_rows,)`: the number of each row in the file, from 1 (lines count a header).
    faults
        Lines of this chunk that are no rows (`FAULT_SCHEMA`).
    n_bytes
        Bytes of the file (as it lies on disk) read so far.
    notes
        What a reader should know of these rows.
    """

    frame: pl.DataFrame
    numbers: pl.Series
    faults: pl.DataFrame = field(default_factory=FAULT_SCHEMA.to_frame)
    n_bytes: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opened:
    """A file whose columns have names, before they have a meaning.

    Attributes
    ----------
    unit
        What a row is called in messages: `line`, `row` or `record`.
    names
        The columns' names; empty where the file has none.
    where
        Where those names stand.
    symbol, bar, stamp, tz
        What the file itself says.
    """

    file: str
    format: str
    unit: str
    names: tuple[str, ...]
    where: str
    chunks: Iterator[Chunk]
    symbol: str | None = None
    bar: str | None = None
    stamp: str | None = None
    tz: str | None = None
    notes: tuple[str, ...] = ()
