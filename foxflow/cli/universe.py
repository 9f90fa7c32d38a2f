"""`foxflow bars universe`: record and list who is in the universe when."""

from pathlib import Path

import click

from foxflow.cli.app import interruptible, with_json, with_out
from foxflow.cli.bars import bars_group
from foxflow.cli.printing import print_rows


@bars_group.command("universe")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--calendar", metavar="EXCHANGE", help="Exchange whose sessions dates are, as in XNYS.")
@with_out
@with_json
def bars_universe(file: Path | None, calendar: str | None, out: Path | None, as_json: bool) -> None:
    """Record who is in the universe, from a CSV or Parquet FILE; without one list what is recorded.

    Columns: symbol, from, to (empty while no end is known), and if there are any known_at and delisting_return (a
    fraction, from the last close on). What is learned later is a row with the same from and a later known_at.
    """
    from foxflow import experiment, sources, store
    from foxflow.errors import ConfigError

    path = experiment.store_path(experiment.home(out), "store")
    if file is None:
        if calendar is not None:
            raise ConfigError(f"--calendar {calendar} has no effect without a FILE to record; leave it out")
        print_rows(store.read_universe(path).to_dicts(), as_json=as_json, title="universe")
        return
    with interruptible():
        rows = sources.read_universe(file, calendar=calendar)
        counts = store.write_universe(path, rows, where=str(file))
    found = [{"file": str(file), "added": counts.added, "present": counts.present}]
    print_rows(found, as_json=as_json, title="recorded")
