"""Positions to fills, cash and equity, and what trading them cost.

Shares are counted at `ts`, from the equity and prices known then, and filled by the bar that the order meets when it is
in the market (`delay`), at the price that `[backtest] fill` names and the costs that `[costs]` name: vectorbt's own
target sizes would count them at the price that nobody knows yet. One portfolio with shared cash runs over all folds
(`account`, `walk`), and vectorbt books it again (`booking`). Prices are adjusted (`adjustment`), so splits and
reinvested dividends are in the returns; what is charged by the share is charged for the shares of that day (`charges`).
What a symbol whose bars end leaves behind is filled at its ending's price, in place of a bar that never comes. A
position in a continuous series of futures is sold and bought again at the open of each roll, which costs two fills and
moves nothing else.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from foxflow.config import Backtest, Costs
from foxflow.dataset import Floats
from foxflow.portfolio import benchmark, charges
from foxflow.portfolio.account import Account, account, use_cache
from foxflow.portfolio.book import (
    CAP_SCHEMA,
    CARRY_SCHEMA,
    EQUITY_SCHEMA,
    GROSS_SCHEMA,
    HELD_SCHEMA,
    WAIT_SCHEMA,
    Book,
)
from foxflow.portfolio.charges import CHARGE_SCHEMA, FILL_SCHEMA
from foxflow.portfolio.delay import due
from foxflow.portfolio.prices import Masks, Prices, prices
from foxflow.signals import to_wide

__all__ = [
    "CAP_SCHEMA",
    "CARRY_SCHEMA",
    "CHARGE_SCHEMA",
    "EQUITY_SCHEMA",
    "FILL_SCHEMA",
    "GROSS_SCHEMA",
    "HELD_SCHEMA",
    "WAIT_SCHEMA",
    "Book",
    "Replay",
    "replay",
    "run",
]


@dataclass(frozen=True)
class Replay:
    """What the same decisions come to, without a book of it.

    `equity`: frame `ts`, `equity` in money; `costs`: what each named cost came to, in money; `most_participation`: the
    largest share of a bar's volume that a fill took, None where no cost needs volumes or none is known.
    """

    equity: pl.DataFrame
    costs: dict[str, float]
    n_fills: int
    most_participation: float | None


def run(
    positions: pl.DataFrame,
    bars: pl.DataFrame,
    *,
    band: float,
    costs: Costs,
    execution: Backtest | None = None,
    gross_limit: float = 1.0,
    endings: pl.DataFrame | None = None,
    rolls: pl.DataFrame | None = None,
    factors: pl.DataFrame | None = None,
    bar: str | None = None,
    calendar: str | None = None,
) -> Book:
    """Return the book of a strategy and of buy-and-hold over the same bars, costs and dates.

    Parameters
    ----------
    positions
        `signals.POSITION_SCHEMA`.
    bars
        Adjusted bars of the same symbols; nothing is traded before the first position, and what an order moves the
        price by is known from the bars before it.
    band
        A position is traded when it differs from the held weight by more than this, or is zero.
    execution
        When and at which price orders are filled; at the next open by default.
    gross_limit
        Above 1, purchases may go beyond the cash by so much of the equity less one.
    endings
        `endings.ENDING_SCHEMA`: at the open of an ending's `ts` what is held of its symbol is filled at its price,
        and whatever was ordered is not. It pays half-spread and fees, and has no impact.
    rolls
        `futures.ROLL_SCHEMA`: at the open of the bar that holds a roll's `ts`, what was held and still is held of its
        symbol is sold and bought again.
    factors
        `adjustment.FACTOR_SCHEMA`: from the bars' prices to those of the day; None where the bars are as traded.
    bar, calendar
        The length of the bars and the exchange, which say when a bar opens; needed with a delay in seconds.

    Raises
    ------
    DataError
        A price that is not positive, a strategy that is ruined, and costs that the bars don't tell; naming the place.

    Notes
    -----
    The benchmark holds the symbols that are in, in equal weights, set anew whenever one enters (at its first position,
    or its first after an exit) or leaves (by an exit, or when an ending has paid out), else left alone.
    """
    execution = Backtest() if execution is None else execution
    at = prices(
        bars, decided=positions["ts"], execution=execution, costs=costs, endings=endings, rolls=rolls, factors=factors
    )
    target = to_wide(positions, "position", at.times, at.symbols)
    decided, how = _without_a_bar(target, at), _terms(at, execution, bar=bar, calendar=calendar)
    exits = np.isfinite(to_wide(positions.filter(pl.col("signal").is_null()), "position", at.times, at.symbols))
    weights = benchmark.equal_weights(at, np.isfinite(target) & ~exits, exits)
    ours = account(at, target, decided, band=band, costs=costs, gross_limit=gross_limit, **how)
    rival = account(at, weights, weights == 0, band=0.0, costs=costs, gross_limit=1.0, **how)
    gross = account(at, target, decided, band=band, costs=costs.without(), gross_limit=gross_limit, **how)
    use_cache()
    from foxflow.portfolio import booking

    booked, equity = booking.book(at, ours, costs)
    _, rivals = booking.book(at, rival, costs)
    fills, charged = charges.charged(at, ours, costs)
    return Book(
        equity=pl.DataFrame({"ts": at.times, "equity": equity, "benchmark": rivals}, schema=EQUITY_SCHEMA),
        fills=fills,
        held=_held(positions, at, ours, fills, costs),
        benchmark_fills=charges.charged(at, rival, costs)[0],
        waited=_waited(at, ours),
        capped=_capped(at, ours),
        charges=charged,
        carry=pl.DataFrame({"ts": at.times, "borrow": ours.borrow, "financing": ours.financing}, schema=CARRY_SCHEMA),
        gross=pl.DataFrame({"ts": at.times, "gross": gross.equity}, schema=GROSS_SCHEMA),
        costs=charges.total(ours, charged),
        initial_cash=costs.initial_cash,
        portfolio=booked,
    )


def replay(
    positions: pl.DataFrame,
    bars: pl.DataFrame,
    *,
    band: float,
    costs: Costs,
    execution: Backtest | None = None,
    gross_limit: float = 1.0,
    endings: pl.DataFrame | None = None,
    rolls: pl.DataFrame | None = None,
    factors: pl.DataFrame | None = None,
    bar: str | None = None,
    calendar: str | None = None,
) -> Replay:
    """Return what `run` comes to, without vectorbt, buy-and-hold and the frames of a book; parameters as there."""
    execution = Backtest() if execution is None else execution
    at = prices(
        bars, decided=positions["ts"], execution=execution, costs=costs, endings=endings, rolls=rolls, factors=factors
    )
    target = to_wide(positions, "position", at.times, at.symbols)
    decided, how = _without_a_bar(target, at), _terms(at, execution, bar=bar, calendar=calendar)
    ours = account(at, target, decided, band=band, costs=costs, gross_limit=gross_limit, **how)
    fills, charged = charges.charged(at, ours, costs)
    return Replay(
        pl.DataFrame({"ts": at.times, "equity": ours.equity}),
        charges.total(ours, charged),
        len(fills),
        _most_participation(at, ours),
    )


def _terms(at: Prices, execution: Backtest, *, bar: str | None, calendar: str | None) -> dict[str, Any]:
    """Return when and where orders meet the market: keyword arguments of `account`."""
    return {
        "due": due(at.times, execution, bar=bar, calendar=calendar),
        "at_open": execution.fill == "next_open",
    }


def _most_participation(at: Prices, account: Account) -> float | None:
    if not at.volume.size:
        return None
    # An ending pays out beside the market.
    i, j = np.nonzero(np.isfinite(account.size) & (account.decided >= 0) & (at.volume > 0))
    return float((np.abs(account.size[i, j]) / at.volume[i, j]).max()) if len(i) else None


def _waited(at: Prices, account: Account) -> pl.DataFrame:
    decided, of = np.nonzero(account.missed)
    met = account.met[decided, of]
    rows = {
        "symbol": at.symbols.gather(of),
        "decided_ts": at.times.gather(decided),
        "filled_ts": pl.select(pl.when(pl.Series(met) >= 0).then(at.times.gather(np.maximum(met, 0)))).to_series(),
        "missed_bars": account.missed[decided, of],
    }
    return pl.DataFrame(rows, schema=WAIT_SCHEMA).sort("decided_ts", "symbol")


def _capped(at: Prices, account: Account) -> pl.DataFrame:
    i, j = np.nonzero(np.isfinite(account.wanted))
    rows = {
        "symbol": at.symbols.gather(j),
        "decided_ts": at.times.gather(account.decided[i, j]),
        "ts": at.times.gather(i),
        "wanted_shares": account.wanted[i, j],
        "filled_shares": np.nan_to_num(account.size[i, j]),
    }
    return pl.DataFrame(rows, schema=CAP_SCHEMA).sort("ts", "symbol")


def _without_a_bar(target: Floats, at: Prices) -> Masks:
    """Return what is decided where the symbol has no bar: an exit, or a cut for the net limit (`signals`)."""
    return np.isfinite(target) & ~np.isfinite(at.close)


def _held(positions: pl.DataFrame, at: Prices, account: Account, fills: pl.DataFrame, costs: Costs) -> pl.DataFrame:
    value = account.held * at.marked
    before = np.concatenate([[costs.initial_cash], account.equity[:-1]])[:, None]
    costs_paid = fills.group_by("symbol", "ts", maintain_order=True).agg(
        cost=(pl.col("fee") + pl.col("slippage")).sum()
    )
    cost = np.nan_to_num(to_wide(costs_paid, "cost", at.times, at.symbols))
    paid = np.nan_to_num(account.size * at.paid)
    gain = np.diff(value, axis=0, prepend=0.0) - paid - cost
    n_times, n_symbols = value.shape
    frame = pl.DataFrame(
        {
            "symbol": np.repeat(at.symbols.to_numpy(), n_times),
            "ts": pl.concat([at.times] * n_symbols),
            "weight": (value / account.equity[:, None]).T.ravel(),
            "cost": (cost / before).T.ravel(),
            "return": (gain / before).T.ravel(),
        }
    )
    traded = frame.filter((np.isfinite(at.close) | np.isfinite(account.size)).T.ravel())
    return (
        traded.join(positions, on=["symbol", "ts"], how="left", maintain_order="left")
        .select(HELD_SCHEMA.names())
        .cast(HELD_SCHEMA)
    )
