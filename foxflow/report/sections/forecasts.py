"""How forecasts met outcomes."""

import polars as pl

from foxflow.report import figures, tables
from foxflow.report.blocks import Part, beside, folded, joined, plot, said, section
from foxflow.report.conclusion import Summary
from foxflow.report.text import known, number, percent
from foxflow.state import GAP_LIMIT


def forecasters(summary: Summary) -> Part:
    """Return how a volatility forecast ranks among others; nothing for other labels."""
    if not summary.get("forecasters"):
        return Part()
    note = (
        "Scored on the rows that all of them forecast. R² is 1 for a perfect forecast and 0 for one no better than "
        "each symbol's expanding mean; QLIKE is 0 for a perfect forecast, and lower is better. Nothing here tests "
        "whether a lead is luck."
    )
    return section("forecasters", "Volatility forecasters", tables.forecasters(summary), note=note)


def rolling(summary: Summary) -> Part:
    """Return the information coefficient over time."""
    rows, title = summary.get("rolling_ic"), "Information coefficient over time"
    drawn = figures.rolling(rows) if rows else None
    if drawn is None:
        if rows is None:
            return Part()
        return section(
            "rolling", "Information coefficient over time", said("The run is shorter than the window of a year.")
        )
    caption = "Correlation of forecasts and outcomes over the sessions of the year before each point; 0 is no skill."
    return section("rolling", title, plot("rolling", drawn, caption))


def calibration(summary: Summary, known_rows: pl.DataFrame) -> Part:
    """Return forecasts against outcomes: in bins, one by one, by symbol and by age of state."""
    title = "Forecasts against outcomes"
    is_volatility = summary.get("forecasters") is not None
    ages = _ages(summary)
    if known_rows.is_empty():
        return section("calibration", title, said("No outcome is known yet."), ages)
    caption = (
        "Mean outcome by forecast, in bins of equal size. The 95 % bars count blocks of time as independent, not rows: "
        "neighbouring outcomes overlap and symbols move together."
    )
    binned = figures.binned(known_rows, is_volatility=is_volatility, calibration=summary.get("calibration"))
    single = figures.scatter(known_rows, is_volatility=is_volatility)
    n_drawn = len(single["data"][0]["x"])
    of = f"{number(n_drawn, 0)} of {number(len(known_rows), 0)} forecasts with a known outcome, evenly spaced."
    none = "" if binned else said("The forecasts do not vary, so they cannot be set in bins.")
    drawn = beside(plot("binned", binned, caption), plot("scatter", single, f"Single forecasts: {of}"))
    by_symbol = tables.symbols(summary, known_rows)
    shown = folded(f"By symbol ({len(summary['symbols'])})", by_symbol) if len(summary["symbols"]) > 12 else by_symbol
    return section("calibration", title, said(_slope(summary)), none, drawn, shown, ages)


def _slope(summary: Summary) -> str:
    found = summary.get("calibration") or {}
    slope, t = known(found.get("slope")), known(found.get("slope_t"))
    if slope is None:
        return ""
    how = "" if t is None else f" (t {number(t)})"
    if t is not None and abs(t) < 1.96:
        meaning = "it cannot be told from 0: the size of a forecast says nothing"
    elif slope <= 0:
        meaning = "forecasts point the wrong way"
    elif slope < 0.8:
        meaning = "forecasts are too bold"
    elif slope > 1.25:
        meaning = "forecasts are too timid"
    else:
        meaning = "a forecast is about as large as what follows"
    return f"The slope of outcomes on forecasts is {number(slope)}{how}, where 1 is right: {meaning}."


def _ages(summary: Summary) -> Part:
    if not summary.get("ages"):
        return Part()
    against = "a forecast of 0" if summary.get("forecasters") is None else "each symbol's expanding mean"
    note = (
        "Age counts a symbol's bars since its state was warm, which is since the fold's cut where it has bars enough "
        "before it. Forecasts that get worse with age come from a fit or a state that has grown stale. The state gap "
        "tells which: it is how far forecasts from a state warmed up afresh lie from those of the state carried since "
        "a symbol's first bar, in standard deviations of the forecast, measured on bars up to the cut. The largest of "
        f"a fit is {percent(summary.get('state_gap'), 2)}; a fit is refused above {percent(GAP_LIMIT, 0)}. R² is "
        f"against {against}."
    )
    return folded("By age of the model's state", joined(said(note), tables.ages(summary)))
