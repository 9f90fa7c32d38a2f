"""What a fill costs."""

from dataclasses import dataclass

from foxflow.config.mapping import require


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a fill, in basis points of its value; zero must be written down."""

    fee_bps: float
    slippage_bps: float
    initial_cash: float = 1_000_000.0

    def __post_init__(self) -> None:
        require(0 <= self.fee_bps < 1_000, f"fee_bps = {self.fee_bps}; expected basis points in [0, 1000)")
        require(
            0 <= self.slippage_bps < 1_000, f"slippage_bps = {self.slippage_bps}; expected basis points in [0, 1000)"
        )
        # Less buys so small a share of anything that vectorbt takes the order for none.
        require(self.initial_cash >= 1, f"initial_cash = {self.initial_cash}; expected an amount of at least 1")
