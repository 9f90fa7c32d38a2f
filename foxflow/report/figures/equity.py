"""What the money did: growth above drawdown."""

import polars as pl

from foxflow.metrics import drawdown
from foxflow.report.figures.shared import (
    BASELINE,
    BENCHMARK,
    FAINT,
    LEGEND,
    NEUTRAL,
    STRATEGY,
    Figure,
    Folds,
    instant,
    is_daily,
    rounded,
    step_of,
    when,
)
from foxflow.report.text import TIMES

SEED = "equity_seed_"
# More numbers than this would overlap on a narrow screen; more lines would hide the curves.
MOST_NUMBERED, MOST_LINES = 13, 60


def equity(frame: pl.DataFrame, folds: Folds, *, baseline: str | None = None) -> Figure:
    """Return growth on a log scale above drawdown, against buy-and-hold, with a line where a fold begins.

    Long histories are thinned: last growth and deepest drawdown of each step.

    Parameters
    ----------
    frame
        `portfolio.EQUITY_SCHEMA`, and where they are known `baseline` (the equity of another model on the same folds)
        and `equity_seed_K` (that of seed K).
    baseline
        What the other model is called.
    """
    known = [c for c in ("baseline", "benchmark") if c in frame.columns and frame[c].drop_nulls().len()]
    seeds = [c for c in frame.columns if c.startswith(SEED) and frame[c].drop_nulls().len()]
    curves = [*known, "equity"]
    full = pl.DataFrame({"ts": frame["ts"]}).with_columns(
        *(_growth(frame[c]) for c in (*seeds, *curves)), *(_fall(frame[c]) for c in curves)
    )
    ends = [pl.col("ts", *seeds, *curves).last(), *(pl.col(f"{c} drawdown").min() for c in curves)]
    thin = full.group_by(pl.int_range(pl.len()) // step_of(len(frame)), maintain_order=True).agg(*ends)
    looks = {
        "equity": ("strategy", {"color": STRATEGY, "width": 1.9}),
        "benchmark": ("buy-and-hold", {"color": BENCHMARK, "width": 1.5}),
        "baseline": (baseline or "baseline", {"color": BASELINE, "width": 1.5, "dash": "4px,2px"}),
    }
    x = when(thin["ts"])
    shared = {"x": x, "mode": "lines", "type": "scatter"}
    traces: list[Figure] = [
        {
            **shared,
            "name": "other seeds",
            "legendgroup": "seeds",
            "showlegend": at == 0,
            "legendrank": 4,
            "y": rounded(thin[name].to_numpy()),
            "line": {"color": FAINT, "width": 1},
            "hoverinfo": "skip",
        }
        for at, name in enumerate(seeds)
    ]
    for rank, name in enumerate(curves):
        label, line = looks[name]
        own = {**shared, "name": label, "legendgroup": name, "legendrank": 3 - rank}
        growth = {"y": rounded(thin[name].to_numpy()), "line": line, "hovertemplate": "%{y:.3f}" + TIMES}
        below = {"yaxis": "y2", "showlegend": False, "hovertemplate": "%{y:.1%}", "line": {**line, "width": 1.2}}
        traces += [{**own, **growth}, {**own, **below, "y": rounded(thin[f"{name} drawdown"].to_numpy())}]
    layout = {
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "legend": {**LEGEND, "y": 1.07},
        "xaxis": {
            "anchor": "y2",
            "title": {"text": "date (UTC)"},
            "hoverformat": "%Y-%m-%d" if is_daily(frame["ts"]) else "%Y-%m-%d %H:%M",
        },
        "yaxis": {
            "domain": [0.36, 1],
            "type": "log",
            "title": {"text": "growth of 1 (log scale)"},
            **_log_ticks(thin.select(*seeds, *curves)),
        },
        "yaxis2": {"domain": [0, 0.29], "title": {"text": "drawdown (%)"}, "tickformat": ".0~%", "nticks": 5},
        **_fold_marks(folds),
    }
    return {"data": traces, "layout": layout}


def _growth(values: pl.Series) -> pl.Series:
    first = float(values.drop_nulls()[0])
    return (values / first).alias(values.name)


def _fall(values: pl.Series) -> pl.Series:
    """Return the drawdown of each bar; what is not known yet at the start is at its high."""
    known = values.fill_null(strategy="forward").fill_null(strategy="backward")
    return pl.Series(f"{values.name} drawdown", drawdown(known.to_numpy()))


def _log_ticks(growth: pl.DataFrame) -> Figure:
    """Return ticks at 1, 2 and 5 of each decade, or Plotly's own where the range is too narrow for those."""
    values = growth.unpivot()["value"].drop_nulls()
    lowest, highest = float(values.filter(values > 0).min() or 1.0), float(values.max() or 1.0)  # type: ignore[arg-type]
    if highest / lowest <= 4:
        return {"tickformat": "~g", "nticks": 6}
    return {"tickformat": "~g", "dtick": "D2" if highest / lowest <= 60 else 1}


def _fold_marks(folds: Folds) -> Figure:
    starts = [(f["fold"], instant(f["test_start"])) for f in folds]
    lines = [
        {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": NEUTRAL, "width": 0.5}}
        for _, x in (starts[1:] if len(starts) <= MOST_LINES else [])
    ]
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
        for number, x in (starts if len(starts) <= MOST_NUMBERED else [])
    ]
    return {"shapes": lines, "annotations": labels}
