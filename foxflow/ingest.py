"""Files into the store: every file of an import is kept, or none is."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import polars as pl

from foxflow import sample, sources, store
from foxflow.bars import bar_length
from foxflow.errors import DataError

_NO_DELAY = timedelta(0)


@dataclass(frozen=True)
class Imported:
    """What an import did with one file: rows added to the store, and rows that stood there already."""

    file: str
    added: int
    present: int


def import_files(
    store_path: str | Path,
    paths: Sequence[str | Path],
    *,
    bar: str,
    symbol: str | None = None,
    stamp: str | None = None,
    tz: str | None = None,
    calendar: str | None = None,
    events: str | Path | None = None,
    delay: timedelta = _NO_DELAY,
) -> list[Imported]:
    """Add the bars of files to the store and return a count a file; importing a file again changes nothing.

    Parameters
    ----------
    symbol, stamp, tz, calendar
        How to read the files, see `sources.read`.
    events
        A file of splits and dividends of daily bars, see `sources.read_events`; it needs the calendar.
    delay
        How long after its `ts` a bar was known.

    Raises
    ------
    DataError
        When a file is refused, or differs from a bar that is stored or in an earlier file; nothing is written then.
    """
    if not paths:
        raise DataError("no file to import; give the path of at least one CSV or Parquet file")
    # Every file is read before the store is opened: a refused file makes no store, and the lock is held briefly.
    files = [
        (str(path), sources.read(path, bar=bar, symbol=symbol, stamp=stamp, tz=tz, calendar=calendar)) for path in paths
    ]
    splits = None
    if events is not None:
        if bar_length(bar) != timedelta(days=1) or calendar is None:
            raise DataError(
                f"events {str(events)!r} with bar = {bar!r} and calendar = {calendar!r}; splits and dividends are "
                "dated by session and go with daily bars: give --bar 1d and --calendar"
            )
        splits = sources.read_events(events, calendar=calendar)
    imported = []
    with store.transaction(store_path) as inside:
        for file, bars in files:
            counts = store.write_bars(inside, bars, bar=bar, delay=delay, where=file)
            imported.append(Imported(file, counts.added, counts.present))
        if splits is not None:
            counts = store.write_events(inside, splits, delay=delay, where=str(events))
            imported.append(Imported(str(events), counts.added, counts.present))
    return imported


def import_sample(store_path: str | Path) -> list[Imported]:
    """Add the embedded sample's bars and events to the store; where they stand already, only read it.

    Raises
    ------
    DataError
        When the store holds other bars of the same symbols, or cannot be used.
    """
    bars, events = sample.load_bars(), sample.load_events()
    # Reading takes no lock that another reader would notice, so runs beside each other need not wait.
    if _holds_sample(store_path, bars, events):
        return [Imported("stocks.csv.gz", 0, len(bars)), Imported("events.csv", 0, len(events))]
    with store.transaction(store_path) as inside:
        of_bars = store.write_bars(inside, bars, bar=sample.BAR, where="stocks.csv.gz")
        of_events = store.write_events(inside, events, where="events.csv")
    return [
        Imported("stocks.csv.gz", of_bars.added, of_bars.present),
        Imported("events.csv", of_events.added, of_events.present),
    ]


def _holds_sample(store_path: str | Path, bars: pl.DataFrame, events: pl.DataFrame) -> bool:
    if not Path(store_path).exists():
        return False
    symbols = bars["symbol"].unique().to_list()
    stored = store.list_bars(store_path).filter(pl.col("bar") == sample.BAR)["symbol"].to_list()
    return (
        set(symbols) <= set(stored)
        and store.read_bars(store_path, bar=sample.BAR, symbols=symbols).equals(bars)
        and store.read_events(store_path, symbols=symbols).equals(events)
    )
