"""`foxflow bars fetch` and `foxflow bars sources`: bars from an exchange or a vendor."""

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from foxflow.cli.app import interruptible, with_json, with_out
from foxflow.cli.bars import bars_group
from foxflow.cli.models import parameter_rows
from foxflow.cli.printing import print_rows
from foxflow.errors import ConfigError

if TYPE_CHECKING:
    from foxflow.feeds.intake import Progress
    from foxflow.store import Conflict

_LATE = timedelta(days=10)


@bars_group.command("fetch")
@click.argument("source")
@click.option("--symbols", required=True, metavar="A,B", help="Symbols as the source calls them, as in BTC/USDT.")
@click.option("--bar", required=True, metavar="LENGTH", help="Bar length: 1m, 15m, 1h, 1d.")
@click.option("--start", required=True, metavar="TIME", help="A day (from its midnight in UTC), or a time with a zone.")
@click.option("--end", metavar="TIME", help="The same; up to the last complete bar where not given.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A parameter of the source; may be repeated."
)
@click.option(
    "--on-conflict",
    "conflict",
    type=click.Choice(["refuse", "keep", "correct"]),
    default="refuse",
    show_default=True,
    help="A bar that differs from the stored one: refuse it, keep what is stored, or correct it by a revision.",
)
@click.option(
    "--quarantine", is_flag=True, help="Put bars that are none aside, countable; else they refuse their page."
)
@with_out
@with_json
@click.option("--quiet", is_flag=True, help="Show no progress.")
def bars_fetch(
    source: str,
    symbols: str,
    bar: str,
    start: str,
    end: str | None,
    assignments: tuple[str, ...],
    conflict: "Conflict",
    quarantine: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fetch bars from SOURCE into the store, page by page; the same command again goes on behind the last one."""
    from foxflow import experiment
    from foxflow.feeds import intake

    names = [s.strip() for s in symbols.split(",") if s.strip()]
    with interruptible("the same command again goes on behind the last page"), _shown(quiet or as_json) as progress:
        found = intake.fetch(
            experiment.store_path(experiment.home(out), "store"),
            source,
            dict(map(_assignment, assignments)),
            symbols=names,
            bar=bar,
            start=_moment("start", start),
            end=None if end is None else _moment("end", end),
            conflict=conflict,
            quarantine=quarantine,
            progress=progress,
        )
    for each in found:
        # A listing, or a source that forgets; only a person can tell.
        if each.after and each.first_ts and each.first_ts - each.after > _LATE:
            print(
                f"{each.symbol} begins on {each.first_ts:%Y-%m-%d}, {(each.first_ts - each.after).days} days after the "
                f"time it was asked for from: it was listed then, or {source} keeps no more",
                file=sys.stderr,
            )
    print_rows([vars(f) for f in found], as_json=as_json, title="fetched")


@bars_group.command("sources")
@click.argument("name", required=False)
@with_json
def bars_sources(name: str | None, as_json: bool) -> None:
    """List the installed sources of bars, importing none; or show the parameters of the one called NAME."""
    import inspect

    from foxflow import registry

    if name is None:
        rows = [
            {
                "name": point_name,
                "distribution": point.dist.name if point.dist else None,
                "version": point.dist.version if point.dist else None,
            }
            for point_name, point in registry.installed(registry.SOURCES).items()
        ]
        print_rows(rows, as_json=as_json, title="sources")
        return
    plugin = registry.find(registry.SOURCES, name)
    if not as_json:
        print(inspect.cleandoc(plugin.__doc__ or name), end="\n\n")
        print(inspect.cleandoc(plugin.Parameters.__doc__ or ""), end="\n\n")
    print_rows(parameter_rows(plugin.Parameters), as_json=as_json, title=f"{name}: --set KEY=VALUE")


def _assignment(text: str) -> tuple[str, object]:
    key, separator, value = text.partition("=")
    if not (separator and key.strip()):
        raise ConfigError(f"--set {text!r}; expected key=value, as in --set exchange=binance")
    try:
        return key.strip(), tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _moment(name: str, text: str) -> datetime:
    """Return a day's midnight in UTC, or a time that says its zone."""
    try:
        if len(text) == len("2024-01-01"):
            return datetime.combine(date.fromisoformat(text), time(), UTC)
        moment = datetime.fromisoformat(text)
    except ValueError as e:
        raise ConfigError(
            f"--{name} {text!r} is no time; expected a day as in 2024-01-31, or a time as in 2024-01-31T14:30Z"
        ) from e
    if moment.tzinfo is None:
        raise ConfigError(f"--{name} {text!r} has no time zone; give it in UTC, as in {text}Z")
    return moment.astimezone(UTC)


@contextmanager
def _shown(quiet: bool) -> Iterator[Any]:
    """Yield what shows the progress of a fetch on standard error: a bar where that is a terminal, and every wait."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("left"), TimeRemainingColumn())
    hidden = quiet or not sys.stderr.isatty()
    with Bars(*columns, console=Console(file=sys.stderr), disable=hidden, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(event: "Progress") -> None:
            if event.waiting_s:
                if not quiet:
                    line = f"{event.why}; waiting {event.waiting_s:.0f} s"
                    bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
                return
            if event.symbol not in tasks:
                tasks[event.symbol] = bars.add_task(event.symbol, total=(event.until - event.start).total_seconds())
            done = (event.last_ts - event.start).total_seconds()
            bars.update(tasks[event.symbol], completed=done, description=f"{event.symbol} {event.last_ts:%Y-%m-%d}")

        yield show
