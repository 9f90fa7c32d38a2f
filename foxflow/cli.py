"""The command line: a command parses, imports in its body, calls one function, prints."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from foxflow.errors import ConfigError, FoxflowError

Command = TypeVar("Command", bound=Callable[..., None])


def main() -> None:
    """Run the command line: a user's error is one line and exit 1, wrong usage exit 2, an interrupt exit 130."""
    # Ended politely, a run removes what is half done, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(prog_name="foxflow")
    except FoxflowError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read this has seen enough; without a place to go, what is still buffered would complain at the end.
        sys.stdout = None
        sys.exit(1)
    except OSError as e:
        # The machine's: a full disk, a name that is too long, a file where a folder should be.
        print(f"error: {e.filename or 'output'}: {e.strerror}", file=sys.stderr)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="foxflow")
def app() -> None:
    """Backtests with scheduled retraining: walk-forward forecasts scored after costs, and an ONNX release."""


@app.group("bars")
def bars_group() -> None:
    """Import, list and check bars."""


@app.group("models")
def models_group() -> None:
    """List and show the installed model plugins."""


@app.group("release")
def release_group() -> None:
    """List and verify releases."""


def _out(command: Command) -> Command:
    help_ = "Folder of store, runs and releases; else $FOXFLOW_HOME, else ./data."
    return click.option("--out", type=click.Path(path_type=Path, file_okay=False), help=help_)(command)


