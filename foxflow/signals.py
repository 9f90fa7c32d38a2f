"""From forecast to signal to position: thresholds, limits, and how long a forecast is held."""

import numpy as np
import polars as pl

from foxflow.bars import TS
from foxflow.config import Strategy
from foxflow.dataset import Floats
from foxflow.errors import ConfigError

POSITION_SCHEMA = pl.Schema({"symbol": pl.String(), "ts": TS, "signal": pl.Float64(), "position": pl.Float64()})
"""A row without a signal is an exit: the symbol has left the universe."""


def positions(
    forecasts: pl.DataFrame, *, strategy: Strategy, horizon: int, values: str, exits: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return the position to hold from each forecast on (`POSITION_SCHEMA`), sorted by (symbol, ts).

    A position is a fraction of equity, decided at `ts` and held until the symbol's next row: a bar without a valid
    forecast changes nothing. One pass over all folds, so a fold boundary trades only if the signal changes.

    Parameters
    ----------
    forecasts
        `training.FORECAST_SCHEMA`, in label units.
    values
        What the forecasts are: `return` or `log volatility` (see `labels`).
    exits
        `endings.EXIT_SCHEMA`: where a symbol leaves the universe. What was held is closed, unless there is a forecast
        at that very time, and no earlier forecast counts any more.
    """
    require_fitting(strategy, values=values)
    signal = _direction(strategy) if strategy.kind == "direction" else _volatility_target(strategy)
    if strategy.hold == "tranches":
        # Each bar opens 1/horizon of the position and closes the part it opened `horizon` bars ago.
        signal = signal.rolling_sum(horizon, min_samples=1) / horizon
    rows = (
        _with_exits(forecasts, exits)
        .with_columns(signal=signal.over("symbol", "stay", order_by="ts"))
        .with_columns(signal=pl.when(pl.col("forecast").is_not_null()).then("signal"))
        .with_columns(position=pl.col("signal").fill_null(0.0) * strategy.position_limit)
    )
    return _within_gross_limit(rows, strategy.gross_limit).select(POSITION_SCHEMA.names()).cast(POSITION_SCHEMA)


def _with_exits(forecasts: pl.DataFrame, exits: pl.DataFrame | None) -> pl.DataFrame:
    """Return forecasts and exits, which have none, sorted, and the number of the symbol's `stay` each belongs to."""
    if exits is None or not len(exits):
        return forecasts.sort("symbol", "ts").with_columns(stay=pl.lit(0))
    first = forecasts.group_by("symbol").agg(first=pl.col("ts").min())
    # Before its first forecast a symbol has nothing to leave.
    leaving = exits.unique().join(first, on="symbol").filter(pl.col("ts") > pl.col("first")).select("symbol", "ts")
    both = forecasts.join(leaving.with_columns(leaves=True), on=["symbol", "ts"], how="full", coalesce=True)
    leaves = pl.col("leaves").fill_null(value=False).cast(pl.Int32)
    return both.sort("symbol", "ts").with_columns(stay=leaves.cum_sum().over("symbol", order_by="ts"))


def require_fitting(strategy: Strategy, *, values: str) -> None:
    """Raise ConfigError where the strategy cannot use forecasts of these values (see `labels`)."""
    wanted = {"direction": "return", "volatility_target": "log volatility"}[strategy.kind]
    if values != wanted:
        raise ConfigError(
            f"[strategy] kind = {strategy.kind!r} needs a label of {wanted}s, but the label is a {values}; choose the "
            f"other kind or another [label] name"
        )


def _direction(strategy: Strategy) -> pl.Expr:
    forecast = pl.col("forecast")
    assert strategy.threshold_bps is not None
    strong = forecast.abs() >= strategy.threshold_bps / 1e4
    sign = pl.when(strong).then(forecast.sign()).otherwise(0.0)
    return sign.clip(0.0, 1.0) if strategy.side == "long_only" else sign


def _volatility_target(strategy: Strategy) -> pl.Expr:
    assert strategy.target_volatility is not None
    return (strategy.target_volatility / pl.col("forecast").exp()).clip(0.0, 1.0)


def _within_gross_limit(rows: pl.DataFrame, gross_limit: float) -> pl.DataFrame:
    """Scale a bar's new positions down together to what the limit leaves beside those still held without a new row."""
    times, symbols = rows["ts"].unique().sort(), rows["symbol"].unique().sort()
    wide = to_wide(rows, "position", times, symbols)
    held, factors = np.zeros(len(symbols)), np.ones(len(times))
    for i, wanted in enumerate(wide):
        new = np.isfinite(wanted)
        room = max(gross_limit - np.abs(held[~new]).sum(), 0.0)
        factors[i] = min(1.0, room / max(np.abs(wanted[new]).sum(), 1e-300))
        held[new] = wanted[new] * factors[i]
    factor = pl.DataFrame({"ts": times, "factor": factors})
    return rows.join(factor, on="ts", how="left", maintain_order="left").with_columns(
        position=pl.col("position") * pl.col("factor")
    )


def to_wide(rows: pl.DataFrame, column: str, times: pl.Series, symbols: pl.Series) -> Floats:
    """Return a column as an array `(n_times, n_symbols)`, NaN where there is no row."""
    wide = np.full((len(times), len(symbols)), np.nan)
    at = times.search_sorted(rows["ts"]).to_numpy()
    of = symbols.search_sorted(rows["symbol"]).to_numpy()
    wide[at, of] = rows[column].to_numpy()
    return wide
