"""The command line: a command parses, imports in its body, calls one function, prints."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from foxflow.errors import FoxflowError

app = typer.Typer(
    name="foxflow",
    help="Backtests with scheduled retraining: walk-forward forecasts scored after costs, and an ONNX release.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bars_app = typer.Typer(help="Import, list and check bars.", no_args_is_help=True)
models_app = typer.Typer(help="The installed model plugins.", no_args_is_help=True)
release_app = typer.Typer(help="List and verify releases.", no_args_is_help=True)
app.add_typer(bars_app, name="bars")
app.add_typer(models_app, name="models")
app.add_typer(release_app, name="release")

Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder of store, runs and releases; else $FOXFLOW_HOME, else ./data."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Sample = Annotated[bool, typer.Option("--sample", help="The embedded sample instead of the store.")]


def main() -> None:
    """Run the command line: a user's error is one line and exit 1, wrong usage exit 2, an interrupt exit 130."""
    # Ended politely, a run removes what is half done, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except FoxflowError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(1)


@app.command()
def backtest(
    config: Annotated[str, typer.Argument(help="A TOML file, or the name of an embedded config.")] = "returns",
    model: Annotated[str | None, typer.Option(help="Run this model, with its own defaults if it is another.")] = None,
    symbols: Annotated[str | None, typer.Option(help="Only these symbols, separated by commas.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, overriding the config; may be repeated.")
    ] = None,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Retrain fold by fold, forecast out of sample, score after costs; writes a report and a release."""
    from foxflow import config as configs
    from foxflow import experiment
    from foxflow.progress import FoldBars

    overrides = list(assignments or [])
    if symbols is not None:
        chosen = [s.strip() for s in symbols.split(",") if s.strip()]
        overrides.append(f"data.symbols={json.dumps(chosen)}")
    settings = configs.load(config, overrides=overrides, model=model)
    with _interruptible(), FoldBars(quiet=quiet or as_json) as view:
        result = experiment.run(settings, experiment.home(out), stage=view.stage, progress=view.progress)
    if as_json:
        _print_json(result.summary)
    else:
        _print_summary(result.summary)


@bars_app.command("import")
def bars_import(
    paths: Annotated[list[Path], typer.Argument(help="CSV (plain or gz) or Parquet files.")],
    bar: Annotated[str, typer.Option(help="Bar length: 1m, 15m, 1h, 1d.")],
    symbol: Annotated[str | None, typer.Option(help="Symbol of a file that names none, or the one to take.")] = None,
    stamp: Annotated[
        Literal["open", "close"] | None, typer.Option(help="Whether a time is the bar's open or its close.")
    ] = None,
    tz: Annotated[str | None, typer.Option(help="Zone of times without an offset, as in America/New_York.")] = None,
    calendar: Annotated[str | None, typer.Option(help="Exchange of daily dates, as in XNYS.")] = None,
    events: Annotated[
        Path | None, typer.Option(help="Splits and dividends: symbol, session, kind, value; needs --calendar.")
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Import bars into the store: all files or none; the same file twice changes nothing."""
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


@bars_app.command("list")
def bars_list(out: Out = None, sample: Sample = False, as_json: Json = False) -> None:
    """List the symbols of the store: bar length, number of bars, first and last."""
    from foxflow import experiment, store

    table = store.list_bars(experiment.open_store(experiment.home(out), "sample" if sample else "store"))
    _print_rows(table.to_dicts(), as_json=as_json, title="bars")


@bars_app.command("check")
def bars_check(
    bar: Annotated[str, typer.Option(help="Bar length to check.")] = "1d",
    out: Out = None,
    sample: Sample = False,
    as_json: Json = False,
) -> None:
    """Check the bars of the store; exit 1 where a finding is severe."""
    from foxflow import bars, experiment, store

    path = experiment.open_store(experiment.home(out), "sample" if sample else "store")
    stored = store.read_bars(path, bar=bar)
    findings = bars.check(stored, store.read_events(path))
    _print_rows(findings.to_dicts(), as_json=as_json, title=f"findings in {len(stored)} bars")
    if (findings["severity"] == "severe").any():
        raise typer.Exit(1)


@models_app.command("list")
def models_list(as_json: Json = False) -> None:
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


@models_app.command("show")
def models_show(name: str, as_json: Json = False) -> None:
    """Show a model's parameters and their defaults."""
    import dataclasses
    import inspect

    from foxflow import registry

    plugin = registry.load(name)
    rows = [
        {
            "parameter": f.name,
            "type": f.type if isinstance(f.type, str) else getattr(f.type, "__name__", str(f.type)),
            "default": None if f.default is dataclasses.MISSING else f.default,
        }
        for f in dataclasses.fields(plugin.Parameters)
    ]
    if not as_json:
        print(inspect.cleandoc(plugin.__doc__ or name), end="\n\n")
        print(inspect.cleandoc(plugin.Parameters.__doc__ or ""), end="\n\n")
    _print_rows(rows, as_json=as_json, title=f"[model] name = {name!r}")


@release_app.command("list")
def release_list(out: Out = None, as_json: Json = False) -> None:
    """List the releases, oldest first."""
    from foxflow import experiment, release

    _print_rows(release.list_releases(experiment.home(out)), as_json=as_json, title="releases")


@release_app.command("verify")
def release_verify(
    which: Annotated[str, typer.Argument(help="The id of a release, or its folder.")],
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Check a release's files against its manifest and its graphs against the golden vectors."""
    from foxflow import experiment, release

    path = release.find(experiment.home(out), which)
    rows = [{"check": name, "largest difference": value} for name, value in release.verify(path).items()]
    _print_rows(rows, as_json=as_json, title=f"{path.name} is sound")


@app.command()
def doctor(out: Out = None, as_json: Json = False) -> None:
    """Say what is installed and which devices are real; exit 1 where something is wrong."""
    from foxflow import doctor as checks

    findings = checks.examine(out)
    _print_rows(findings, as_json=as_json, title="doctor")
    if any(f["status"] == "wrong" for f in findings):
        raise typer.Exit(1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn Ctrl-C into one line and exit 130; by then everything half done has been removed."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted; nothing half done was left", file=sys.stderr)
        raise typer.Exit(130) from None


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
        _row("folds that learned", f"{summary['folds_that_learned']} of {summary['n_folds']}", None, "{}"),
    ]
    title = (
        f"{summary['experiment']}, {summary['model']}: {summary['n_folds']} folds, {summary['n_forecasts']} forecasts"
    )
    _print_rows(rows, as_json=False, title=title)
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
    for column in rows[0] if rows else ("nothing",):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_text(v)) for v in row.values()))
    Console().print(table)


def _plain(value: object) -> object:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(_plain(value))
