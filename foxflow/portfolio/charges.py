"""What each fill cost by name, and what a whole book's costs come to."""

import numpy as np
import polars as pl

from foxflow.bars import TS
from foxflow.config import Costs
from foxflow.portfolio.account import Account
from foxflow.portfolio.prices import Prices

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
CHARGE_SCHEMA = pl.Schema(
    {
        "symbol": pl.String(),
        "ts": TS,
        "decided_ts": TS,
        "is_roll": pl.Boolean(),
        "raw_shares": pl.Float64(),
        "fee": pl.Float64(),
        "per_share_fee": pl.Float64(),
        "minimum_fee": pl.Float64(),
        "half_spread": pl.Float64(),
        "impact": pl.Float64(),
    }
)
"""What a fill cost by name, in money, one row a fill, in the order of the fills.

`fee`: of its value alone; `minimum_fee`: what the fees lacked of it; `decided_ts`: null of endings and rolls;
`raw_shares`: as traded that day, with the sign of the shares, null where no cost needs them."""
BY_NAME = ("fee", "per_share_fee", "minimum_fee", "half_spread", "impact")
NAMES = (*BY_NAME, "borrow", "financing", "roll")


def charged(prices: Prices, account: Account, costs: Costs) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the fills (`FILL_SCHEMA`) and what each cost by name (`CHARGE_SCHEMA`), both sorted by (ts, symbol)."""
    size, half, rate = account.size, costs.half_spread_bps / 1e4, costs.fee_bps / 1e4
    i, j = np.nonzero(np.isfinite(size))
    r, k = np.nonzero(account.rolled)
    rolled = account.rolled[r, k]
    rows, columns = np.r_[i, r, r], np.r_[j, k, k]
    shares = np.r_[size[i, j], -rolled, rolled]
    roll_slip = half + prices.impact[r - 1, k] * np.sqrt(np.abs(rolled))
    slip = np.r_[account.slip[i, j], roll_slip, roll_slip]
    counted = np.r_[prices.raw_shares[i, j], prices.raw_shares[r - 1, k], prices.raw_shares[r, k]]
    base = np.r_[prices.paid[i, j], prices.open[r, k], prices.open[r, k]]
    number, side = np.abs(shares), np.sign(shares)
    paid = base * (1 + side * slip)
    fee, per_share = number * paid * rate, number * counted * costs.fee_per_share
    minimum = np.maximum(costs.minimum_fee - fee - per_share, 0.0)
    half_spread, impact = number * base * half, number * base * (slip - half)
    of = pl.Series(np.r_[account.decided[i, j], np.full(2 * len(r), -1)])
    decided = pl.select(pl.when(of >= 0).then(prices.times.gather(of.clip(0)))).to_series()
    unknown = pl.Series([None] * len(rows), dtype=pl.Float64)
    place = {"symbol": prices.symbols.gather(columns), "ts": prices.times.gather(rows)}
    fills = pl.DataFrame(
        {
            **place,
            "shares": shares,
            "price": paid,
            "fee": fee + per_share + minimum,
            "slippage": half_spread + impact,
        },
        schema=FILL_SCHEMA,
    )
    charges = pl.DataFrame(
        {
            **place,
            "decided_ts": decided,
            "is_roll": np.arange(len(rows)) >= len(i),
            "raw_shares": shares * counted if costs.need_raw_shares else unknown,
            "fee": fee,
            "per_share_fee": per_share,
            "minimum_fee": minimum,
            "half_spread": half_spread,
            "impact": impact,
        },
        schema=CHARGE_SCHEMA,
    )
    order = fills.select("ts", "symbol").with_row_index("n").sort("ts", "symbol", maintain_order=True)["n"]
    return fills[order], charges[order]


def total(account: Account, charges: pl.DataFrame) -> dict[str, float]:
    """Return what each named cost came to, in money: those of rolls are `roll`, and in none of the others."""
    own = charges.filter(~pl.col("is_roll"))
    costs = {name: float(own[name].sum()) for name in BY_NAME}
    return {
        **costs,
        "borrow": float(account.borrow.sum()),
        "financing": float(account.financing.sum()),
        "roll": float(account.roll_cost.sum()),
    }
