import io
import zipfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from foxflow.bars import BAR_SCHEMA, PRICES, TS
from foxflow.errors import DataError
from foxflow.futures import CONTRACT_SCHEMA, OPEN_INTEREST_SCHEMA, ROLL_SCHEMA, continuous, require_contracts

LEAN = Path(__file__).parents[3] / "shared/data/real/es_gc_futures_lean"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def contracts(*rows: tuple[str, str], root: str = "XX") -> pl.DataFrame:
    return pl.DataFrame(
        [(root, symbol, date.fromisoformat(expiry), 50.0) for symbol, expiry in rows],
        schema=CONTRACT_SCHEMA,
        orient="row",
    )


def days(symbol: str, *rows: tuple[int, float, float, float | None], month: int = 1) -> pl.DataFrame:
    """Return bars of whole days in UTC: the day of the month, open, close and volume of each."""
    made = [
        (symbol, datetime(2024, month, day, tzinfo=UTC) + timedelta(days=1), a, max(a, b), min(a, b), b, volume)
        for day, a, b, volume in rows
    ]
    return pl.DataFrame(made, schema=BAR_SCHEMA, orient="row")


XX = contracts(("XXF", "2024-01-10"), ("XXG", "2024-02-10"), ("XXH", "2024-03-10"))
# On the 2nd XXG trades more than XXF for the first time, 10 % above it.
TWO = pl.concat(
    [
        days("XXF", (1, 99, 100, 10), (2, 100, 102, 10), (3, 103, 104, 1), (4, 104, 105, 90)),
        days("XXG", (1, 109, 110, 5), (2, 110, 112.2, 11), (3, 113.3, 114.4, 20), (4, 114.4, 115.5, 30)),
    ]
)


def xx(bars: pl.DataFrame = TWO, **options: Any) -> Any:
    chosen = {"root": "XX", "calendar": "24/7", "roll": "volume", "adjust": "ratio", **options}
    return continuous(bars, chosen.pop("contracts", XX), **chosen)


def test_a_contract_that_traded_more_is_held_from_the_next_session_on() -> None:
    made = xx(adjust="none")
    # The first session has none before it to decide from. Once left, a contract is not gone back to: 90 on the 4th.
    assert made.bars.select("symbol", "ts", "open", "close", "volume").rows() == [
        ("XX", at("2024-01-03"), 100, 102, 10),
        ("XX", at("2024-01-04"), 113.3, 114.4, 20),
        ("XX", at("2024-01-05"), 114.4, 115.5, 30),
    ]
    assert made.rolls.rows() == [("XX", at("2024-01-04"), "XXF", "XXG", 102.0, 112.2, at("2024-01-03"))]


def test_ratios_leave_the_first_contract_alone_and_keep_the_returns_of_the_one_held() -> None:
    made = xx().bars
    assert made["close"].to_list() == pytest.approx([102, 104, 105])
    assert made["open"].to_list() == pytest.approx([100, 103, 104])
    # XXG moved from 112.2 to 114.4, not from 102.
    assert made["close"][1] / made["close"][0] == pytest.approx(114.4 / 112.2)
    assert made["volume"].to_list() == [10, 20, 30]


def test_differences_keep_the_points_of_the_contract_held() -> None:
    made = xx(adjust="difference").bars
    assert made["close"].to_list() == pytest.approx([102, 104.2, 105.3])
    assert made["close"][1] - made["close"][0] == pytest.approx(114.4 - 112.2)


def test_two_rolls_multiply() -> None:
    bars = pl.concat([TWO, days("XXH", (4, 200, 231, 31), (5, 231, 242, 40)), days("XXG", (5, 115, 116, 40))])
    made = xx(bars)
    # XXH is at 231 where XXG is at 115.5: half of it, and XXG counts 1 / 1.1.
    assert made.bars["close"].to_list() == pytest.approx([102, 104, 105, 242 / 2 / 1.1])
    assert made.rolls["new"].to_list() == ["XXG", "XXH"]


def test_a_later_roll_changes_no_earlier_value_as_back_adjustment_would() -> None:
    bars = pl.concat([TWO, days("XXH", (4, 200, 231, 31), (5, 231, 242, 40))])
    assert xx(bars).bars.head(3).equals(xx().bars)
    # Back-adjusted from the newest contract, the same returns have other prices before each roll.
    closes = xx(bars).bars["close"].to_numpy()
    back = closes * (242 / closes[-1])
    np.testing.assert_allclose(back[1:] / back[:-1], closes[1:] / closes[:-1])
    assert back[0] == pytest.approx(102 * 1.1 * 2)


