"""How forecasts become positions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from foxflow.config.mapping import require

MOST_GROSS = 10.0
LONGEST_VOLATILITY = 10_000


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How a forecast becomes a position (a fraction of equity per symbol).

    Kinds
    -----
    `direction` holds the forecast's sign. It enters where |forecast| reaches `threshold_bps` and leaves where the
    forecast in the direction held falls below `exit_threshold_bps` (left out: the same as `threshold_bps`); between
    the two it keeps what it holds. With `threshold_bps = "chosen"` both are chosen for each fold on that fold's own
    validation tail (`signals.choose`).

    `rank` is long the `share` of the symbols forecast at one `ts` with the highest forecasts and short the same
    number with the lowest, in equal weights (`signals`); with one symbol it is flat.

    `volatility_target` holds `position_limit` times `target_volatility` over the forecast volatility (both fractions
    per bar), at most `position_limit` itself.

    Sizes and limits
    ----------------
    `size`: of kind `direction`. `fixed`, also where it is left out, holds `position_limit`; `volatility` holds
    `target_volatility` over the volatility of the symbol's last `volatility_bars` bars (fractions per bar), at most
    `position_limit`: each position then moves equity by about `target_volatility` a bar.

    The sum of absolute positions never exceeds `gross_limit`; above 1 the rest is borrowed. The absolute sum of
    positions, longs less shorts, never exceeds `net_limit` (None: no limit of its own).

    `hold`: with a horizon above 1, whether the newest forecast decides (`refresh`) or each signal is held for the
    horizon in a part of its own (`tranches`: each bar opens 1/horizon of the position; a signal is what thresholds
    and size make of the forecast). `rebalance_band`: smaller differences from the position wanted are not traded.
    """

    kind: Literal["direction", "rank", "volatility_target"]
    side: Literal["long_only", "long_short"]
    position_limit: float
    rebalance_band: float
    hold: Literal["refresh", "tranches"] | None = None
    threshold_bps: float | Literal["chosen"] | None = None
    exit_threshold_bps: float | None = None
    share: float | None = None
    size: Literal["fixed", "volatility"] | None = None
    target_volatility: float | None = None
    volatility_bars: int | None = None
    gross_limit: float = 1.0
    net_limit: float | None = None

    @property
    def is_sized_by_volatility(self) -> bool:
        """Whether the position depends on the symbol's trailing volatility."""
        return self.size == "volatility"

    def within(self, gross_limit: float) -> "Strategy":
        """Return the same with a gross limit of at most that: the net limit in proportion, positions as far as fits."""
        share = min(1.0, gross_limit / self.gross_limit)
        gross = self.gross_limit * share
        return replace(
            self,
            gross_limit=gross,
            net_limit=None if self.net_limit is None else self.net_limit * share,
            position_limit=min(self.position_limit, max(1.0, gross)),
        )

    def __post_init__(self) -> None:
        self._require_limits()
        require(self.rebalance_band >= 0, f"rebalance_band = {self.rebalance_band}; expected 0 or more")
        self._require_settings()
        if self.kind == "direction":
            self._require_thresholds()
        if self.share is not None:
            most = 0.5 if self.side == "long_short" else 1.0
            require(
                0 < self.share <= most,
                f"share = {self.share}; expected a share of the symbols in (0, {most}] with side = {self.side!r}",
            )
        if self.target_volatility is not None:
            # A target of 0 is what a direction without a position would be.
            least = "0 or more" if self.kind == "volatility_target" else "more than 0"
            require(
                self.target_volatility > 0 or (self.target_volatility == 0 and self.kind == "volatility_target"),
                f"target_volatility = {self.target_volatility}; expected {least}, a fraction per bar",
            )
        if self.volatility_bars is not None:
            require(
                2 <= self.volatility_bars <= LONGEST_VOLATILITY,
                f"volatility_bars = {self.volatility_bars}; expected 2 to {LONGEST_VOLATILITY:,} bars",
            )
        require(
            self.kind != "volatility_target" or self.side == "long_only",
            "side = 'long_short' has no effect with kind = 'volatility_target'; use 'long_only'",
        )

    def _require_limits(self) -> None:
        gross, most = self.gross_limit, max(1.0, self.gross_limit)
        require(
            0 < gross <= MOST_GROSS,
            f"gross_limit = {gross}; expected a multiple of equity in (0, {MOST_GROSS:g}], above 1 on borrowed money",
        )
        require(
            0 < self.position_limit <= most,
            f"position_limit = {self.position_limit}; expected a fraction of equity in (0, 1], or up to a gross_limit "
            "above 1",
        )
        if self.net_limit is not None:
            require(
                0 <= self.net_limit < gross,
                f"net_limit = {self.net_limit} with gross_limit = {gross}; expected 0 or more and less than "
                "gross_limit, beyond which it has no effect",
            )
            require(
                self.side == "long_short",
                "net_limit with side = 'long_only' limits what gross_limit does; remove it and set gross_limit",
            )

    def _require_settings(self) -> None:
        """Raise ValueError where a setting is missing, or has no effect beside the others."""
        sized = self.kind == "direction" and self.is_sized_by_volatility
        wanted: Mapping[str, bool] = {
            "target_volatility": sized or self.kind == "volatility_target",
            "volatility_bars": sized,
            "share": self.kind == "rank",
        }
        beside = f"kind = {self.kind!r}"
        if self.kind == "direction":
            beside += f" and size = {self.size or 'fixed'!r}"
        for name, is_wanted in wanted.items():
            is_given = getattr(self, name) is not None
            require(is_given or not is_wanted, f"{name} is required with {beside}")
            require(is_wanted or not is_given, f"{name} has no effect with {beside}; remove it")
        for name in ("threshold_bps", "exit_threshold_bps", "size"):
            require(
                self.kind == "direction" or getattr(self, name) is None,
                f"{name} has no effect with kind = {self.kind!r}; remove it",
            )

    def _require_thresholds(self) -> None:
        enter, leave = self.threshold_bps, self.exit_threshold_bps
        if enter is None:
            raise ValueError(
                "threshold_bps is required with kind = 'direction'; write 0 to follow every forecast, or 'chosen' to "
                "have it chosen on each fold's validation tail"
            )
        if enter == "chosen":
            require(
                leave is None,
                "exit_threshold_bps has no effect with threshold_bps = 'chosen', which chooses both; remove it",
            )
            return
        require(enter >= 0, f"threshold_bps = {enter}; expected 0 or more")
        if leave is not None:
            require(
                0 <= leave < enter,
                f"exit_threshold_bps = {leave} with threshold_bps = {enter}; expected 0 or more and less than "
                "threshold_bps: leave it out to leave below the threshold that enters",
            )
