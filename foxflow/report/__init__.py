"""One self-contained HTML file: what a walk-forward showed, in words, numbers and figures.

It loads nothing from outside (its content security policy forbids it) and is a pure function of its inputs.
"""

from pathlib import Path
from typing import Any

import polars as pl

from foxflow.portfolio import Book
from foxflow.report import figures, page, tables
from foxflow.report.conclusion import Summary, standing, verdict
from foxflow.report.figures import Figure
from foxflow.report.text import count, day, escape, names, number, percent
from foxflow.state import GAP_LIMIT

__all__ = ["verdict", "write"]

EQUITY_CAPTION = "Equity and drawdown at each bar's close, net of costs; a line and its number where each fold begins."


def write(path: Path, summary: dict[str, Any], book: Book, outcomes: pl.DataFrame) -> None:
    """Write the report of a run.

    Parameters
    ----------
    summary
        As `experiment.write` builds it.
    outcomes
        `training.FORECAST_SCHEMA` and `label`, null where not known yet.
    """
    path.write_text(_page(summary, book, outcomes), "utf-8", newline="\n")


def _page(summary: Summary, book: Book, outcomes: pl.DataFrame) -> str:
    known_rows = outcomes.with_columns(pl.col("forecast", "label").fill_nan(None)).drop_nulls(["forecast", "label"])
    drawn = _figures(summary, book, known_rows)
    title = f"{escape(summary['experiment'])} · {escape(summary['model'])}"
    grown = _plot("equity", drawn, EQUITY_CAPTION)
    sections = [
        f'<div class="pair top"><div>{tables.key_numbers(summary, book)}</div>{grown}</div>',
        _forecasters(summary),
        _outcomes(summary, drawn, known_rows),
        _ages(summary),
        _folds(summary, book, drawn, known_rows),
        _universe(summary),
        f"<section><h2>Provenance</h2>{tables.provenance(summary)}</section>",
    ]
    return page.document(title, f"{_header(summary)}\n{_verdict(summary)}\n" + "\n".join(sections), drawn)


