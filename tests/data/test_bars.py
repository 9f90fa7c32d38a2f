from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest
from conftest import daily_bars
from hypothesis import given, settings
from hypothesis import strategies as st

from foxflow import adjustment, bars
from foxflow.bars import EVENT_SCHEMA
from foxflow.errors import DataError

DAY = timedelta(days=1)
FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)


def events(*rows: tuple[int, str, float], symbol: str = "AAA") -> pl.DataFrame:
    """Return events of one symbol: the number of the bar, the kind, the value."""
    return pl.DataFrame([(symbol, FIRST + n * DAY, k, v) for n, k, v in rows], schema=EVENT_SCHEMA, orient="row")


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("1s", timedelta(seconds=1)),
        ("5m", timedelta(minutes=5)),
        ("4h", timedelta(hours=4)),
        ("1d", timedelta(days=1)),
    ],
)
def test_bar_length_is_the_number_times_the_unit(name: str, length: timedelta) -> None:
    assert bars.bar_length(name) == length


@pytest.mark.parametrize("name", ["", "1", "m", "0m", "01m", "1min", "1M", "-1d", "1 d", "1d\n", "1.5h", "123456s"])
def test_bar_length_refuses_what_is_no_number_and_unit(name: str) -> None:
    with pytest.raises(DataError, match="expected a number and one of s, m, h, d"):
        bars.bar_length(name)


def test_session_closes_skip_holidays_and_end_half_days_early() -> None:
    closes = bars.session_closes("XNYS", date(2012, 11, 21), date(2012, 11, 26))
    assert closes.rows() == [
        (date(2012, 11, 21), datetime(2012, 11, 21, 21, tzinfo=UTC)),
        (date(2012, 11, 23), datetime(2012, 11, 23, 18, tzinfo=UTC)),
        (date(2012, 11, 26), datetime(2012, 11, 26, 21, tzinfo=UTC)),
    ]


def test_session_closes_follow_daylight_saving_of_the_exchange() -> None:
    new_york = bars.session_closes("XNYS", date(2024, 3, 8), date(2024, 3, 11))["ts"].dt.hour().to_list()
    london = bars.session_closes("XLON", date(2024, 3, 28), date(2024, 4, 2))["ts"].dt.hour().to_list()
    assert (new_york, london) == ([21, 20], [16, 15])


def test_a_session_has_the_date_of_its_close_and_its_lunch_break() -> None:
    at = lambda day, hour, minute=0: datetime(2024, 3, day, hour, minute, tzinfo=UTC)  # noqa: E731
    # Monday after the clocks went forward: midnight in Chicago is 05:00 in UTC, one day before it was 06:00.
    assert bars.sessions("CMES", date(2024, 3, 8), date(2024, 3, 11)).rows() == [
        (date(2024, 3, 8), at(8, 6), at(7, 23), None, None, at(8, 23)),
        (date(2024, 3, 11), at(11, 5), at(10, 22), None, None, at(11, 22)),
    ]
    assert bars.sessions("XHKG", date(2024, 3, 8), date(2024, 3, 8)).rows() == [
        (date(2024, 3, 8), at(7, 16), at(8, 1, 30), at(8, 4), at(8, 5), at(8, 8))
    ]


def test_a_date_begins_with_its_midnight_in_the_zone_of_the_exchange() -> None:
    # On Sunday the 4th, Sao Paulo's clocks went forward over midnight itself.
    assert bars.sessions("BVMF", date(2018, 11, 1), date(2018, 11, 5))["day"].to_list() == [
        datetime(2018, 11, 1, 3, tzinfo=UTC),
        datetime(2018, 11, 5, 2, tzinfo=UTC),
    ]


def test_a_session_that_never_ends_closes_at_the_next_midnight() -> None:
    assert bars.session_closes("24/7", date(2024, 3, 9), date(2024, 3, 9)).rows() == [
        (date(2024, 3, 9), datetime(2024, 3, 10, tzinfo=UTC))
    ]