def test_a_contract_is_left_at_its_expiry_whatever_trades() -> None:
    bars = pl.concat(
        [
            days("XXF", (8, 100, 100, 10), (9, 100, 101, 10), (10, 101, 102, 10)),
            days("XXG", (10, 110, 112.2, 1), (11, 112.2, 113.3, 2)),
        ]
    )
    made = xx(bars)
    assert made.bars["close"].to_list() == pytest.approx([101, 102, 103])
    assert made.rolls.select("ts", "old", "new").rows() == [(at("2024-01-12"), "XXF", "XXG")]


def test_a_contract_that_expires_with_the_first_session_is_never_held() -> None:
    bars = pl.concat([days("XXF", (10, 100, 101, 90)), days("XXG", (10, 110, 111, 10), (11, 111, 112, 10))])
    assert xx(bars).bars["close"].to_list() == [112]


def test_nothing_is_held_where_no_live_contract_has_traded() -> None:
    bars = pl.concat(
        [
            days("XXF", (9, 100, 100, 10), (10, 100, 101, 10)),
            days("XXG", (10, 110, 111, 0), (11, 110, 111, 3), (12, 111, 112, 3)),
        ]
    )
    # On the 10th XXG has a bar without a trade, so the 11th has nothing to hold.
    assert xx(bars).bars["ts"].to_list() == [at("2024-01-11"), at("2024-01-13")]


def test_the_later_contract_with_the_most_volume_is_rolled_to_and_of_equals_the_nearest() -> None:
    more = days("XXH", (2, 120, 120, 12), (3, 120, 121, 20))
    assert xx(pl.concat([TWO, more])).rolls["new"].to_list() == ["XXH"]
    equal = days("XXH", (2, 120, 120, 11), (3, 120, 121, 20))
    assert xx(pl.concat([TWO, equal])).rolls["new"].to_list() == ["XXG"]
    # As much as the one held is not more.
    level = TWO.with_columns(volume=pl.when(pl.col("ts") == at("2024-01-03")).then(10.0).otherwise("volume"))
    assert xx(level).rolls["ts"].to_list() == [at("2024-01-05")]


@pytest.mark.parametrize(("days_before", "first"), [(0, 11), (1, 10), (7, 4)])
def test_the_calendar_leaves_a_contract_a_number_of_sessions_before_its_expiry(days_before: int, first: int) -> None:
    bars = pl.concat(
        [days(s, *((d, 100, 100, None) for d in range(1, 13) if s != "XXF" or d < 11)) for s in ("XXF", "XXG")]
    )
    made = xx(bars, roll="calendar", days_before=days_before)
    assert len(made.bars) == 12
    assert made.rolls.select("ts", "old", "new").rows() == [(datetime(2024, 1, first + 1, tzinfo=UTC), "XXF", "XXG")]


def test_the_calendar_counts_sessions_past_the_newest_bar_and_past_the_year() -> None:
    # New York has seven sessions after the 29th of December 2023 up to the 10th of January: 2nd to 5th, 8th to 10th.
    row = ("XXF", at("2023-12-29 21:00"), 1.0, 1.0, 1.0, 1.0, None)
    two = pl.DataFrame([row], schema=BAR_SCHEMA, orient="row")
    two = pl.concat([two, two.with_columns(pl.lit("XXG").alias("symbol"), close=pl.lit(2.0))])
    for days_before, close in ((7, 1.0), (8, 2.0)):
        made = xx(two, calendar="XNYS", roll="calendar", days_before=days_before)
        assert made.bars["close"].to_list() == [close]


def test_open_interest_counts_from_when_it_was_known() -> None:
    figures = pl.DataFrame(
        [
            ("XXF", at("2024-01-01"), 100.0),
            ("XXG", at("2024-01-01"), 50.0),
            # The figure of the 2nd is published in the morning of the 3rd, and decides on the 4th.
            ("XXG", at("2024-01-03 10:00"), 150.0),
        ],
        schema=OPEN_INTEREST_SCHEMA,
        orient="row",
    )
    made = xx(roll="open_interest", open_interest=figures)
    assert made.rolls.select("ts", "old", "new").rows() == [(at("2024-01-05"), "XXF", "XXG")]
    # Known at the close of the 2nd, it decides on the 3rd.
    at_the_close = figures.with_columns(pl.col("ts").clip(upper_bound=at("2024-01-03")))
    made = xx(roll="open_interest", open_interest=at_the_close)
    assert made.rolls["ts"].to_list() == [at("2024-01-04")]


