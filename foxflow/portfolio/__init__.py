"""Positions to fills, cash and equity: the only file that imports vectorbt.

Shares are counted at `ts`, from the equity and prices known then, and filled at the symbol's next open plus slippage:
vectorbt's own target sizes would count them at the open that nobody knows yet. One portfolio with shared cash runs over
all folds. Prices are adjusted (`adjustment`), so splits and reinvested dividends are in the returns. What a symbol
whose bars end leaves behind is filled at its ending's price, in place of an open that never comes. A position in a
continuous series of futures is sold and bought again at each roll, which costs two fills and moves nothing else.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foxflow.bars import TS
from foxflow.config import Costs
from foxflow.dataset import Floats
from foxflow.endings import ENDING_SCHEMA
from foxflow.errors import DataError
from foxflow.signals import to_wide
from foxflow.splits import Mask as Masks

EQUITY_SCHEMA = pl.Schema({"ts": TS, "equity": pl.Float64(), "benchmark": pl.Float64()})
FILL_SCHEMA = pl.Schema(
    {
        "symbol": pl.String(),
        "ts": TS,
        "shares": pl.Float64(),
        "price": pl.Float64(),
        "fee": pl.Float64(),
        "slippage": pl.Float64(),
    }
)
HELD_SCHEMA = pl.Schema(
    {
        "symbol": pl.String(),
        "ts": TS,
        "signal": pl.Float64(),
        "position": pl.Float64(),
        "weight": pl.Float64(),
        "cost": pl.Float64(),
        "return": pl.Float64(),
    }
)
WAIT_SCHEMA = pl.Schema({"symbol": pl.String(), "decided_ts": TS, "filled_ts": TS, "missed_bars": pl.Int64()})
"""An order due at a bar its symbol does not have: it waits for the symbol's next one, and misses so many bar times.

