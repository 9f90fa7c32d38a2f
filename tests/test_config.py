import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from foxflow import config
from foxflow.config import from_mapping, parse, to_document
from foxflow.errors import ConfigError

TINY = Path(__file__).parent / "tiny.toml"


def document() -> dict[str, dict[str, object]]:
    return tomllib.loads(TINY.read_text("utf-8"))


@pytest.mark.parametrize("name", ["returns", "volatility", str(TINY)])
def test_a_config_survives_the_way_to_plain_values_and_back(name: str) -> None:
    settings = config.load(name)
    assert parse(to_document(settings)) == settings


def test_a_misspelt_key_names_its_section_the_known_keys_and_the_nearest() -> None:
    broken = document()
    broken["walk_forward"]["embarg"] = broken["walk_forward"].pop("embargo")
    with pytest.raises(ConfigError) as caught:
        parse(broken)
    assert str(caught.value) == (
        "[walk_forward] unknown key 'embarg'; known: embargo, every, train, validation, window; did you mean 'embargo'?"
    )


def test_a_misspelt_section_names_the_nearest() -> None:
    broken = document()
    broken["strategi"] = broken.pop("strategy")
    with pytest.raises(ConfigError, match=r"unknown section 'strategi'; .*did you mean 'strategy'"):
        parse(broken)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("label", "horizon", 0, r"\[label\] horizon = 0; expected 1 to 10,000 bars"),
        ("label", "horizon", 2.5, r"\[label\] horizon = 2.5 is float; expected int"),
        ("label", "horizon", True, r"\[label\] horizon = True is bool; expected int"),
        ("costs", "fee_bps", -1, r"fee_bps = -1.0; expected basis points"),
        ("costs", "impact", -1, r"impact = -1.0; expected a coefficient in \[0, 100\]"),
        ("costs", "minimum_fee", -1, r"minimum_fee = -1.0; expected an amount of money"),
        ("costs", "participation_limit", 0, r"participation_limit = 0.0; expected a share in \(0, 1\]"),
        ("costs", "fee_bps", float("nan"), r"fee_bps = nan; expected a finite number"),
        ("data", "source", "shop", r"source = 'shop'; expected one of 'sample', 'store'"),
        ("data", "symbols", "AAPL", r"symbols = 'AAPL'; expected a list"),
        ("features", "names", [], r"names = \[\]; expected at least one feature"),
        ("features", "names", ["gap", "gap"], "expected each feature once"),
        ("experiment", "name", "../up", "expected lower-case letters"),
        ("experiment", "threads", 2, "threads = 2; only 1 is repeatable to the bit"),
        ("strategy", "target_volatility", 0.01, "target_volatility has no effect with kind = 'direction'"),
        ("strategy", "hold", "forever", "expected one of 'refresh', 'tranches'"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(section: str, key: str, value: object, message: str) -> None:
    broken = document()
    broken[section][key] = value
    with pytest.raises(ConfigError, match=message):
        parse(broken)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        *(
            ("costs", key)
            for key in (
                "fee_bps", "fee_per_share", "minimum_fee", "half_spread_bps", "impact", "borrow_bps", "financing_bps",
            )
        ),
        ("strategy", "rebalance_band"),
    ],
)  # fmt: skip
def test_costs_and_band_have_no_silent_default(section: str, key: str) -> None:
    broken = document()
    del broken[section][key]
    with pytest.raises(ConfigError, match=rf"\[{section}\] {key} is required and missing"):
        parse(broken)


def test_a_key_that_was_renamed_names_the_new_one() -> None:
    broken = document()
    broken["costs"]["slippage_bps"] = broken["costs"].pop("half_spread_bps")
    with pytest.raises(ConfigError) as caught:
        parse(broken)
    assert str(caught.value) == (
        "[costs] slippage_bps is called half_spread_bps now; rename it; did you mean 'half_spread_bps'?"
    )


def test_hold_is_required_with_a_horizon_above_one_and_refused_with_one() -> None:
    broken = document()
    del broken["strategy"]["hold"]
    with pytest.raises(ConfigError, match=r"hold is required with \[label\] horizon = 5"):
        parse(broken)
    broken = document()
    broken["label"]["horizon"] = 1
    with pytest.raises(ConfigError, match="hold has no effect"):
        parse(broken)


