from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from foxflow.bars import BAR_SCHEMA, PRICES, bar_length, sessions
from foxflow.errors import DataError
from foxflow.resample import outside_sessions, resample


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def bars(*closes: tuple[str, float], symbol: str = "AAA", volume: float | None = 1.0) -> pl.DataFrame:
    """Return flat bars: the UTC `ts` and the price of each."""
    rows = [(symbol, at(ts), price, price, price, price, volume) for ts, price in closes]
    return pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row")


def numbered(first: str, last: str, *, bar: str, symbol: str = "AAA") -> pl.DataFrame:
    """Return a bar at every multiple of its length, both bounds inclusive; the n-th trades at n, of volume n."""
    ts = pl.datetime_range(at(first), at(last), bar, time_unit="us", eager=True)
    n = pl.Series(np.arange(1.0, len(ts) + 1))
    frame = pl.DataFrame({"symbol": symbol, "ts": ts, **dict.fromkeys(PRICES, n), "volume": n})
    return frame.select(BAR_SCHEMA.names()).cast(BAR_SCHEMA)


def trading(calendar: str, first: date, last: date, *, bar: str) -> pl.DataFrame:
    """Return a bar at every multiple of its length inside the sessions."""
    parts = []
    for s in sessions(calendar, first, last).iter_rows(named=True):
        spans = [(s["open"], s["break_start"] or s["close"])]
        spans += [(s["break_end"], s["close"])] if s["break_end"] else []
        parts += [numbered(f"{a + bar_length(bar):%F %T}", f"{b:%F %T}", bar=bar) for a, b in spans]
    return pl.concat(parts)


def stamps(frame: pl.DataFrame, zone: str = "UTC") -> list[str]:
    return frame["ts"].dt.convert_time_zone(zone).dt.strftime("%d %H:%M").to_list()


def test_five_fields_of_a_larger_bar_are_first_highest_lowest_last_and_sum() -> None:
    one = pl.DataFrame(
        [
            ("AAA", at("2024-03-14 15:31"), 5.0, 9.0, 4.0, 6.0, 10.0),
            ("AAA", at("2024-03-14 15:33"), 6.5, 7.0, 2.0, 3.0, 20.0),
            ("AAA", at("2024-03-14 15:35"), 3.5, 8.0, 3.0, 8.0, 5.0),
            ("AAA", at("2024-03-14 15:36"), 8.0, 8.0, 8.0, 8.0, 1.0),
        ],
        schema=BAR_SCHEMA,
        orient="row",
    )
    five = resample(one, bar="1m", to="5m", calendar="XNYS", until=at("2024-03-14 15:40"))
    assert five.rows() == [
        ("AAA", at("2024-03-14 15:35"), 5.0, 9.0, 2.0, 8.0, 35.0),
        ("AAA", at("2024-03-14 15:40"), 8.0, 8.0, 8.0, 8.0, 1.0),
    ]


def test_hours_on_the_clock_are_cut_by_the_open() -> None:
    hours = resample(
        trading("XNYS", date(2024, 3, 14), date(2024, 3, 14), bar="1m"), bar="1m", to="1h", calendar="XNYS"
    )
    assert stamps(hours, "America/New_York") == [f"14 {h}:00" for h in range(10, 17)]
    # 09:30 to 10:00 is half an hour: minutes 1 to 30.
    assert hours.select("open", "close", "volume").row(0) == (1.0, 30.0, 465.0)
    assert hours.select("open", "close").row(1) == (31.0, 90.0)


def test_hours_of_the_session_begin_at_its_open_and_the_last_is_cut_by_its_close() -> None:
    minutes = trading("XNYS", date(2024, 3, 14), date(2024, 3, 14), bar="1m")
    hours = resample(minutes, bar="1m", to="1h", calendar="XNYS", anchor="session")
    assert stamps(hours, "America/New_York") == [f"14 {h}:30" for h in range(10, 16)] + ["14 16:00"]
    assert hours.select("open", "close").rows()[-1] == (361.0, 390.0)


@pytest.mark.parametrize(
    ("anchor", "expected"),
    [
        ("clock", ["10:00", "11:00", "12:00", "14:00", "15:00", "16:00"]),
        ("session", ["10:30", "11:30", "12:00", "14:00", "15:00", "16:00"]),
    ],
)
def test_no_bar_spans_the_lunch_break(anchor: Any, expected: list[str]) -> None:
    minutes = trading("XHKG", date(2024, 3, 14), date(2024, 3, 14), bar="1m")
    hours = resample(minutes, bar="1m", to="1h", calendar="XHKG", anchor=anchor)
    assert stamps(hours, "Asia/Hong_Kong") == [f"14 {t}" for t in expected]
    two = resample(minutes, bar="1m", to="2h", calendar="XHKG", anchor=anchor)
    assert two["close"].to_list().count(150.0) == 1
    day = resample(minutes, bar="1m", to="1d", calendar="XHKG")
    # 150 minutes before lunch and 180 after it: 1 + ... + 150 and 1 + ... + 180.
    assert day.select("open", "high", "close", "volume").rows() == [(1.0, 180.0, 180.0, 150 * 151 / 2 + 180 * 181 / 2)]


