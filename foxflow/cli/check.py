"""`foxflow bars check`: what may be wrong with the bars of the store."""

import sys
from pathlib import Path

import click

from foxflow.cli.app import with_json, with_out, with_sample
from foxflow.cli.bars import bars_group
from foxflow.cli.printing import print_rows


@bars_group.command("check")
@click.option("--bar", default="1d", show_default=True, metavar="LENGTH", help="Bar length to check.")
@click.option("--calendar", metavar="EXCHANGE", help="Exchange whose sessions the bars should fill, as in XNYS.")
@with_out
@with_sample
@with_json
def bars_check(bar: str, calendar: str | None, out: Path | None, sample: bool, as_json: bool) -> None:
    """Check the bars of the store; exit 1 where a finding is severe."""
    from foxflow import check, experiment, store

    path = experiment.open_store(experiment.home(out), "sample" if sample else "store")
    stored = store.read_bars(path, bar=bar)
    findings = check.findings(stored, bar=bar, calendar=calendar, events=store.read_events(path))
    print_rows(findings.to_dicts(), as_json=as_json, title=f"findings in {len(stored)} bars")
    if (findings["severity"] == "severe").any():
        sys.exit(1)
