"""One file, understood: what it holds, which column is which, its rows staged; what it does not tell is asked for."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from foxflow.bars import PRICES, bar_length, zone_of
from foxflow.errors import DataError
from foxflow.sources import columnar, dbn, delimited, evidence, jsonl, numbers, remarks, rows, staging
from foxflow.sources import roles as columns
from foxflow.sources.asking import conflicts, missing, spacing
from foxflow.sources.chunks import FAULT_SCHEMA, Chunk, Opened, ahead
from foxflow.sources.clock import Clock
from foxflow.sources.content import Content, identify
from foxflow.sources.options import Options
from foxflow.sources.roles import Roles
from foxflow.sources.staging import Order, Repeats, Writer
from foxflow.sources.table import Table
from foxflow.sources.understanding import Understanding

Progress = Callable[[int, int], None]
"""Called with the bytes of the file read so far, and all of them."""


@dataclass(frozen=True)
class Staged:
    """A file as bars, not yet in any store.

    Attributes
    ----------
    path
        Parquet with the columns of `bars.BAR_SCHEMA` and each row's `number`, sorted by (symbol, ts), each bar once;
        volume may be null.
    shift
        What is still to be added to each ts: a bar, where the file has its open.
    order
        Counts, first and last row, gaps.
    aside
        Rows that are no bars (`FAULT_SCHEMA`), in file order.
    notes
        How the file was understood where that was not obvious, and what was dropped or reordered.
    """

    file: str
    path: Path
    format: str
    bar: str
    stamp: str
    tz: str | None
    order: Order
    shift: timedelta
    columns: Mapping[str, str]
    aside: pl.DataFrame
    notes: tuple[str, ...]


def stage(path: str | Path, options: Options, folder: Path, *, progress: Progress = lambda *_: None) -> Staged:
    """Return the bars of a file, staged in `folder`, in memory that does not grow with the file.

    Raises
    ------
    DataError
        On anything that is not understood: naming the file, the place, the fault and the option that would help.
    """
    if options.bar is not None:
        bar_length(options.bar)
    content = identify(path, declared=options.format)
    seen = Understanding()
    with _opened(content, options, seen) as (opened, roles):
        return _staged(content, opened, roles, options, seen=seen, folder=folder, progress=progress)


@contextmanager
def _opened(content: Content, options: Options, seen: Understanding) -> Iterator[tuple[Opened, Roles]]:
    """Give the file's columns, and which is which."""
    file = str(content.path)
    listed = options.columns if isinstance(options.columns, tuple) else None
    chosen = None if isinstance(options.columns, tuple) else options.columns
    with content.path.open("rb") as raw, content.open(raw) as stream:
        if content.kind == "csv":
            texts = ahead(delimited.blocks(stream, file=file, is_whole=bool(content.packing)))
            first = next(texts, "\n")
            layout = delimited.layout_of(first, file=file, names=listed)
            names, notes = layout.names, layout.notes
            sample = delimited.sample(first, layout, file=file)
            if not names and chosen is not None and {"ts", *PRICES} <= set(chosen):
                names = layout.foreign or ("",) * layout.n_fields
            elif not names:
                table = Table(file, sample.frame, "line", sample.numbers)
                names, words = evidence.names_of(table, decimal=options.decimal, foreign=layout.foreign)
                names, words = _against_stamp(names, words, options)
                notes = (*notes, words)
            roles = columns.settle(names, file=file, chosen=chosen, where=layout.where())
            numeric = sorted({roles.positions[r] for r in (*PRICES, "volume") if r in roles.positions})
            if options.decimal is None:
                texts_of = [sample.frame[str(roles.positions[p])] for p in PRICES]
                volume = sample.frame[str(roles.positions["volume"])] if "volume" in roles.positions else None
                numbers.refuse_doubtful(texts_of, volume, file=file, is_european=layout.separator == ";")
            found = delimited.chunks(
                _again(first, texts),
                layout,
                numeric,
                file=file,
                position=raw.tell,
                is_plain=lambda: options.decimal != "," and (seen.style is None or seen.style.decimal == "."),
            )
            opened = Opened(file, "csv", "line", tuple(names), layout.where(), found, symbol=layout.symbol, notes=notes)
        elif content.kind == "jsonl":
            names, found, notes = jsonl.read(stream, file=file)
            if not names and listed is None:
                start = next(found)
                table = Table(file, start.frame, "record", start.numbers)
                names, words = evidence.names_of(table, decimal=".")
                notes, found = (*notes, words), _again(start, found)
            names = listed or names
            roles = columns.settle(names, file=file, chosen=chosen, where="the first record")
            opened = Opened(file, "jsonl", "record", names, "the first record", found, notes=notes)
        elif content.kind == "dbn":
            facts, records = dbn.read(stream, name=file, symbol=options.symbol)
            names = ("symbol", "time", *PRICES, "volume")
            roles = columns.settle(names, file=file, chosen=None, where="its schema")
            opened = Opened(file, "dbn", "record", names, "its schema", _of_dbn(records))
            notes = facts.notes
            opened = replace(opened, bar=facts.bar, stamp=facts.stamp, tz=facts.tz, notes=notes)
        else:
            names, found = columnar.read(content, stream)
            roles = columns.settle(listed or names, file=file, chosen=chosen, where="its schema")
            opened = Opened(file, content.kind, "row", names, "its schema", found)
        yield opened, roles