def test_hours_of_a_zone_that_is_half_an_hour_off_are_its_own_hours() -> None:
    minutes = trading("XBOM", date(2024, 3, 14), date(2024, 3, 14), bar="15m")
    hours = resample(minutes, bar="15m", to="1h", calendar="XBOM")
    assert stamps(hours, "Asia/Kolkata")[:2] == ["14 10:00", "14 11:00"]
    assert stamps(hours, "Asia/Kolkata")[-1] == "14 15:30"


def test_a_session_that_opens_the_evening_before_is_one_day_with_the_date_of_its_close() -> None:
    evening = bars(("2024-03-10 22:01", 1), ("2024-03-11 05:00", 2), ("2024-03-11 22:00", 3), ("2024-03-11 22:01", 9))
    days = resample(evening, bar="1m", to="1d", calendar="CMES")
    # Chicago's clocks had gone forward that Sunday: the close at 17:00 is 22:00 in UTC, no longer 23:00.
    assert days.select("ts", "open", "close", "volume").rows() == [(at("2024-03-11 22:00"), 1, 3, 3)]
    hours = resample(evening, bar="1m", to="4h", calendar="CMES")
    assert stamps(hours, "America/Chicago") == ["10 20:00", "11 00:00", "11 17:00"]


def test_days_end_at_the_close_of_the_exchange_in_summer_in_winter_and_on_half_days() -> None:
    for first, last, expected in (
        (date(2024, 3, 8), date(2024, 3, 11), ["08 21:00", "11 20:00"]),
        (date(2024, 11, 1), date(2024, 11, 4), ["01 20:00", "04 21:00"]),
        (date(2013, 11, 27), date(2013, 12, 2), ["27 21:00", "29 18:00", "02 21:00"]),
    ):
        days = resample(trading("XNYS", first, last, bar="30m"), bar="30m", to="1d", calendar="XNYS")
        assert stamps(days) == expected


def test_a_market_that_never_closes_has_days_of_utc() -> None:
    minutes = numbered("2024-03-09 00:01", "2024-03-11 00:00", bar="1m")
    assert stamps(resample(minutes, bar="1m", to="1d", calendar="24/7")) == ["10 00:00", "11 00:00"]
    assert stamps(resample(minutes, bar="1m", to="6h", calendar="24/7"))[:4] == [
        "09 06:00",
        "09 12:00",
        "09 18:00",
        "10 00:00",
    ]


def test_a_week_ends_with_its_last_session_known_from_the_calendar() -> None:
    # Friday the 29th was Good Friday. The week of 1 April is cut by the data and not finished.
    days = trading("XNYS", date(2024, 3, 18), date(2024, 4, 3), bar="30m")
    for bar in ("30m", "1d"):
        source = days if bar == "30m" else resample(days, bar="30m", to="1d", calendar="XNYS")
        weeks = resample(source, bar=bar, to="1w", calendar="XNYS")
        assert stamps(weeks) == ["22 20:00", "28 20:00"]
        assert weeks["volume"].to_list() == [5 * 91.0, 4 * 91.0]


def test_the_week_a_year_ends_in_is_whole() -> None:
    days = trading("XNYS", date(2024, 12, 30), date(2025, 1, 6), bar="30m")
    assert stamps(resample(days, bar="30m", to="1w", calendar="XNYS")) == ["03 21:00"]


def test_an_unfinished_bar_is_left_out_whatever_data_it_has() -> None:
    minutes = bars(("2024-03-14 14:00", 1), ("2024-03-14 14:59", 2))
    assert stamps(resample(minutes, bar="1m", to="1h", calendar="XNYS")) == ["14 14:00"]
    # The minute to 15:00 had no trade: the clock says that the hour is over, not the data.
    assert stamps(resample(minutes, bar="1m", to="1h", calendar="XNYS", until=at("2024-03-14 15:00"))) == [
        "14 14:00",
        "14 15:00",
    ]
    assert resample(minutes, bar="1m", to="1d", calendar="XNYS", until=at("2024-03-14 19:59")).is_empty()
    assert len(resample(minutes, bar="1m", to="1d", calendar="XNYS", until=at("2024-03-14 20:00"))) == 1


