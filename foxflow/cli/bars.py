"""`foxflow bars`: import and list bars; `check` has a file of its own."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from foxflow.cli.app import app, interruptible, with_json, with_out, with_sample
from foxflow.cli.printing import print_json, print_rows
from foxflow.errors import FoxflowError

if TYPE_CHECKING:
    from foxflow.sources import Options


@app.group("bars")
def bars_group() -> None:
    """Import, list and check bars."""


@bars_group.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--symbol", help="Symbol of a file that names none, or the one to take from a file of many.")
@click.option("--bar", metavar="LENGTH", help="Bar length: 1m, 15m, 1h, 1d; else the smallest gap between bars.")
@click.option("--stamp", type=click.Choice(["open", "close"]), help="Whether a time is the bar's open or its close.")
@click.option("--tz", metavar="ZONE", help="Zone of times without an offset, as in America/New_York, or of whole days.")
@click.option("--calendar", metavar="EXCHANGE", help="Exchange whose sessions dates are, as in XNYS.")
@click.option("--format", "format_", metavar="NAME", help="csv, jsonl, parquet, feather or dbn; else told by content.")
@click.option(
    "--columns",
    multiple=True,
    metavar="ROLE=NAME,...",
    help='Which column is which (close="Adj Close", ts=1, volume=none), or all by position (ts,open,high,...,-).',
)
@click.option(
    "--date-format", metavar="FORMAT", help="dmy, mdy, ymd, epoch-s|ms|us|ns, excel, day-ms or %d.%m.%Y %H:%M."
)
@click.option("--date", metavar="DAY", help="The day of times that are milliseconds since midnight, as in 2024-03-14.")
@click.option("--decimal", type=click.Choice([".", ","]), help="The decimal mark, where the file does not tell.")
@click.option("--scale", type=float, default=1.0, help="What a written price of 1 is worth, as in 0.0001.")
@click.option("--keep", type=click.Choice(["first", "last"]), help="Which of two different rows of one time is right.")
@click.option(
    "--quarantine", is_flag=True, help="Put rows that are no bars aside, countable; else they refuse the file."
)
@click.option(
    "--on-conflict",
    "conflict",
    type=click.Choice(["refuse", "keep", "correct"]),
    default="refuse",
    show_default=True,
    help="Bars that differ from stored ones: refuse the import, keep the stored, or add a correction.",
)
@click.option("--known-at", type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ"]), help="When corrections were known; else now.")
@click.option("--delay", metavar="LENGTH", help="How long after it was complete a bar was known, as in 15m.")
@click.option(
    "--events",
    type=click.Path(path_type=Path),
    help="File of splits and dividends: symbol, session, kind, value; needs --calendar.",
)
@click.option("--dry-run", is_flag=True, help="Say how the files are understood, and import nothing.")
@with_out
@with_json
def bars_import(
    paths: tuple[Path, ...],
    symbol: str | None,
    bar: str | None,
    stamp: str | None,
    tz: str | None,
    calendar: str | None,
    format_: str | None,
    columns: tuple[str, ...],
    date_format: str | None,
    date: str | None,
    decimal: str | None,
    scale: float,
    keep: Literal["first", "last"] | None,
    quarantine: bool,
    conflict: Literal["refuse", "keep", "correct"],
    known_at: datetime | None,
    delay: str | None,
    events: Path | None,
    dry_run: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Import bars: CSV in any dress, JSON lines, Parquet, Feather or DBN, plain or packed; all files or none.

    Or a folder of `bars export`, which makes an equal store.

    The same file twice changes nothing. What a file does not tell (the zone of its times, whether they open or close
    a bar, which of day and month comes first) is asked for; --dry-run says what was understood. A folder that
    `bars export` wrote makes an equal store.
    """
    from foxflow import experiment, ingest
    from foxflow.bars import bar_length
    from foxflow.cli.export import restored
    from foxflow.progress import ByteBar
    from foxflow.sources import Options
    from foxflow.sources.roles import declared

    options = Options(
        bar=bar,
        symbol=symbol,
        stamp=stamp,
        tz=tz,
        calendar=calendar,
        format=format_,
        columns=declared(columns),
        date_format=date_format,
        date=date,
        decimal=decimal,
        scale=scale,
        keep=keep,
        quarantine=quarantine,
    )
    plain = options == Options() and conflict == "refuse" and not (known_at or delay or events or dry_run)
    if restored(paths, plain=plain, out=out, as_json=as_json):
        return
    with interruptible(), ByteBar(quiet=as_json) as view:
        if dry_run:
            _dry_run(paths, options, events, view.progress, as_json=as_json)
            return
        found = ingest.import_files(
            experiment.store_path(experiment.home(out), "store"),
            paths,
            options,
            events=events,
            delay=bar_length(delay, name="--delay") if delay is not None else timedelta(0),
            conflict=conflict,
            known_at=known_at.replace(tzinfo=UTC) if known_at is not None else None,
            progress=view.progress,
        )
    rows = [{**dataclasses.asdict(i), "notes": list(i.notes)} for i in found]
    if as_json:
        print_json(rows)
        return
    print_rows([{k: v for k, v in row.items() if k != "notes"} for row in rows], as_json=False, title="imported")
    for each in found:
        for note in each.notes:
            print(f"{each.file}: {note}")


def _dry_run(
    paths: Sequence[Path],
    options: "Options",
    events: Path | None,
    progress: Callable[[str, int, int], None],
    *,
    as_json: bool,
) -> None:
    """Print how files are understood; with JSON one object, also where a file is refused."""
    import tempfile

    from foxflow import ingest

    try:
        with tempfile.TemporaryDirectory() as folder:
            staged = ingest.understand(paths, options, Path(folder), progress=progress)
            understood = ingest.summary(staged, options, events=events)
    except FoxflowError as e:
        if not as_json:
            raise
        print_json({"error": str(e)})
        sys.exit(1)
    if as_json:
        print_json(understood)
        return
    print_rows(
        [
            {"": k, "understood": str(v) if isinstance(v, float) else v}
            for k, v in understood.items()
            if k not in ("warnings", "dropped", "files")
        ],
        as_json=False,
        title="understood; nothing imported",
    )
    for row in understood["dropped"]:
        print(f"dropped: {row['file']}, row {row['number']} ({row['when']}): {row['reason']}")
    for warning in understood["warnings"]:
        print(f"warning: {warning}")


@bars_group.command("quarantine")
@with_out
@with_json
def bars_quarantine(out: Path | None, as_json: bool) -> None:
    """List the rows that imports put aside, with their reasons."""
    from foxflow import experiment, store

    rows = store.read_quarantine(experiment.store_path(experiment.home(out), "store"))
    print_rows(rows.drop("sha256").to_dicts(), as_json=as_json, title=f"{len(rows)} rows put aside")


@bars_group.command("list")
@with_out
@with_sample
@with_json
def bars_list(out: Path | None, sample: bool, as_json: bool) -> None:
    """List the symbols of the store: bar length, number of bars, first and last."""
    from foxflow import experiment, store

    table = store.list_bars(experiment.open_store(experiment.home(out), "sample" if sample else "store"))
    print_rows(table.to_dicts(), as_json=as_json, title="bars")