def test_the_session_and_not_the_day_decides_where_sessions_open_in_the_evening() -> None:
    def minute(symbol: str, ts: str, price: float, volume: float) -> tuple[Any, ...]:
        return (symbol, at(ts), price, price, price, price, volume)

    # CME's session of Monday 2024-01-08 opens on Sunday at 23:00 in UTC and ends on Monday at 23:00.
    rows = [
        minute("XXF", "2024-01-05 22:00", 100, 10),
        minute("XXF", "2024-01-07 23:01", 101, 10),
        minute("XXG", "2024-01-07 23:01", 111.1, 15),
        minute("XXF", "2024-01-08 22:59", 102, 10),
        minute("XXG", "2024-01-08 22:59", 112.2, 0),
        # More on Monday's evening, which is Tuesday's session.
        minute("XXG", "2024-01-08 23:01", 114.4, 90),
        minute("XXF", "2024-01-08 23:01", 104, 1),
        minute("XXG", "2024-01-09 23:01", 115.5, 1),
    ]
    made = xx(pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row"), calendar="CMES")
    assert made.bars["close"].to_list() == pytest.approx([101, 102, 104, 105])
    assert made.rolls.select("ts", "priced_at").rows() == [(at("2024-01-09 23:01"), at("2024-01-08 23:01"))]


def test_the_gap_is_that_of_the_newest_bar_both_have() -> None:
    bars = pl.concat(
        [
            days("XXF", (1, 99, 99, 10), (2, 99, 100, 10)),
            days("XXG", (2, 109, 110, 5), (3, 110, 112.2, 11), (4, 113, 114.4, 20)),
        ]
    )
    # XXF has no bar on the 3rd, when XXG trades more; both have one on the 2nd.
    made = xx(bars)
    assert made.rolls.select("old_price", "new_price", "priced_at").rows() == [(100.0, 110.0, at("2024-01-03"))]
    assert made.bars["close"].to_list() == pytest.approx([100, 104])


def test_a_roll_whose_contracts_have_no_bar_in_common_lately_is_refused() -> None:
    never = pl.concat([days("XXF", (8, 1, 1, 9), (9, 1, 1, 9)), days("XXG", (11, 2, 2, 9), (12, 2, 2, 9))])
    with pytest.raises(
        DataError, match=r"XX rolls from XXF to XXG with the bar of 2024-01-13T00:00:00Z, .* is of never"
    ):
        xx(never)
    old = pl.concat([days("XXF", (3, 1, 1, 9), (4, 1, 1, 9)), days("XXG", (4, 2, 2, 1), (11, 2, 2, 9), (12, 2, 2, 9))])
    with pytest.raises(DataError, match="is of 2024-01-05T00:00:00Z; expected one in the 5 sessions before"):
        xx(old)


def test_ratios_of_prices_that_are_not_positive_are_refused_and_differences_taken() -> None:
    below = TWO.with_columns(*(pl.col(c) - 103 for c in PRICES))
    with pytest.raises(
        DataError, match=r"XXF at 2024-01-03T00:00:00Z has the price -3\.0, and adjust = 'ratio' needs pos"
    ):
        xx(below)
    assert xx(below, adjust="difference").bars["close"].to_list() == pytest.approx([-1, 1.2, 2.3])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"roll": "oi"}, "roll = 'oi'; expected one of volume, open_interest, calendar"),
        ({"adjust": "back"}, "adjust = 'back'; expected one of ratio, difference, none"),
        ({"days_before": 3}, "days_before has no effect with roll = 'volume'; remove it"),
        ({"roll": "calendar"}, "days_before is missing and roll = 'calendar' needs it"),
        ({"roll": "calendar", "days_before": -1}, "days_before = -1; expected 0 or more sessions"),
        ({"roll": "open_interest"}, "open_interest is missing and roll = 'open_interest' needs it"),
        ({"open_interest": OPEN_INTEREST_SCHEMA.to_frame()}, "open_interest has no effect with roll = 'volume'"),
        ({"roll": "open_interest", "open_interest": pl.DataFrame()}, "open interest: columns"),
        ({"root": "XY"}, "unknown root 'XY'; known: XX; import its contracts"),
        ({"bars": days("ABC", (1, 1, 1, 1))}, r"no bars of a contract of XX \(XXF, XXG, XXH\); import them"),
        ({"bars": BAR_SCHEMA.to_frame()}, "no bars of a contract of XX"),
        (
            {"bars": days("XXF", (11, 1, 1, 1))},
            r"1 bar\(s\) after their contract's expiry, first XXF at 2024-01-12T00:00:00Z, in the session of 2024-01-11, with expiry 2024-01-10",
        ),
        (
            {"bars": days("XXF", (3, 1, 1, None))},
            "of unknown volume, first XXF at 2024-01-04T00:00:00Z, which can't decide",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        xx(options.pop("bars", TWO), **options)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("XX", "XXF", date(2024, 4, 1), None), "expected each symbol once"),
        (("XX", "XXZ", date(2024, 1, 10), None), "expected one contract of a root to expire on a day"),
        (("XX", "XXZ", None, None), "expected a root, a symbol and an expiry"),
        (("XX", "", date(2024, 4, 1), None), "expected a root, a symbol and an expiry"),
        (("XX", "XXZ", date(2024, 4, 1), 0.0), "expected a positive multiplier, or none"),
        (("XX", "XXZ", date(2024, 4, 1), float("nan")), "expected a positive multiplier, or none"),
        (("XX", "XX", date(2024, 4, 1), None), "a root names the series"),
    ],
)
def test_contracts_that_cannot_be_told_apart_are_refused(row: tuple[Any, ...], says: str) -> None:
    with pytest.raises(DataError, match=says):
        require_contracts(pl.concat([XX, pl.DataFrame([row], schema=CONTRACT_SCHEMA, orient="row")]))
    with pytest.raises(DataError, match="contracts: columns"):
        require_contracts(XX.drop("multiplier"))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    cut=st.floats(0.05, 1),
    roll=st.sampled_from(["volume", "calendar"]),
    adjust=st.sampled_from(["ratio", "difference", "none"]),
)
def test_cutting_the_bars_at_any_time_changes_nothing_up_to_then(seed: int, cut: float, roll: Any, adjust: Any) -> None:
    bars = _random(seed)
    options = {"roll": roll, "adjust": adjust, "calendar": "CMES", "days_before": 2 if roll == "calendar" else None}
    whole = xx(bars, **options)
    until = bars["ts"].min() + cut * (bars["ts"].max() - bars["ts"].min())
    part = xx(bars.filter(pl.col("ts") <= until), **options)
    assert_frame_equal(part.bars, whole.bars.filter(pl.col("ts") <= until), check_exact=True)
    assert_frame_equal(part.rolls, whole.rolls.filter(pl.col("ts") <= until), check_exact=True)
    assert whole.rolls["new"].is_sorted()
    assert whole.bars["ts"].is_unique().all()
    if adjust == "ratio" and len(whole.bars):
        # Every return is a return of one contract between two of its own bars.
        names = xx(bars, **{**options, "adjust": "none"}).bars["close"].to_numpy() / whole.bars["close"].to_numpy()
        changes = np.flatnonzero(~np.isclose(names[1:], names[:-1], rtol=1e-12)) + 1
        assert set(whole.bars["ts"].gather(changes)) <= set(whole.rolls["ts"])