def _figures(summary: Summary, book: Book, known_rows: pl.DataFrame) -> dict[str, Figure]:
    is_volatility = summary.get("forecasters") is not None
    drawn = {
        "equity": figures.equity(book.equity, summary["folds"]),
        "binned": figures.binned(known_rows, is_volatility=is_volatility),
        "scatter": figures.scatter(known_rows, is_volatility=is_volatility) if len(known_rows) else None,
        "learning": figures.learning(summary["folds"]),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _header(summary: Summary) -> str:
    facts = [
        f"model <b>{escape(summary['model'])}</b>",
        escape(names(summary["symbols"], limit=12)),
        f"{day(summary.get('first_ts'))} to {day(summary.get('last_ts'))}",
        count(len(summary["folds"]), "fold"),
        count(summary.get("n_forecasts") or 0, "forecast"),
    ]
    spans = "".join(f"<span>{fact}</span>" for fact in facts)
    return f"<header><h1>{escape(summary['experiment'])}</h1><p>{spans}</p></header>"


def _verdict(summary: Summary) -> str:
    # A number and its percent sign stay on one line.
    first, *rest = (escape(sentence).replace(" %", "&nbsp;%") for sentence in verdict(summary))
    items = "".join(f"<li>{sentence}</li>" for sentence in rest)
    return f'<section class="verdict {standing(summary)}"><p>{first}</p><ul>{items}</ul></section>'


def _forecasters(summary: Summary) -> str:
    if not summary.get("forecasters"):
        return ""
    note = (
        "Scored on the rows that all of them forecast. R² is 1 for a perfect forecast and 0 for one no better than "
        "each symbol's expanding mean; QLIKE is 0 for a perfect forecast, and lower is better. Nothing here tests "
        "whether a lead is luck."
    )
    return f"<section><h2>Volatility forecasters</h2><p>{note}</p>{tables.forecasters(summary)}</section>"


def _outcomes(summary: Summary, drawn: dict[str, Figure], known_rows: pl.DataFrame) -> str:
    if known_rows.is_empty():
        return "<section><h2>Forecasts against outcomes</h2><p>No outcome is known yet.</p></section>"
    caption = (
        "Mean outcome by forecast, in bins of equal size. The 95 % bars count blocks of time as independent, not rows: "
        "neighbouring outcomes overlap and symbols move together."
    )
    n_drawn = len(drawn["scatter"]["data"][0]["x"])
    of = f"{number(n_drawn, 0)} of {number(len(known_rows), 0)} forecasts with a known outcome, evenly spaced."
    single = _plot("scatter", drawn, f"Single forecasts: {of}")
    if "binned" in drawn:
        plots = f'<div class="pair">{_plot("binned", drawn, caption)}{single}</div>'
    else:
        plots = f"<p>The forecasts do not vary, so they cannot be set in bins.</p>{single}"
    return f"<section><h2>Forecasts against outcomes</h2>{plots}{tables.symbols(summary, known_rows)}</section>"


def _ages(summary: Summary) -> str:
    note = (
        "Age counts a symbol's bars since its state was warm, which is since the fold's cut where it has bars enough "
        "before it. Forecasts that get worse with age come from a fit or a state that has grown stale. The state gap "
        "tells which: it is how far forecasts from a state warmed up afresh lie from those of the state carried since "
        "a symbol's first bar, in standard deviations of the forecast, measured on bars up to the cut. The largest of "
        f"a fit is {percent(summary['state_gap'], 2)}; a fit is refused above {percent(GAP_LIMIT, 0)}. R² is against "
        f"{_judged_against(summary)}."
    )
    return f"<section><h2>Forecasts by age of state</h2><p>{note}</p>{tables.ages(summary)}</section>"


def _judged_against(summary: Summary) -> str:
    return "a forecast of 0" if summary.get("forecasters") is None else "each symbol's expanding mean"


def _folds(summary: Summary, book: Book, drawn: dict[str, Figure], known_rows: pl.DataFrame) -> str:
    note = (
        "A fold is fitted on what was known at its cut and forecasts the test span after it. It learned where the best "
        "validation loss lies below the untrained one. Positions carry over from fold to fold."
    )
    curves = ""
    if "learning" in drawn:
        caption = "Learning curves: the dot is the epoch that was kept; blue lines are early folds, green ones late."
        curves = _plot("learning", drawn, caption)
    return f"<section><h2>Folds</h2><p>{note}</p>{tables.folds(summary, book, known_rows)}{curves}</section>"


def _universe(summary: Summary) -> str:
    universe = summary.get("universe")
    if not universe:
        return ""
    said = ["No universe table: survivorship is not ruled out. Every symbol is a member whenever it has bars."]
    if universe["is_recorded"]:
        said = ["A symbol is forecast, traded and trained on while it is a member, as was known at the time."]
        for key, what in (
            ("never_members", "Stored, but never a member in the walk-forward"),
            ("members_without_bars", "Members without bars in this run: survivorship is not ruled out"),
        ):
            if universe[key]:
                said.append(f"{what}: {names(universe[key], limit=20)}.")
    waited = summary.get("orders_waited") or {"n_orders": 0}
    if waited["n_orders"]:
        said.append(
            f"{count(waited['n_orders'], 'order')} met no bar of the symbol when due, as in a halt, and waited for the "
            f"next one ({names(waited['symbols'], limit=12)}): at most {count(waited['most_missed_bars'], 'bar')} "
            f"missed, {number(waited['n_never_filled'], 0)} never filled."
        )
    table = ""
    if universe["endings"]:
        said.append(
            "A delisted symbol is closed at its last close times one plus its delisting return, costs included; one "
            "that is open had bars up to near the end and is held at its last close."
        )
        table = tables.endings(universe["endings"])
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in said)
    return f"<section><h2>Universe</h2>{text}{table}</section>"


def _plot(name: str, drawn: dict[str, Figure], caption: str = "") -> str:
    assert name in drawn
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure>{words}<div class="plot" id="{name}"><noscript>Figures need JavaScript.</noscript></div></figure>'
