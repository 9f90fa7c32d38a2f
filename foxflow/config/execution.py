"""How orders meet the market, and which form of the model is scored."""

from dataclasses import dataclass
from typing import Literal

from foxflow.config.mapping import require


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """When and at which price a decision made at `ts` is filled, and what forecasts.

    `fill`: the price of the bar that fills: its open, its close, or the mid of its high and low (what a patient order
    over the bar pays about). `delay_s`: seconds from `ts` until the order is in the market, where a bar that has opened
    by then (with `next_close`: that has ended) is missed and the next one fills; `delay_bars`: bar times let pass
    besides.
    `score_with`: the fitted `model`, or its exported graph in ONNX Runtime.
    """

    fill: Literal["next_open", "next_close", "next_mid"] = "next_open"
    delay_bars: int = 0
    delay_s: float = 0.0
    score_with: Literal["model", "onnx"] = "model"

    def __post_init__(self) -> None:
        require(0 <= self.delay_bars <= 1_000, f"delay_bars = {self.delay_bars}; expected 0 to 1,000 bars")
        require(0 <= self.delay_s <= 86_400, f"delay_s = {self.delay_s}; expected 0 to 86,400 seconds")
