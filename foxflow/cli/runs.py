"""`foxflow runs`: list, show and compare what was run."""

import sys
from pathlib import Path

import click

from foxflow.cli.app import app, with_json, with_out
from foxflow.cli.printing import print_json, print_rows
from foxflow.errors import DataError


@app.group("runs")
def runs_group() -> None:
    """List, show and compare the runs of a home folder."""


@runs_group.command("list")
@with_out
@with_json
def runs_list(out: Path | None, as_json: bool) -> None:
    """List the runs, the newest first; what is broken is named on standard error and left out."""
    from foxflow import experiment, runs

    rows, broken = runs.listed(experiment.home(out))
    for message in broken:
        print(f"warning: {message}", file=sys.stderr)
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            "run": row["run_id"],
            "experiment": row["experiment"],
            "model": row["model"],
            "span": f"{_day(row['first_ts'])} to {_day(row['last_ts'])}",
            "folds": row["n_folds"],
            "Sharpe": _number(row["sharpe"]),
            "deflated": _number(row["deflated_sharpe"]),
            "of trials": row["n_trials"],
            "verdict": row["verdict"],
        }
        for row in rows
    ]
    print_rows(shown, as_json=False, title="runs")


@runs_group.command("show")
@click.argument("run_id", metavar="ID")
@with_out
@with_json
def runs_show(run_id: str, out: Path | None, as_json: bool) -> None:
    """Print a run's stored summary, as `foxflow backtest` did.

    ID is a run's id, the beginning of one, or `last`.
    """
    from foxflow import experiment, runs
    from foxflow.cli.backtest import print_summary

    run = runs.find(experiment.home(out), run_id)
    if as_json:
        print_json(run.summary)
        return
    try:
        print_summary(run.summary)
    except KeyError as e:
        raise DataError(
            f"{run.folder.name} was written by a version whose summaries had no {e}; expected all that the table "
            "shows: use --json, or open its report.html"
        ) from e


@runs_group.command("compare")
@click.argument("a")
@click.argument("b")
@with_out
@with_json
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one page with both equity curves to this file.",
)
def runs_compare(a: str, b: str, out: Path | None, as_json: bool, html: Path | None) -> None:
    """Set two runs side by side: settings, key numbers, folds, and the difference of their returns.

    A and B are ids, beginnings of ids, or `last`. A difference is A less B.
    """
    from foxflow import experiment, runs
    from foxflow.report import comparison

    home = experiment.home(out)
    made = runs.compare(runs.find(home, a), runs.find(home, b))
    if html is not None:
        comparison.write(html, made.found, made.growth)
    if as_json:
        print_json(made.found)
        return
    for title, rows in comparison.tables(made.found).items():
        print_rows(rows, as_json=False, title=title)
    for line in comparison.sentences(made.found):
        print(line)
    if html is not None:
        print(f"page: {html}")


def _day(instant: str | None) -> str:
    return (instant or "?")[:10]


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"
