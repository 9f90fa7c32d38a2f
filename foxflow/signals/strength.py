"""A forecast's direction and strength: thresholds with hysteresis, ranks, volatility, and tranches."""

from collections.abc import Sequence

import polars as pl

from foxflow import features
from foxflow.config import Strategy
from foxflow.errors import DataError

# A share of a count that should be whole may lie a rounding below it, as 0.29 of 100 does.
ROUNDING = 1e-9


def with_signals(rows: pl.DataFrame, *, strategy: Strategy, of: Sequence[str]) -> pl.DataFrame:
    """Return the rows with `signal`, in [-1, 1]: what the position is as a fraction of `position_limit`.

    Parameters
    ----------
    rows
        With `symbol`, `ts`, `forecast` and the columns `of`; for kind `direction` also `enter` and `leave`, the
        thresholds in label units, and `size` (`with_size`).
    of
        The columns whose groups have one past each, as `symbol`: nothing is carried from one to another.
    """
    signal = {"direction": _direction, "rank": _rank, "volatility_target": _volatility_target}[strategy.kind]
    return rows.with_columns(signal=signal(strategy, of))


def in_tranches(rows: pl.DataFrame, *, horizon: int, of: Sequence[str]) -> pl.DataFrame:
    """Return the rows with the `signal` of all tranches together.

    Each bar opens 1/horizon of the position, by its own signal, and closes the part opened `horizon` bars ago.
    """
    parts = pl.col("signal").rolling_sum(horizon, min_samples=1).over(of, order_by="ts") / horizon
    # A running sum of fractions keeps some rounding of what has left it, and flat has to be exactly 0.
    return rows.with_columns(signal=pl.when(parts.abs() > ROUNDING).then(parts.clip(-1.0, 1.0)).otherwise(0.0))


def with_size(rows: pl.DataFrame, *, strategy: Strategy, bars: pl.DataFrame | None) -> pl.DataFrame:
    """Return the rows with `size`, in [0, 1]: the part of `position_limit` that a whole signal holds.

    By the volatility of the symbol's last `volatility_bars` bars up to `ts` (`features.volatility`: root mean square
    of close-to-close log returns, at least one basis point), and 0 where the symbol has too few of them.

    Parameters
    ----------
    bars
        Adjusted bars of the symbols, from each one's first stored bar on; read only where the size depends on them.
    """
    if not strategy.is_sized_by_volatility:
        return rows.with_columns(size=pl.lit(1.0))
    if bars is None:
        raise DataError("[strategy] size = 'volatility', but no bars are given to take it from; pass bars=")
    assert strategy.target_volatility is not None
    assert strategy.volatility_bars is not None
    trailing = features.volatility(strategy.volatility_bars).over("symbol", order_by="ts")
    known = (
        bars.filter(pl.col("symbol").is_in(rows["symbol"].unique().implode()))
        .sort("symbol", "ts")
        .select("symbol", "ts", size=strategy.target_volatility / (trailing * strategy.position_limit))
    )
    return rows.join(known, on=["symbol", "ts"], how="left", maintain_order="left").with_columns(
        pl.col("size").clip(0.0, 1.0).fill_null(0.0)
    )


def _direction(strategy: Strategy, of: Sequence[str]) -> pl.Expr:
    forecast, enter, leave = pl.col("forecast"), pl.col("enter"), pl.col("leave")

    def is_held(toward: pl.Expr) -> pl.Expr:
        # Between the thresholds neither: what was decided last goes on.
        decided = pl.when(toward >= enter).then(1.0).when(toward < leave).then(0.0)
        return decided.forward_fill().fill_null(0.0).over(of, order_by="ts")

    # With thresholds of 0 a forecast of 0 is held both ways: flat, as its sign says.
    sign = is_held(forecast) - is_held(-forecast)
    return (sign.clip(0.0, 1.0) if strategy.side == "long_only" else sign) * pl.col("size")


def _rank(strategy: Strategy, _of: Sequence[str]) -> pl.Expr:
    """Return +1 for the best, -1 for the worst; symbols that tie share the places they compete for."""
    assert strategy.share is not None
    forecast = pl.col("forecast")
    count, tied = forecast.count().over("ts"), pl.len().over("ts", forecast)
    places = pl.max_horizontal((strategy.share * count + ROUNDING).floor(), pl.lit(1.0))

    def part_of_a_place(*, best: bool) -> pl.Expr:
        ahead = forecast.rank("min", descending=best).over("ts").cast(pl.Float64) - 1.0
        return ((places - ahead) / tied).clip(0.0, 1.0)

    long, short = part_of_a_place(best=True), part_of_a_place(best=False)
    signal = long if strategy.side == "long_only" else long - short
    return pl.when(count > 1).then(signal).otherwise(0.0)


def _volatility_target(strategy: Strategy, _of: Sequence[str]) -> pl.Expr:
    assert strategy.target_volatility is not None
    return (strategy.target_volatility / pl.col("forecast").exp()).clip(0.0, 1.0)