def test_set_overrides_one_value_and_takes_bare_words_as_text() -> None:
    settings = config.load(TINY, overrides=["costs.fee_bps=0", "experiment.name=other", 'data.symbols=["IBM"]'])
    assert (settings.costs.fee_bps, settings.experiment.name, settings.data.symbols) == (0.0, "other", ("IBM",))


@pytest.mark.parametrize("assignment", ["costs.fee_bps", "fee_bps=1", ".x=1", "costs.=1"])
def test_a_set_that_is_no_assignment_is_refused(assignment: str) -> None:
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        config.load(TINY, overrides=[assignment])


def test_another_model_runs_with_its_own_defaults_and_the_configs_own_keeps_its_options() -> None:
    assert config.load(TINY, model="ridge").model.options == {}
    assert config.load(TINY, model="mamba2").model.options["d_model"] == 8


def test_a_byte_order_mark_before_the_first_section_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_text((resources.files("foxflow.sample") / "returns.toml").read_text("utf-8"), "utf-8-sig")
    assert config.load(path) == config.load("returns")


def test_broken_toml_names_file_and_place(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[data]\nbar = \n")
    with pytest.raises(ConfigError, match=r"broken.toml is not valid TOML: .*line 2"):
        config.load(path)


def test_a_missing_file_lists_the_embedded_configs() -> None:
    with pytest.raises(ConfigError, match=r"no config file at 'returnz'; .*returns, volatility"):
        config.load("returnz")


def test_from_mapping_turns_a_dataclass_own_complaint_into_a_config_error() -> None:
    @dataclass(frozen=True)
    class Options:
        depth: int = 1

        def __post_init__(self) -> None:
            if self.depth < 1:
                raise ValueError(f"depth = {self.depth}; expected at least 1")

    with pytest.raises(ConfigError, match=r"\[model\] depth = 0; expected at least 1"):
        from_mapping(Options, {"depth": 0}, section="model")


def test_set_removes_a_key_with_an_empty_value() -> None:
    settings = config.load(
        TINY, overrides=["strategy.threshold_bps=", "strategy.kind=rank", "strategy.share=0.5", "data.symbols= "]
    )
    assert (settings.strategy.threshold_bps, settings.data.symbols) == (None, ())
    with pytest.raises(ConfigError, match=r"--set costs\.fee= removes that key, but \[costs\] sets fee_bps, .*drop it"):
        config.load(TINY, overrides=["costs.fee="])
    with pytest.raises(ConfigError, match=r"\[costs\] fee_bps is required and missing"):
        config.load(TINY, overrides=["costs.fee_bps="])


def scheduled(**schedule: object) -> dict[str, Any]:
    chosen = document()
    del chosen["walk_forward"]["every"]
    return chosen | {"schedule": {"cron": "0 22 * * fri", "time_zone": "America/New_York", **schedule}}


def test_a_schedule_takes_the_place_of_every_so_many_bars() -> None:
    settings = parse(scheduled())
    assert (settings.walk_forward.every, settings.schedule) == (
        None, config.Schedule(cron="0 22 * * fri", time_zone="America/New_York"),
    )  # fmt: skip
    assert parse(to_document(settings)) == settings


def test_exactly_one_says_when_to_retrain() -> None:
    both, neither = document() | {"schedule": scheduled()["schedule"]}, document()
    del neither["walk_forward"]["every"]
    for broken, which in ((both, "both given"), (neither, "both missing")):
        with pytest.raises(
            ConfigError, match=rf"\[walk_forward\] every and \[schedule\] are {which}; expected exactly one"
        ):
            parse(broken)


def test_a_cron_line_or_zone_that_is_none_is_refused_when_read() -> None:
    with pytest.raises(ConfigError, match=r"\[schedule\] cron = '0 24 \* \* \*': '24' as hour is not 0 to 23"):
        parse(scheduled(cron="0 24 * * *"))
    with pytest.raises(ConfigError, match=r"\[schedule\] time_zone = 'New_York'; expected an IANA name"):
        parse(scheduled(time_zone="New_York"))


def test_another_window_is_refused() -> None:
    broken = document()
    broken["walk_forward"]["window"] = "sliding"
    with pytest.raises(ConfigError, match="window = 'sliding'; expected one of 'expanding', 'rolling'"):
        parse(broken)
