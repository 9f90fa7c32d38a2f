"""What all figures share: colours and their meaning, numbers as JSON holds them, and how long series are thinned."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from foxflow.dataset import Floats

Figure = dict[str, Any]
Folds = Sequence[Mapping[str, Any]]

# Blue and orange keep apart for every kind of colour blindness, and reach 3:1 on white and on the dark panel. The
# plain model is grey and dashed, so that it needs no third hue; what is lost or paid is red, always with its sign.
STRATEGY, BENCHMARK, BASELINE, NEUTRAL, LOSS = "#2f86c9", "#d9730d", "#7f8791", "#8a929c", "#cf4a36"
FAINT = "rgba(47,134,201,0.5)"
"""Another seed of the strategy."""
# A picture has about as many pixels across.
MOST_POINTS = 2000
LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}


def rounded(values: Floats) -> list[float | None]:
    """Return the values to six digits, None where not finite: JSON has no NaN."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]


def when(ts: pl.Series) -> list[str]:
    """Return times as Plotly reads them, as short as they can be."""
    return ts.dt.strftime("%Y-%m-%d" if is_daily(ts) else "%Y-%m-%d %H:%M").to_list()


def is_daily(ts: pl.Series) -> bool:
    """Return whether no date has two bars."""
    return ts.dt.date().n_unique() == len(ts)


def instant(iso: object) -> str:
    """Return a time of the summary, ISO in UTC, as Plotly reads it."""
    return str(iso)[:16].replace("T", " ")


def step_of(n_rows: int) -> int:
    """Return how many rows become one point, so that no more than `MOST_POINTS` are drawn."""
    return max(-(-n_rows // MOST_POINTS), 1)


def tick_digits(*values: float) -> int:
    """Return the decimals that tell ticks over the range of these values apart, however narrow it is.

    >>> tick_digits(-4.0, 5.0), tick_digits(-0.01, 0.02), tick_digits(1.0)
    (1, 3, 1)
    """
    found = [v for v in values if math.isfinite(v)]
    # A wide screen has about ten ticks, a step of 1, 2 or 5 units of a decimal place.
    step = (max(found) - min(found)) / 10 if found else 0.0
    return min(max(0, math.ceil(-math.log10(step) - 1e-9)), 8) if step > 0 else 1
