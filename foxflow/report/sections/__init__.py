"""The sections of the report, in the order of the page; each is empty, or says why, where a run has nothing for it."""

from foxflow.report.sections.forecasts import calibration, forecasters, rolling
from foxflow.report.sections.performance import drawdowns, monthly, performance, seeds, significance
from foxflow.report.sections.proof import folds, one_forecast
from foxflow.report.sections.sources import bars, config, provenance, universe
from foxflow.report.sections.trading import costs, exposure, sensitivity
from foxflow.report.sections.training import training

__all__ = [
    "bars",
    "calibration",
    "config",
    "costs",
    "drawdowns",
    "exposure",
    "folds",
    "forecasters",
    "monthly",
    "one_forecast",
    "performance",
    "provenance",
    "rolling",
    "seeds",
    "sensitivity",
    "significance",
    "training",
    "universe",
]
