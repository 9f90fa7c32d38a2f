import math

import polars as pl
import pytest
from conftest import daily_bars

from foxflow import labels
from foxflow.errors import ConfigError


def test_forward_return_runs_from_the_next_open_to_the_open_horizon_bars_later() -> None:
    bars = daily_bars([10.0, 20.0, 25.0, 50.0, 40.0], [99.0] * 5)
    table = labels.compute(bars, "forward_return", 2)
    assert table["label"].to_list() == [50.0 / 20.0 - 1, 40.0 / 25.0 - 1, None, None, None]
    assert table["label_end"].to_list() == [bars["ts"][3], bars["ts"][4], None, None, None]


def test_forward_volatility_is_the_log_rms_of_the_open_to_open_returns_of_the_label_span() -> None:
    opens = [7.0, 100.0, 110.0, 99.0, 101.0]
    table = labels.compute(daily_bars(opens), "forward_volatility", 2)
    first, second = math.log(110 / 100), math.log(99 / 110)
    assert table["label"][0] == pytest.approx(math.log(math.sqrt((first**2 + second**2) / 2)), abs=1e-12)
    assert table["label"].null_count() == 3


def test_forward_volatility_is_floored_at_two_tenths_of_a_percent() -> None:
    table = labels.compute(daily_bars([50.0] * 6), "forward_volatility", 2)
    assert table["label"][0] == pytest.approx(math.log(0.002), abs=1e-15)


def test_the_floor_of_a_volatility_is_less_for_shorter_bars_so_that_minutes_that_moved_differ() -> None:
    """Minutes that move by 0.01 % are above 0.002 / sqrt(1440) = 0.0053 % a minute, and far below 0.2 %."""
    bars = daily_bars([100.0, 100.01, 100.0, 100.01, 100.0, 100.0, 100.0, 100.0])
    found = labels.compute(bars, "forward_volatility", 2, bar="1m")["label"].to_list()[:5]
    moved, floor = math.log(math.log(1.0001)), math.log(0.002 / math.sqrt(1440))
    assert found == pytest.approx([moved, moved, moved - math.log(2) / 2, floor, floor])
    assert labels.compute(bars, "forward_volatility", 2)["label"].to_list()[:5] == [math.log(0.002)] * 5


def test_the_newest_bars_stay_with_a_null_label() -> None:
    table = labels.compute(daily_bars([1.0, 2.0, 3.0]), "forward_return", 1)
    assert table.height == 3
    assert table["label"].to_list() == [0.5, None, None]


def test_labels_never_cross_from_one_symbol_into_the_next() -> None:
    bars = pl.concat([daily_bars([1.0, 2.0, 4.0], symbol="A"), daily_bars([100.0, 50.0, 25.0], symbol="B")])
    table = labels.compute(bars, "forward_return", 1)
    assert table["label"].to_list() == [1.0, None, None, -0.5, None, None]


def test_an_unknown_label_names_what_is_known() -> None:
    with pytest.raises(ConfigError, match="unknown label 'forward_retrun'; known: forward_return, forward_volatility"):
        labels.find("forward_retrun")
