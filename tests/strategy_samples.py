"""Forecasts, strategies and bars for the tests of how a forecast becomes a position."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from foxflow.bars import BAR_SCHEMA
from foxflow.config import Strategy
from foxflow.endings import EXIT_SCHEMA
from foxflow.signals import Thresholds
from foxflow.training import FORECAST_SCHEMA

START = datetime(2024, 1, 1, 21, tzinfo=UTC)


def day(i: int) -> datetime:
    return START + timedelta(days=i)


def forecasts(folds: list[int] | None = None, **series: list[float | None]) -> pl.DataFrame:
    """One list a symbol, a value a day, None = no forecast; `folds`: the number of each day's fold."""
    rows = [
        (symbol, day(i), folds[i] if folds else 0, value)
        for symbol, values in series.items()
        for i, value in enumerate(values)
        if value is not None
    ]
    return pl.DataFrame(rows, schema=FORECAST_SCHEMA, orient="row")


def bars(**closes: list[float]) -> pl.DataFrame:
    rows = [(s, day(i), c, c, c, c, 1.0) for s, values in closes.items() for i, c in enumerate(values)]
    return pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row")


def strategy(**changes: object) -> Strategy:
    """Direction by default; a setting of None is left out."""
    settings: dict[str, Any] = {
        "kind": "direction",
        "side": "long_short",
        "threshold_bps": 10.0,
        "position_limit": 0.2,
        "rebalance_band": 0.0,
        **changes,
    }
    return Strategy(**{k: v for k, v in settings.items() if v is not None})


def thresholds(enter_bps: float, exit_bps: float | None = None) -> Thresholds:
    return Thresholds(
        enter_bps=enter_bps,
        exit_bps=enter_bps if exit_bps is None else exit_bps,
        enter_quantile=0.0,
        exit_quantile=0.0,
        score=0.0,
        score_at_zero=0.0,
        n_rows=0,
        n_dates=0,
        note=None,
    )


def random_case(seed: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Forecasts of 1 to 5 symbols in 3 folds with bars missing at random, exits among them, and their bars."""
    random = np.random.default_rng(seed)
    n_days, symbols = int(random.integers(2, 40)), "ABCDE"[: int(random.integers(1, 6))]
    density = random.choice([0.3, 0.8, 1.0])
    # Few levels, so that ties, zeros and values at a threshold come up.
    levels = np.array([-40, -20, -10, -5, 0, 5, 10, 20, 40]) / 1e4
    series = {
        s: [float(random.choice(levels)) if random.random() < density else None for _ in range(n_days)] for s in symbols
    }
    folds = [i * 3 // n_days for i in range(n_days)]
    leaving = [(s, day(i)) for s in symbols for i in range(n_days) if random.random() < 0.08]
    closes = {
        s: (100.0 * np.exp(np.cumsum(random.normal(0, 0.001 + 0.02 * random.random(), n_days)))).tolist()
        for s in symbols
    }
    return (
        forecasts(folds, **series),
        pl.DataFrame(leaving, schema=EXIT_SCHEMA, orient="row"),
        bars(**closes),
    )
