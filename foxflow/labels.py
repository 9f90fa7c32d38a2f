"""Labels: what is predicted, aligned with a fill at the next bar's open.

At bar t the entry is `open[t+1]`, the exit `open[t+1+horizon]`, and `label_end` = `ts[t+1+horizon]`. A label whose
exit has not come is null. Expressions are for one symbol's bars in time order, prices adjusted.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import polars as pl

from foxflow.bars import bar_length, log_price
from foxflow.errors import ConfigError, unknown

# Below 0.2 % a day the logarithm of a realised volatility is ruled by the few ticks a price moved.
DAILY_FLOOR = 0.002


@dataclass(frozen=True)
class LabelKind:
    """A label's expression for a horizon and a bar length, and what its values are."""

    expression: Callable[[int, str], pl.Expr]
    values: Literal["return", "log volatility"]
    meaning: str


def forward_return(horizon: int) -> pl.Expr:
    """Return `open[t+1+horizon] / open[t+1] - 1`, a fraction."""
    entry, exit_ = pl.col("open").shift(-1), pl.col("open").shift(-1 - horizon)
    return pl.when((entry > 0) & (exit_ > 0)).then(exit_ / entry - 1)


def volatility_floor(bar: str) -> float:
    """Return the least volatility per bar of that length: 0.002 a day, less by the root of the time for shorter bars.

    Examples
    --------
    >>> volatility_floor("1d"), round(volatility_floor("1m"), 7)
    (0.002, 5.27e-05)
    """
    return DAILY_FLOOR if bar.endswith(("d", "w")) else DAILY_FLOOR * math.sqrt(bar_length(bar) / timedelta(days=1))


def realised_volatility(n_bars: int, bar: str) -> pl.Expr:
    """Return the log of the root mean square of the last `n_bars` open-to-open log returns, with `volatility_floor`.

    Reads the opens up to the bar itself: known at `ts`.
    """
    mean_square = log_price("open").diff().pow(2).rolling_mean(n_bars)
    root = pl.max_horizontal(mean_square.sqrt(), pl.lit(volatility_floor(bar)))
    return pl.when(mean_square.is_not_null()).then(root.log())


def forward_volatility(horizon: int, bar: str) -> pl.Expr:
    """Return `realised_volatility` of the `horizon` open-to-open returns from `open[t+1]` to `open[t+1+horizon]`."""
    return realised_volatility(horizon, bar).shift(-1 - horizon)


LABELS: Mapping[str, LabelKind] = {
    "forward_return": LabelKind(
        lambda horizon, _bar: forward_return(horizon), "return", "return from the next open over `horizon` bars"
    ),
    "forward_volatility": LabelKind(
        forward_volatility, "log volatility", "log of the volatility per bar over the `horizon` bars from the next open"
    ),
}


def find(name: str) -> LabelKind:
    """Return the label of that name."""
    if name not in LABELS:
        raise ConfigError(f"[label] name: {unknown('label', name, LABELS)}")
    return LABELS[name]


def compute(bars: pl.DataFrame, name: str, horizon: int, *, bar: str = "1d") -> pl.DataFrame:
    """Return `symbol`, `ts`, `label` (null where not known) and `label_end`, sorted by (symbol, ts).

    `bar` is the length of the bars, which a volatility's floor goes by.
    """
    label = find(name).expression(horizon, bar)
    end = pl.when(label.is_not_null()).then(pl.col("ts").shift(-1 - horizon))
    return bars.sort("symbol", "ts").select(
        "symbol",
        "ts",
        label.over("symbol", order_by="ts").alias("label"),
        end.over("symbol", order_by="ts").alias("label_end"),
    )