def test_an_unknown_calendar_and_dates_it_does_not_cover_are_refused() -> None:
    with pytest.raises(DataError, match=r"unknown calendar 'NYSE!'.*as in XNYS"):
        bars.session_closes("NYSE!", date(2024, 1, 1), date(2024, 1, 31))
    with pytest.raises(DataError, match=r"calendar XKRX from 1950-01-03 .*1956"):
        bars.session_closes("XKRX", date(1950, 1, 3), date(1950, 1, 31))
    with pytest.raises(DataError, match="calendar XNYS from 0001-01-01"):
        bars.session_closes("XNYS", date(1, 1, 1), date(1, 1, 31))


def test_sessions_per_year_differ_by_calendar() -> None:
    assert (bars.sessions_per_year("XNYS"), bars.sessions_per_year("24/7")) == (252, 365)


def test_require_sorts_by_symbol_and_time() -> None:
    both = pl.concat([daily_bars([1, 2], symbol="BBB"), daily_bars([3, 4], symbol="AAA")])
    ready = bars.require(both.reverse(), where="here")
    assert ready["open"].to_list() == [3, 4, 1, 2]


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("close", None, "missing value"),
        ("open", float("nan"), "missing value"),
        ("high", float("inf"), "missing value"),
        ("volume", float("nan"), "missing value"),
        ("volume", float("inf"), "missing value"),
        ("volume", -1.0, "negative volume"),
        ("high", 19.5, "high or low"),
        ("low", 20.5, "high or low"),
    ],
)
def test_require_refuses_a_bar_that_breaks_an_invariant(column: str, value: float | None, fault: str) -> None:
    second = pl.col("ts") == FIRST + DAY
    broken = daily_bars([10, 20, 30]).with_columns(pl.when(second).then(value).otherwise(column).alias(column))
    with pytest.raises(DataError, match=rf"^here: 1 bad bar\(s\), first AAA at 2024-01-02 21:00Z: {fault}"):
        bars.require(broken, where="here")


def test_require_refuses_a_repeated_bar_and_another_schema() -> None:
    once = daily_bars([10, 20])
    with pytest.raises(DataError, match=r"2 bad bar\(s\), first AAA at 2024-01-02 21:00Z: repeated bar"):
        bars.require(pl.concat([once, once.tail(1)]), where="here")
    with pytest.raises(DataError, match="here: columns"):
        bars.require(once.drop("volume"), where="here")
    with pytest.raises(DataError, match="here: columns"):
        bars.require(once.with_columns(pl.col("ts").dt.replace_time_zone(None)), where="here")


def test_an_unknown_volume_is_no_fault() -> None:
    odd = pl.col("ts").dt.day() % 2 == 0
    bare = daily_bars([10, 20, 30, 40]).with_columns(volume=pl.when(odd).then(None).otherwise("volume"))
    both = pl.concat([bare, daily_bars([5, 5], symbol="BBB")])
    assert bars.require(both, where="here")["volume"].to_list() == [1000, None, 1000, None, 1000, 1000]


def test_adjusting_an_unknown_volume_leaves_it_unknown() -> None:
    bare = daily_bars([100, 50]).with_columns(volume=pl.lit(None, dtype=pl.Float64))
    assert adjustment.adjust(bare, events((1, "split", 2.0)))["volume"].to_list() == [None, None]


def test_a_split_leaves_the_return_and_divides_the_volume() -> None:
    adjusted = adjustment.adjust(daily_bars([100, 51]), events((1, "split", 2.0)))
    assert adjusted["close"].to_list() == [100.0, 102.0]
    assert adjusted["volume"].to_list() == [1000.0, 500.0]


