"""Bars as they came, and as they were known when a fold was fitted."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from conftest import daily_bars
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from foxflow import bars, config, market, sample, store
from foxflow.bars import EVENT_SCHEMA
from foxflow.config import Config
from foxflow.errors import DataError

FIRST_DAY = datetime(2024, 1, 1, 21, tzinfo=UTC)


def experiment_of(*symbols: str) -> Config:
    names = ",".join(f'"{s}"' for s in symbols)
    return config.load("returns", overrides=["data.source=store", f"data.symbols=[{names}]"])


def day(number: int) -> datetime:
    """Return the time of that bar of `daily_bars`."""
    return FIRST_DAY + timedelta(days=number)


def us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def correct(path: Path, *, symbol: str, at: int, to: float, known_at: datetime) -> None:
    """Say that every price of a bar was another."""
    row = daily_bars([to], symbol=symbol, start=at)
    assert store.correct_bars(path, row, bar="1d", known_at=known_at).corrected == 1


def test_ten_years_imported_tonight_are_known_day_by_day(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    ten = sample.load_bars().filter(pl.col("symbol") == "IBM", pl.col("ts").dt.year().is_between(2000, 2009))
    store.write_bars(path, ten, bar="1d")
    known = store.read_bars(path, bar="1d", as_of=datetime(2005, 6, 1, tzinfo=UTC))
    assert_frame_equal(known, ten.filter(pl.col("ts") <= datetime(2005, 6, 1, tzinfo=UTC)))
    # By the calendar of the exchange: the bar of the 1st of June is complete at 20:00 UTC of that day, and not known.
    sessions = bars.session_closes("XNYS", date(2000, 3, 1), date(2005, 5, 31))
    assert known["ts"].to_list() == sessions["ts"].to_list()


def test_a_delay_moves_what_was_known_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_bars(path, daily_bars([1.0, 2.0, 3.0]), bar="1d", delay=timedelta(hours=3))
    early, late = (day(1) + timedelta(hours=3, microseconds=n) for n in (-1, 0))
    assert len(store.read_bars(path, bar="1d", as_of=early)) == 1
    assert len(store.read_bars(path, bar="1d", as_of=late)) == 2


def test_bars_that_were_never_corrected_are_one_frame_for_every_cut(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_bars(path, daily_bars([1.0, 2.0, 3.0]), bar="1d")
    pulled = market.pull(experiment_of("AAA"), path)
    assert_frame_equal(pulled.first, daily_bars([1.0, 2.0, 3.0]))
    assert all(pulled.as_of(us(day(n))) is pulled.first for n in range(-1, 5))
    assert pulled.corrected.is_empty()


def test_a_cut_sees_a_correction_from_the_instant_it_was_known(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_bars(path, pl.concat([daily_bars([1.0] * 6), daily_bars([5.0] * 6, symbol="BBB")]), bar="1d")
    correct(path, symbol="BBB", at=2, to=7.0, known_at=day(4))
    correct(path, symbol="BBB", at=2, to=8.0, known_at=day(5))
    pulled = market.pull(experiment_of("AAA", "BBB"), path)

    def seen(cut: int) -> list[float]:
        rows = pulled.as_of(cut)
        assert rows.filter(pl.col("symbol") == "AAA")["close"].to_list() == [1.0] * 6
        return rows.filter(pl.col("symbol") == "BBB")["close"].to_list()

    assert pulled.first.filter(pl.col("symbol") == "BBB")["close"].to_list() == [5.0] * 6
    assert seen(us(day(4)) - 1) == [5.0] * 6
    assert seen(us(day(4))) == [5.0, 5.0, 7.0, 5.0, 5.0, 5.0]
    assert seen(us(day(5)) - 1) == [5.0, 5.0, 7.0, 5.0, 5.0, 5.0]
    assert seen(us(day(5))) == [5.0, 5.0, 8.0, 5.0, 5.0, 5.0]
    cuts = [us(day(3)), us(day(4)), us(day(5)) - 1, us(day(5)), us(day(9))]
    assert [pulled.corrected_at(c) for c in cuts] == [None, us(day(4)), us(day(4)), us(day(5)), us(day(5))]


def test_a_correction_of_a_symbol_or_bar_length_that_is_not_asked_for_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    both = pl.concat([daily_bars([1.0] * 3), daily_bars([5.0] * 3, symbol="BBB")])
    for bar in ("1d", "1h"):
        store.write_bars(path, both, bar=bar)
    correct(path, symbol="BBB", at=1, to=7.0, known_at=day(2))
    hourly = daily_bars([9.0], start=1)
    store.correct_bars(path, hourly, bar="1h", known_at=day(2))
    pulled = market.pull(experiment_of("AAA"), path)
    assert pulled.as_of(us(day(9))) is pulled.first
    assert pulled.first["close"].to_list() == [1.0] * 3


def test_corrected_bars_are_adjusted_as_bars_imported_right_would_be(tmp_path: Path) -> None:
    path, right = tmp_path / "bars.duckdb", tmp_path / "right.duckdb"
    events = pl.DataFrame(
        [("AAA", day(2), "split", 2.0), ("AAA", day(4), "dividend", 10.0)], schema=EVENT_SCHEMA, orient="row"
    )
    prices = [100.0, 100.0, 50.0, 50.0, 40.0, 40.0]
    for place, third in ((path, 80.0), (right, 50.0)):
        wrong = [*prices[:3], third, *prices[4:]]
        store.write_bars(place, daily_bars(wrong), bar="1d")
        store.write_events(place, events)
    # The bar before the dividend: every adjusted price from the dividend on hangs on its close.
    correct(path, symbol="AAA", at=3, to=50.0, known_at=day(5))
    pulled, expected = (market.pull(experiment_of("AAA"), p) for p in (path, right))
    assert_frame_equal(pulled.as_of(us(day(5))), expected.first, check_exact=True)
    # One first share: 2 after the split, 2 / (1 - 10 / 50) after the dividend.
    assert expected.first["close"].to_list() == pytest.approx([100.0, 100.0, 100.0, 100.0, 100.0, 100.0])
    assert pulled.first["close"].to_list()[3] == 160.0


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    corrections=st.lists(
        st.tuples(st.sampled_from(["AAA", "BBB"]), st.integers(0, 7), st.integers(1, 9)), max_size=8, unique=True
    ),
    cut=st.integers(0, 12),
)
def test_a_cut_sees_what_replaying_the_days_up_to_it_would_have_left(
    corrections: list[tuple[str, int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("store") / "bars.duckdb"
    first = pl.concat([daily_bars([10.0 + i for i in range(8)], symbol=s) for s in ("AAA", "BBB")])
    store.write_bars(path, first, bar="1d")
    seen = {(s, i): 10.0 + i for s in ("AAA", "BBB") for i in range(8)}
    later = sorted((at + after, symbol, at) for symbol, at, after in corrections)
    for number, (known, symbol, at) in enumerate(later):
        correct(path, symbol=symbol, at=at, to=100.0 + number, known_at=day(known))
        if known <= cut:
            seen[symbol, at] = 100.0 + number
    pulled = market.pull(experiment_of("AAA", "BBB"), path)
    assert_frame_equal(pulled.first, bars.require(first, where="test"))
    assert pulled.as_of(us(day(cut)))["close"].to_list() == [seen[s, i] for s in ("AAA", "BBB") for i in range(8)]


def test_events_count_for_a_symbol_from_its_second_bar_to_its_last(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    both = pl.concat([daily_bars([10.0, 10.0, 10.0, 4.5]), daily_bars([10.0] * 4, symbol="BBB", start=2)])
    store.write_bars(path, both, bar="1d")
    rows = [
        ("AAA", day(0), "dividend", 1.0),
        ("AAA", day(1), "dividend", 1.0),
        ("AAA", day(3), "split", 2.0),
        ("AAA", day(3), "dividend", 1.0),
        ("AAA", day(4), "split", 2.0),
        ("BBB", day(1), "split", 2.0),
    ]
    store.write_events(path, pl.DataFrame(rows, schema=EVENT_SCHEMA, orient="row"))
    found = market.pull(experiment_of("AAA", "BBB"), path).adjustments()
    assert found == {"AAA": {"dividend": 2, "split": 1}, "BBB": {"dividend": 0, "split": 0}}


def known_late(path: Path, rows: pl.DataFrame, *, bar: str, delay: timedelta) -> Path:
    store.write_bars(path, rows, bar=bar, delay=delay)
    return path


# Of daily bars at New York's close, 21:00 UTC, with the next open at 14:30.
@pytest.mark.parametrize(("hours", "is_refused"), [(0, False), (17.5, False), (17.6, True), (24, True)])
def test_bars_known_only_when_the_next_has_opened_are_refused_for_they_cannot_be_traded_there(
    hours: float, is_refused: bool, tmp_path: Path
) -> None:
    days = pl.concat([daily_bars([1.0, 2.0, 3.0], start=1), daily_bars([9.0, 9.0], symbol="BBB", start=1)])
    path = known_late(tmp_path / "bars.duckdb", days, bar="1d", delay=timedelta(hours=hours))
    if not is_refused:
        assert market.pull(experiment_of("AAA"), path).first["close"].to_list() == [1.0, 2.0, 3.0]
        return
    message = r"AAA: bars of 1d were known up to .* after .* at 2024-01-02 21:00Z not before .* at 2024-01-03 14:30Z"
    with pytest.raises(DataError, match=message):
        market.pull(experiment_of("AAA"), path)


def hours_of(*times: str) -> pl.DataFrame:
    ts = pl.Series(times).str.to_datetime("%Y-%m-%d %H:%M", time_unit="us", time_zone="UTC")
    return daily_bars([10.0] * len(times)).with_columns(ts=ts)


@pytest.mark.parametrize(
    ("calendar", "times", "opens"),
    [
        # Within a session the next hour opens when this one ends.
        ("XNYS", ("2024-01-02 16:00", "2024-01-02 17:00"), "2024-01-02 16:00"),
        # After a halt it opens an hour before its end.
        ("XNYS", ("2024-01-02 16:00", "2024-01-02 19:00"), "2024-01-02 18:00"),
        # The first hour of a session, on the clock, is its first half hour.
        ("XNYS", ("2024-01-02 21:00", "2024-01-03 15:00"), "2024-01-03 14:30"),
        ("XTKS", ("2024-01-04 02:30", "2024-01-04 04:00"), "2024-01-04 03:30"),
        ("24/7", ("2024-01-02 23:00", "2024-01-03 00:00"), "2024-01-02 23:00"),
        # Summer time begins in New York on the 10th.
        ("XNYS", ("2024-03-08 21:00", "2024-03-11 14:00"), "2024-03-11 13:30"),
    ],
)
def test_a_bar_may_be_known_until_the_next_one_opens(
    calendar: str, times: tuple[str, str], opens: str, tmp_path: Path
) -> None:
    rows = hours_of(*times)
    delay = hours_of(opens)["ts"][0] - rows["ts"][0]
    chosen = config.load(
        "returns",
        overrides=["data.source=store", "data.symbols=[]", "data.bar=1h", f"data.calendar={calendar}"],
    )
    in_time = known_late(tmp_path / "in_time.duckdb", rows, bar="1h", delay=delay)
    assert len(market.pull(chosen, in_time).first) == 2
    late = known_late(tmp_path / "late.duckdb", rows, bar="1h", delay=delay + timedelta(seconds=1))
    with pytest.raises(DataError, match=f"not before the next had opened at {opens}Z"):
        market.pull(chosen, late)
