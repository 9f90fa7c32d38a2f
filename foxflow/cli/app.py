"""The command `foxflow` itself, and the options that several commands share."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., None])


class _Interruptible(click.Group):
    """A group whose commands, interrupted while they still load, end as the command line says: one line, exit 130."""

    def invoke(self, ctx: click.Context) -> object:
        with interruptible():
            return super().invoke(ctx)


@click.group(cls=_Interruptible, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="foxflow")
def app() -> None:
    """Backtests with scheduled retraining: walk-forward forecasts scored after costs, and an ONNX release."""


def with_out(command: Command) -> Command:
    """Add --out: where store, runs and releases live."""
    help_ = "Folder of store, runs and releases; else $FOXFLOW_HOME, else ./data."
    return click.option("--out", type=click.Path(path_type=Path, file_okay=False), help=help_)(command)


def with_json(command: Command) -> Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")(command)


def with_sample(command: Command) -> Command:
    """Add --sample."""
    return click.option("--sample", is_flag=True, help="The embedded sample instead of the store.")(command)


def with_experiment(command: Command) -> Command:
    """Add CONFIG and the options that change it: --model, --symbols, --set."""
    for add in (
        click.option(
            "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Override the config; repeatable."
        ),
        click.option("--symbols", metavar="A,B", help="Only these symbols, separated by commas."),
        click.option(
            "--model", metavar="NAME", help="Take this model, with its own defaults if it is another than the config's."
        ),
        click.argument("config", default="returns"),
    ):
        command = add(command)
    return command


@contextmanager
def interruptible(
    again: str = "what it writes is kept whole or not at all; give the same command again",
) -> Iterator[None]:
    """Turn Ctrl-C into one line, which says what happens `again`, and exit 130; nothing half done is left behind."""
    try:
        yield
    except (KeyboardInterrupt, RuntimeError) as e:
        # The second is what DuckDB makes of Ctrl-C in the middle of a query.
        if isinstance(e, RuntimeError) and str(e) != "Query interrupted":
            raise
        print(f"interrupted; {again}", file=sys.stderr)
        sys.exit(130)
