"""From forecast to signal to position: thresholds, sizes, limits, and how long a forecast is held."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from foxflow.bars import TS
from foxflow.config import Strategy
from foxflow.errors import ConfigError, DataError
from foxflow.signals.limits import limited, to_wide
from foxflow.signals.strength import in_tranches, with_signals, with_size
from foxflow.signals.thresholds import Thresholds, choose

__all__ = ["POSITION_SCHEMA", "Thresholds", "choose", "positions", "require_fitting", "to_wide"]

POSITION_SCHEMA = pl.Schema({"symbol": pl.String(), "ts": TS, "signal": pl.Float64(), "position": pl.Float64()})
"""A row without a signal is an exit: the symbol has left the universe."""


def positions(
    forecasts: pl.DataFrame,
    *,
    strategy: Strategy,
    horizon: int,
    values: str,
    exits: pl.DataFrame | None = None,
    thresholds: Mapping[int, Thresholds] | None = None,
    bars: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the position to hold from each forecast on (`POSITION_SCHEMA`), sorted by (symbol, ts).

    A position is a fraction of equity, decided at `ts` and held until the symbol's next row: a bar without a valid
    forecast changes nothing. One pass over all folds, so a fold boundary trades only if the signal changes. What is
    decided at one `ts` is decided together, under the limits (`limits.limited`), and reads nothing after it. Where the
    net limit cuts a symbol that has no forecast at that `ts`, it gets a row with the signal it has.

    Parameters
    ----------
    forecasts
        `training.FORECAST_SCHEMA`, in label units.
    values
        What the forecasts are: `return` or `log volatility` (see `labels`).
    exits
        `endings.EXIT_SCHEMA`: where a symbol leaves the universe. What was held is closed, unless there is a forecast
        at that very time, and no earlier forecast counts any more.
    thresholds
        Of each fold, from `choose`; needed with `[strategy] threshold_bps = "chosen"`.
    bars
        Adjusted bars from each symbol's first stored bar on; needed with `[strategy] size = "volatility"`.
    """
    require_fitting(strategy, values=values)
    rows = _with_exits(forecasts, exits)
    if strategy.kind == "direction":
        rows = with_size(_with_thresholds(rows, strategy, thresholds), strategy=strategy, bars=bars)
    rows = with_signals(rows, strategy=strategy, of=["symbol", "stay"])
    if strategy.hold == "tranches":
        rows = in_tranches(rows, horizon=horizon, of=["symbol", "stay"])
    rows = rows.with_columns(signal=pl.when(pl.col("forecast").is_not_null()).then("signal")).with_columns(
        position=pl.col("signal").fill_null(0.0) * strategy.position_limit
    )
    return _within_limits(rows.select(POSITION_SCHEMA.names()).cast(POSITION_SCHEMA), strategy)


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


def _with_thresholds(
    rows: pl.DataFrame, strategy: Strategy, thresholds: Mapping[int, Thresholds] | None
) -> pl.DataFrame:
    """Return the rows with `enter` and `leave`, in label units: of the fold a forecast is of."""
    enter = strategy.threshold_bps
    assert enter is not None
    if enter != "chosen":
        leave = enter if strategy.exit_threshold_bps is None else strategy.exit_threshold_bps
        return rows.with_columns(enter=pl.lit(enter / 1e4), leave=pl.lit(leave / 1e4))
    chosen = thresholds or {}
    missing = sorted(set(rows["fold"].drop_nulls()) - set(chosen))
    if missing:
        raise DataError(
            f"[strategy] threshold_bps = 'chosen', but none are given for fold(s) {', '.join(map(str, missing))}; "
            "choose them with signals.choose(results, config) and pass thresholds="
        )
    table = pl.DataFrame(
        [(fold, t.enter_bps / 1e4, t.exit_bps / 1e4) for fold, t in chosen.items()],
        schema={"fold": rows.schema["fold"], "enter": pl.Float64(), "leave": pl.Float64()},
        orient="row",
    )
    return rows.join(table, on="fold", how="left", maintain_order="left")


def require_fitting(strategy: Strategy, *, values: str) -> None:
    """Raise ConfigError where the strategy cannot use forecasts of these values (see `labels`)."""
    wanted = {"direction": "return", "rank": "return", "volatility_target": "log volatility"}[strategy.kind]
    if values != wanted:
        raise ConfigError(
            f"[strategy] kind = {strategy.kind!r} needs a label of {wanted}s, but the label is a {values}; choose the "
            f"other kind or another [label] name"
        )


def _within_limits(rows: pl.DataFrame, strategy: Strategy) -> pl.DataFrame:
    """Return the rows with the positions that the limits leave, and rows for what stays and has to be cut."""
    times, symbols = rows["ts"].unique().sort(), rows["symbol"].unique().sort()
    wanted = to_wide(rows, "position", times, symbols)
    found = limited(wanted, gross_limit=strategy.gross_limit, net_limit=strategy.net_limit)
    at, of = times.search_sorted(rows["ts"]).to_numpy(), symbols.search_sorted(rows["symbol"]).to_numpy()
    rows = rows.with_columns(position=pl.Series(found[at, of], dtype=pl.Float64))
    added, by = np.nonzero(np.isnan(wanted) & ~np.isnan(found))
    if not len(added):
        return rows
    cut = pl.DataFrame(
        {
            "symbol": symbols.gather(by),
            "ts": times.gather(added),
            "signal": pl.Series([None] * len(by), dtype=pl.Float64),
            "position": found[added, by],
        },
        schema=POSITION_SCHEMA,
    )
    # A signal that is null would be an exit.
    earlier = cut.sort("ts").join_asof(
        rows.select("symbol", "ts", of="signal").sort("ts"), on="ts", by="symbol", check_sortedness=False
    )
    return pl.concat([rows, earlier.with_columns(signal="of").drop("of")]).sort("symbol", "ts")