`filled_ts` is null where none came before the symbol was closed at its ending or the backtest was over."""

# A fill below this share of the initial cash is no fill.
DUST = 1e-9


@dataclass(frozen=True)
class Book:
    """What a strategy did: `equity` (`EQUITY_SCHEMA`), `fills` (`FILL_SCHEMA`), `held` (`HELD_SCHEMA`), and more.

    `equity` is in money, marked at each bar's close. `held` has one row a bar and symbol: the target position, the
    weight actually held at the close, cost (fee and slippage, a fraction of the equity before) and contribution to
    the portfolio's return, all fractions. `fills.ts` is the end of the bar at whose open the fill happened.
    `waited` (`WAIT_SCHEMA`) lists the orders that could not be filled when they were due.
    """

    equity: pl.DataFrame
    fills: pl.DataFrame
    held: pl.DataFrame
    benchmark_fills: pl.DataFrame
    waited: pl.DataFrame = field(default_factory=WAIT_SCHEMA.to_frame)


@dataclass(frozen=True)
class _Prices:
    times: pl.Series
    symbols: pl.Series
    open: Floats
    close: Floats
    # The last close carried forward, and a symbol's first one before it (nothing is held there).
    marked: Floats
    # What a symbol that ends is closed at, NaN where none does.
    settled: Floats
    # Whether a series goes over to another contract at the open of this bar.
    rolls: Masks

    @property
    def fill(self) -> Floats:
        """The price before slippage of whatever is filled at a bar."""
        return np.where(np.isfinite(self.settled), self.settled, self.open)


@dataclass(frozen=True)
class _Account:
    """`size (n_times, n_symbols)`: shares filled at that bar, NaN = no order; `shares`, `equity`: as after it.

    `rolled`: shares sold and bought again at a roll, 0 = none; `roll_cost`: what that cost, in money. `waits`: of each
    order that missed its bar: symbol, bar of the decision, bars missed, bar of the fill (None: never).
    """

    size: Floats
    shares: Floats
    equity: Floats
    rolled: Floats
    roll_cost: Floats
    waits: list[tuple[int, int, int, int | None]]


def run(
    positions: pl.DataFrame,
    bars: pl.DataFrame,
    *,
    band: float,
    costs: Costs,
    endings: pl.DataFrame | None = None,
    rolls: pl.DataFrame | None = None,
) -> Book:
    """Return the book of a strategy and of buy-and-hold over the same bars, costs and dates.

    Parameters
    ----------
    positions
        `signals.POSITION_SCHEMA`.
    bars
        Adjusted bars of the same symbols; those before the first position are left out.
    band
        A position is traded when it differs from the held weight by more than this, or is zero.
    endings
        `endings.ENDING_SCHEMA`: at the open of an ending's `ts` what is held of its symbol is filled at its price,
        and whatever was ordered is not.
    rolls
        `futures.ROLL_SCHEMA`: at the open of the bar that holds a roll's `ts`, what was held and still is held of its
        symbol is sold and bought again.

    Notes
    -----
    The benchmark holds the symbols that are in, in equal weights, set anew whenever one enters (at its first position,
    or its first after an exit) or leaves (by an exit, or when an ending has paid out), else left alone.
    """
    prices = _prices(bars, endings, rolls, decided=positions["ts"])
    target = to_wide(positions, "position", prices.times, prices.symbols)
    exits = to_wide(positions.filter(pl.col("signal").is_null()), "position", prices.times, prices.symbols)
    account = _account(prices, target, np.isfinite(exits), band=band, costs=costs)
    weights = _equal_weights(prices, np.isfinite(target) & np.isnan(exits), np.isfinite(exits))
    rival = _account(prices, weights, weights == 0, band=0.0, costs=costs)
    equity, fills = _vectorbt(prices, account, costs)
    benchmark, benchmark_fills = _vectorbt(prices, rival, costs)
    return Book(
        equity=pl.DataFrame({"ts": prices.times, "equity": equity, "benchmark": benchmark}, schema=EQUITY_SCHEMA),
        fills=fills,
        held=_held(positions, prices, account, fills, costs),
        benchmark_fills=benchmark_fills,
        waited=_waited(prices, account),
    )


def _prices(
    bars: pl.DataFrame, endings: pl.DataFrame | None, rolls: pl.DataFrame | None, *, decided: pl.Series
) -> _Prices:
    since = decided.sort()[0]
    bars = bars.filter(pl.col("ts") >= since)
    ends = ENDING_SCHEMA.to_frame() if endings is None else endings.filter(pl.col("ts") >= since)
    # An exit or an ending may come at the bar time of a symbol that is not traded.
    times, symbols = pl.concat([bars["ts"], ends["ts"], decided]).unique().sort(), bars["symbol"].unique().sort()
    open_, close = (to_wide(bars, c, times, symbols) for c in ("open", "close"))
    bad = bars.filter((pl.col("open") <= 0) | (pl.col("close") <= 0))
    if len(bad):
        first = bad.sort("ts").row(0, named=True)
        raise DataError(
            f"{first['symbol']} at {first['ts']:%Y-%m-%d %H:%M}Z: open {first['open']}, close {first['close']}; a "
            "price that is not positive cannot be traded as a fraction of equity: leave it out of [data] symbols"
        )
    settled = to_wide(ends.filter(pl.col("symbol").is_in(symbols.to_list())), "price", times, symbols)
    rolled = np.zeros(open_.shape, bool)
    for symbol, ts in rolls.select("symbol", "ts").iter_rows() if rolls is not None else ():
        if ts >= since and symbol in symbols:
            of = symbols.search_sorted(symbol)
            at = np.flatnonzero((times >= ts).to_numpy() & np.isfinite(open_[:, of]))
            rolled[at[:1], of] = True
    return _Prices(times, symbols, open_, close, marked=_filled(close), settled=settled, rolls=rolled)


def _equal_weights(prices: _Prices, enters: Masks, exits: Masks) -> Floats:
    """Return what buy-and-hold is set to at each bar, NaN = left alone: equal weights of all that are in."""
    weights = np.full(enters.shape, np.nan)
    inside, waiting = np.zeros(enters.shape[1], bool), np.zeros(enters.shape[1], bool)
    settled, opens = np.isfinite(prices.settled), np.isfinite(prices.open)
    for i in range(len(enters)):
        # An exit that meets no open before the ending pays out is left to the ending: its money comes only then.
        sells = exits[i] & inside
        for j in np.flatnonzero(sells):
            sells[j] = not _pays_first(settled[i + 1 :, j], opens[i + 1 :, j])
        leaves = (settled[i] & inside) | sells
        new = enters[i] & ~(inside & ~leaves)
        weights[i, sells] = 0.0
        inside = (inside & ~leaves) | new
        if leaves.any() or new.any():
            waiting = inside.copy()
        # A symbol without a bar now gets its new weight at its next one.
        now = waiting & np.isfinite(prices.close[i])
        weights[i, now] = 1.0 / max(inside.sum(), 1)
        waiting &= ~now
    return weights


def _pays_first(settled: Masks, opens: Masks) -> bool:
    """Return whether one symbol's ending comes at the latest with its next open."""
    return bool(settled.any()) and not opens[: settled.argmax()].any()


