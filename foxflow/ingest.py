"""Files into the store: every file of an import is kept, or none is."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import polars as pl

from foxflow import check, sample, sources, store
from foxflow.bars import iso
from foxflow.errors import DataError
from foxflow.scratch import scratch
from foxflow.sources import Options, Staged

_NO_DELAY = timedelta(0)
Conflict = Literal["refuse", "keep", "correct"]
Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes of it read so far, and all of them."""


@dataclass(frozen=True)
class Imported:
    """What an import did with one file.

    Attributes
    ----------
    added, present
        Rows new in the store, and rows that stood there already.
    corrected, kept
        Rows that differ from the stored ones: appended as a revision, or left as stored.
    quarantined
        Rows that are no bars, put aside for the first time.
    notes
        How the file was understood where that was not obvious, and what was dropped or reordered.
    """

    file: str
    added: int
    present: int
    corrected: int = 0
    kept: int = 0
    quarantined: int = 0
    notes: tuple[str, ...] = ()


def import_files(
    store_path: str | Path,
    paths: Sequence[str | Path],
    options: Options | None = None,
    *,
    events: str | Path | None = None,
    delay: timedelta = _NO_DELAY,
    conflict: Conflict = "refuse",
    known_at: datetime | None = None,
    progress: Progress = lambda *_: None,
) -> list[Imported]:
    """Add the bars of files to the store and return a count a file; importing a file again changes nothing.

    A file is never held in memory whole, and the store is only opened once every file has been understood.

    Parameters
    ----------
    options
        How to read the files, see `sources.Options`.
    events
        A file of splits and dividends, see `sources.read_events`; it needs the calendar.
    delay
        How long after its `ts` a bar was known.
    conflict
        What to do with a bar that differs from the stored one: `refuse` the import, `keep` the stored values, or
        `correct` them by a revision that is known from `known_at` on (now, unless given).

    Raises
    ------
    DataError
        When a file is refused, or differs from a bar that is stored or in an earlier file; nothing is written then.
    """
    options = options or Options()
    store_path = Path(store_path)
    if conflict == "correct":
        known_at = known_at or datetime.now(UTC)
    elif known_at is not None:
        raise DataError(
            f"--known-at {iso(known_at)} has no effect unless differing bars are corrected; add "
            "--on-conflict correct, or leave it out"
        )
    with scratch(store_path.parent) as work:
        files = understand(paths, options, work, progress=progress)
        splits = _events(events, files, options) if events is not None else None
        # Before the store is opened, whose lock is held for moments only.
        digests = [_sha256(staged.file) if len(staged.aside) else None for staged in files]
        imported = []
        with store.transaction(store_path) as inside:
            for staged, digest in zip(files, digests, strict=True):
                counts = store.write_bars(
                    inside,
                    staged.path,
                    bar=staged.bar,
                    delay=delay,
                    shift=staged.shift,
                    where=staged.file,
                    conflict=conflict,
                    known_at=known_at,
                )
                aside = store.write_quarantine(inside, staged.aside, file=staged.file, sha256=digest) if digest else 0
                imported.append(
                    Imported(
                        staged.file, counts.added, counts.present, counts.corrected, counts.kept, aside, staged.notes
                    )
                )
            if splits is not None:
                counts = store.write_events(inside, splits, delay=delay, where=str(events))
                imported.append(Imported(str(events), counts.added, counts.present))
        return imported


def understand(
    paths: Sequence[str | Path], options: Options, folder: Path, *, progress: Progress = lambda *_: None
) -> list[Staged]:
    """Return the files of an import as they are understood, staged in `folder`, without a store.

    Raises
    ------
    DataError
        As `import_files`, but for what the store holds.
    """
    if not paths:
        raise DataError("no file to import; give the path of at least one file of bars")
    staged = []
    for n, path in enumerate(paths):
        place = folder / str(n)
        place.mkdir()
        staged.append(sources.stage(path, options, place, progress=functools.partial(progress, str(path))))
    return staged


