"""One self-contained HTML file: what a walk-forward showed, in words, numbers and figures.

It loads nothing from outside (its content security policy forbids it) and is a pure function of its inputs. Here is the
order of the page; a section says what it shows in `sections`, its tables are in `tables`, its figures in `figures`.
"""

from pathlib import Path
from typing import Any

import polars as pl

from foxflow.portfolio import Book
from foxflow.report import page, sections
from foxflow.report.blocks import Part, joined
from foxflow.report.conclusion import Summary, standing, verdict
from foxflow.report.text import count, day, escape, names

__all__ = ["verdict", "write"]


def write(path: Path, summary: dict[str, Any], book: Book, outcomes: pl.DataFrame) -> None:
    """Write the report of a run.

    Parameters
    ----------
    summary
        As `experiment.write` builds it; what an older one lacks, or holds as null, is left out or said to be missing.
    book
        Its `equity` may have `baseline` (the equity of the baseline model) and `equity_seed_K` (that of seed K).
    outcomes
        `training.FORECAST_SCHEMA` and `label`, null where not known yet.
    """
    path.write_text(_page(summary, book, outcomes), "utf-8", newline="\n")


def _page(summary: Summary, book: Book, outcomes: pl.DataFrame) -> str:
    known_rows = outcomes.with_columns(pl.col("forecast", "label").fill_nan(None)).drop_nulls(["forecast", "label"])
    body = joined(
        _header(summary),
        _verdict(summary),
        sections.performance(summary, book),
        sections.seeds(summary),
        sections.significance(summary),
        sections.one_forecast(summary),
        sections.folds(summary, book, known_rows),
        sections.forecasters(summary),
        sections.rolling(summary),
        sections.calibration(summary, known_rows),
        sections.exposure(summary, book),
        sections.costs(summary),
        sections.monthly(summary),
        sections.drawdowns(summary),
        sections.sensitivity(summary),
        sections.training(summary),
        sections.universe(summary),
        sections.bars(summary),
        sections.provenance(summary),
        sections.config(summary),
    )
    title = f"{escape(summary['experiment'])} · {escape(summary['model'])}"
    return page.document(title, body.html, body.figures)


def _header(summary: Summary) -> Part:
    facts = [
        f"model <b>{escape(summary['model'])}</b>",
        escape(names(summary["symbols"], limit=12)),
        f"{day(summary.get('first_ts'))} to {day(summary.get('last_ts'))}",
        count(len(summary["folds"]), "fold"),
        count(summary.get("n_forecasts") or 0, "forecast"),
        *([count(len(summary["seeds"]), "seed")] if len(summary.get("seeds") or []) > 1 else []),
    ]
    spans = "".join(f"<span>{fact}</span>" for fact in facts)
    return Part(f"<header><h1>{escape(summary['experiment'])}</h1><p>{spans}</p></header>")


def _verdict(summary: Summary) -> Part:
    # A number and its percent sign stay on one line.
    first, *rest = (escape(sentence).replace(" %", "&nbsp;%") for sentence in verdict(summary))
    items = "".join(f"<li>{sentence}</li>" for sentence in rest)
    return Part(f'<section class="verdict {standing(summary)}"><p>{first}</p><ul>{items}</ul></section>')
