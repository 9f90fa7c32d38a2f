"""Tables of how forecasts met outcomes: by forecaster, by age of state, by symbol."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from foxflow import metrics
from foxflow.report.blocks import table
from foxflow.report.text import escape, known, number, percent

Summary = Mapping[str, Any]


def forecasters(summary: Summary) -> str:
    """Return how volatility forecasters rank, the best R² first and the model of this run in bold."""
    ranked = sorted(summary["forecasters"], key=lambda r: _descending(r["r_squared"]))
    rows = [
        [
            f"<b>{escape(r['forecaster'])}</b>" if r["forecaster"] == summary["model"] else escape(r["forecaster"]),
            number(r["r_squared"], 3),
            number(r["qlike"], 3),
            number(r["n_forecasts"], 0),
        ]
        for r in ranked
    ]
    return table(["Forecaster", "R² of log volatility", "QLIKE", "Forecasts"], rows, look="compact")


def ages(summary: Summary) -> str:
    """Return one row an age band of a forecast's state: how many forecasts, and how they met outcomes."""
    rows = [
        [
            escape(band["age"]),
            number(band["n_forecasts"], 0),
            number(band["ic"], 3),
            number(band["ic_t"]),
            number(band["r_squared"], 4),
        ]
        for band in summary["ages"]
    ]
    return table(["Age in bars", "Forecasts", "IC", "t", "R²"], rows, look="compact")


def _descending(value: object) -> tuple[bool, float]:
    found = known(value)
    return found is None, -(found or 0.0)


def symbols(summary: Summary, known_rows: pl.DataFrame) -> str:
    """Return one row a symbol: how its forecasts met its outcomes."""
    is_volatility = summary.get("forecasters") is not None
    parts = known_rows.partition_by("symbol", as_dict=True)
    rows = []
    for symbol in summary["symbols"]:
        part = parts.get((symbol,), known_rows.clear())
        forecast, outcome = part["forecast"].to_numpy(), part["label"].to_numpy()
        means = [_mean(v, is_volatility=is_volatility) for v in (forecast, outcome)]
        # A log volatility has no sign to hit; the newest volatility it is judged against is not in these rows.
        hit = [] if is_volatility else [percent(metrics.hit_rate(forecast, outcome)), percent(_rising(outcome))]
        rows.append([escape(symbol), number(len(part), 0), number(correlation(part), 3), *hit, *means])
    hits = [] if is_volatility else ["Hit rate", "Rising outcomes"]
    return table(["Symbol", "Known outcomes", "IC", *hits, "Mean forecast", "Mean outcome"], rows, look="compact")


def _mean(values: metrics.Floats, *, is_volatility: bool) -> str:
    mean = float(values.mean()) if len(values) else None
    return number(mean, 3) if is_volatility else percent(mean, 2, sign="+")


def _rising(outcome: metrics.Floats) -> float | None:
    moved = outcome[outcome != 0]
    return float((moved > 0).mean()) if len(moved) else None


def correlation(rows: pl.DataFrame) -> float:
    """Return the information coefficient of rows whose outcome is known."""
    forecast, outcome = rows["forecast"].to_numpy(), rows["label"].to_numpy()
    # The overlap moves only the t-statistic, which is not shown per part.
    return metrics.information_coefficient(forecast, outcome, rows["ts"].dt.timestamp("us").to_numpy(), overlap=1).value