def _random(seed: int) -> pl.DataFrame:
    """Return hours of three contracts over ten weeks with two expiries, a tenth of them missing."""
    random = np.random.default_rng(seed)
    ts = pl.datetime_range(at("2024-01-01 05:00"), at("2024-03-08 20:00"), "5h", time_unit="us", eager=True).cast(TS)
    path = 100 + random.normal(size=len(ts)).cumsum() * 0.2
    frames = []
    for number, (symbol, expiry) in enumerate(XX.select("symbol", "expiry").iter_rows()):
        price = path * (1 + 0.02 * number) + random.normal(size=len(ts)) * 0.01
        hours = (datetime(expiry.year, expiry.month, expiry.day, tzinfo=UTC) - ts).dt.total_hours()
        volume = np.round(random.uniform(0, 100, len(ts)) * np.clip(1.5 - (hours / 24 / 30 - 1).abs().to_numpy(), 0, 1))
        frame = pl.DataFrame({"symbol": symbol, "ts": ts, **dict.fromkeys(PRICES, pl.Series(price)), "volume": volume})
        # Sessions of Monday hold a weekend's bars; three days before the expiry nothing is in doubt.
        frames.append(frame.filter((hours > 72) & pl.Series(random.random(len(ts)) < 0.9)).select(BAR_SCHEMA.names()))
    return pl.concat(frames).cast(BAR_SCHEMA)


CYCLE = {"201312": "ESZ3", "201403": "ESH4", "201406": "ESM4", "201409": "ESU4", "201412": "ESZ4"}
ES = contracts(
    ("ESZ3", "2013-12-20"),
    ("ESH4", "2014-03-21"),
    ("ESM4", "2014-06-20"),
    ("ESU4", "2014-09-19"),
    ("ESZ4", "2014-12-19"),
    root="ES",
)


