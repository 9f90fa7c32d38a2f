"""The ugly files beside the repository: each is loaded with the values its author wrote down, or refused by name."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from read_files import read, understood

from foxflow.errors import DataError

UGLY = Path(__file__).parents[3] / "shared/data/ugly"
SESSIONS = {"symbol": "XYZ", "calendar": "XNYS"}
NEW_YORK = {"symbol": "XYZ", "stamp": "close", "tz": "America/New_York"}
# The options that a person who knows the file would give: (file, options, where its values are, what it says).
LOADED: list[tuple[str, dict[str, Any], str | None, tuple[str, ...]]] = [
    ("yf_three_line_header.csv", {"calendar": "XNYS"}, None, ()),
    ("same_day_twice.csv", {**SESSIONS, "keep": "last"}, "if_keep_last", ("24 (2024-03-07)", "lines 30 and 31")),
    ("same_day_twice.csv", {**SESSIONS, "keep": "first"}, "if_keep_first", ("24 (2024-03-07)", "lines 30 and 31")),
    ("null_words.csv", {"symbol": "XYZ", "calendar": "24/7"}, None, ("2021-05-04", "2021-05-21", "dropped")),
    (
        "quoted_thousands_newest_first.csv",
        {"symbol": "XYZ", "calendar": "24/7"},
        None,
        ("newest first", "unknown volume"),
    ),
    ("epoch_ms_then_us.csv", {"symbol": "XYZ", "stamp": "close"}, None, ("line 21", "ms to us", "no header")),
    ("dst_hour_twice.csv", NEW_YORK, "with_zone", ()),
    ("blocks_out_of_order.csv", {**NEW_YORK, "tz": "UTC"}, None, ("line 20", "order", "3 identical duplicate")),
    ("close_not_adjusted.csv", {**SESSIONS, "columns": {"close": "Adj Close"}}, "with_adjusted_close", ()),
    ("negative_price.csv", SESSIONS, None, ()),
    ("semicolon_decimal_comma.csv", {**NEW_YORK, "tz": "UTC"}, None, ("day first", "28.04.2023", "semicolon")),
]
# With all that a file does not tell, and with nothing: what a refusal has to mention.
REFUSED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("same_day_twice.csv", SESSIONS, ("2024-03-14", "duplicate", "lines 30 and 31", "--keep first|last")),
    ("same_day_twice.csv", {}, ("2024-03-14", "duplicate", "lines 30 and 31", "--keep", "--symbol", "--calendar")),
    ("dst_hour_twice.csv", {"symbol": "XYZ", "stamp": "close"}, ("2024-11-03 01:00", "zone", "--tz", "lines 9 and 10")),
    ("dst_hour_twice.csv", {}, ("2024-11-03 01:00", "zone", "--tz", "clocks go back", "--stamp", "--symbol")),
    ("close_not_adjusted.csv", SESSIONS, ("close", "high", "27 of", "2023-08-14", "line 2", "2023-09-20", "Adj Close")),
    ("close_not_adjusted.csv", {}, ("close", "high", "27 of", "2023-08-14", '--columns close="Adj Close"')),
    ("blocks_out_of_order.csv", {}, ("--symbol", "--stamp", "--tz")),
]


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Any]]:
    if not UGLY.exists():
        pytest.skip(f"{UGLY} is not there: the data folder beside the repository is not part of it")
    values: dict[str, dict[str, Any]] = json.loads((UGLY / "expected.json").read_text())
    return values


def test_every_ugly_file_is_loaded_here(expected: dict[str, dict[str, Any]]) -> None:
    assert {name for name, *_ in LOADED} == set(expected)


@pytest.mark.parametrize(("name", "options", "key", "says"), LOADED, ids=[f"{n}-{k}" for n, _, k, _ in LOADED])
def test_a_dry_run_gives_the_values_that_the_author_wrote_down(
    expected: dict[str, dict[str, Any]], name: str, options: dict[str, Any], key: str | None, says: tuple[str, ...]
) -> None:
    right = expected[name] if key is None else expected[name][key]
    found = understood(UGLY / name, **options)
    same = ("rows", "first_open", "last_close", "volume_sum")
    # The author writes prices with six decimals.
    rounded = {k: round(found[k], 6) for k in same if k in right}
    assert rounded == {k: round(right[k], 6) for k in rounded}
    for end in ("first", "last"):
        if end in right:
            written = right[end].replace(" ", "T")
            # A day without an exchange is complete when it is over, at the midnight that begins the next.
            instant = datetime.fromisoformat(found[f"{end}_ts"])
            day = instant - timedelta(seconds=1) if found["calendar"] == "24/7" else instant
            assert day.isoformat().replace("+00:00", "Z").startswith(written)
    if "symbol" in right:
        assert found["symbols"] == [right["symbol"]]
    said = " | ".join(found["warnings"])
    for words in says:
        assert words in said


@pytest.mark.parametrize(("name", "options", "mentions"), REFUSED)
def test_a_refusal_mentions_the_fault_its_place_and_the_option_that_helps(
    expected: dict[str, dict[str, Any]], name: str, options: dict[str, Any], mentions: tuple[str, ...]
) -> None:
    with pytest.raises(DataError) as refusal:
        read(UGLY / name, **options)
    for words in (str(UGLY / name), *mentions, *(expected[name].get("must_mention", ()) if mentions else ())):
        assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "options", "step", "n"),
    [
        ("epoch_ms_then_us.csv", {"symbol": "XYZ", "stamp": "open"}, "1m", 40),
        ("dst_hour_twice.csv", {**NEW_YORK, "stamp": "open"}, "1h", 26),
    ],
)
def test_bars_over_a_change_of_unit_or_clock_follow_each_other_without_a_hole(
    expected: dict[str, dict[str, Any]], name: str, options: dict[str, Any], step: str, n: int
) -> None:
    assert expected[name].get("step", expected[name].get("with_zone", {}).get("step")) == f"{step} without a hole"
    found = understood(UGLY / name, **options)
    bars = read(UGLY / name, **options)
    assert (found["bar"], len(bars)) == (step, n)
    assert bars["ts"].diff().drop_nulls().unique().to_list() == [bars["ts"][1] - bars["ts"][0]]


def test_the_two_hours_of_a_repeated_one_are_in_file_order(expected: dict[str, dict[str, Any]]) -> None:
    assert expected["dst_hour_twice.csv"]["with_zone"]["the_two"].startswith("2024-11-03T05:00:00Z and 06:00:00Z")
    rows = [line.split(",") for line in (UGLY / "dst_hour_twice.csv").read_text().splitlines()]
    twice = [float(row[4]) for row in rows if row[0].startswith("2024-11-03 01:00")]
    bars = read(UGLY / "dst_hour_twice.csv", **NEW_YORK)
    hours = bars.filter(pl.col("ts").dt.to_string("%d %H").is_in(["03 05", "03 06"]))
    assert hours["close"].to_list() == twice
    assert len(twice) == 2


def test_dropped_rows_and_unknown_volumes_are_the_ones_that_the_author_names(
    expected: dict[str, dict[str, Any]],
) -> None:
    nulls = understood(UGLY / "null_words.csv", symbol="XYZ", calendar="24/7")
    assert [row["when"] for row in nulls["dropped"]] == expected["null_words.csv"]["dropped"]
    blank = understood(UGLY / "same_day_twice.csv", **SESSIONS, keep="last")["dropped"]
    assert [(row["number"], row["when"]) for row in blank] == [(24, "2024-03-07")]
    dashes = read(UGLY / "quoted_thousands_newest_first.csv", symbol="XYZ", tz="UTC")
    unknown = dashes.filter(pl.col("volume").is_null())["ts"].dt.offset_by("-1d").dt.date().cast(pl.String).to_list()
    assert unknown == expected["quoted_thousands_newest_first.csv"]["null_volume"]


def test_a_price_below_zero_is_kept_as_it_is(expected: dict[str, dict[str, Any]]) -> None:
    right = expected["negative_price.csv"]
    bars = read(UGLY / "negative_price.csv", **SESSIONS)
    below = bars.filter(pl.col("close") <= 0)
    assert [str(ts.date()) for ts in below["ts"]] == right["non_positive_close"] == ["2020-04-20"]
    assert below["close"].to_list() == [-36.98]


def test_an_adjusted_close_fits_every_bar(expected: dict[str, dict[str, Any]]) -> None:
    right = expected["close_not_adjusted.csv"]["with_adjusted_close"]
    bars = read(UGLY / "close_not_adjusted.csv", **SESSIONS, columns={"close": "Adj Close"})
    assert (len(bars), bars["close"][0], bars["close"][-1]) == (
        right["rows"],
        right["first_close"],
        right["last_close"],
    )
    assert bars.filter(pl.col("close") > pl.col("high")).is_empty()