def _against_stamp(names: tuple[str, ...], words: str, options: Options) -> tuple[tuple[str, ...], str]:
    """Return names and evidence; what the user says of the stamp outweighs what columns without a name look like."""
    if names[0] != "open time" or options.stamp in (None, "open"):
        return names, words
    return ("ts", *names[1:]), f"{words}; the seventh is when a bar closes, so the first looks like its open"


def _of_dbn(records: Iterator[pl.DataFrame]) -> Iterator[Chunk]:
    for frame in records:
        values = frame.drop("number")
        yield Chunk(values.rename({n: str(p) for p, n in enumerate(values.columns)}), frame["number"])


def _staged(
    content: Content,
    opened: Opened,
    roles: Roles,
    options: Options,
    *,
    seen: Understanding,
    folder: Path,
    progress: Progress,
) -> Staged:
    total = content.path.stat().st_size
    stamp, tz = _told(opened, roles, options)
    n_days = _days(options.bar)
    clock = Clock(opened.file, opened.unit, options.calendar, tz, days=n_days, stamp=stamp)
    order, faults = Order(), [FAULT_SCHEMA.to_frame()]
    raw = folder / "raw.parquet"
    writer = Writer(raw)
    try:
        for part in rows.read(
            opened,
            roles,
            seen,
            symbol=options.symbol,
            date_format=options.date_format,
            day=options.date,
            decimal=options.decimal or ("." if content.kind == "jsonl" else None),
            divisor=_divisor(options.scale, opened.file),
            zone=lambda: _zone(options),
        ):
            placed, lost = _placed(part.frame, clock, options)
            order.add(placed)
            writer.write(placed)
            faults += [part.faults, _unplaced(lost, part.frame)]
            progress(part.n_bytes, total)
        again = clock.resolve(newest_first=order.is_newest_first())
        order.add(again, in_order=False)
        writer.write(again)
    finally:
        writer.close()
    progress(total, total)
    aside, notes = remarks.aside(
        pl.concat(faults).sort("number"), order, opened, seen=seen, roles=roles, is_quarantined=options.quarantine
    )
    tidied, repeats = order, Repeats()
    if not order.is_sorted:
        raw = folder / "tidied.parquet"
        tidied, repeats = staging.tidy(folder / "raw.parquet", raw, folder, keep=options.keep)
        for done in ("raw", "sorted"):
            (folder / f"{done}.parquet").unlink()
    asked = missing(opened, roles, seen, options, stamp=stamp, tz=tz, gaps=tidied.gaps, repeats=repeats)
    assert seen.form is not None
    is_date = seen.kind == "date"
    day_tz = (tz or "UTC") if is_date and options.calendar is None else None
    asked += conflicts(opened, repeats, tz=tz, day_tz=day_tz, form=seen.form)
    if asked:
        raise DataError(f"{opened.file}: {'; '.join(asked)}")
    bar = spacing(opened, raw, tidied, seen.kind, given=options.bar or opened.bar)
    shift = bar_length(bar) if stamp == "open" and not is_date else timedelta(0)
    kept = {
        role: opened.names[p].replace("\n", "/") if opened.names else str(p + 1) for role, p in roles.positions.items()
    }
    return Staged(
        file=opened.file,
        path=raw,
        format=content.kind,
        bar=bar,
        stamp=stamp or "close",
        tz=tz or ("UTC" if seen.kind == "utc" else None),
        order=tidied,
        shift=shift,
        columns=kept,
        aside=aside,
        notes=(
            *opened.notes,
            *roles.notes,
            *seen.form.notes,
            *seen.notes,
            *notes,
            *remarks.said(order, repeats, seen, opened, day_tz),
        ),
    )


