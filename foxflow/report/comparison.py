"""Two runs side by side, as tables, sentences and one self-contained page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foxflow.report import page
from foxflow.report.figures import BENCHMARK, STRATEGY, Figure
from foxflow.report.text import NOT_KNOWN, escape, known, number, percent

Found = Mapping[str, Any]
Rows = list[dict[str, Any]]

MOST_POINTS = 2000
SHARES = {"total_return", "max_drawdown", "benchmark_total_return", "hit_rate", "psr", "deflated_sharpe", "pbo"}
COUNTS = {"n_fills", "cost_total", "n_forecasts", "folds_that_learned", "n_trials"}
FINE = {"ic", "rank_ic"}
NAMES = {
    "sharpe": "Sharpe ratio",
    "max_drawdown": "largest drawdown",
    "turnover": "turnover a year",
    "n_fills": "fills",
    "cost_total": "costs",
    "benchmark_sharpe": "benchmark Sharpe ratio",
    "ic": "IC",
    "ic_t": "IC t",
    "rank_ic": "rank IC",
    "rank_ic_t": "rank IC t",
    "n_forecasts": "forecasts",
    "psr": "probabilistic Sharpe ratio",
    "deflated_sharpe": "deflated Sharpe ratio",
    "n_trials": "trials",
    "pbo": "probability of overfitting",
}
T_LIMIT = 1.96


def tables(found: Found) -> dict[str, Rows]:
    """Return the rows of each table by its title, as text; `found` as `runs.compare` gives it."""
    return {
        "runs": [{"": side, **_about(run)} for side, run in zip("AB", found["runs"], strict=True)],
        "settings that differ": [
            {"key": r["key"], "A": _setting(r["a"]), "B": _setting(r["b"])} for r in found["config"]
        ],
        "key numbers": [_number_row(r) for r in found["numbers"]],
        "folds": [_fold_row(r) for r in found["folds"]],
    }


def sentences(found: Found) -> list[str]:
    """Return in words what the difference of the returns is and whether it can be told from luck."""
    returns = found["returns"]
    if not returns["n_sessions_both"]:
        return list(found["notes"])
    span = f"{returns['first_session']} to {returns['last_session']}"
    shared = f"Both have {number(returns['n_sessions_both'], 0)} sessions, {span}"
    said = [f"{shared}; the correlation of their returns is {number(returns['correlation'])}."]
    t = known(returns["difference_t"])
    if t is None:
        said.append("The difference of their returns has no t-statistic: it does not vary, or has too few sessions.")
    else:
        year = returns["mean_difference_a_year"]
        lead = "A less B" if year is None else f"A less B returns {percent(year, sign='+')} a year"
        told = "cannot be told from luck" if abs(t) < T_LIMIT else "is more than luck alone would usually explain"
        said.append(
            f"{lead}, with a t-statistic of {number(t)} (Newey-West, {returns['lags']} lags): the difference {told}."
        )
    return [*said, *_trials(found), *found["notes"]]


def _trials(found: Found) -> list[str]:
    """Return why two deflated Sharpe ratios do not compare: each counts the trials that there were at its time."""
    counts = next((row for row in found["numbers"] if row["name"] == "n_trials"), None)
    a, b = (None, None) if counts is None else (known(counts["a"]), known(counts["b"]))
    if a is None or b is None or a == b:
        return []
    return [
        (
            f"A was scored as one of {number(a, 0)} trials and B as one of {number(b, 0)}: their deflated Sharpe "
            "ratios differ by that too, and do not say which is better."
        )
    ]


def write(path: Path, found: Found, growth: pl.DataFrame) -> None:
    """Write one page that loads nothing from outside.

    `growth`: `session`, `a` and `b`, growth of 1, null where a run has no such session.
    """
    path.write_text(_page(found, growth), "utf-8", newline="\n")


def _page(found: Found, growth: pl.DataFrame) -> str:
    a, b = (str(run["run_id"]) for run in found["runs"])
    said = "".join(f"<li>{escape(s)}</li>" for s in sentences(found))
    head, *rest = (
        f"<section><h2>{escape(title.capitalize())}</h2>{_table(rows)}</section>"
        for title, rows in tables(found).items()
    )
    caption = "Equity at each session's close, net of costs, both 1 before the first session they share; log scale."
    drawn = (
        f"<section><h2>Equity</h2><figure><figcaption>{caption}</figcaption>"
        '<div class="plot" id="growth"><noscript>Figures need JavaScript.</noscript></div></figure></section>'
    )
    names = f"<span>A <b>{escape(a)}</b></span><span>B <b>{escape(b)}</b></span>"
    body = "\n".join(
        [
            f"<header><h1>A against B</h1><p>{names}</p></header>",
            f'<section class="verdict"><ul>{said}</ul></section>',
            head,
            drawn,
            *rest,
        ]
    )
    return page.document(f"{escape(a)} and {escape(b)}", body, {"growth": _figure(growth)})


def _figure(growth: pl.DataFrame) -> Figure:
    step = -(-len(growth) // MOST_POINTS) or 1
    thin = growth.group_by(pl.int_range(pl.len()) // step, maintain_order=True).agg(
        pl.col("session").last(), pl.col("a", "b").drop_nulls().last()
    )
    days = thin["session"].dt.strftime("%Y-%m-%d").to_list()
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name.upper(),
            "x": days,
            "y": [None if v is None else float(f"{v:.6g}") for v in thin[name]],
            "line": {"color": color, "width": 1.6},
            "hovertemplate": "%{y:.3f}",
            # A session that only the other's calendar has is no gap.
            "connectgaps": True,
        }
        for name, color in (("a", STRATEGY), ("b", BENCHMARK))
    ]
    layout = {
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"title": {"text": "session"}, "hoverformat": "%Y-%m-%d", "nticks": 7},
        "yaxis": {"type": "log", "title": {"text": "growth of 1 (log scale)"}, "tickformat": "~g", **_ticks(growth)},
    }
    return {"data": traces, "layout": layout}


def _ticks(growth: pl.DataFrame) -> Figure:
    """Return ticks at 1, 2 and 5 of each decade, or at even steps where the range is too narrow for those."""
    values = np.concatenate([growth[name].drop_nulls().to_numpy() for name in ("a", "b")])
    low, high = float(values.min()), float(values.max())
    if high / low > 4:
        return {"dtick": "D2" if high / low <= 60 else 1}
    # Plotly's own lie on each other near the top of a decade. As few digits as tell them apart.
    even = [low * (high / low) ** (step / 4) for step in range(5)] if high > low else [low]
    digits = next((n for n in range(2, 9) if len({f"{v:.{n}g}" for v in even}) == len(even)), 9)
    return {"tickmode": "array", "tickvals": [float(f"{v:.{digits}g}") for v in even]}


def _about(run: Mapping[str, Any]) -> dict[str, Any]:
    span = f"{str(run['first_ts'])[:10]} to {str(run['last_ts'])[:10]}"
    return {
        "run": str(run["run_id"]),
        "model": str(run["model"]),
        "span": span,
        "folds": number(run["n_folds"], 0),
        "seeds": number(run["n_seeds"] or 1, 0),
    }


def _setting(value: object) -> str:
    return "(not set)" if value is None else str(value)


def _number_row(row: Mapping[str, Any]) -> dict[str, Any]:
    name = row["name"]

    def shown(value: object, *, sign: str = "-") -> str:
        if name in SHARES:
            return percent(value, sign=sign)
        return number(value, 0 if name in COUNTS else 4 if name in FINE else 2, sign=sign)

    return {
        "": NAMES.get(name, name.replace("_", " ")),
        "A": shown(row["a"]),
        "B": shown(row["b"]),
        "A less B": shown(row["difference"], sign="+"),
    }


def _fold_row(row: Mapping[str, Any]) -> dict[str, Any]:
    ours, theirs = known(row["return_a"]), known(row["return_b"])
    ends = {str(end)[:10] for end in (row["test_end_a"], row["test_end_b"]) if end}
    return {
        "test span": f"{str(row['test_start'])[:10]} to {' or '.join(sorted(ends))}",
        "return A": percent(ours),
        "return B": percent(theirs),
        "A less B": NOT_KNOWN if ours is None or theirs is None else percent(ours - theirs, sign="+"),
        "IC A": number(row["ic_a"], 3),
        "IC B": number(row["ic_b"], 3),
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    lines = []
    for row in rows:
        first, *others = (escape(v) for v in row.values())
        cells = "".join(f"<td>{v}</td>" for v in others)
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
