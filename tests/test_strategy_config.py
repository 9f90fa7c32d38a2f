"""What `[strategy]` takes: every setting is needed, or has an effect, or is refused by name."""

from typing import Any

import pytest

from foxflow import config
from foxflow.config import Strategy, from_mapping
from foxflow.errors import ConfigError

DIRECTION = {
    "kind": "direction",
    "side": "long_short",
    "threshold_bps": 10.0,
    "position_limit": 0.5,
    "rebalance_band": 0.0,
}
RANK = {**DIRECTION, "kind": "rank", "threshold_bps": None, "share": 0.2}
TARGET = {
    **DIRECTION,
    "kind": "volatility_target",
    "side": "long_only",
    "threshold_bps": None,
    "target_volatility": 0.01,
}
SIZED = {**DIRECTION, "size": "volatility", "target_volatility": 0.01, "volatility_bars": 20}
CHOSEN = {**DIRECTION, "threshold_bps": "chosen"}


def parsed(settings: dict[str, Any]) -> Strategy:
    return from_mapping(Strategy, {k: v for k, v in settings.items() if v is not None}, section="strategy")


@pytest.mark.parametrize(
    "settings",
    [
        DIRECTION,
        RANK,
        TARGET,
        SIZED,
        CHOSEN,
        {**SIZED, **CHOSEN},
        {**DIRECTION, "exit_threshold_bps": 0.0},
        {**DIRECTION, "size": "fixed"},
        {**DIRECTION, "gross_limit": 10, "position_limit": 10, "net_limit": 0},
        {**RANK, "side": "long_only", "share": 1.0},
    ],
)
def test_settings_that_fit_are_taken(settings: dict[str, Any]) -> None:
    assert parsed(settings).kind == settings["kind"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**DIRECTION, "threshold_bps": None}, "threshold_bps is required with kind = 'direction'; write 0"),
        ({**DIRECTION, "threshold_bps": -1.0}, "threshold_bps = -1.0; expected 0 or more"),
        ({**DIRECTION, "exit_threshold_bps": 10.0}, "exit_threshold_bps = 10.0 with threshold_bps = 10.0; expected"),
        ({**DIRECTION, "exit_threshold_bps": -1.0}, "exit_threshold_bps = -1.0 with threshold_bps = 10.0; expected"),
        ({**DIRECTION, "threshold_bps": 0.0, "exit_threshold_bps": 0.0}, "less than threshold_bps: leave it out"),
        ({**CHOSEN, "exit_threshold_bps": 1.0}, "exit_threshold_bps has no effect with threshold_bps = 'chosen'"),
        ({**DIRECTION, "threshold_bps": "guessed"}, "threshold_bps = 'guessed'; expected a float or 'chosen'"),
        ({**DIRECTION, "share": 0.2}, "share has no effect with kind = 'direction' and size = 'fixed'; remove it"),
        ({**DIRECTION, "target_volatility": 0.1}, "target_volatility has no effect with kind = 'direction' and size"),
        ({**DIRECTION, "volatility_bars": 20}, "volatility_bars has no effect with kind = 'direction' and size = 'fix"),
        ({**SIZED, "target_volatility": None}, "target_volatility is required with kind = 'direction' and size = 'vol"),
        ({**SIZED, "volatility_bars": None}, "volatility_bars is required with kind = 'direction' and size = 'volat"),
        ({**SIZED, "target_volatility": 0.0}, "target_volatility = 0.0; expected more than 0"),
        ({**TARGET, "target_volatility": -0.1}, "target_volatility = -0.1; expected 0 or more"),
        ({**SIZED, "volatility_bars": 1}, "volatility_bars = 1; expected 2 to 10,000 bars"),
        ({**RANK, "share": None}, "share is required with kind = 'rank'"),
        (
            {**RANK, "share": 0.6},
            r"share = 0.6; expected a share of the symbols in \(0, 0.5\] with side = 'long_short'",
        ),
        ({**RANK, "share": 0.0}, "share = 0.0; expected a share"),
        ({**RANK, "threshold_bps": 1.0}, "threshold_bps has no effect with kind = 'rank'; remove it"),
        ({**RANK, "size": "volatility"}, "size has no effect with kind = 'rank'; remove it"),
        ({**RANK, "threshold_bps": "chosen"}, "threshold_bps has no effect with kind = 'rank'; remove it"),
        ({**DIRECTION, "threshold_bps": [1.0]}, r"threshold_bps = \[1.0\] is list; expected float"),
        ({**TARGET, "exit_threshold_bps": 1.0}, "exit_threshold_bps has no effect with kind = 'volatility_target'"),
        ({**TARGET, "volatility_bars": 20}, "volatility_bars has no effect with kind = 'volatility_target'"),
        ({**TARGET, "side": "long_short"}, "side = 'long_short' has no effect with kind = 'volatility_target'"),
        ({**DIRECTION, "gross_limit": 11.0}, r"gross_limit = 11.0; expected a multiple of equity in \(0, 10\]"),
        ({**DIRECTION, "gross_limit": 0.0}, "gross_limit = 0.0; expected"),
        ({**DIRECTION, "position_limit": 1.1}, r"position_limit = 1.1; expected a fraction of equity in \(0, 1\]"),
        ({**DIRECTION, "position_limit": 3.1, "gross_limit": 3.0}, "position_limit = 3.1; expected a fraction"),
        ({**DIRECTION, "net_limit": 1.0}, "net_limit = 1.0 with gross_limit = 1.0; expected 0 or more and less"),
        ({**DIRECTION, "net_limit": -0.1}, "net_limit = -0.1 with gross_limit"),
        ({**DIRECTION, "net_limit": 0.1, "side": "long_only"}, "net_limit with side = 'long_only' limits what gross_l"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[strategy\] {message}" if not message.startswith("less") else message):
        parsed(settings)


def test_a_lower_gross_limit_takes_the_others_down_with_it() -> None:
    lent = parsed({**DIRECTION, "gross_limit": 4.0, "position_limit": 2.0, "net_limit": 0.5})
    low = lent.within(0.5)
    assert (low.gross_limit, low.position_limit, low.net_limit) == (0.5, 1.0, 0.0625)
    some = lent.within(1.5)
    assert (some.gross_limit, some.position_limit, some.net_limit) == (1.5, 1.5, 0.1875)
    assert lent.within(9.0) == lent


def test_a_config_with_every_new_setting_is_read_back_as_it_was() -> None:
    chosen = config.load(
        "returns",
        overrides=[
            "strategy.exit_threshold_bps=2",
            "strategy.threshold_bps=5",
            "strategy.size=volatility",
            "strategy.target_volatility=0.004",
            "strategy.volatility_bars=60",
            "strategy.gross_limit=2",
            "strategy.net_limit=0.3",
        ],
    )
    assert config.parse(config.to_document(chosen)) == chosen
    # Nothing that an older document does not say is written.
    assert set(config.to_document(config.load("returns"))["strategy"]) == {
        "kind", "side", "position_limit", "rebalance_band", "hold", "threshold_bps", "gross_limit",
    }  # fmt: skip
