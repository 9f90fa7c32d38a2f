"""`foxflow bars`: import, list and check bars."""

import sys
from pathlib import Path

import click

from foxflow.cli.app import app, interruptible, with_json, with_out, with_sample
from foxflow.cli.printing import print_rows


@app.group("bars")
def bars_group() -> None:
    """Import, list and check bars."""


@bars_group.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--bar", required=True, metavar="LENGTH", help="Bar length: 1m, 15m, 1h, 1d.")
@click.option("--symbol", help="Symbol of a file that names none, or the one to take.")
@click.option("--stamp", type=click.Choice(["open", "close"]), help="Whether a time is the bar's open or its close.")
@click.option("--tz", metavar="ZONE", help="Zone of times without an offset, as in America/New_York.")
@click.option("--calendar", metavar="EXCHANGE", help="Exchange whose sessions daily dates are, as in XNYS.")
@click.option(
    "--events",
    type=click.Path(path_type=Path),
    help="File of splits and dividends: symbol, session, kind, value; needs --calendar.",
)
@with_out
@with_json
def bars_import(
    paths: tuple[Path, ...],
    bar: str,
    symbol: str | None,
    stamp: str | None,
    tz: str | None,
    calendar: str | None,
    events: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Import bars from CSV (plain or gz) or Parquet: all files or none; the same file twice changes nothing."""
    from foxflow import experiment, ingest

    with interruptible():
        found = ingest.import_files(
            experiment.store_path(experiment.home(out), "store"),
            paths,
            bar=bar,
            symbol=symbol,
            stamp=stamp,
            tz=tz,
            calendar=calendar,
            events=events,
        )
    rows = [{"file": i.file, "added": i.added, "present": i.present} for i in found]
    print_rows(rows, as_json=as_json, title="imported")


@bars_group.command("list")
@with_out
@with_sample
@with_json
def bars_list(out: Path | None, sample: bool, as_json: bool) -> None:
    """List the symbols of the store: bar length, number of bars, first and last."""
    from foxflow import experiment, store

    table = store.list_bars(experiment.open_store(experiment.home(out), "sample" if sample else "store"))
    print_rows(table.to_dicts(), as_json=as_json, title="bars")


@bars_group.command("check")
@click.option("--bar", default="1d", show_default=True, metavar="LENGTH", help="Bar length to check.")
@with_out
@with_sample
@with_json
def bars_check(bar: str, out: Path | None, sample: bool, as_json: bool) -> None:
    """Check the bars of the store; exit 1 where a finding is severe."""
    from foxflow import bars, experiment, store

    path = experiment.open_store(experiment.home(out), "sample" if sample else "store")
    stored = store.read_bars(path, bar=bar)
    findings = bars.check(stored, store.read_events(path))
    print_rows(findings.to_dicts(), as_json=as_json, title=f"findings in {len(stored)} bars")
    if (findings["severity"] == "severe").any():
        sys.exit(1)
