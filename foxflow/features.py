"""Features: numbers known at `ts`, unit-free per symbol, each declaring the bars it reads.

An expression is written for one symbol's bars in time order, with prices adjusted by `adjustment`; it must not read
a later bar. Where a feature does not exist (too few bars, a price that is not positive, a volume that is 0 or not
known) it is null.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from foxflow.bars import log_price
from foxflow.errors import ConfigError, unknown

# One basis point a bar: below it a volatility is a price that does not move, and must not become a divisor.
VOLATILITY_FLOOR = 1e-4


@dataclass(frozen=True)
class Feature:
    """An expression over one symbol's bars and its `lookback`: the bars it reads, `ts` included."""

    expression: pl.Expr
    lookback: int
    meaning: str


def volatility(n_bars: int) -> pl.Expr:
    """Return the root mean square of the last `n_bars` close-to-close log returns, a fraction per bar, floored."""
    mean_square = log_price("close").diff().pow(2).rolling_mean(n_bars)
    return pl.when(mean_square.is_not_null()).then(pl.max_horizontal(mean_square.sqrt(), pl.lit(VOLATILITY_FLOOR)))


def _return(n_bars: int) -> pl.Expr:
    return log_price("close").diff(n_bars) / (volatility(20) * math.sqrt(n_bars))


def _range_position() -> pl.Expr:
    spread = pl.col("high") - pl.col("low")
    # A bar without a range has its close in the middle of nothing: neither high nor low.
    return pl.when(spread > 0).then((pl.col("close") - pl.col("low")) / spread - 0.5).otherwise(0.0)


def _range() -> pl.Expr:
    spread = log_price("high") - log_price("low")
    return pl.when(spread.is_not_null()).then(pl.max_horizontal(spread, pl.lit(VOLATILITY_FLOOR)).log())


def _volume_ratio() -> pl.Expr:
    mean = pl.col("volume").rolling_mean(20)
    return pl.when((pl.col("volume") > 0) & (mean > 0)).then((pl.col("volume") / mean).log())


def _drawdown() -> pl.Expr:
    price = log_price("close")
    return (price - price.rolling_max(60)) / (volatility(20) * math.sqrt(60))


FEATURES: Mapping[str, Feature] = {
    "return_1": Feature(_return(1), 21, "log return of the bar, in units of its 20-bar volatility"),
    "return_5": Feature(_return(5), 21, "log return of 5 bars, in units of 20-bar volatility over 5 bars"),
    "return_20": Feature(_return(20), 21, "log return of 20 bars, in units of 20-bar volatility over 20 bars"),
    "return_60": Feature(_return(60), 61, "log return of 60 bars, in units of 20-bar volatility over 60 bars"),
    "gap": Feature(
        (log_price("open") - log_price("close").shift(1)) / volatility(20),
        21,
        "log return from the previous close to the open, in units of 20-bar volatility",
    ),
    "range_position": Feature(_range_position(), 1, "where the close lies between low (-0.5) and high (0.5)"),
    "range": Feature(_range(), 1, "log of the log distance from low to high"),
    "volatility_5": Feature(volatility(5).log(), 6, "log of the 5-bar volatility per bar"),
    "volatility_20": Feature(volatility(20).log(), 21, "log of the 20-bar volatility per bar"),
    "volatility_60": Feature(volatility(60).log(), 61, "log of the 60-bar volatility per bar"),
    "volume_ratio": Feature(_volume_ratio(), 20, "log of the volume over its 20-bar mean"),
    "drawdown_60": Feature(_drawdown(), 60, "log distance below the highest close of 60 bars, in units of volatility"),
}


def lookback(names: Sequence[str]) -> int:
    """Return the bars that the named features read together, the newest included."""
    return max(_find(name).lookback for name in names)


def compute(bars: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return `symbol`, `ts` and the named features (Float64), sorted by (symbol, ts).

    Parameters
    ----------
    bars
        Adjusted bars from each symbol's first stored bar on: a rolling mean started elsewhere differs in its last
        bits. The latest bar a row reads is its own.
    """
    expressions = [_find(name).expression.over("symbol", order_by="ts").alias(name) for name in names]
    return bars.sort("symbol", "ts").select("symbol", "ts", *expressions)


def _find(name: str) -> Feature:
    if name not in FEATURES:
        raise ConfigError(f"[features] names: {unknown('feature', name, FEATURES)}")
    return FEATURES[name]
