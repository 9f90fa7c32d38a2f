"""Figures as Plotly specifications: plain dicts; theme and size are set in the page.

They are written as JSON, never as Plotly's own objects, which take a second to import.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.dataset import Floats
from foxflow.metrics import drawdown
from foxflow.report.text import TIMES, escape, known

Figure = dict[str, Any]
Folds = Sequence[Mapping[str, Any]]

# Blue and orange keep apart for every kind of colour blindness, and reach 3:1 on white and on the dark panel.
STRATEGY, BENCHMARK, NEUTRAL = "#2f86c9", "#d9730d", "#8a929c"
MOST_POINTS = 3000
MOST_SAMPLED = 2000
N_BINS = 20
# Blocks of time that count as independent when a bin's error is estimated.
N_BLOCKS = 40


def equity(frame: pl.DataFrame, folds: Folds) -> Figure:
    """Return growth on a log scale above drawdown, both against buy-and-hold, with a line where a fold begins.

    `frame`: `portfolio.EQUITY_SCHEMA`. Long histories are thinned: last growth and deepest drawdown of each step.
    """
    step = -(-len(frame) // MOST_POINTS)
    columns = {"strategy": frame["equity"].to_numpy(), "benchmark": frame["benchmark"].to_numpy()}
    full = pl.DataFrame(
        {"ts": frame["ts"]}
        | {name: values / values[0] for name, values in columns.items()}
        | {f"{name}_drawdown": drawdown(values) for name, values in columns.items()}
    )
    ends = [pl.col("ts", *columns).last(), pl.col("^.*_drawdown$").min()]
    thin = full.group_by(pl.int_range(pl.len()) // step, maintain_order=True).agg(*ends)
    when = thin["ts"].dt.strftime("%Y-%m-%d %H:%M").to_list()
    traces = []
    for name, label, color in (("benchmark", "buy-and-hold", BENCHMARK), ("strategy", "strategy", STRATEGY)):
        shared = {"x": when, "name": label, "legendgroup": name, "mode": "lines", "type": "scatter"}
        line = {"color": color, "width": 1.6}
        growth = {"y": _rounded(thin[name].to_numpy()), "line": line, "hovertemplate": "%{y:.3f}" + TIMES}
        fall = {"y": _rounded(thin[f"{name}_drawdown"].to_numpy()), "line": {**line, "width": 1.2}}
        below = {"yaxis": "y2", "showlegend": False, "hovertemplate": "%{y:.1%}"}
        traces += [{**shared, **growth}, {**shared, **fall, **below}]
    is_daily = frame["ts"].dt.date().n_unique() == len(frame)
    layout = {
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "legend": {"orientation": "h", "x": 0, "y": 1.06, "yanchor": "bottom", "traceorder": "reversed"},
        "xaxis": {
            "anchor": "y2",
            "title": {"text": "date (UTC)"},
            "hoverformat": "%Y-%m-%d" if is_daily else "%Y-%m-%d %H:%M",
        },
        "yaxis": {"domain": [0.36, 1], "type": "log", "title": {"text": "growth of 1 (log scale)"}, **_log_ticks(thin)},
        "yaxis2": {"domain": [0, 0.3], "title": {"text": "drawdown (%)"}, "tickformat": ".0%", "nticks": 5},
        **_fold_marks(folds),
    }
    return {"data": traces, "layout": layout}


def _log_ticks(growth: pl.DataFrame) -> Figure:
    """Return ticks at 1, 2 and 5 of each decade, or Plotly's own where the range is too narrow for those."""
    values = growth.select("strategy", "benchmark").to_numpy()
    return {"tickformat": "~g"} | ({"dtick": "D2"} if values.max() / values.min() > 4 else {"nticks": 6})


