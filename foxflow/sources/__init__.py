"""Readers of files: each returns bars (`BAR_SCHEMA`, raw) or refuses, naming file, place, fault and what to do."""

from pathlib import Path

import polars as pl

from foxflow.errors import DataError
from foxflow.sources import csv, parquet
from foxflow.sources.columns import to_bars, to_events
from foxflow.sources.table import Table

_PARQUET = b"PAR1"
# What else people hand over, by its first bytes.
_REFUSED = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"ARROW1": "a feather file; save it as Parquet",
    b"\x89HDF": "an HDF5 file; save it as Parquet",
    b"\x80": "a pickle, which is never loaded because it can run code; save it as Parquet",
}


def read(
    path: str | Path,
    *,
    bar: str,
    symbol: str | None = None,
    stamp: str | None = None,
    tz: str | None = None,
    calendar: str | None = None,
) -> pl.DataFrame:
    """Return the bars of a CSV (plain or gz) or Parquet file, told apart by content, sorted by (symbol, ts).

    Parameters
    ----------
    symbol
        The symbol of a file that names none, or the one to take from a file of many.
    stamp
        Whether a time of day is the bar's `open` or its `close`; required for times, without effect on dates.
    tz
        Zone of times written without an offset, as in `America/New_York`.
    calendar
        Exchange whose session a date means, as in `XNYS`; `ts` is that session's close.

    Raises
    ------
    DataError
        On anything that is not understood: naming the file, the place, the fault and the option that would help.
    """
    return to_bars(_table(path), bar=bar, symbol=symbol, stamp=stamp, tz=tz, calendar=calendar)


def read_events(path: str | Path, *, calendar: str) -> pl.DataFrame:
    """Return splits and dividends (`EVENT_SCHEMA`) of a CSV or Parquet file with symbol, session, kind and value.

    `ts` is the close of the session, the first that trades without the dividend or after the split.

    Raises
    ------
    DataError
        As `read`.
    """
    return to_events(_table(path), calendar=calendar)


def _table(path: str | Path) -> Table:
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as e:
        raise DataError(f"{path} cannot be read: {e.strerror}; give the path of a CSV or Parquet file") from e
    if not head:
        raise DataError(f"{path} is empty; expected a CSV with a header, or Parquet")
    for magic, what in _REFUSED.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {what}")
    if head.startswith(_PARQUET):
        return parquet.read(path)
    if path.suffix in (".parquet", ".pq"):
        raise DataError(
            f"{path} is not Parquet, though its name says so: it starts with {head!r}; expected {_PARQUET!r}"
        )
    return csv.read(path)
