"""When bars open, and the first bar that an order meets."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foxflow.bars import TS
from foxflow.config import Backtest
from foxflow.portfolio.delay import due, opens


def at(*times: tuple[int, ...]) -> pl.Series:
    return pl.Series([datetime(2024, *t, tzinfo=UTC) for t in times], dtype=TS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bar", "calendar", "ends", "starts"),
    [
        # New York opens at 14:30 UTC in winter, at 13:30 in summer.
        ("1d", "XNYS", [(3, 7, 21), (3, 8, 21), (3, 11, 20)], [(3, 7, 14, 30), (3, 8, 14, 30), (3, 11, 13, 30)]),
        # A day that is missing makes the next no longer.
        ("1d", "XNYS", [(1, 8, 21), (1, 10, 21)], [(1, 8, 14, 30), (1, 10, 14, 30)]),
        # A week opens with its first session, which after New Year's Day is Tuesday.
        ("1w", "XNYS", [(1, 5, 21), (1, 12, 21)], [(1, 2, 14, 30), (1, 8, 14, 30)]),
        # The first bar of a session on the clock is half an hour; none begins before the bar before it ends.
        ("1h", "XNYS", [(1, 8, 15), (1, 8, 16), (1, 8, 21)], [(1, 8, 14, 30), (1, 8, 15), (1, 8, 20)]),
        # Hong Kong rests from 04:00 to 05:00 in UTC.
        ("1h", "XHKG", [(1, 8, 4), (1, 8, 5, 30)], [(1, 8, 3), (1, 8, 5)]),
        # Around the clock a bar opens as the one before it ends.
        ("1d", "24/7", [(1, 6), (1, 7), (1, 8)], [(1, 5), (1, 6), (1, 7)]),
    ],
)  # fmt: skip
def test_a_bar_opens_with_its_session_or_its_length_before_its_end(
    bar: str, calendar: str, ends: list[tuple[int, ...]], starts: list[tuple[int, ...]]
) -> None:
    assert opens(at(*ends), bar=bar, calendar=calendar).to_list() == at(*starts).to_list()


def test_a_day_around_the_clock_is_missed_by_a_second_and_a_session_by_the_night() -> None:
    days = at((1, 8), (1, 9), (1, 10), (1, 11))
    assert due(days, Backtest(delay_s=1.0), bar="1d", calendar="24/7").tolist() == [2, 3, 4, 4]
    assert due(days, Backtest(delay_s=1.0, fill="next_close"), bar="1d", calendar="24/7").tolist() == [1, 2, 3, 4]
    assert due(days, Backtest(delay_s=1.0, delay_bars=1), bar="1d", calendar="24/7").tolist() == [3, 4, 5, 5]
    sessions = at((1, 8, 21), (1, 9, 21), (1, 10, 21))
    assert due(sessions, Backtest(delay_s=3600.0), bar="1d", calendar="XNYS").tolist() == [1, 2, 3]


@given(
    gaps=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    delay_s=st.integers(0, 86_400),
    delay_bars=st.integers(0, 3),
)
def test_no_order_is_filled_before_it_is_in_the_market(gaps: list[int], delay_s: int, delay_bars: int) -> None:
    times, now = [], datetime(2024, 1, 1, tzinfo=UTC)
    for gap in gaps:
        now += timedelta(minutes=15 * gap)
        times.append(now)
    series = pl.Series(times, dtype=TS)
    found = due(series, Backtest(delay_s=float(delay_s), delay_bars=delay_bars), bar="15m", calendar="24/7")
    for i, k in enumerate(found):
        assert k >= i + 1 + delay_bars
        if k - delay_bars < len(times):
            assert times[k - delay_bars] - timedelta(minutes=15) >= times[i] + timedelta(seconds=delay_s)
        # And by the first bar that it could be.
        if k - delay_bars - 1 > i and delay_s:
            assert times[k - delay_bars - 1] - timedelta(minutes=15) < times[i] + timedelta(seconds=delay_s)