@pytest.mark.skipif(not LEAN.exists(), reason=f"{LEAN} is not here")
def test_minutes_of_the_e_mini_roll_after_the_session_in_which_march_traded_more() -> None:
    files = sorted(LEAN.glob("es_minute_2013*.zip"))
    bars = pl.concat([_contract(file, name) for file in files for name in zipfile.ZipFile(file).namelist()])
    options = {"root": "ES", "calendar": "CMES", "roll": "volume"}
    made = continuous(bars, ES, adjust="ratio", **options)
    # ESZ3 258,842 lots and ESH4 2,107,664 on Wednesday the 18th; the next session opens that evening at 23:00 in UTC.
    assert made.rolls.rows() == [
        ("ES", at("2013-12-18 23:01"), "ESZ3", "ESH4", 1810.25, 1804.0, at("2013-12-18 22:15"))
    ]
    plain = continuous(bars, ES, adjust="none", **options).bars
    first = plain["ts"].search_sorted(at("2013-12-18 23:01"))
    # As traded: 1810.25 in December's last minute, 1805.00 at the end of March's first, of which -0.345 % is the gap.
    assert plain["close"][first - 1] == 1810.25
    assert plain["close"][first] == 1805.0
    assert plain["open"][first] / plain["close"][first - 1] - 1 == pytest.approx(-0.00345, abs=1e-5)
    moved = made.bars["close"]
    assert moved[first] / moved[first - 1] - 1 == pytest.approx(1805.0 / 1804.0 - 1, rel=1e-9)
    assert made.bars["open"][first] == pytest.approx(1810.25)
    assert made.bars.head(first).equals(plain.head(first))
    # In points: 6.25.
    points = continuous(bars, ES, adjust="difference", **options).bars
    assert points["close"][first] == 1811.25
    assert points.head(first).equals(plain.head(first))


@pytest.mark.skipif(not LEAN.exists(), reason=f"{LEAN} is not here")
def test_days_of_the_e_mini_roll_on_the_monday_after_march_traded_more() -> None:
    file = LEAN / "es_daily_trade.zip"
    bars = pl.concat([_contract(file, f"es_trade_{number}.csv") for number in CYCLE])
    # These days are UTC's. On Friday the 13th December traded 347,764 lots and March 868,208.
    options = {"root": "ES", "calendar": "24/7", "adjust": "ratio"}
    made = continuous(bars, ES, roll="volume", **options)
    assert made.rolls.rows() == [
        ("ES", at("2013-12-17 00:00"), "ESZ3", "ESH4", 1775.0, 1768.75, at("2013-12-14 00:00"))
    ]
    december = made.bars.filter(pl.col("ts").is_between(at("2013-12-13 00:00"), at("2013-12-18 00:00")))
    # 1779.0 and 1772.0 were traded; times 1775 / 1768.75.
    assert december["close"].to_list() == pytest.approx([1773.75, 1775.0, 1785.286219, 1778.261484])
    # Seven days of UTC before the 20th is the 13th, the last day held; Sunday the 15th has no bar of March.
    week = continuous(bars, ES, roll="calendar", days_before=7, **options)
    assert week.rolls.rows() == made.rolls.rows()


def _contract(file: Path, name: str) -> pl.DataFrame:
    """Return the bars of one contract, stamped at their open in UTC, a day of them named by the file."""
    with zipfile.ZipFile(file) as opened:
        raw = pl.read_csv(
            io.BytesIO(opened.read(name)),
            has_header=False,
            new_columns=["time", *PRICES, "volume"],
            schema_overrides=[pl.String] + [pl.Float64] * 5,
        )
    if "minute" in name:
        day = pl.lit(datetime.strptime(name[:8], "%Y%m%d"))  # noqa: DTZ007
        ts = day + pl.duration(milliseconds=pl.col("time").cast(pl.Int64)) + timedelta(minutes=1)
    else:
        ts = pl.col("time").str.to_datetime("%Y%m%d %H:%M", time_unit="us") + timedelta(days=1)
    symbol = pl.lit(CYCLE[name.removesuffix(".csv")[-6:]])
    return raw.select(symbol.alias("symbol"), ts.dt.replace_time_zone("UTC").alias("ts"), *PRICES, "volume").cast(
        BAR_SCHEMA
    )


def test_rolls_have_their_schema_where_there_are_none() -> None:
    made = xx(days("XXF", (1, 1, 1, 1), (2, 1, 1, 1)))
    assert made.rolls.schema == ROLL_SCHEMA
    assert made.rolls.is_empty()
    assert made.bars.schema == BAR_SCHEMA
    assert xx(days("XXF", (1, 1, 1, 1))).bars.schema == BAR_SCHEMA
