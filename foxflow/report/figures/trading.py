"""What was held, what it cost, and how the result bears other assumptions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from foxflow.report.figures.shared import (
    LEGEND,
    LOSS,
    NEUTRAL,
    STRATEGY,
    Figure,
    rounded,
    step_of,
    when,
)
from foxflow.report.text import TIMES, escape, known, number

# Bars of turnover that keep apart on a narrow screen.
MOST_BARS = 130
# Days in each period, and its Polars name.
PERIODS = (("day", "1d", 1), ("week", "1w", 7), ("month", "1mo", 30), ("quarter", "1q", 91), ("year", "1y", 365))


def exposure(held: pl.DataFrame, fills: pl.DataFrame, equity: pl.DataFrame) -> Figure | None:
    """Return gross and net exposure above turnover, None where nothing was held.

    Exposure is in fractions of equity: the mean of each step where a long history is thinned. Turnover is the value
    traded in a day, week, month, quarter or year, whichever gives bars that keep apart, over that period's mean equity.

    Parameters
    ----------
    held, fills, equity
        `portfolio.HELD_SCHEMA`, `portfolio.FILL_SCHEMA`, `portfolio.EQUITY_SCHEMA`.
    """
    weight = pl.col("weight")
    both = held.group_by("ts").agg(gross=weight.abs().sum(), net=weight.sum()).sort("ts")
    if both.is_empty() or not len(equity):
        return None
    step = step_of(len(both))
    means = [pl.col("ts").last(), pl.col("gross", "net").mean()]
    thin = both.group_by(pl.int_range(pl.len()) // step, maintain_order=True).agg(*means)
    x = when(thin["ts"])
    looks = (("gross", {"color": NEUTRAL, "width": 1.2}), ("net", {"color": STRATEGY, "width": 1.4}))
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"{name} exposure",
            "x": x,
            "y": rounded(thin[name].to_numpy()),
            "line": {**line, "shape": "hv"},
            "hovertemplate": "%{y:.0%}",
        }
        for name, line in looks
    ]
    name, period, days = _period(equity["ts"])
    value = fills.select("ts", value=(pl.col("shares") * pl.col("price")).abs())
    by = [frame.group_by(pl.col("ts").dt.truncate(period)) for frame in (equity, value)]
    turned = by[0].agg(pl.col("equity").mean()).join(by[1].agg(pl.col("value").sum()), on="ts", how="left").sort("ts")
    traces.append(
        {
            "type": "bar",
            "yaxis": "y2",
            "showlegend": False,
            "name": "turnover",
            "x": turned["ts"].dt.strftime("%Y-%m-%d").to_list(),
            "y": rounded((turned["value"].fill_null(0.0) / turned["equity"]).to_numpy()),
            # Plotly leaves a lone bar as wide as the axis.
            **({"width": days * 86_400_000 * 0.8} if len(turned) < 3 else {}),
            "xperiodalignment": "start",
            "marker": {"color": STRATEGY, "line": {"width": 0}},
            "hovertemplate": "turnover %{y:.2f}" + TIMES + "<extra></extra>",
        }
    )
    layout = {
        "hovermode": "x",
        "bargap": 0.15,
        "legend": LEGEND,
        "xaxis": {"anchor": "y2", "type": "date", "title": {"text": "date (UTC)"}},
        "yaxis": {"domain": [0.42, 1], "title": {"text": "share of equity (%)"}, "tickformat": ".0%", "nticks": 6},
        "yaxis2": {
            "domain": [0, 0.32],
            "title": {"text": f"turnover<br>a {name} ({TIMES})"},
            "nticks": 4,
            "rangemode": "tozero",
        },
    }
    return {"data": traces, "layout": layout}


def _period(ts: pl.Series) -> tuple[str, str, int]:
    days = (ts[-1] - ts[0]).total_seconds() / 86_400
    return next((period for period in PERIODS if days / period[2] <= MOST_BARS), PERIODS[-1])


def waterfall(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Return how gross profit becomes net profit, cost by cost, None where an amount is not known or all are 0.

    `rows`: `name` and `amount` in money; the first is the whole before costs, the last what is left.
    """
    amounts = [known(row["amount"]) for row in rows]
    if len(rows) < 2 or any(a is None for a in amounts):
        return None
    found = [a for a in amounts if a is not None]
    if not any(found):
        return None
    n = len(rows)
    bars = {
        "type": "waterfall",
        "orientation": "h",
        "y": [escape(str(row["name"]).replace("_", " ")) for row in rows],
        "x": [*found[:-1], 0],
        "measure": ["relative", *(["relative"] * (n - 2)), "total"],
        "text": [number(a, 0) for a in found],
        "textposition": "none",
        "increasing": {"marker": {"color": STRATEGY}},
        "decreasing": {"marker": {"color": LOSS}},
        "totals": {"marker": {"color": LOSS if found[-1] < 0 else STRATEGY}},
        "connector": {"line": {"color": NEUTRAL, "width": 0.7}},
        "customdata": [number(a, 2) for a in found],
        "hovertemplate": "%{y}: %{customdata}<extra></extra>",
    }
    layout = {
        "showlegend": False,
        "hovermode": "closest",
        "bargap": 0.35,
        "xaxis": {"title": {"text": "profit so far (money)"}, "exponentformat": "B", "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "showgrid": False, "title": {"text": ""}, "ticksuffix": " "},
    }
    return {"data": [bars], "layout": layout}


def sensitivity(rows: Sequence[Mapping[str, Any]], key: str, title: str, *, now: float | None = None) -> Figure | None:
    """Return the Sharpe ratio against another assumption, None with fewer than two known ratios.

    Parameters
    ----------
    rows
        `sharpe`, and the assumption under `key`.
    now
        The assumption of this run, which gets a ring.
    """
    pairs = [(known(row[key]), known(row["sharpe"])) for row in rows]
    found = [(x, y) for x, y in pairs if x is not None and y is not None]
    if len(found) < 2:
        return None
    kinds = list(dict.fromkeys(str(row.get("name") or "") for row in rows))
    if len(kinds) > 1:
        # One curve for each cost by name, all over the same axis.
        drawn = [
            (kind, sensitivity([r for r in rows if str(r.get("name") or "") == kind], key, title)) for kind in kinds
        ]
        full = [(kind, one) for kind, one in drawn if one is not None]
        if not full:
            return None
        whole = {**full[0][1], "data": []}
        whole["layout"] = {**whole["layout"], "showlegend": True, "legend": LEGEND}
        for at, (kind, one) in enumerate(full):
            (curve,) = one["data"]
            name = escape(kind.removesuffix("_bps").replace("_", " "))
            line = {**curve["line"], "dash": ("solid", "4px,2px", "dot")[at % 3]}
            whole["data"].append({**curve, "name": name, "line": line})
        return whole
    xs, ys = np.array([x for x, _ in found]), np.array([y for _, y in found])
    is_money = key == "initial_cash"
    curve = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": rounded(xs),
        "y": rounded(ys),
        "line": {"color": STRATEGY, "width": 1.5},
        "marker": {"color": STRATEGY, "size": 8, "symbol": ["circle-open" if x == now else "circle" for x in xs]},
        "hovertemplate": "%{x}: %{y:.2f}<extra></extra>",
    }
    zero = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "line": {"color": NEUTRAL}}
    ticks = {"type": "log", "dtick": 1, "exponentformat": "B"} if is_money else {"tickvals": rounded(xs)}
    layout = {
        "showlegend": False,
        "hovermode": "closest",
        "xaxis": {"title": {"text": title}, **ticks},
        "yaxis": {"title": {"text": "Sharpe ratio"}, "nticks": 5, "rangemode": "tozero", "tickformat": ".2~f"},
        "shapes": [zero],
    }
    return {"data": [curve], "layout": layout}