def test_the_newest_bar_of_any_symbol_tells_the_time_for_all() -> None:
    both = pl.concat([bars(("2024-03-14 13:59", 1)), bars(("2024-03-14 14:00", 5), symbol="BBB")])
    hours = resample(both, bar="1m", to="1h", calendar="XNYS")
    assert hours.select("symbol", "close").rows() == [("AAA", 1.0), ("BBB", 5.0)]


def test_an_unknown_volume_makes_the_sum_unknown() -> None:
    minutes = pl.concat([bars(("2024-03-14 14:31", 1)), bars(("2024-03-14 14:32", 1), volume=None)])
    more = bars(("2024-03-14 15:00", 1), ("2024-03-14 16:00", 1))
    assert resample(pl.concat([minutes, more]), bar="1m", to="1h", calendar="XNYS")["volume"].to_list() == [None, 1.0]


def test_prices_below_zero_are_prices() -> None:
    april = bars(("2020-04-20 18:30", 1.5), ("2020-04-20 18:31", -37.63), ("2020-04-20 22:00", -10.0))
    day = resample(april, bar="1m", to="1d", calendar="CMES")
    assert day.select(*PRICES).rows() == [(1.5, 1.5, -37.63, -10.0)]


def test_bars_too_coarse_for_the_close_end_with_the_last_of_them() -> None:
    # Tokyo closes at 15:30 since 2024-11-05. Hours stamped with their open make the last one end at 16:00.
    hours = bars(("2024-11-07 03:00", 1), ("2024-11-07 06:00", 2), ("2024-11-07 07:00", 3))
    assert resample(hours, bar="1h", to="1d", calendar="XTKS", until=at("2024-11-07 06:59")).is_empty()
    day = resample(hours, bar="1h", to="1d", calendar="XTKS")
    assert day.select("ts", "close").rows() == [(at("2024-11-07 07:00"), 3.0)]
    assert stamps(resample(hours.head(2), bar="1h", to="1d", calendar="XTKS", until=at("2024-11-08 00:00"))) == [
        "07 07:00"
    ]


def test_bars_outside_sessions_are_refused_dropped_or_joined_by_name() -> None:
    day = bars(("2024-03-14 08:01", 1), ("2024-03-14 13:31", 2), ("2024-03-14 20:00", 3), ("2024-03-14 23:59", 4))
    with pytest.raises(
        DataError, match=r"2 bar\(s\) lie outside every session of XNYS, first AAA at 2024-03-14T08:01:00Z"
    ):
        resample(day, bar="1m", to="1d", calendar="XNYS")
    assert stamps(outside_sessions(day, bar="1m", calendar="XNYS")) == ["14 08:01", "14 23:59"]
    kept = resample(day, bar="1m", to="1d", calendar="XNYS", outside="drop")
    assert kept.select("ts", "open", "close", "volume").rows() == [(at("2024-03-14 20:00"), 2, 3, 2)]
    joined = resample(day, bar="1m", to="1d", calendar="XNYS", outside="join", until=at("2024-03-15 04:00"))
    assert joined.select("ts", "open", "close", "volume").rows() == [(at("2024-03-15 04:00"), 1, 4, 4)]
    with pytest.raises(DataError, match="outside every session"):
        resample(bars(("2024-03-16 15:00", 1)), bar="1m", to="1d", calendar="XNYS", outside="join")