def _account(prices: _Prices, target: Floats, exits: Masks, *, band: float, costs: Costs) -> _Account:
    """Return the fills that the targets lead to (NaN = leave alone), sells before buys, buys within the cash.

    An order waits for the symbol's next open, and what the cash does not pay for waits for cash; a newer decision
    replaces one that waits, and an ending cancels it. Decisions need a bar of the symbol, but for `exits`.
    """
    fee, slip = costs.fee_bps / 1e4, costs.half_spread_bps / 1e4
    n_times, n_symbols = target.shape
    size = np.full((n_times, n_symbols), np.nan)
    held, rolled, roll_cost = (np.zeros((n_times, n_symbols)) for _ in range(3))
    equity = np.zeros(n_times)
    cash, shares, last = costs.initial_cash, np.zeros(n_symbols), np.zeros(n_symbols)
    order = np.full(n_symbols, np.nan)
    # The bar of a decision whose fill is due and has met no bar of its symbol yet.
    due: dict[int, int] = {}
    waits: list[tuple[int, int, int, int | None]] = []
    for i in range(n_times):
        ends = np.isfinite(prices.settled[i])
        for j in np.flatnonzero(ends & (shares != 0)).tolist():
            price = prices.settled[i, j] * (1 - slip * np.sign(shares[j]))
            cash += shares[j] * price - abs(shares[j]) * price * fee
            size[i, j] = -shares[j]
            shares[j] = 0.0
        order[ends] = np.nan
        before = shares.copy()
        ready = np.isfinite(order) & np.isfinite(prices.open[i])
        for j, decided_at in [(j, at) for j, at in due.items() if ends[j] or ready[j]]:
            if decided_at < i - 1:
                waits.append((j, decided_at, i - 1 - decided_at, i if ready[j] else None))
            del due[j]
        for j in np.flatnonzero(ready & (order < 0)).tolist() + np.flatnonzero(ready & (order > 0)).tolist():
            price = prices.open[i, j] * (1 + slip * np.sign(order[j]))
            filled = order[j] if order[j] < 0 else min(order[j], max(cash, 0.0) / (price * (1 + fee)))
            # What rounding left of the cash buys nothing: vectorbt would reject an order of that size.
            if abs(filled) * price < DUST * costs.initial_cash:
                continue
            cash -= filled * price + abs(filled) * price * fee
            shares[j] += filled
            size[i, j] = filled
            order[j] -= filled
        for j in np.flatnonzero(prices.rolls[i] & (before * shares > 0)).tolist():
            rolled[i, j] = np.sign(shares[j]) * min(abs(before[j]), abs(shares[j]))
            roll_cost[i, j] = 2 * abs(rolled[i, j]) * prices.open[i, j] * (fee + slip)
        cash -= roll_cost[i].sum()
        last = np.where(np.isfinite(prices.close[i]), prices.close[i], last)
        equity[i] = cash + shares @ last
        if not equity[i] > 0:
            raise DataError(
                f"equity fell to {equity[i]:.2f} at {prices.times[i]:%Y-%m-%d %H:%M}Z: the strategy is ruined; lower "
                "[strategy] gross_limit or position_limit"
            )
        for j in [j for j in due if exits[i, j]]:
            waits.append((j, due[j], i - due[j], None))
            del due[j]
        decided = (np.isfinite(target[i]) & np.isfinite(prices.close[i])) | exits[i]
        weight = shares * last / equity[i]
        # A target of zero closes what is left, however little it is.
        off = (np.abs(target[i] - weight) > band) | ((target[i] == 0) & (shares != 0))
        order = np.where(decided, np.nan, order)
        trade = decided & off
        order[trade] = target[i, trade] * equity[i] / last[trade] - shares[trade]
        due |= dict.fromkeys(np.flatnonzero(trade).tolist(), i)
        held[i] = shares
    waits += [(j, at, n_times - 1 - at, None) for j, at in due.items() if at < n_times - 1]
    return _Account(size, held, equity, rolled, roll_cost, waits)


def _waited(prices: _Prices, account: _Account) -> pl.DataFrame:
    rows = [
        (prices.symbols[j], prices.times[at], None if i is None else prices.times[i], missed)
        for j, at, missed, i in account.waits
    ]
    return pl.DataFrame(rows, schema=WAIT_SCHEMA, orient="row").sort("decided_ts", "symbol")