def test_a_dividend_is_reinvested_at_the_previous_close_less_the_dividend() -> None:
    adjusted = adjustment.adjust(daily_bars([100, 98, 49]), events((1, "dividend", 2.0)))
    assert adjusted["close"].to_list() == pytest.approx([100.0, 100.0, 50.0], abs=1e-12)
    assert adjusted["volume"].to_list() == [1000.0, 1000.0, 1000.0]


def test_events_of_one_symbol_leave_the_others_alone() -> None:
    both = pl.concat([daily_bars([100, 50], symbol="AAA"), daily_bars([100, 50], symbol="BBB")])
    adjusted = adjustment.adjust(both, events((1, "split", 2.0), symbol="BBB"))
    assert adjusted["close"].to_list() == [100.0, 50.0, 100.0, 100.0]


def test_adjust_refuses_an_event_without_a_bar_and_a_dividend_above_the_price() -> None:
    gap = daily_bars([100, 100, 100, 50]).filter(pl.col("ts") != FIRST + 2 * DAY)
    with pytest.raises(DataError, match=r"1 split\(s\) or dividend\(s\) without a bar, first AAA at 2024-01-03 21:00Z"):
        adjustment.adjust(gap, events((2, "split", 2.0)))
    with pytest.raises(DataError, match=r"dividend 100\.0 of AAA at 2024-01-02 is not below the previous close 100\.0"):
        adjustment.adjust(daily_bars([100, 50]), events((1, "dividend", 100.0)))


def test_events_before_the_first_bar_and_after_the_last_change_nothing() -> None:
    raw = daily_bars([100, 50])
    assert adjustment.adjust(raw, events((-3, "split", 7.0), (2, "split", 2.0), (5, "dividend", 500.0))).equals(raw)


@settings(max_examples=40, deadline=None)
@given(
    closes=st.lists(st.floats(5, 500), min_size=3, max_size=12),
    kinds=st.lists(st.sampled_from(["none", "split", "dividend"]), min_size=12, max_size=12),
    cut=st.integers(1, 11),
)
def test_adjust_at_t_reads_nothing_after_t(closes: list[float], kinds: list[str], cut: int) -> None:
    raw = daily_bars(closes)
    rows = [(n, k, 3.0 if k == "split" else 1.0) for n, k in enumerate(kinds[: len(closes)]) if n and k != "none"]
    seen = pl.col("ts") <= FIRST + cut * DAY
    whole = adjustment.adjust(raw, events(*rows))
    # Announced or not, what comes after t makes no difference.
    assert adjustment.adjust(raw.filter(seen), events(*rows).filter(seen)).equals(whole.filter(seen))
    assert adjustment.adjust(raw.filter(seen), events(*rows)).equals(whole.filter(seen))


def test_bars_are_named_by_their_values_in_whatever_order_they_come() -> None:
    some = daily_bars([1.0, 2.0, 3.0]).vstack(daily_bars([4.0, 5.0, 6.0], symbol="BBB"))
    digest = bars.sha256(some)
    assert bars.sha256(some.reverse()) == digest
    assert len({digest, bars.sha256(some.head(5)), bars.sha256(some.with_columns(close=pl.col("close") + 1e-12))}) == 3
    unknown = some.with_columns(volume=pl.lit(None, pl.Float64))
    assert bars.sha256(unknown) not in (digest, bars.sha256(some.with_columns(volume=0.0)))


@pytest.mark.parametrize(
    ("calendar", "start", "end"),
    [
        ("XNYS", date(2010, 6, 1), date(2026, 6, 1)),
        ("XTKS", date(1998, 1, 5), date(1998, 6, 1)),
        # These begin within the years that most reads share.
        ("AIXK", date(2020, 1, 1), date(2020, 3, 1)),
        ("XSAU", date(2022, 1, 1), date(2022, 3, 1)),
    ],
)
def test_sessions_are_those_of_a_calendar_made_for_their_own_days(calendar: str, start: date, end: date) -> None:
    assert bars.sessions(calendar, start, end).equals(bars._sessions(calendar, start, end))
