"""Which bars and memberships end, who is closed at what, and who is refused."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from conftest import daily_bars

from foxflow import endings
from foxflow.endings import Ended
from foxflow.errors import DataError
from foxflow.universe import EVERYTHING, UNIVERSE_SCHEMA, Universe

FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)
Row = tuple[str, int, int | None, float | None, int]


def day(number: int) -> datetime:
    return FIRST + timedelta(days=number)


def universe(*rows: Row) -> Universe:
    dated = [(s, day(since), None if until is None else day(until), r, day(k)) for s, since, until, r, k in rows]
    return Universe.of(pl.DataFrame(dated, schema=UNIVERSE_SCHEMA, orient="row"))


def bars(last: int, *, n: int = 30) -> pl.DataFrame:
    """Return A with `n` daily bars and Z, priced by its day, with bars up to day `last`."""
    z = [100.0 + i for i in range(last + 1)]
    return pl.concat([daily_bars([10.0] * n, symbol="A"), daily_bars(z, symbol="Z")])


def find(frame: pl.DataFrame, members: Universe, *, ended: Ended | None = None) -> list[tuple[object, ...]]:
    """Return the endings of Z; every day is a session of the calendar."""
    found = endings.find(frame, members, symbols=["A", "Z"], ended=ended, calendar="24/7")
    own = endings.own_times(frame, ["A", "Z"])
    times = frame["ts"].unique().sort().dt.timestamp("us").to_numpy()
    endings.require_recorded(own, members, times=times, ended=ended, calendar="24/7")
    return found.select("kind", "last_ts", "close", "ts", "price").rows()


BOTH: tuple[Row, ...] = (("A", -1, None, None, -1), ("Z", -1, None, None, -1))


def test_a_recorded_return_applies_to_the_last_close_at_the_bar_after_the_end() -> None:
    members = universe(*BOTH, ("Z", -1, 9, -0.6, 9))
    assert find(bars(9), members) == [("delisted", day(9), 109.0, day(10), pytest.approx(109.0 * 0.4))]
    # Z's last bar is two days before its end: nobody knew before that it was the last.
    assert find(bars(7), members) == [("delisted", day(7), 107.0, day(10), pytest.approx(107.0 * 0.4))]
    # Bars go on after the end, as of a new company of that name: the membership's own last close counts.
    assert find(bars(29), members) == [("delisted", day(9), 109.0, day(10), pytest.approx(109.0 * 0.4))]


def test_a_return_is_paid_when_it_is_known_and_at_the_latest_at_the_last_bar() -> None:
    members = universe(*BOTH, ("Z", -1, 9, None, 9), ("Z", -1, 9, -0.6, 14))
    assert find(bars(9), members)[0][3] == day(14)
    members = universe(*BOTH, ("Z", -1, 9, -0.6, 99))
    assert find(bars(9), members)[0][3] == day(29)
    # Once paid it is paid: what is learned after that comes too late.
    members = universe(*BOTH, ("Z", -1, 9, -0.6, 9), ("Z", -1, 9, -0.2, 20))
    assert find(bars(9), members) == [("delisted", day(9), 109.0, day(10), pytest.approx(109.0 * 0.4))]
    # A return corrected before it was due is the corrected one.
    members = universe(*BOTH, ("Z", -1, 9, -0.6, 5), ("Z", -1, 9, -0.2, 8))
    assert find(bars(9), members)[0][4] == pytest.approx(109.0 * 0.8)


def test_a_return_that_falls_after_the_last_bar_is_said_to_be_open() -> None:
    members = universe(*BOTH, ("Z", -1, 29, -0.6, 29))
    assert find(bars(29), members) == [("open", day(29), 129.0, None, None)]


@pytest.mark.parametrize("members", [EVERYTHING, universe(*BOTH), universe(*BOTH, ("Z", -1, 9, None, 9))])
def test_bars_that_end_with_nothing_recorded_are_refused_by_name_or_closed_when_asked(members: Universe) -> None:
    for last in (9, 23):
        expected = (
            f"Z has no bar after 2024-01-{1 + last:02d} 21:00Z, {29 - last} sessions before .* record its end and "
            'delisting return .* ended = "last_close"'
        )
        if last == 23 and members.is_recorded and len(members.memberships["Z"]) > 1:
            continue
        with pytest.raises(DataError, match=expected):
            find(bars(last), members)
        with pytest.raises(DataError, match=expected):
            endings.require_recorded(
                endings.own_times(bars(last), ["Z"]),
                members,
                times=bars(last)["ts"].unique().sort().dt.timestamp("us").to_numpy(),
                ended=None,
                calendar="24/7",
            )
    # On the sixth day without a bar its end shows: on the fifth it may have been a pause.
    assert find(bars(9), members, ended="last_close") == [("last close", day(9), 109.0, day(15), 109.0)]
    assert find(bars(9, n=15), members, ended="last_close") == [("open", day(9), 109.0, None, None)]
    assert find(bars(9, n=16), members, ended="last_close") == [("last close", day(9), 109.0, day(15), 109.0)]


def test_a_symbol_a_few_bars_behind_is_open_and_one_that_was_sold_is_of_no_concern() -> None:
    assert find(bars(24), universe(*BOTH)) == [("open", day(24), 124.0, None, None)]
    assert find(bars(29), EVERYTHING) == []
    # Known on its last day to leave, sold on the day after: what comes later is not held.
    assert find(bars(10), universe(*BOTH, ("Z", -1, 8, None, 8))) == []
    # Known at its last bar but one, sold at its last.
    assert find(bars(9), universe(*BOTH, ("Z", -1, 8, None, 8))) == []
    assert find(bars(9), universe(BOTH[0])) == []
    # The same where the day it left had no bar of its own, and where it was known only in between.
    halted = bars(9).filter((pl.col("symbol") == "A") | (pl.col("ts") != day(8)))
    assert find(halted, universe(*BOTH, ("Z", -1, 8, None, 8))) == []
    assert find(halted, universe(*BOTH, ("Z", -1, 7, None, 8))) == []


def test_few_bars_of_many_sessions_and_many_bars_of_few_sessions_are_no_end() -> None:
    weekly = (
        pl.concat([bars(9), bars(14).filter(pl.col("symbol") == "A")]).unique(["symbol", "ts"]).sort("symbol", "ts")
    )
    sparse = weekly.with_columns(ts=pl.lit(FIRST) + (pl.col("ts") - pl.lit(FIRST)) * 7).cast(
        {"ts": weekly.schema["ts"]}
    )
    sparse = sparse.filter((pl.col("symbol") == "Z") | (pl.col("ts") <= day(7 * 14)))
    assert find(sparse, EVERYTHING)[0][0] == "open"
    minutes = bars(9).with_columns(ts=pl.lit(FIRST) + (pl.col("ts") - pl.lit(FIRST)) / 1440)
    assert find(minutes.cast({"ts": weekly.schema["ts"]}), EVERYTHING)[0][0] == "open"


def test_exits_are_the_first_bar_times_at_which_a_member_is_known_to_be_none() -> None:
    times = endings.bar_times(bars(29))
    late = universe(*BOTH, ("Z", -1, 9, None, 12), ("Z", 15, None, None, 15), ("Z", 15, 20, None, 18))
    assert endings.exits(["A", "Z"], late, times=times).rows() == [("Z", day(12)), ("Z", day(20))]
    known = universe(*BOTH, ("Z", -1, 9, None, 5))
    assert endings.exits(["Z"], known, times=times)["ts"].to_list() == [day(9)]
    # A holiday on day 9: the next time at which there is any bar.
    assert endings.exits(["Z"], known, times=times[times != times[9]])["ts"].to_list() == [day(10)]
    assert endings.exits(["Z"], EVERYTHING, times=times).is_empty()
    assert endings.exits(["Z"], known, times=times[:0]).is_empty()