def _vectorbt(prices: _Prices, account: _Account, costs: Costs) -> tuple[Floats, pl.DataFrame]:
    """Return equity and fills as vectorbt books them; its equity has to equal the account's."""
    # Compiled functions are kept between runs; a first one costs half a minute.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(_cache_folder() / "numba"))
    import pandas as pd
    import vectorbt as vbt

    index = pd.DatetimeIndex(prices.times.to_numpy())
    has_order = np.isfinite(account.size)
    # vectorbt drops an order whose price is not finite, without a word.
    assert np.isfinite(prices.fill[has_order]).all()
    portfolio: Any = vbt.Portfolio.from_orders(
        pd.DataFrame(prices.marked, index=index, columns=prices.symbols.to_list()),
        size=account.size,
        size_type="amount",
        price=np.where(has_order, prices.fill, prices.marked),
        fees=costs.fee_bps / 1e4,
        slippage=costs.half_spread_bps / 1e4,
        init_cash=costs.initial_cash,
        group_by=True,
        cash_sharing=True,
        call_seq="auto",
        freq="1D",
        raise_reject=True,
    )
    # A sale and a purchase at one bar are none to vectorbt: what they cost comes off its equity.
    equity = np.asarray(portfolio.value(), dtype=np.float64) - account.roll_cost.sum(axis=1).cumsum()
    if not np.allclose(equity, account.equity, rtol=1e-9, atol=0):
        worst = int(np.abs(equity / account.equity - 1).argmax())
        raise AssertionError(
            f"vectorbt books {equity[worst]} at {prices.times[worst]}, the account {account.equity[worst]}"
        )
    records = portfolio.orders.values
    sign = np.where(records["side"] == 0, 1.0, -1.0)
    rows, columns = records["idx"].astype(int), records["col"].astype(int)
    fills = pl.DataFrame(
        {
            "symbol": prices.symbols.gather(columns),
            "ts": prices.times.gather(rows),
            "shares": records["size"] * sign,
            "price": records["price"],
            "fee": records["fees"],
            "slippage": records["size"] * np.abs(records["price"] - prices.fill[rows, columns]),
        },
        schema=FILL_SCHEMA,
    )
    return equity, pl.concat([fills, _roll_fills(prices, account, costs)]).sort("ts", "symbol", maintain_order=True)


def _roll_fills(prices: _Prices, account: _Account, costs: Costs) -> pl.DataFrame:
    """Return the sale and the purchase of each roll."""
    rows = []
    for i, j in np.argwhere(account.rolled != 0).tolist():
        shares, price = account.rolled[i, j], prices.open[i, j]
        slip = costs.half_spread_bps / 1e4 * price * np.sign(shares)
        for filled, paid in ((-shares, price - slip), (shares, price + slip)):
            fee, slippage = abs(shares) * paid * costs.fee_bps / 1e4, abs(shares * slip)
            rows.append((prices.symbols[j], prices.times[i], filled, paid, fee, slippage))
    return pl.DataFrame(rows, schema=FILL_SCHEMA, orient="row")


def _filled(close: Floats) -> Floats:
    frame = pl.DataFrame(close).select(pl.all().fill_nan(None).forward_fill().backward_fill())
    return frame.to_numpy()


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "foxflow"


def _held(
    positions: pl.DataFrame, prices: _Prices, account: _Account, fills: pl.DataFrame, costs: Costs
) -> pl.DataFrame:
    value = account.shares * prices.marked
    before = np.concatenate([[costs.initial_cash], account.equity[:-1]])[:, None]
    costs_paid = fills.group_by("symbol", "ts", maintain_order=True).agg(
        cost=(pl.col("fee") + pl.col("slippage")).sum()
    )
    cost = np.nan_to_num(to_wide(costs_paid, "cost", prices.times, prices.symbols))
    paid = np.nan_to_num(account.size * prices.fill)
    gain = np.diff(value, axis=0, prepend=0.0) - paid - cost
    n_times, n_symbols = value.shape
    frame = pl.DataFrame(
        {
            "symbol": np.repeat(prices.symbols.to_numpy(), n_times),
            "ts": pl.concat([prices.times] * n_symbols),
            "weight": (value / account.equity[:, None]).T.ravel(),
            "cost": (cost / before).T.ravel(),
            "return": (gain / before).T.ravel(),
        }
    )
    traded = frame.filter((np.isfinite(prices.close) | np.isfinite(account.size)).T.ravel())
    return (
        traded.join(positions, on=["symbol", "ts"], how="left", maintain_order="left")
        .select(HELD_SCHEMA.names())
        .cast(HELD_SCHEMA)
    )
