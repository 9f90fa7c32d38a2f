"""The embedded default: five real US stocks, daily, 2000 to 2013, with their splits and dividends.

`metadata.json` beside this file says where the bytes come from, their licence, columns, clock and known faults.
"""

import hashlib
import io
import json
from importlib import resources
from typing import Any

import polars as pl

from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA, require, session_closes
from foxflow.errors import DataError

BAR = "1d"
CALENDAR = "XNYS"


def load_bars() -> pl.DataFrame:
    """Return the sample's bars (`BAR_SCHEMA`), raw, sorted by (symbol, ts); `ts` is the close of the session in UTC.

    Raises
    ------
    DataError
        When the file is not the one that `metadata.json` describes.
    """
    table = pl.read_csv(
        io.BytesIO(_verified("stocks.csv.gz")), schema_overrides={"Date": pl.Date, "Volume": pl.Float64}
    )
    renamed = table.rename({"Ticker": "symbol", "Date": "session"}).rename(str.lower)
    return require(renamed.join(_closes(), on="session", how="left").select(BAR_SCHEMA.names()), where="stocks.csv.gz")


def load_events() -> pl.DataFrame:
    """Return the sample's splits and dividends (`EVENT_SCHEMA`), sorted by (symbol, ts).

    Raises
    ------
    DataError
        When the file is not the one that `metadata.json` describes.
    """
    table = pl.read_csv(io.BytesIO(_verified("events.csv")), schema_overrides={"session": pl.Date})
    events = table.join(_closes(), on="session", how="left").select(EVENT_SCHEMA.names())
    return events.sort("symbol", "ts")


def metadata() -> dict[str, Any]:
    """Return what is known about the sample: source, licence, columns, calendar, faults, sha256 of each file."""
    document: dict[str, Any] = json.loads(_bytes("metadata.json"))
    return document


def _verified(name: str) -> bytes:
    content = _bytes(name)
    expected, found = metadata()["files"][name]["sha256"], hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(f"{name} of the sample has sha256 {found}; expected {expected}; install foxflow again")
    return content


def _bytes(name: str) -> bytes:
    return (resources.files("foxflow.sample") / name).read_bytes()


def _closes() -> pl.DataFrame:
    table = pl.read_csv(io.BytesIO(_verified("stocks.csv.gz")), columns=["Date"], schema_overrides={"Date": pl.Date})
    first, last = table.select(pl.col("Date").min(), pl.col("Date").max().alias("last")).row(0)
    return session_closes(CALENDAR, first, last)
