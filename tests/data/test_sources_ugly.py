"""The ugly files beside the repository: each is loaded with the values its author wrote down, or refused by name."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from read_files import read

from foxflow.errors import DataError

UGLY = Path(__file__).parents[3] / "shared/data/ugly"
DAILY = {"bar": "1d", "calendar": "XNYS"}
NEW_YORK = {"stamp": "open", "tz": "America/New_York"}
# The options that a person who knows the file would give, and what a refusal has to say.
OPTIONS: dict[str, dict[str, str]] = {
    "blocks_out_of_order.csv": {"bar": "5m", **NEW_YORK},
    "dst_hour_twice.csv": {"bar": "1h", **NEW_YORK},
    "epoch_ms_then_us.csv": {"bar": "1m", "stamp": "open"},
    "semicolon_decimal_comma.csv": {"bar": "1h", "stamp": "open", "tz": "Europe/Berlin"},
    "null_words.csv": {"bar": "1d", "calendar": "24/7"},
}
LOADED = ("negative_price.csv",)
REFUSED = {
    "blocks_out_of_order.csv": ("lines 2 and 38", "duplicates"),
    "close_not_adjusted.csv": ("close", "high", "27 bad bar(s)", "2023-08-14", "line 2"),
    "dst_hour_twice.csv": ("2024-11-03 01:00", "zone", "line 9"),
    "epoch_ms_then_us.csv": ("header", "1735688400000"),
    "null_words.csv": ("'null'", "line"),
    "quoted_thousands_newest_first.csv": ("no column close", "'Price'"),
    "same_day_twice.csv": ("line 24", "(empty)"),
    "semicolon_decimal_comma.csv": ("Date, Time", "expected one of"),
    "yf_three_line_header.csv": ("no column ts", "'Price'", "header"),
}


def expected() -> dict[str, dict[str, Any]]:
    if not UGLY.exists():
        pytest.skip(f"{UGLY} is not there: the data folder beside the repository is not part of it")
    values: dict[str, dict[str, Any]] = json.loads((UGLY / "expected.json").read_text())
    return values


def test_every_ugly_file_is_either_loaded_or_refused_here() -> None:
    assert {*LOADED, *REFUSED} == set(expected())


@pytest.mark.parametrize("name", REFUSED)
def test_an_ugly_file_that_is_not_understood_is_refused_with_its_fault(name: str) -> None:
    expected()
    with pytest.raises(DataError) as refusal:
        read(UGLY / name, symbol="XYZ", **OPTIONS.get(name, DAILY))
    for word in (str(UGLY / name), *REFUSED[name]):
        assert word in str(refusal.value)


@pytest.mark.parametrize("name", LOADED)
def test_an_ugly_file_that_is_loaded_has_the_values_its_author_wrote_down(name: str) -> None:
    right = expected()[name]
    bars = read(UGLY / name, symbol="XYZ", **OPTIONS.get(name, DAILY))
    assert len(bars) == right["rows"]
    assert [str(ts.date()) for ts in (bars["ts"][0], bars["ts"][-1])] == [right["first"], right["last"]]
    assert (bars["open"][0], bars["close"][-1]) == (right["first_open"], right["last_close"])
    assert bars["volume"].sum() == right["volume_sum"]


def test_times_without_a_zone_are_refused_with_the_option_that_names_it() -> None:
    expected()
    with pytest.raises(DataError, match=r"dst_hour_twice.csv: .*without an offset or zone.*--tz America/New_York"):
        read(UGLY / "dst_hour_twice.csv", bar="1h", symbol="XYZ", stamp="open")


def test_a_price_below_zero_is_kept_as_it_is() -> None:
    right = expected()["negative_price.csv"]
    bars = read(UGLY / "negative_price.csv", symbol="XYZ", **DAILY)
    below = bars.filter(pl.col("close") <= 0)
    assert [str(ts.date()) for ts in below["ts"]] == right["non_positive_close"] == ["2020-04-20"]
    assert below["close"].to_list() == [-36.98]
