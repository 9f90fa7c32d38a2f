"""`foxflow backtest`, and the table it prints."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from foxflow.cli.app import app, interruptible, with_experiment, with_json, with_out
from foxflow.cli.printing import print_json, print_rows
from foxflow.errors import ConfigError


@app.command()
@with_experiment
@with_out
@with_json
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--no-cache", is_flag=True, help="Compute every fold anew, whatever was computed before.")
def backtest(
    config: str,
    model: str | None,
    symbols: str | None,
    assignments: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    quiet: bool,
    no_cache: bool,
) -> None:
    """Retrain fold by fold, forecast out of sample, score after costs; write a report and a release.

    CONFIG is a TOML file or the name of an embedded config: returns (the default) or volatility.
    """
    from foxflow import config as configs
    from foxflow import experiment, ledger
    from foxflow.progress import FoldBars

    settings = configs.load(config, overrides=with_symbols(assignments, symbols), model=model)
    folder = experiment.home(out)
    reason = ledger.doubt(folder)
    if reason is not None:
        print(
            f"warning: trials unknown: {reason}; put back a copy of ledger.sqlite before this run ends", file=sys.stderr
        )
    again = "the same command again goes on from the last epoch of every fit"
    with interruptible(again), FoldBars(quiet=quiet or as_json) as view:
        result = experiment.run(settings, folder, cached=not no_cache, stage=view.stage, progress=view.progress)
    for fold in result.summary["folds"]:
        if fold["source_note"]:
            click.echo(f"fold {fold['fold']}: {fold['source_note']}", err=True)
    if as_json:
        print_json(result.summary)
    else:
        print_summary(result.summary)


def with_symbols(assignments: Sequence[str], symbols: str | None) -> list[str]:
    """Return the overrides of a config, those that --symbols says among them."""
    if symbols is None:
        return list(assignments)
    chosen = [s.strip() for s in symbols.split(",") if s.strip()]
    if not chosen:
        raise ConfigError(f"--symbols {symbols!r} names no symbol; expected names separated by commas, as in AAPL,IBM")
    return [*assignments, f"data.symbols={json.dumps(chosen)}"]


def print_summary(summary: dict[str, Any]) -> None:
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
        *_beside(summary),
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
    print_rows(rows, as_json=False, title=title)
    for line in _lines(summary):
        print(line)
    print_rows(summary.get("ages") or [], as_json=False, title="forecasts by age of state, in bars since its warm-up")
    if summary.get("forecasters"):
        print_rows(summary["forecasters"], as_json=False, title="forecasts of log volatility")
    for line in summary["verdict"]:
        print(line)
    for name in ("report", "release"):
        print(f"{name}: {summary[name]}")
    print(f"forecasts sha256: {summary['forecasts_sha256']}\nseconds: {summary['seconds']:.0f}")


def _beside(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that only a run of several seeds, with a record of trials, has."""
    rows = []
    seeds = summary.get("seeds") or []
    if len(seeds) > 1:
        each = ", ".join(_number(seed["sharpe"], "{:.2f}") for seed in seeds)
        rows.append(_row(f"Sharpe of {len(seeds)} seeds", each, None, "{}"))
    found = summary.get("significance")
    if found:
        deflated = _probability(found["deflated_sharpe"])
        n = found["n_trials"]
        trials = f"{deflated} of {n} {'trial' if n == 1 else 'trials'}" if found["trials_known"] else "trials unknown"
        rows += [
            _row("probabilistic Sharpe", _probability(found["psr"]), None, "{}"),
            _row("deflated Sharpe", trials, None, "{}"),
        ]
    lead = summary.get("versus_benchmark")
    if lead:
        said = f"{_number(lead['lead'], '{:.1%}')} ({_number(lead['lead_t'], '{:.1f}')})"
        rows.append(_row("lead a year (t)", said, None, "{}"))
    baseline = summary.get("baseline")
    if baseline:
        said = f"{_number(baseline['sharpe'], '{:.2f}')}, {_number(baseline['total_return'], '{:.1%}')}"
        rows.append(_row(f"{baseline['model']}: Sharpe, return", said, None, "{}"))
    return rows


def _lines(summary: dict[str, Any]) -> list[str]:
    """Return profit before and after each cost, and what a delay does, a line each."""
    lines = []
    costs = summary.get("waterfall")
    if costs:
        said = ", ".join(
            f"{row['name'].replace('_', ' ')} {_number(row['amount'], '{:,.0f}')}" for row in costs if row["amount"]
        )
        lines.append(f"profit: {said}")
    delays = (summary.get("sensitivity") or {}).get("delay_bars")
    if delays:
        said = ", ".join(f"{row['bars']}: {_number(row['sharpe'], '{:.2f}')}" for row in delays)
        lines.append(f"Sharpe by delay in bars: {said}")
    return lines


def _row(name: str, strategy: object, benchmark: object, form: str) -> dict[str, Any]:
    return {
        "": name,
        "strategy": _number(strategy, form),
        "buy and hold": "" if benchmark is None else _number(benchmark, form),
    }


def _number(value: object, form: str) -> str:
    return "n/a" if value is None else form.format(value)


def _probability(value: float | None) -> str:
    """Return it in percent, never as certain, as the verdict does.

    >>> _probability(0.5), _probability(0.99999), _probability(0.0), _probability(None)
    ('50.0%', 'over 99.9%', 'under 0.1%', 'n/a')
    """
    if value is not None and not 0.001 <= value <= 0.999:
        return "over 99.9%" if value > 0.999 else "under 0.1%"
    return _number(value, "{:.1%}")