def _told(opened: Opened, roles: Roles, options: Options) -> tuple[str | None, str | None]:
    """Return stamp and zone, from the file or the user; a contradiction is refused."""
    stamp, tz = opened.stamp or roles.stamp, opened.tz or roles.tz
    if options.stamp not in (None, "open", "close"):
        raise DataError(f"{opened.file}: --stamp {options.stamp!r}; expected open or close")
    if stamp is not None and options.stamp not in (None, stamp):
        raise DataError(
            f"{opened.file} says that its times are a bar's {stamp}, against --stamp {options.stamp}; leave it out"
        )
    if tz is not None and options.tz not in (None, tz):
        raise DataError(f"{opened.file} says that its times are {tz}, against --tz {options.tz}; leave it out")
    if opened.bar is not None and options.bar is not None and bar_length(options.bar) != bar_length(opened.bar):
        raise DataError(f"{opened.file} says that its bars are {opened.bar}, against --bar {options.bar}; leave it out")
    return options.stamp or stamp, options.tz or tz


def _zone(options: Options) -> str | None:
    """Return the zone whose midnights are days: the one that the user named, or the exchange's."""
    if options.tz is not None or options.calendar is None:
        return options.tz
    return zone_of(options.calendar)


def _days(bar: str | None) -> int:
    return int(bar[:-1]) if bar is not None and bar.endswith("d") else 1


def _divisor(scale: float, file: str) -> float:
    if not 0 < scale < 1e9:
        raise DataError(f"{file}: --scale {scale}; expected what a written price of 1 is worth, as in 0.0001")
    # A price of 13,545,000 ten-thousandths is 1354.5 exactly when divided, and not when multiplied by 0.0001.
    inverse = 1 / scale
    return float(round(inverse)) if abs(inverse - round(inverse)) < 1e-9 * inverse else inverse


def _placed(frame: pl.DataFrame, clock: Clock, options: Options) -> tuple[pl.DataFrame, pl.DataFrame]:
    if frame.schema["time"] == pl.Date and options.calendar is None and options.tz is None:
        # Only for what can be found without the calendar that will be asked for.
        placed, lost = replace(clock, tz="UTC").place(frame)
    else:
        placed, lost = clock.place(frame)
    late = placed["ts"] > datetime.now(UTC) + timedelta(days=clock.days + 1)
    if late.any():
        says = pl.format("{} lies in the future", pl.col("ts").dt.to_string("%Y-%m-%d %H:%MZ"))
        lost = pl.concat([lost, placed.filter(late).select("number", reason=says)])
        placed = placed.filter(~late)
    return placed, lost


def _unplaced(lost: pl.DataFrame, frame: pl.DataFrame) -> pl.DataFrame:
    if not len(lost):
        return FAULT_SCHEMA.to_frame()
    joined = lost.join(frame, on="number", how="left")
    return joined.select(
        "number",
        pl.lit("bad").alias("kind"),
        pl.col("time").cast(pl.String).str.strip_suffix(".000000").alias("when"),
        pl.concat_str([pl.col(c).cast(pl.String).fill_null("") for c in frame.columns], separator=",").alias("text"),
        "reason",
    ).cast(FAULT_SCHEMA)


def _again(first: "str | Chunk", rest: "Iterator[str] | Iterator[Chunk]") -> "Iterator[Any]":
    yield first
    yield from rest
