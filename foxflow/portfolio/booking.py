"""The same fills booked by vectorbt, whose equity has to be the account's: the only file that imports it."""

from typing import Any

import numpy as np
import pandas as pd
import vectorbt as vbt

from foxflow.config import Costs
from foxflow.dataset import Floats
from foxflow.portfolio.account import Account
from foxflow.portfolio.prices import Prices


def book(prices: Prices, account: Account, costs: Costs) -> tuple[Any, Floats]:
    """Return vectorbt's portfolio of the fills and, `(n_times,)`, its equity less what it cannot book.

    vectorbt knows one order a bar and symbol, no cash below zero, no sale that brings less than its fees, and nothing
    that is paid for holding. So rolls, such fees, and what borrowed shares and cash cost come off its equity; and cash
    that is borrowed is lent to it at the start, and comes off too.
    """
    size = account.size
    has_order = np.isfinite(size)
    price = np.where(has_order, prices.paid, prices.marked)
    # vectorbt drops an order whose price is not finite, without a word.
    assert np.isfinite(price[has_order]).all()
    proceeds = np.where(has_order, -size * price * (1 - account.slip), 0.0)
    beside = has_order & (size < 0) & (proceeds <= account.fee)
    paid_beside = account.roll_cost.sum(axis=1) + account.borrow + account.financing
    paid_beside += np.where(beside, account.fee, 0.0).sum(axis=1)
    paid = paid_beside.cumsum()
    # Its cash is at its lowest after a bar's purchases, which come last.
    lacking = -float((account.cash + paid).min())
    lent = 1.01 * lacking if lacking > 1e-9 * costs.initial_cash else 0.0
    portfolio: Any = vbt.Portfolio.from_orders(
        pd.DataFrame(prices.marked, index=pd.DatetimeIndex(prices.times.to_numpy()), columns=prices.symbols.to_list()),
        size=size,
        size_type="amount",
        price=price,
        fixed_fees=np.where(beside, 0.0, account.fee),
        slippage=account.slip,
        init_cash=costs.initial_cash + lent,
        group_by=True,
        cash_sharing=True,
        call_seq="auto",
        freq="1D",
        raise_reject=True,
    )
    equity = np.asarray(portfolio.value(), dtype=np.float64) - lent - paid
    if not np.allclose(equity, account.equity, rtol=1e-9, atol=0):
        worst = int(np.abs(equity / account.equity - 1).argmax())
        raise AssertionError(
            f"vectorbt books {equity[worst]} at {prices.times[worst]}, the account {account.equity[worst]}"
        )
    return portfolio, equity
