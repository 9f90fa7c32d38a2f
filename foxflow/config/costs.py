"""What trading costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from foxflow.config.mapping import require

# Less buys so small a share of anything that vectorbt takes the order for none.
LEAST_CASH = 1.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a fill and what is held cost; there is no default, so zero must be written down.

    `fee_bps`: of a fill's value, in basis points; `fee_per_share`: money for each share, as many as were traded and
    counted on that day, whatever the prices are adjusted to (for futures each contract); `minimum_fee`: money that a
    fill's two fees together come to at least; `half_spread_bps`: from the mid of bid and ask to what is paid;
    `impact`: the coefficient Y of the square-root law, by which an order of Q shares moves the price against itself by
    `Y * volatility a bar * sqrt(Q / volume a bar)`, both as known when it was decided; `borrow_bps`: a year, on the
    value of what is sold short; `financing_bps`: a year, on borrowed cash; `participation_limit`: the largest share of
    a bar's volume that an order takes, and the rest of it waits for the next bar.

    Sources: Tóth et al. (2011), Anomalous price impact and the critical nature of liquidity, Physical Review X 1,
    021006, equation 1 (the square root, with Y of order one); Almgren, Thum, Hauptmann and Li (2005), Direct estimation
    of equity market impact, Risk 18(7), who measured a power of 0.6.
    """

    # What a key was called before.
    RENAMED: ClassVar[Mapping[str, str]] = {"slippage_bps": "half_spread_bps"}

    fee_bps: float
    fee_per_share: float
    minimum_fee: float
    half_spread_bps: float
    impact: float
    borrow_bps: float
    financing_bps: float
    participation_limit: float | None = None
    initial_cash: float = 1_000_000.0

    def __post_init__(self) -> None:
        for name in ("fee_bps", "half_spread_bps"):
            value = getattr(self, name)
            require(0 <= value < 1_000, f"{name} = {value}; expected basis points in [0, 1000)")
        for name in ("borrow_bps", "financing_bps"):
            value = getattr(self, name)
            require(0 <= value <= 100_000, f"{name} = {value}; expected basis points a year in [0, 100000]")
        for name in ("fee_per_share", "minimum_fee"):
            value = getattr(self, name)
            require(value >= 0, f"{name} = {value}; expected an amount of money, 0 or more")
        require(0 <= self.impact <= 100, f"impact = {self.impact}; expected a coefficient in [0, 100], near 1 or 0")
        limit = self.participation_limit
        require(limit is None or 0 < limit <= 1, f"participation_limit = {limit}; expected a share in (0, 1]")
        require(
            self.initial_cash >= LEAST_CASH,
            f"initial_cash = {self.initial_cash}; expected an amount of at least {LEAST_CASH:g}",
        )

    @property
    def need_raw_shares(self) -> bool:
        """Whether a fill has to be known in shares as they were traded that day."""
        return self.fee_per_share > 0 or self.impact > 0 or self.participation_limit is not None

    def without(self) -> "Costs":
        """Return the same with every cost zero; how much of a bar's volume can be had stays as it is."""
        return replace(
            self,
            fee_bps=0.0,
            fee_per_share=0.0,
            minimum_fee=0.0,
            half_spread_bps=0.0,
            impact=0.0,
            borrow_bps=0.0,
            financing_bps=0.0,
        )
