"""`foxflow bars contracts`: record and list futures contracts."""

from pathlib import Path

import click

from foxflow.cli.app import interruptible, with_json, with_out
from foxflow.cli.bars import bars_group
from foxflow.cli.printing import print_rows


@bars_group.command("contracts")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--open-interest",
    type=click.Path(path_type=Path),
    help="File of open interest: symbol, known_at, open_interest.",
)
@with_out
@with_json
def bars_contracts(file: Path | None, open_interest: Path | None, out: Path | None, as_json: bool) -> None:
    """Record futures contracts from a CSV or Parquet FILE; without one list what is recorded.

    Columns: root, symbol, expiry (the last day of trading), and if there are any multiplier and known_at. What is
    learned later is a row with the same symbol and a later known_at.
    """
    from foxflow import experiment, sources, store

    path = experiment.store_path(experiment.home(out), "store")
    if file is None and open_interest is None:
        print_rows(store.read_contracts(path).to_dicts(), as_json=as_json, title="contracts")
        return
    rows = []
    with interruptible():
        contracts = sources.read_contracts(file) if file is not None else None
        figures = sources.read_open_interest(open_interest) if open_interest is not None else None
        with store.transaction(path) as inside:
            if contracts is not None:
                counts = store.write_contracts(inside, contracts, where=str(file))
                rows.append({"file": str(file), "added": counts.added, "present": counts.present})
            if figures is not None:
                counts = store.write_open_interest(inside, figures, where=str(open_interest))
                rows.append({"file": str(open_interest), "added": counts.added, "present": counts.present})
    print_rows(rows, as_json=as_json, title="recorded")