@pytest.mark.parametrize(
    ("bar", "to", "options", "says"),
    [
        ("1h", "1h", {}, "bars of 1h from bars of 1h; expected a length above 1h"),
        ("1h", "5m", {}, "expected a length above 1h"),
        ("1m", "90s", {}, "expected a whole multiple of 1m"),
        ("1h", "7h", {}, "bars of 7h do not divide a day; use a length that does, or anchor = 'session'"),
        ("1h", "24h", {}, "expected a length below a day, 1d"),
        ("1h", "2d", {}, "expected a length below a day, 1d"),
        ("2d", "1w", {}, "only 1w can be made of days, and only of 1d"),
        ("1m", "1x", {}, "bar = '1x'"),
        ("1m", "1h", {"anchor": "open"}, "anchor = 'open'; expected one of clock, session"),
        ("1m", "1h", {"outside": "keep"}, "outside = 'keep'; expected one of refuse, drop, join"),
        ("1m", "1h", {"calendar": "NYSE?"}, "unknown calendar 'NYSE\\?'"),
    ],
)
def test_lengths_and_options_that_do_not_fit_are_refused_by_name(bar: str, to: str, options: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        resample(bars(("2024-03-14 14:00", 1)), bar=bar, to=to, **{"calendar": "XNYS", **options})


def test_a_bar_that_spans_a_boundary_of_the_new_ones_is_refused() -> None:
    on_the_clock = bars(("2024-03-14 14:00", 1), ("2024-03-14 15:00", 1))
    assert len(resample(on_the_clock, bar="1h", to="2h", calendar="XNYS")) == 1
    with pytest.raises(
        DataError, match=r"1 bar\(s\) lie as bar\(s\) of 1h that span a boundary .* use anchor = 'clock'"
    ):
        resample(bars(("2024-03-14 16:00", 1)), bar="1h", to="2h", calendar="XNYS", anchor="session")
    with pytest.raises(DataError, match="span the end of a session or a lunch break"):
        resample(bars(("2024-03-14 05:30", 1)), bar="2h", to="4h", calendar="XHKG")
    with pytest.raises(DataError, match="outside every session"):
        resample(bars(("2024-03-14 20:30", 1)), bar="1d", to="1w", calendar="XNYS")


def test_the_order_of_the_bars_makes_no_difference() -> None:
    minutes = _random("XNYS", 7, 0.7)
    options = {"bar": "15m", "to": "1h", "calendar": "XNYS"}
    assert resample(minutes.sample(fraction=1, shuffle=True, seed=1), **options).equals(resample(minutes, **options))


def test_no_bars_give_no_bars() -> None:
    nothing = BAR_SCHEMA.to_frame()
    assert resample(nothing, bar="1m", to="1h", calendar="XNYS").equals(nothing)
    assert outside_sessions(nothing, bar="1m", calendar="XNYS").equals(nothing)
    assert resample(bars(("2024-03-16 15:00", 1)), bar="1m", to="1h", calendar="XNYS", outside="drop").equals(nothing)


CASES = [
    ("XNYS", "1h", "clock"),
    ("XNYS", "1h", "session"),
    ("XHKG", "2h", "clock"),
    ("CMES", "4h", "clock"),
    ("CMES", "1d", "clock"),
    ("XNYS", "1w", "clock"),
]


@settings(max_examples=60, deadline=None)
@given(case=st.sampled_from(CASES), seed=st.integers(0, 2**32 - 1), share=st.floats(0.02, 1), cut=st.floats(0, 1))
def test_cutting_the_bars_at_any_time_changes_no_larger_bar_up_to_then(
    case: tuple[str, str, Any], seed: int, share: float, cut: float
) -> None:
    calendar, to, anchor = case
    minutes = _random(calendar, seed, share)
    if minutes.is_empty():
        return
    until = at("2024-03-07 00:00") + cut * timedelta(days=14)
    options = {"bar": "15m", "to": to, "calendar": calendar, "anchor": anchor}
    whole = resample(minutes, until=at("2024-04-01 00:00"), **options)
    part = resample(minutes.filter(pl.col("ts") <= until), until=until, **options)
    assert_frame_equal(part, whole.filter(pl.col("ts") <= until), check_exact=True)
    assert whole["volume"].sum() == pytest.approx(minutes["volume"].sum())
    # Every bar is in a larger one, which is known no earlier than it.
    after = minutes.join_asof(
        whole.select("symbol", end="ts"),
        left_on="ts",
        right_on="end",
        by="symbol",
        strategy="forward",
        check_sortedness=False,
    )
    assert after["end"].null_count() == 0


@settings(max_examples=30, deadline=None)
@given(case=st.sampled_from(CASES), seed=st.integers(0, 2**32 - 1), share=st.floats(0.02, 1))
def test_two_steps_give_what_one_gives(case: tuple[str, str, Any], seed: int, share: float) -> None:
    calendar, to, anchor = case
    minutes = _random(calendar, seed, share)
    until = at("2024-04-01 00:00")
    half = resample(minutes, bar="15m", to="30m", calendar=calendar, anchor=anchor, until=until)
    options = {"to": to, "calendar": calendar, "anchor": anchor, "until": until}
    assert_frame_equal(resample(half, bar="30m", **options), resample(minutes, bar="15m", **options), check_exact=True)


def _random(calendar: str, seed: int, share: float) -> pl.DataFrame:
    """Return bars of whole volumes over two weeks with a change of clocks, a share of them missing."""
    random = np.random.default_rng(seed)
    grid = trading(calendar, date(2024, 3, 7), date(2024, 3, 20), bar="15m")
    frames = []
    for symbol in ("AAA", "BBB"):
        walk = random.normal(size=len(grid)).cumsum()
        close = pl.Series(walk + random.normal(size=len(grid)))
        frames.append(
            grid.with_columns(
                symbol=pl.lit(symbol),
                open=pl.Series(walk),
                high=pl.max_horizontal(pl.Series(walk), close) + 1,
                low=pl.min_horizontal(pl.Series(walk), close) - 1,
                close=close,
                volume=pl.Series(random.integers(0, 100, len(grid))).cast(pl.Float64),
            ).filter(pl.Series(random.random(len(grid)) < share))
        )
    return pl.concat(frames)
