"""`foxflow bars export`: the store as a folder of Parquet files, and what `bars import` does with such a folder."""

from collections.abc import Sequence
from pathlib import Path

import click

from foxflow.cli.app import interruptible, with_json, with_out, with_sample
from foxflow.cli.bars import bars_group
from foxflow.cli.printing import print_rows
from foxflow.errors import DataError


@bars_group.command("export")
@click.argument("folder", type=click.Path(path_type=Path))
@with_out
@with_sample
@with_json
def bars_export(folder: Path, out: Path | None, sample: bool, as_json: bool) -> None:
    """Write bars, revisions, events and every other table to a new FOLDER of Parquet files.

    `bars import FOLDER` makes an equal store of it; DuckDB, Polars and pandas read it as it is.
    """
    from foxflow import experiment, store

    with interruptible():
        rows = store.export(experiment.open_store(experiment.home(out), "sample" if sample else "store"), folder)
    print_rows([{"table": t, "rows": n} for t, n in rows.items()], as_json=as_json, title=f"exported to {folder}")


def restored(paths: Sequence[Path], *, plain: bool, out: Path | None, as_json: bool) -> bool:
    """Fill the store from an exported folder, if that is what the paths are; return whether it was.

    `plain` says that no option was given: none would have an effect.
    """
    from foxflow import experiment, store

    folders = [path for path in paths if store.is_export(path)]
    if not folders:
        return False
    if len(paths) > 1 or not plain:
        raise DataError(
            f"{folders[0]} is a folder of foxflow bars export; expected it alone and without an option but --out and "
            "--json, for it is taken over as it is"
        )
    with interruptible():
        counts = store.restore(folders[0], experiment.store_path(experiment.home(out), "store"))
    rows = [{"table": table, "added": c.added, "present": c.present} for table, c in counts.items()]
    print_rows(rows, as_json=as_json, title=f"imported from {folders[0]}")
    return True
