"""How the result changes with what it rests on: the costs, the delay of a decision, the money traded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from foxflow import bars, metrics
from foxflow.config import Config
from foxflow.config.costs import LEAST_CASH
from foxflow.errors import DataError
from foxflow.market import Market
from foxflow.scoring.returns import per_session
from foxflow.scoring.trading import Plan, replay

COST_LEVELS_BPS = (0.0, 1.0, 2.0, 5.0, 10.0)
DELAYS_BARS = (0, 1, 2)
CAPACITY_STEPS = (0.1, 1.0, 10.0, 100.0, 1000.0)


def sensitivity(config: Config, pulled: Market, plans: Sequence[Plan]) -> dict[str, Any]:
    """Return what the same decisions give at other costs, delays and amounts, each the mean over the seeds' plans.

    `cost_bps`: the named cost at each of `COST_LEVELS_BPS`, all others as they are; `delay_bars`: at `DELAYS_BARS` more
    bars of delay; `capacity`: at multiples of the initial cash from `LEAST_CASH` on, with the largest share of a bar's
    volume that a fill took (None where volumes are not known) and the share of all costs that is impact; empty where
    no cost depends on the amount; `capacity_note`.
    """
    costs = [
        {"name": name, "bps": level, **_outcome(_with_costs(config, **{name: level}), pulled, plans)}
        for name in ("fee_bps", "half_spread_bps")
        for level in COST_LEVELS_BPS
    ]
    delays = []
    for more in DELAYS_BARS:
        execution = replace(config.backtest, delay_bars=config.backtest.delay_bars + more)
        delays.append({"bars": execution.delay_bars, **_outcome(replace(config, backtest=execution), pulled, plans)})
    capacity: list[dict[str, Any]] = []
    note = "No cost depends on the amount traded, so neither does the result: set [costs] impact."
    depends = config.costs.impact > 0 or config.costs.minimum_fee > 0
    if depends or config.costs.participation_limit is not None:
        note = "The same decisions on more or less money: impact grows with the root of the share of volume traded."
        amounts = [config.costs.initial_cash * step for step in CAPACITY_STEPS]
        for cash in (amount for amount in amounts if amount >= LEAST_CASH):
            found = _outcome(_with_costs(config, initial_cash=cash), pulled, plans)
            capacity.append({"initial_cash": cash, **found})
    return {"cost_bps": costs, "delay_bars": delays, "capacity": capacity, "capacity_note": note}


def _with_costs(config: Config, **values: float) -> Config:
    return replace(config, costs=replace(config.costs, **values))


def _outcome(config: Config, pulled: Market, plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the mean over the plans; where one cannot be traded like that, as it is ruined, a `note` says why."""
    year, cash = bars.sessions_per_year(config.data.calendar), config.costs.initial_cash
    ratios, totals, impacts, most = [], [], [], []
    for plan in plans:
        try:
            found = replay(config, pulled, plan)
        except DataError as e:
            nothing = dict.fromkeys(("sharpe", "total_return", "impact_cost_share", "most_participation"))
            return {**nothing, "note": str(e)}
        sessions = per_session(found.equity, config.data.calendar)
        returns = metrics.returns_of(sessions["equity"].to_numpy(), initial=cash)
        ratios.append(metrics.sharpe(returns, periods_per_year=year).value)
        totals.append(float(sessions["equity"][-1] / cash - 1))
        costs = sum(found.costs.values())
        impacts.append(found.costs["impact"] / costs if costs > 0 else 0.0)
        most.append(found.most_participation)
    known = [m for m in most if m is not None]
    return {
        "sharpe": float(np.mean(ratios)),
        "total_return": float(np.mean(totals)),
        "impact_cost_share": float(np.mean(impacts)),
        "most_participation": max(known, default=None),
    }
