"""How the fits went, epoch by epoch: losses, and what a state-space model records beside them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from foxflow.report.figures.shared import NEUTRAL, Figure, Folds
from foxflow.report.text import TIMES, escape, known

# Curves that still can be told apart, and that a page draws at once.
MOST_CURVES = 40


def learning(folds: Folds) -> Figure | None:
    """Return validation loss by epoch, None where no fold has three entries.

    Losses are multiples of the untrained one, so that folds compare, unless one of those is not positive.
    """
    if all(len(f["history"]) <= 2 for f in folds):
        return None
    is_relative = all((known(f["untrained_loss"]) or 0) > 0 for f in folds)

    def loss(fold: Mapping[str, Any], epoch: Mapping[str, Any]) -> float | None:
        found = known(epoch["valid_loss"])
        return found if found is None or not is_relative else found / fold["untrained_loss"]

    title = f"validation loss ({TIMES} untrained)" if is_relative else "validation loss"
    untrained = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"color": NEUTRAL}}
    drawn = _by_epoch(folds, loss, title)
    if drawn is not None and is_relative:
        drawn["layout"]["shapes"] = [untrained]
    return drawn


def clipping(folds: Folds) -> Figure | None:
    """Return the share of steps whose gradient was clipped, by epoch, None where no model records it."""
    axis = {"tickformat": ".0%", "range": [-0.04, 1.04]}
    return _by_epoch(folds, _recorded("clipped_share"), "steps clipped (%)", axis)


def spectral_radius(folds: Folds) -> Figure | None:
    """Return the largest spectral radius of the state's transition by epoch, None where no model records it."""
    return _by_epoch(folds, _recorded("spectral_radius"), "spectral radius")


def _recorded(key: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], float | None]:
    return lambda _, epoch: known((epoch.get("detail") or {}).get(key))


def _by_epoch(
    folds: Folds,
    value: Callable[[Mapping[str, Any], Mapping[str, Any]], float | None],
    title: str,
    axis: Figure | None = None,
) -> Figure | None:
    """Return a curve a fold; only the epoch that was kept has a dot."""
    traces = []
    n = len(folds)
    kept = sorted({round(i * (n - 1) / (MOST_CURVES - 1)) for i in range(MOST_CURVES)}) if n > MOST_CURVES else range(n)
    for at in kept:
        fold = folds[at]
        values = {int(e["number"]): value(fold, e) for e in fold["history"]}
        if all(v is None for v in values.values()):
            continue
        best = fold["best_epoch"]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"fold {escape(fold['fold'])}",
                "x": list(values),
                "y": [None if v is None else float(f"{v:.5g}") for v in values.values()],
                "line": {"color": shade(at / max(n - 1, 1)), "width": 1.3},
                "marker": {"size": [7 if number == best else 0 for number in values]},
                "hovertemplate": "epoch %{x}: %{y}",
            }
        )
    if not traces:
        return None
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "epoch"}, "tickformat": "d"},
        "yaxis": {"title": {"text": title}, **(axis or {})},
        "showlegend": False,
    }
    return {"data": traces, "layout": layout}


# The same stops as `.ramp` in page.css.
STOPS = ((72, 79, 150), (38, 130, 142), (53, 183, 121), (163, 190, 40))


def shade(at: float) -> str:
    """Return a colour for a fold's place in time, 0 to 1: a stretch of viridis that shows on white and on dark."""
    stops = np.array(STOPS)
    return "rgb({:.0f},{:.0f},{:.0f})".format(*(np.interp(at, [0, 1 / 3, 2 / 3, 1], stops[:, c]) for c in range(3)))