def _fold_marks(folds: Folds) -> Figure:
    starts = [(f["fold"], str(f["test_start"])[:16].replace("T", " ")) for f in folds]
    lines = [
        {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": NEUTRAL, "width": 0.5}}
        for _, x in starts[1:]
    ]
    # More numbers than this would overlap on a narrow screen.
    labels = [
        {
            "x": x,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "xanchor": "left",
            "showarrow": False,
            "text": f"fold {number}" if len(starts) == 1 else str(number),
            "font": {"size": 10},
        }
        for number, x in (starts if len(starts) <= 15 else [])
    ]
    return {"shapes": lines, "annotations": labels}


def binned(known_rows: pl.DataFrame, *, is_volatility: bool) -> Figure | None:
    """Return the mean outcome in each of up to 20 equal-sized bins of the forecast, None where forecasts do not vary.

    `known_rows`: outcomes whose label is known. The bars are `mean ± 1.96 standard errors`, clustered by time.
    """
    table = bins(known_rows)
    if len(table) < 2:
        return None
    low, high = table["forecast"][0], table["forecast"][-1]
    mean = float(known_rows["label"].to_numpy().mean())
    bars = {"type": "data", "array": _rounded(table["error"].to_numpy()), "thickness": 1.1, "width": 2}
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": "mean outcome of a bin, 95 % bar",
        "x": _rounded(table["forecast"].to_numpy()),
        "y": _rounded(table["outcome"].to_numpy()),
        "customdata": table["n"].to_list(),
        "error_y": bars,
        "marker": {"color": STRATEGY, "size": 7},
        "legendrank": 1,
        "hovertemplate": "forecast %{x}<br>mean outcome %{y}<br>%{customdata} forecasts<extra></extra>",
    }
    lines = [
        _line([low, high], [low, high], "a forecast that is right on average", BENCHMARK, "dot"),
        _line([low, high], [mean, mean], "mean of all outcomes: no skill", NEUTRAL, "solid"),
    ]
    return {"data": [*lines, points], "layout": _against("mean outcome", is_volatility=is_volatility)}


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
    when = rows["ts"].dt.strftime("%Y-%m-%d %H:%M").to_list()
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": _rounded(rows["forecast"].to_numpy()),
        "y": _rounded(rows["label"].to_numpy()),
        "text": [f"{escape(s)} {t}" for s, t in zip(rows["symbol"], when, strict=True)],
        "marker": {"color": STRATEGY, "size": 4, "opacity": 0.4},
        "hovertemplate": "%{text}<br>forecast %{x}<br>outcome %{y}<extra></extra>",
    }
    return {"data": [points], "layout": {**_against("outcome", is_volatility=is_volatility), "showlegend": False}}


def _against(outcome: str, *, is_volatility: bool) -> Figure:
    unit = "log volatility per bar" if is_volatility else "return, %"
    formats = (".1f", ".3f") if is_volatility else (".1~%", ".2%")
    axis = {"tickformat": formats[0], "hoverformat": formats[1]}
    return {
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {**axis, "title": {"text": f"forecast ({unit})"}, "nticks": 7},
        "yaxis": {**axis, "title": {"text": f"{outcome} ({unit})"}},
    }


def learning(folds: Folds) -> Figure | None:
    """Return validation loss by epoch, None where no fold has three entries.

    Losses are multiples of the untrained one, so that folds compare, unless one of those is not positive.
    """
    if all(len(f["history"]) <= 2 for f in folds):
        return None
    is_relative = all((known(f["untrained_loss"]) or 0) > 0 for f in folds)
    traces = []
    for at, fold in enumerate(folds):
        unit = fold["untrained_loss"] if is_relative else 1.0
        losses = {int(e["number"]): known(e["valid_loss"]) for e in fold["history"]}
        ratios = {n: None if v is None else float(f"{v / unit:.5g}") for n, v in losses.items()}
        best = int(fold["best_epoch"])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"fold {fold['fold']}",
                "x": list(ratios),
                "y": list(ratios.values()),
                "line": {"color": _shade(at / max(len(folds) - 1, 1)), "width": 1.4},
                # Only the epoch that was kept has a dot.
                "marker": {"size": [8 if n == best else 0 for n in ratios]},
                "hovertemplate": "epoch %{x}: %{y:.3f}",
            }
        )
    untrained = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"color": NEUTRAL}}
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "epoch"}, "tickformat": "d"},
        "yaxis": {"title": {"text": f"validation loss ({TIMES} untrained)" if is_relative else "validation loss"}},
        "shapes": [untrained] if is_relative else [],
        "showlegend": False,
    }
    return {"data": traces, "layout": layout}


def _shade(at: float) -> str:
    """Return a colour for a fold's place in time, 0 to 1: a stretch of viridis that shows on white and on dark."""
    stops = np.array([[72, 79, 150], [38, 130, 142], [53, 183, 121], [163, 190, 40]])
    return "rgb({:.0f},{:.0f},{:.0f})".format(*(np.interp(at, [0, 1 / 3, 2 / 3, 1], stops[:, c]) for c in range(3)))


def _line(x: list[float], y: list[float], name: str, color: str, dash: str) -> Figure:
    line = {"color": color, "width": 1.2, "dash": dash}
    shared = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    return {**shared, "x": _rounded(np.array(x)), "y": _rounded(np.array(y)), "name": name, "line": line}


def _rounded(values: Floats) -> list[float | None]:
    """Return the values to six digits, None where not finite: JSON has no NaN."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]
