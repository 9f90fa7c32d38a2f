"""What a strategy did: its equity, its fills, what it held, what it paid and what it waited for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from foxflow.bars import TS
from foxflow.portfolio.charges import CHARGE_SCHEMA, NAMES

EQUITY_SCHEMA = pl.Schema({"ts": TS, "equity": pl.Float64(), "benchmark": pl.Float64()})
GROSS_SCHEMA = pl.Schema({"ts": TS, "gross": pl.Float64()})
CARRY_SCHEMA = pl.Schema({"ts": TS, "borrow": pl.Float64(), "financing": pl.Float64()})
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

`filled_ts` is null where none came before the symbol was closed at its ending, a newer order took its place or the
backtest was over."""
CAP_SCHEMA = pl.Schema(
    {"symbol": pl.String(), "decided_ts": TS, "ts": TS, "wanted_shares": pl.Float64(), "filled_shares": pl.Float64()}
)
"""An order of which a bar had too little volume for `participation_limit`: what it wanted, and got, at the bar `ts`."""


@dataclass(frozen=True)
class Book:
    """What a strategy did.

    Attributes
    ----------
    equity
        `EQUITY_SCHEMA`, in money, marked at each bar's close, and that of buy-and-hold at the same costs.
    fills, benchmark_fills
        `charges.FILL_SCHEMA`: `ts` is the end of the bar that filled; `fee` is all fees, `slippage` half-spread and
        impact.
    held
        `HELD_SCHEMA`, a row a bar and symbol: the target position, the weight actually held at the close, cost (fee
        and slippage, a fraction of the equity before) and contribution to the portfolio's return, all fractions. What
        is paid for borrowed shares and cash is in `carry`, and in no symbol's.
    waited, capped
        `WAIT_SCHEMA`, `CAP_SCHEMA`: orders that could not be filled when they were due, or not all of them.
    charges
        `charges.CHARGE_SCHEMA`: what each of `fills` cost by name.
    carry
        `CARRY_SCHEMA`: money paid at each bar for shares and cash borrowed since the bar before.
    gross
        `GROSS_SCHEMA`: the equity of the same decisions with every cost zero.
    costs
        What each named cost came to, in money.
    initial_cash
        What the book began with.
    portfolio
        vectorbt's portfolio of the fills, for a notebook. Cash that was borrowed is part of its initial cash, and what
        `carry` and rolls cost is not in it.
    """

    equity: pl.DataFrame
    fills: pl.DataFrame
    held: pl.DataFrame
    benchmark_fills: pl.DataFrame
    waited: pl.DataFrame = field(default_factory=WAIT_SCHEMA.to_frame)
    capped: pl.DataFrame = field(default_factory=CAP_SCHEMA.to_frame)
    charges: pl.DataFrame = field(default_factory=CHARGE_SCHEMA.to_frame)
    carry: pl.DataFrame = field(default_factory=CARRY_SCHEMA.to_frame)
    gross: pl.DataFrame = field(default_factory=GROSS_SCHEMA.to_frame)
    costs: Mapping[str, float] = field(default_factory=dict)
    initial_cash: float = 0.0
    portfolio: Any = field(default=None, repr=False, compare=False)

    def waterfall(self) -> list[dict[str, Any]]:
        """Return how the gross profit becomes the net one: rows of `name` and `amount` in money, to the cent.

        `gross` is the profit with every cost zero, then each cost by name, `smaller_positions`, and `net`, the sum.
        Positions are fractions of the equity, so what was paid leaves fewer shares to gain or to lose: that is
        `smaller_positions`, and it may have either sign. It also takes what rounding to cents leaves.
        """
        gross = round(float(self.gross["gross"][-1]) - self.initial_cash, 2)
        net = round(float(self.equity["equity"][-1]) - self.initial_cash, 2)
        paid = {name: round(-self.costs[name], 2) + 0.0 for name in NAMES}
        rest = round(net - gross - sum(paid.values()), 2) + 0.0
        rows = {"gross": gross, **paid, "smaller_positions": rest, "net": net}
        return [{"name": name, "amount": amount} for name, amount in rows.items()]