def _events(path: str | Path, files: Sequence[Staged], options: Options) -> pl.DataFrame:
    """Return the splits and dividends of a file (`bars.EVENT_SCHEMA`) that comes with files of bars."""
    lengths = sorted({staged.bar for staged in files})
    if options.calendar is None:
        raise DataError(
            f"events {str(path)!r} without a calendar; splits and dividends are dated by session: give --calendar"
        )
    if any(length.endswith("d") and length != "1d" for length in lengths):
        raise DataError(
            f"events {str(path)!r} with bars of {', '.join(lengths)}; splits and dividends are dated by "
            "session: import them with bars of a session (--bar 1d) or shorter ones"
        )
    return sources.read_events(path, calendar=options.calendar)


def summary(understood: Sequence[Staged], options: Options, *, events: str | Path | None = None) -> dict[str, Any]:
    """Return how files were understood, as one object of plain values: what `--dry-run --json` prints.

    `first_ts`, `first_open` are of the earliest bar, `last_ts`, `last_close` of the latest, with the
    times when they are complete, in UTC; `volume_sum` leaves out unknown volumes. `events`, a file of splits and
    dividends as in `import_files`, is read too: a split that it records is none that is missing.

    Raises
    ------
    DataError
        When the file of events is refused.
    """
    recorded = _events(events, understood, options) if events is not None else None
    files = [_one(staged, options, recorded) for staged in understood]
    if len(files) == 1:
        return files[0]
    first, last = min(files, key=lambda f: f["first_ts"]), max(files, key=lambda f: f["last_ts"])
    together: dict[str, Any] = {
        "symbols": sorted({symbol for f in files for symbol in f["symbols"]}),
        "rows": sum(f["rows"] for f in files),
        "first_ts": first["first_ts"],
        "last_ts": last["last_ts"],
        "first_open": first["first_open"],
        "last_close": last["last_close"],
        "volume_sum": sum(f["volume_sum"] for f in files),
    }
    for key in ("bar", "stamp", "tz", "calendar", "format"):
        values = sorted({str(f[key]) for f in files})
        together[key] = files[0][key] if len(values) == 1 else values
    for key in ("dropped", "warnings"):
        together[key] = [each for f in files for each in f[key]]
    return {**together, "files": files}


def _one(staged: Staged, options: Options, events: pl.DataFrame | None) -> dict[str, Any]:
    first, last = staged.order.ends()
    volume = float(staged.order.volume)
    return {
        "file": staged.file,
        "format": staged.format,
        "symbols": sorted(staged.order.symbols),
        "rows": staged.order.n_rows,
        "first_ts": iso(first["ts"] + staged.shift),
        "last_ts": iso(last["ts"] + staged.shift),
        "first_open": first["open"],
        "last_close": last["close"],
        "volume_sum": int(volume) if volume.is_integer() else volume,
        "bar": staged.bar,
        "stamp": staged.stamp,
        "tz": staged.tz,
        "calendar": options.calendar,
        "columns": dict(staged.columns),
        "dropped": [{"file": staged.file, **row} for row in staged.aside.to_dicts()],
        "warnings": [*staged.notes, *_findings(staged, options, events)],
    }


def _findings(staged: Staged, options: Options, events: pl.DataFrame | None) -> list[str]:
    """Return what `bars check` would find in a staged file, in words; one symbol's bars are in memory at a time."""
    parts = (part.with_columns(pl.col("ts") + staged.shift) for part in sources.by_symbol(staged.path))
    found = check.findings_of(parts, bar=staged.bar, calendar=options.calendar, events=events)
    return [
        f"{row['severity']}: {row['check']}, {row['symbol']} at {iso(row['ts'])}: {row['detail']}"
        for row in found.iter_rows(named=True)
    ]


def _sha256(file: str) -> str:
    with Path(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


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