def _json(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")(command)


def _sample(command: Command) -> Command:
    return click.option("--sample", is_flag=True, help="The embedded sample instead of the store.")(command)


@app.command()
@click.argument("config", default="returns")
@click.option(
    "--model", metavar="NAME", help="Run this model, with its own defaults if it is another than the config's."
)
@click.option("--symbols", metavar="A,B", help="Only these symbols, separated by commas.")
@click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Override the config; may be repeated."
)
@_out
@_json
@click.option("--quiet", is_flag=True, help="Show no progress.")
def backtest(
    config: str,
    model: str | None,
    symbols: str | None,
    assignments: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Retrain fold by fold, forecast out of sample, score after costs; write a report and a release.

    CONFIG is a TOML file or the name of an embedded config: returns (the default) or volatility.
    """
    from foxflow import config as configs
    from foxflow import experiment
    from foxflow.progress import FoldBars

    overrides = list(assignments)
    if symbols is not None:
        chosen = [s.strip() for s in symbols.split(",") if s.strip()]
        if not chosen:
            raise ConfigError(
                f"--symbols {symbols!r} names no symbol; expected names separated by commas, as in AAPL,IBM"
            )
        overrides.append(f"data.symbols={json.dumps(chosen)}")
    settings = configs.load(config, overrides=overrides, model=model)
    with _interruptible(), FoldBars(quiet=quiet or as_json) as view:
        result = experiment.run(settings, experiment.home(out), stage=view.stage, progress=view.progress)
    if as_json:
        _print_json(result.summary)
    else:
        _print_summary(result.summary)


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
@_out
@_json
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

    with _interruptible():
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
    _print_rows(rows, as_json=as_json, title="imported")


@bars_group.command("list")
@_out
@_sample
@_json
def bars_list(out: Path | None, sample: bool, as_json: bool) -> None:
    """List the symbols of the store: bar length, number of bars, first and last."""
    from foxflow import experiment, store

    table = store.list_bars(experiment.open_store(experiment.home(out), "sample" if sample else "store"))
    _print_rows(table.to_dicts(), as_json=as_json, title="bars")


@bars_group.command("check")
@click.option("--bar", default="1d", show_default=True, metavar="LENGTH", help="Bar length to check.")
@_out
@_sample
@_json
def bars_check(bar: str, out: Path | None, sample: bool, as_json: bool) -> None:
    """Check the bars of the store; exit 1 where a finding is severe."""
    from foxflow import bars, experiment, store

    path = experiment.open_store(experiment.home(out), "sample" if sample else "store")
    stored = store.read_bars(path, bar=bar)
    findings = bars.check(stored, store.read_events(path))
    _print_rows(findings.to_dicts(), as_json=as_json, title=f"findings in {len(stored)} bars")
    if (findings["severity"] == "severe").any():
        sys.exit(1)


@models_group.command("list")
@_json
def models_list(as_json: bool) -> None:
    """List the installed models; imports none of them."""
    from foxflow import registry

    rows = [
        {
            "name": name,
            "distribution": point.dist.name if point.dist else None,
            "version": point.dist.version if point.dist else None,
        }
        for name, point in registry.installed().items()
    ]
    _print_rows(rows, as_json=as_json, title="models")


@models_group.command("show")
@click.argument("name")
@_json
def models_show(name: str, as_json: bool) -> None:
    """Show a model's parameters and their defaults."""
    import dataclasses
    import inspect

    from foxflow import registry

    plugin = registry.load(name)
    rows = [
        {
            "parameter": f.name,
            "type": _type(f.type),
            "default": None if f.default is dataclasses.MISSING else f.default,
        }
        for f in dataclasses.fields(plugin.Parameters)
    ]
    if not as_json:
        print(inspect.cleandoc(plugin.__doc__ or name), end="\n\n")
        print(inspect.cleandoc(plugin.Parameters.__doc__ or ""), end="\n\n")
    _print_rows(rows, as_json=as_json, title=f"[model] name = {name!r}")


def _type(annotation: object) -> str:
    """Return a parameter's type as a user writes it: the choices where there are few."""
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    return getattr(annotation, "__name__", str(annotation))


@release_group.command("list")
@_out
@_json
def release_list(out: Path | None, as_json: bool) -> None:
    """List the releases, oldest first."""
    from foxflow import experiment, release

    _print_rows(release.list_releases(experiment.home(out)), as_json=as_json, title="releases")


@release_group.command("verify")
@click.argument("which", metavar="ID_OR_FOLDER")
@_out
@_json
def release_verify(which: str, out: Path | None, as_json: bool) -> None:
    """Check a release's files against its manifest and its graphs against the golden vectors."""
    from foxflow import experiment, release

    path = release.find(experiment.home(out), which)
    rows = [{"check": name, "largest difference": value} for name, value in release.verify(path).items()]
    _print_rows(rows, as_json=as_json, title=f"{path.name} is sound")


@app.command()
@_out
@_json
def doctor(out: Path | None, as_json: bool) -> None:
    """Say what is installed and which devices are real; exit 1 where something is wrong."""
    from foxflow import doctor as checks

    findings = checks.examine(out)
    _print_rows(findings, as_json=as_json, title="doctor")
    if any(f["status"] == "wrong" for f in findings):
        sys.exit(1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn Ctrl-C into one line and exit 130; by then everything half done has been removed but unfinished fits."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted; the same command again goes on from the last epoch of every fit", file=sys.stderr)
        sys.exit(130)


def _print_summary(summary: dict[str, Any]) -> None:
    """Print the run as a table: strategy and buy-and-hold, forecasts, and where the files are."""
    low, high = summary["sharpe_ci95"]
    rows = [
        {
            "": "span",
            "strategy": f"{summary['first_ts'][:10]} to {summary['last_ts'][:10]}",
            "buy and hold": "the same",
        },
        _row("total return", summary["total_return"], summary["benchmark_total_return"], "{:.1%}"),
        _row("Sharpe ratio", summary["sharpe"], summary["benchmark_sharpe"], "{:.2f}"),
        {
            "": "Sharpe 95 % interval",
            "strategy": f"{_number(low, '{:.2f}')} to {_number(high, '{:.2f}')}",
            "buy and hold": "",
        },
        _row("largest drawdown", summary["max_drawdown"], summary["benchmark_max_drawdown"], "{:.1%}"),
        _row("turnover a year", summary["turnover"], None, "{:.1f}"),
        _row("fills", summary["n_fills"], None, "{}"),
        _row("costs", summary["cost_total"], None, "{:,.0f}"),
        {
            "": "IC (t)",
            "strategy": f"{_number(summary['ic'], '{:.3f}')} ({_number(summary['ic_t'], '{:.1f}')})",
            "buy and hold": "",
        },
        {
            "": "rank IC (t)",
            "strategy": f"{_number(summary['rank_ic'], '{:.3f}')} ({_number(summary['rank_ic_t'], '{:.1f}')})",
            "buy and hold": "",
        },
        _row("hit rate", summary["hit_rate"], None, "{:.1%}"),
        _row("state gap, largest of a fit", summary["state_gap"], None, "{:.2%}"),
        _row("folds that learned", f"{summary['folds_that_learned']} of {summary['n_folds']}", None, "{}"),
    ]
    title = (
        f"{summary['experiment']}, {summary['model']}: {summary['n_folds']} folds, {summary['n_forecasts']} forecasts"
    )
    _print_rows(rows, as_json=False, title=title)
    _print_rows(summary["ages"], as_json=False, title="forecasts by age of state, in bars since its warm-up")
    if summary["forecasters"]:
        _print_rows(summary["forecasters"], as_json=False, title="forecasts of log volatility")
    for line in summary["verdict"]:
        print(line)
    for name in ("report", "release"):
        print(f"{name}: {summary[name]}")
    print(f"forecasts sha256: {summary['forecasts_sha256']}\nseconds: {summary['seconds']:.0f}")


def _row(name: str, strategy: object, benchmark: object, form: str) -> dict[str, Any]:
    return {
        "": name,
        "strategy": _number(strategy, form),
        "buy and hold": "" if benchmark is None else _number(benchmark, form),
    }


def _number(value: object, form: str) -> str:
    return "n/a" if value is None else form.format(value)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, default=str))


def _print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool, title: str) -> None:
    if as_json:
        _print_json([{k: _plain(v) for k, v in row.items()} for row in rows])
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for n, column in enumerate(rows[0] if rows else ("nothing",)):
        table.add_column(column, overflow="fold", no_wrap=n == 0)
    for row in rows:
        table.add_row(*(escape(_text(v)) for v in row.values()))
    # A file or a pipe has no width that lines would have to be folded for.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _plain(value: object) -> object:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(_plain(value))
