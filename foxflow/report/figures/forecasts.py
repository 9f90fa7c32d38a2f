"""How forecasts met outcomes: in bins, one by one, and over time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.dataset import Floats
from foxflow.report.figures.shared import LEGEND, NEUTRAL, STRATEGY, Figure, rounded, tick_digits, when
from foxflow.report.text import escape, known, number

MOST_SAMPLED = 2000
N_BINS = 20
# Blocks of time that count as independent when a bin's error is estimated.
N_BLOCKS = 40


def binned(
    known_rows: pl.DataFrame, *, is_volatility: bool, calibration: Mapping[str, Any] | None = None
) -> Figure | None:
    """Return the mean outcome in each of up to 20 equal-sized bins of the forecast, None where forecasts do not vary.

    `known_rows`: outcomes whose label is known. The bars are `mean ± 1.96 standard errors`, clustered by time.
    `calibration`: slope and intercept of outcomes on forecasts, drawn as a line.
    """
    table = bins(known_rows)
    if len(table) < 2:
        return None
    low, high = table["forecast"][0], table["forecast"][-1]
    mean = float(known_rows["label"].to_numpy().mean())
    error = np.nan_to_num(table["error"].to_numpy())
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": "mean outcome of a bin, 95 % bar",
        "x": rounded(table["forecast"].to_numpy()),
        "y": rounded(table["outcome"].to_numpy()),
        "customdata": table["n"].to_list(),
        "error_y": {"type": "data", "array": rounded(error), "thickness": 1.1, "width": 2},
        "marker": {"color": STRATEGY, "size": 7},
        "legendrank": 1,
        "hovertemplate": "forecast %{x}<br>mean outcome %{y}<br>%{customdata} forecasts<extra></extra>",
    }
    lines = [
        _line([low, high], [low, high], "right on average", NEUTRAL, "dot"),
        _line([low, high], [mean, mean], "mean of all: no skill", NEUTRAL, "solid"),
    ]
    slope, intercept = (known((calibration or {}).get(key)) for key in ("slope", "intercept"))
    if slope is not None and intercept is not None:
        ends = [intercept + slope * end for end in (low, high)]
        lines.append(_line([low, high], ends, f"fitted, slope {number(slope)}", STRATEGY, "solid"))
    outcome = table["outcome"].to_numpy()
    ranges = ([low, high], [*(outcome - error), *(outcome + error)])
    return {"data": [*lines, points], "layout": _against("mean outcome", ranges, is_volatility=is_volatility)}


def bins(known_rows: pl.DataFrame) -> pl.DataFrame:
    """Return `forecast`, `outcome` (means), `error` (half the 95 % interval, NaN where not known) and `n` of each bin.

    Errors are clustered in 40 blocks of time: outcomes of neighbouring bars overlap, and symbols move together.
    """
    rows = known_rows.sort("forecast", "symbol", "ts")
    n_bins = max(1, min(N_BINS, len(rows) // 10))
    schema = {"forecast": pl.Float64, "outcome": pl.Float64, "error": pl.Float64, "n": pl.Int64}
    if rows["forecast"].n_unique() < 2:
        return pl.DataFrame(schema=schema)
    forecast, outcome = rows["forecast"].to_numpy(), rows["label"].to_numpy()
    dates = rows["ts"].rank("dense").to_numpy() - 1
    block = (dates * N_BLOCKS // (dates.max() + 1)).astype(np.int64)
    of = np.arange(len(rows)) * n_bins // len(rows)
    found = []
    for b in range(n_bins):
        own = of == b
        error = clustered_error(outcome[own], block[own])
        found.append((forecast[own].mean(), outcome[own].mean(), 1.96 * error, int(own.sum())))
    return pl.DataFrame(found, schema=schema, orient="row")


def clustered_error(values: Floats, cluster: NDArray[np.int64]) -> float:
    """Return the standard error of the mean, values of one cluster not independent; NaN with fewer than two."""
    sums = np.bincount(cluster, weights=values - values.mean())
    n = len(np.unique(cluster))
    return float(np.sqrt((sums**2).sum() * n / (n - 1)) / len(values)) if n > 1 else float("nan")


def scatter(known_rows: pl.DataFrame, *, is_volatility: bool) -> Figure:
    """Return single forecasts against outcomes: at most 2,000, evenly spaced through symbols and time."""
    rows = known_rows.sort("symbol", "ts").gather_every(-(-len(known_rows) // MOST_SAMPLED) or 1)
    times = rows["ts"].dt.strftime("%Y-%m-%d %H:%M").to_list()
    forecast, outcome = rows["forecast"].to_numpy(), rows["label"].to_numpy()
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(forecast),
        "y": rounded(outcome),
        "text": [f"{escape(s)} {t}" for s, t in zip(rows["symbol"], times, strict=True)],
        "marker": {"color": STRATEGY, "size": 4, "opacity": 0.4},
        "hovertemplate": "%{text}<br>forecast %{x}<br>outcome %{y}<extra></extra>",
    }
    layout = _against("outcome", (forecast.tolist(), outcome.tolist()), is_volatility=is_volatility)
    return {"data": [points], "layout": {**layout, "showlegend": False}}


def _against(outcome: str, ranges: tuple[Sequence[float], Sequence[float]], *, is_volatility: bool) -> Figure:
    unit = "log volatility per bar" if is_volatility else "return, %"
    axes = []
    for values in ranges:
        # Forecasts of a 15-minute bar are a hundredth of a percent: the ticks need the digits that tell them apart.
        kind, scale = ("f", 1) if is_volatility else ("%", 100)
        digits = tick_digits(*(scale * v for v in values))
        axes.append({"tickformat": f".{digits}{kind}", "hoverformat": f".{digits + 2}{kind}"})
    return {
        "hovermode": "closest",
        "legend": LEGEND,
        "xaxis": {**axes[0], "nticks": 6, "title": {"text": f"forecast ({unit})"}},
        "yaxis": {**axes[1], "title": {"text": f"{outcome} ({unit})"}},
    }


def rolling(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Return the information coefficient of a moving window over time, None where there is none.

    `rows`: `ts`, the end of the window, and `ic`.
    """
    ic = [known(row["ic"]) for row in rows]
    if not any(v is not None for v in ic):
        return None
    every = max(-(-len(rows) // MOST_SAMPLED), 1)
    kept = list(zip(rows, ic, strict=True))[::-1][::every][::-1]
    ts = pl.Series([row["ts"] for row, _ in kept], dtype=pl.String).str.to_datetime(time_zone="UTC")
    curve = {
        "type": "scatter",
        "mode": "lines" if len(kept) > 1 else "markers",
        "x": when(ts),
        "y": [None if v is None else float(f"{v:.4g}") for _, v in kept],
        "line": {"color": STRATEGY, "width": 1.6},
        "hovertemplate": "%{x}: %{y:.3f}<extra></extra>",
    }
    zero = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "line": {"color": NEUTRAL}}
    layout = {
        "hovermode": "x",
        "showlegend": False,
        "xaxis": {"type": "date", "title": {"text": "end of the window (UTC)"}},
        "yaxis": {"title": {"text": "information coefficient"}, "tickformat": ".2~f", "nticks": 7},
        "shapes": [zero],
    }
    return {"data": [curve], "layout": layout}


def _line(x: list[float], y: list[float], name: str, color: str, dash: str) -> Figure:
    line = {"color": color, "width": 1.2, "dash": dash}
    shared = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    return {**shared, "x": rounded(np.array(x)), "y": rounded(np.array(y)), "name": name, "line": line}
