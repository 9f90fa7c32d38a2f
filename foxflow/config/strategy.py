"""How forecasts become positions."""

from dataclasses import dataclass
from typing import Literal

from foxflow.config.mapping import require


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How a forecast becomes a position (a fraction of equity per symbol).

    `direction` holds `position_limit` in the forecast's direction where |forecast| reaches `threshold_bps`;
    `volatility_target` holds `position_limit` times `target_volatility` (a fraction per bar) over the forecast
    volatility, at most `position_limit` itself. The sum of absolute positions never exceeds `gross_limit`.
    """

    kind: Literal["direction", "volatility_target"]
    side: Literal["long_only", "long_short"]
    position_limit: float
    rebalance_band: float
    hold: Literal["refresh", "tranches"] | None = None
    threshold_bps: float | None = None
    target_volatility: float | None = None
    gross_limit: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.position_limit <= 1, f"position_limit = {self.position_limit}; expected a fraction in (0, 1]")
        require(0 < self.gross_limit <= 1, f"gross_limit = {self.gross_limit}; expected a fraction in (0, 1]")
        require(self.rebalance_band >= 0, f"rebalance_band = {self.rebalance_band}; expected 0 or more")
        wants, idle = (
            ("threshold_bps", "target_volatility")
            if self.kind == "direction"
            else ("target_volatility", "threshold_bps")
        )
        require(getattr(self, wants) is not None, f"{wants} is required with kind = {self.kind!r}")
        require(getattr(self, wants) >= 0, f"{wants} = {getattr(self, wants)}; expected 0 or more")
        require(getattr(self, idle) is None, f"{idle} has no effect with kind = {self.kind!r}; remove it")
        require(
            self.kind == "direction" or self.side == "long_only",
            "side = 'long_short' has no effect with kind = 'volatility_target'; use 'long_only'",
        )
