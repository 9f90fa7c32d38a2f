"""`foxflow release`: list and verify releases."""

from pathlib import Path

import click

from foxflow.cli.app import app, with_json, with_out
from foxflow.cli.printing import print_rows


@app.group("release")
def release_group() -> None:
    """List and verify releases."""


@release_group.command("list")
@with_out
@with_json
def release_list(out: Path | None, as_json: bool) -> None:
    """List the releases, oldest first."""
    from foxflow import experiment, release

    print_rows(release.list_releases(experiment.home(out)), as_json=as_json, title="releases")


@release_group.command("verify")
@click.argument("which", metavar="ID_OR_FOLDER")
@with_out
@with_json
def release_verify(which: str, out: Path | None, as_json: bool) -> None:
    """Check a release's files against its manifest and its graphs against the golden vectors."""
    from foxflow import experiment, release

    path = release.find(experiment.home(out), which)
    rows = [{"check": name, "largest difference": value} for name, value in release.verify(path).items()]
    print_rows(rows, as_json=as_json, title=f"{path.name} is sound")
