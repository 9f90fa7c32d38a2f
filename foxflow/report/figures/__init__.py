"""Figures as Plotly specifications: plain dicts; theme and size are set in the page.

They are written as JSON, never as Plotly's own objects, which take a second to import. A colour means the same in
every figure; long series are thinned to what a screen can show.
"""

from foxflow.report.figures.equity import MOST_LINES, equity
from foxflow.report.figures.folds import drawn_folds, spans
from foxflow.report.figures.forecasts import binned, bins, clustered_error, rolling, scatter
from foxflow.report.figures.shared import (
    BASELINE,
    BENCHMARK,
    LOSS,
    MOST_POINTS,
    NEUTRAL,
    STRATEGY,
    Figure,
    Folds,
)
from foxflow.report.figures.trading import exposure, sensitivity, waterfall
from foxflow.report.figures.training import clipping, learning, spectral_radius

__all__ = [
    "BASELINE",
    "BENCHMARK",
    "LOSS",
    "MOST_LINES",
    "MOST_POINTS",
    "NEUTRAL",
    "STRATEGY",
    "Figure",
    "Folds",
    "binned",
    "bins",
    "clipping",
    "clustered_error",
    "drawn_folds",
    "equity",
    "exposure",
    "learning",
    "rolling",
    "scatter",
    "sensitivity",
    "spans",
    "spectral_radius",
    "waterfall",
]
