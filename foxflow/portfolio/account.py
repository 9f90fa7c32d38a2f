"""Decisions to fills, cash and equity."""

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foxflow.config import Costs
from foxflow.dataset import Floats
from foxflow.errors import DataError
from foxflow.portfolio.prices import Counts, Masks, Prices

if TYPE_CHECKING:
    from foxflow.portfolio import walk

DAYS_A_YEAR = 365


@dataclass(frozen=True)
class Account:
    """What the walk has made: see `walk.Made`."""

    size: Floats
    slip: Floats
    fee: Floats
    decided: Counts
    held: Floats
    equity: Floats
    cash: Floats
    borrow: Floats
    financing: Floats
    rolled: Floats
    roll_cost: Floats
    goal: Floats
    missed: Counts
    met: Counts
    wanted: Floats


def use_cache() -> None:
    """Keep compiled functions between runs, before numba is imported; vectorbt's first run costs half a minute."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "foxflow"
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder / "numba"))


def account(
    prices: Prices,
    target: Floats,
    exits: Masks,
    *,
    due: Counts,
    band: float,
    costs: Costs,
    gross_limit: float,
    at_open: bool,
) -> Account:
    """Return the fills that targets lead to (`(n_times, n_symbols)`, NaN = leave alone), and what they leave.

    Sells come before buys, and buys stay within the cash and, where `gross_limit` is above 1, a line of credit of as
    much of the newest equity. An order waits for a bar of its symbol, what a bar's volume or the cash does not allow
    waits too, a newer order replaces an older one when it reaches the market, and an ending cancels both. Decisions
    need a bar of the symbol, but for `exits`.

    Raises
    ------
    DataError
        A ruined strategy; a volume that is not known where it decides; an impact that takes all of the price.
    """
    use_cache()
    from foxflow.portfolio import walk

    n_times, n_symbols = target.shape

    def grid(value: float) -> Floats:
        return np.full((n_times, n_symbols), value, dtype=np.float64)

    def counts(value: int) -> Counts:
        return np.full((n_times, n_symbols), value, dtype=np.int64)

    def line() -> Floats:
        return np.zeros(n_times)

    made = walk.Made(
        size=grid(np.nan), slip=grid(0), fee=grid(0), decided=counts(-1), held=grid(0), equity=line(), cash=line(),
        borrow=line(), financing=line(), rolled=grid(0), roll_cost=grid(0), goal=grid(np.nan), missed=counts(0),
        met=counts(-1), wanted=grid(np.nan),
    )  # fmt: skip
    none = np.full(n_symbols, -1, dtype=np.int64)
    state = walk.State(
        shares=np.zeros(n_symbols), left=np.full(n_symbols, np.nan), cause=none.copy(), waits=np.zeros(n_symbols, bool),
        newest=none.copy(), void=none.copy(),
    )  # fmt: skip
    given = walk.Given(
        fill=np.ascontiguousarray(prices.fill),
        open=np.ascontiguousarray(prices.open),
        marked=np.ascontiguousarray(prices.marked),
        settled=np.ascontiguousarray(prices.settled),
        rolls=np.ascontiguousarray(prices.rolls),
        has_bar=np.isfinite(prices.close),
        target=np.ascontiguousarray(target),
        exits=np.ascontiguousarray(exits),
        due=due,
        raw_shares=np.ascontiguousarray(prices.raw_shares),
        volume=np.ascontiguousarray(prices.volume),
        impact=np.ascontiguousarray(prices.impact) if costs.impact else grid(0),
        days=prices.days,
    )
    status, i, j = walk.walk(given, made, state, rates(costs, band=band, gross_limit=gross_limit), at_open)
    if status != walk.DONE:
        raise DataError(_failure(status, prices.symbols[j], prices.times[i], equity=made.equity[i], costs=costs))
    return Account(*made)


def rates(costs: Costs, *, band: float, gross_limit: float) -> "walk.Rates":
    """Return the costs as the walk takes them."""
    from foxflow.portfolio import walk

    limit = costs.participation_limit
    return walk.Rates(
        band=band,
        cash=costs.initial_cash,
        half_spread=costs.half_spread_bps / 1e4,
        fee=costs.fee_bps / 1e4,
        per_share=costs.fee_per_share,
        minimum=costs.minimum_fee,
        borrow=costs.borrow_bps / 1e4 / DAYS_A_YEAR,
        financing=costs.financing_bps / 1e4 / DAYS_A_YEAR,
        line=max(gross_limit - 1.0, 0.0),
        participation=np.inf if limit is None else limit,
    )


def _failure(status: int, symbol: str, at: datetime, *, equity: float, costs: Costs) -> str:
    from foxflow.portfolio import walk

    ts = f"{at:%Y-%m-%d %H:%M}Z"
    if status == walk.RUINED:
        return (
            f"equity fell to {equity:.2f} at {ts}: the strategy is ruined; lower [strategy] gross_limit or "
            "position_limit"
        )
    if status == walk.UNKNOWN_VOLUME:
        return (
            f"{symbol} at {ts}: its bar has no volume that is known, and participation_limit = "
            f"{costs.participation_limit} is a share of it; import volumes, or leave [costs] participation_limit out"
        )
    if status == walk.UNKNOWN_IMPACT:
        return (
            f"{symbol}: the order due at {ts} has an impact that is not known, for in the 20 bars up to its decision a "
            "volume is unknown, nothing was traded, or there are fewer than three bars; import volumes, leave the "
            "symbol out of [data] symbols, or set [costs] impact = 0"
        )
    return (
        f"{symbol} at {ts}: half-spread and impact take all of the price of an order, so much is it of the volume of "
        "a bar; lower [costs] initial_cash, or set [costs] participation_limit"
    )
