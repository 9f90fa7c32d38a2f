"""From a stream of forecasts to decisions, and from those to a book."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from foxflow import endings, labels, portfolio, signals, training
from foxflow.config import Config
from foxflow.market import Market
from foxflow.training import FoldResult


@dataclass(frozen=True)
class Plan:
    """What a stream of forecasts decides: forecasts, positions (`signals.POSITION_SCHEMA`), endings, bars traded.

    `thresholds`: of each fold by number, where they are chosen (`signals.choose`), else empty.
    """

    forecasts: pl.DataFrame
    positions: pl.DataFrame
    endings: pl.DataFrame
    bars: pl.DataFrame
    thresholds: Mapping[int, signals.Thresholds]


def decide(config: Config, pulled: Market, results: Sequence[FoldResult]) -> Plan:
    """Return the plan of one model's folds, at the prices that were known first."""
    adjusted, forecasts = pulled.first, training.forecasts_of(results)
    symbols = forecasts["symbol"].unique().to_list()
    ends = endings.find(
        adjusted, pulled.universe, symbols=symbols, ended=config.data.ended, calendar=config.data.calendar
    )
    exits = endings.exits(symbols, pulled.universe, times=endings.bar_times(adjusted))
    thresholds = signals.choose(results, config, bars=adjusted)
    positions = signals.positions(
        forecasts,
        strategy=config.strategy,
        horizon=config.label.horizon,
        values=labels.find(config.label.name).values,
        exits=pl.concat([exits, endings.exits_of(ends)]),
        thresholds=thresholds,
        bars=adjusted,
    )
    return Plan(forecasts, positions, ends, adjusted.filter(pl.col("symbol").is_in(symbols)), thresholds)


def trade(config: Config, pulled: Market, plan: Plan) -> portfolio.Book:
    """Return the book of a plan under the config's costs."""
    return portfolio.run(plan.positions, plan.bars, **_terms(config, pulled, plan))


def replay(config: Config, pulled: Market, plan: Plan) -> portfolio.Replay:
    """Return what a plan comes to under the config's costs, without a book of it."""
    return portfolio.replay(plan.positions, plan.bars, **_terms(config, pulled, plan))


def _terms(config: Config, pulled: Market, plan: Plan) -> dict[str, Any]:
    """Return on which terms a plan is traded: the keyword arguments of `portfolio.run`."""
    return {
        "band": config.strategy.rebalance_band,
        "costs": config.costs,
        "execution": config.backtest,
        "gross_limit": config.strategy.gross_limit,
        "endings": plan.endings,
        "rolls": pulled.rolls,
        "factors": pulled.factors,
        "bar": config.data.bar,
        "calendar": config.data.calendar,
    }
