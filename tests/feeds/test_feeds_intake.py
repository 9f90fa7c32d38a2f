"""From a source into the store: every bar once, whatever happens on the way."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from source_fixtures import fetch, installed  # noqa: F401  (fixtures)
from source_samples import HOUR, START, Freely, Toy, hourly

from foxflow import store
from foxflow.errors import ConfigError, DataError, FoxflowError, PluginError, UnavailableError
from foxflow.feeds import intake

Fetch = Callable[..., list[intake.Fetched]]


def at(hour: float) -> datetime:
    return START + hour * HOUR


def failing(*, on: set[int], error: Callable[[], Exception]) -> Callable[[], None]:
    """Return what raises the error on these of its calls, counted from 1."""
    calls = iter(range(1, 10_000))

    def before() -> None:
        if next(calls) in on:
            raise error()

    return before


def down(retry_after_s: float | None = None) -> Callable[[], Exception]:
    return lambda: UnavailableError("toy is down", retry_after_s=retry_after_s)


def stored(tmp_path: Path, **given: Any) -> pl.DataFrame:
    return store.read_bars(tmp_path / "s.duckdb", bar="1h", **given)


def test_every_bar_is_stored_once_and_was_known_after_its_delay(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 5)
    assert fetch(options={"delay_s": 60.0}) == [
        intake.Fetched("AAA", at(0), added=5, first_ts=at(1), last_ts=at(5)),
    ]
    assert stored(tmp_path).equals(Toy.bars)
    assert stored(tmp_path, as_of=at(3) + timedelta(seconds=59))["ts"].max() == at(2)
    assert stored(tmp_path, as_of=at(3) + timedelta(seconds=60))["ts"].max() == at(3)


def test_what_is_stored_is_not_asked_again_but_for_its_last_bar(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 5)
    fetch()
    Toy.bars = hourly("AAA", 1, 8)
    assert fetch() == [intake.Fetched("AAA", at(4), added=3, present=1, first_ts=at(5), last_ts=at(8))]
    assert Toy.asks == [(("AAA",), "1h", at(0), at(100)), (("AAA",), "1h", at(4), at(100))]
    assert stored(tmp_path).equals(Toy.bars)


def test_an_earlier_start_asks_only_for_what_is_missing_and_only_once(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 12, 30)
    fetch(start=at(20), end=at(30))
    Toy.asks.clear()
    fetch(start=at(10), end=at(30))
    assert Toy.asks == [(("AAA",), "1h", at(10), at(20))]
    assert fetch(start=at(10), end=at(30)) == [intake.Fetched("AAA")]
    assert len(Toy.asks) == 1
    assert stored(tmp_path).equals(Toy.bars)


def test_a_hole_between_two_fetches_is_filled_even_when_nothing_traded_in_its_last_hours(
    fetch: Fetch, tmp_path: Path
) -> None:
    Toy.bars = pl.concat([hourly("AAA", 1, 14), hourly("AAA", 21, 30)])
    fetch(start=at(0), end=at(10))
    fetch(start=at(20), end=at(30))
    Toy.asks.clear()
    fetch(start=at(0), end=at(30))
    assert Toy.asks == [(("AAA",), "1h", at(9), at(20))]
    fetch(start=at(0), end=at(30))
    assert len(Toy.asks) == 1
    assert stored(tmp_path).equals(Toy.bars)


def test_a_fetch_beside_others_asks_for_its_own_span_alone(fetch: Fetch) -> None:
    Toy.bars = hourly("AAA", 1, 40)
    fetch(start=at(0), end=at(10))
    fetch(start=at(20), end=at(30))
    Toy.asks.clear()
    fetch(start=at(0), end=at(5))
    assert not Toy.asks
    fetch(start=at(12), end=at(15))
    fetch(start=at(35), end=at(40))
    assert [ask[2:] for ask in Toy.asks] == [(at(12), at(15)), (at(35), at(40))]


def test_a_bar_that_is_published_late_is_not_taken_for_absent(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 5)
    fetch(now=8)
    Toy.bars = hourly("AAA", 1, 8)
    fetch(now=8.5)
    assert stored(tmp_path).equals(Toy.bars)


def test_a_length_has_one_name(fetch: Fetch) -> None:
    Toy.bars = hourly("AAA", 1, 5)
    fetch(bar="60m")
    fetch(bar="1h")
    assert [ask[1:3] for ask in Toy.asks] == [("1h", at(0)), ("1h", at(4))]


def test_symbols_that_miss_the_same_are_asked_together(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = pl.concat([hourly("AAA", 1, 5), hourly("BBB", 1, 5), hourly("CCC", 1, 3)])
    fetch(symbols=["AAA"])
    Toy.asks.clear()
    fetch(symbols=["AAA", "BBB", "CCC"])
    assert [ask[0] for ask in Toy.asks] == [("AAA",), ("BBB", "CCC")]
    assert stored(tmp_path).equals(Toy.bars)


def test_two_origins_are_two_histories(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 5)
    fetch()
    spans = store.read_fetched(tmp_path / "s.duckdb", origin="toy", bar="60m", symbols=["AAA", "BBB"])
    assert spans == {"AAA": [(at(0), at(5))], "BBB": []}
    assert store.read_fetched(tmp_path / "s.duckdb", origin="other", bar="1h", symbols=["AAA"]) == {"AAA": []}
    assert store.read_fetched(tmp_path / "none.duckdb", origin="toy", bar="1h", symbols=["AAA"]) == {"AAA": []}


def test_a_store_from_before_there_were_sources_has_fetched_nothing(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 5)
    with store.transaction(tmp_path / "s.duckdb") as inside:
        store.write_bars(inside, Toy.bars.head(2), bar="1h")
        inside.connection.execute("drop table fetched")
    assert fetch() == [intake.Fetched("AAA", at(0), added=3, present=2, first_ts=at(1), last_ts=at(5))]


@pytest.fixture
def restated(fetch: Fetch) -> Fetch:
    """Return a fetch whose source has changed the last bar that is stored."""
    Toy.bars = hourly("AAA", 1, 5)
    fetch()
    Toy.bars = pl.concat([hourly("AAA", 1, 4), hourly("AAA", 5, 8, close=11.0)])
    return fetch


def test_a_restated_bar_is_refused(restated: Fetch, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"toy .*AAA 1h at 2024-01-01 05:00Z: stored .*close 10.05, new .*close 11.05.*--on-conflict"
    ):
        restated()
    assert stored(tmp_path).equals(hourly("AAA", 1, 5))


def test_a_restated_bar_is_kept_under_that_rule(restated: Fetch, tmp_path: Path) -> None:
    (found,) = restated(conflict="keep")
    assert (found.added, found.kept, found.corrected) == (3, 1, 0)
    assert stored(tmp_path).equals(pl.concat([hourly("AAA", 1, 5), hourly("AAA", 6, 8, close=11.0)]))


def test_a_restated_bar_is_corrected_from_now_on_under_that_rule(restated: Fetch, tmp_path: Path) -> None:
    (found,) = restated(conflict="correct", now=50)
    assert (found.added, found.kept, found.corrected) == (3, 0, 1)
    assert stored(tmp_path).equals(Toy.bars)
    assert stored(tmp_path, as_of=at(49.9))["close"].to_list()[4] == 10.05
    assert stored(tmp_path, as_of=at(50))["close"].to_list()[4] == 11.05


def test_a_source_that_does_not_answer_is_asked_again_after_longer_and_longer_waits(
    fetch: Fetch, tmp_path: Path
) -> None:
    Toy.bars = hourly("AAA", 1, 5)
    Toy.before = failing(on={1, 2, 3}, error=down())
    waits: list[float] = []
    told: list[intake.Progress] = []
    fetch(wait=waits.append, progress=told.append)
    assert waits == [1.0, 2.0, 4.0]
    assert [(p.waiting_s, p.why) for p in told[:3]] == [(w, "toy is down") for w in waits]
    assert told[-1] == intake.Progress("AAA", at(0), at(100), at(5))
    assert stored(tmp_path).equals(Toy.bars)


def test_a_page_that_comes_through_starts_the_count_again_and_the_rest_is_asked_from_it(
    fetch: Fetch, tmp_path: Path
) -> None:
    Toy.bars = hourly("AAA", 1, 6)
    Toy.before = failing(on={2, 3, 5, 6}, error=down())
    waits: list[float] = []
    (found,) = fetch(wait=waits.append)
    assert waits == [1.0, 2.0, 1.0, 2.0]
    assert [ask[2] for ask in Toy.asks] == [at(0), at(1), at(1), at(2), at(2)]
    assert found.added == 6
    assert stored(tmp_path).equals(Toy.bars)


def test_a_source_is_left_alone_for_as_long_as_it_asks(fetch: Fetch) -> None:
    Toy.before = failing(on={1, 2}, error=down(retry_after_s=30.0))
    waits: list[float] = []
    fetch(wait=waits.append)
    assert waits == [30.0, 30.0]


def test_a_source_that_stays_down_is_given_up_in_one_line_and_what_came_is_kept(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 6)
    Toy.before = failing(on=set(range(2, 100)), error=down())
    waits: list[float] = []
    with pytest.raises(FoxflowError, match=r"^toy is down; given up after 7 tries in a row \(2 bars of earlier pages are kept: the same command goes on from there\)$"):  # fmt: skip
        fetch(wait=waits.append)
    assert waits == [1, 2, 4, 8, 16, 32]
    Toy.before = lambda: None
    fetch()
    assert stored(tmp_path).equals(Toy.bars)


def test_a_source_that_wants_an_hour_is_not_waited_for(fetch: Fetch) -> None:
    Toy.before = failing(on={1}, error=down(retry_after_s=3600.0))
    with pytest.raises(FoxflowError, match=r"toy is down; it asks to be left alone for 3,600 s \(no bar was added\)"):
        fetch(wait=lambda _: pytest.fail("it waited"))


@pytest.fixture
def bad() -> pl.DataFrame:
    """Return six bars, the fourth with a high below its close, the sixth without a close."""
    return hourly("AAA", 1, 6).with_columns(
        high=pl.when(pl.col("ts") == at(4)).then(2.0).otherwise("high"),
        close=pl.when(pl.col("ts") != at(6)).then("close"),
    )


def test_a_bad_bar_keeps_its_page_out_and_the_pages_before_it_in(
    fetch: Fetch, tmp_path: Path, bad: pl.DataFrame
) -> None:
    good, Toy.bars = hourly("AAA", 1, 6), bad
    with pytest.raises(DataError, match=r"toy: 1 of a page's 2 bars are none, first AAA at 2024-01-01T04:00:00Z: high or low: .*\(2 bars of earlier pages are kept.*--quarantine"):  # fmt: skip
        fetch()
    assert stored(tmp_path).equals(good.head(2))
    Toy.bars = good
    fetch()
    assert stored(tmp_path).equals(good)


def test_bad_bars_are_put_aside_countable_when_asked_to(fetch: Fetch, tmp_path: Path, bad: pl.DataFrame) -> None:
    Toy.bars = bad
    (found,) = fetch(quarantine=True)
    assert (found.added, found.quarantined, found.last_ts) == (4, 2, at(6))
    assert stored(tmp_path)["ts"].to_list() == [at(1), at(2), at(3), at(5)]
    aside = store.read_quarantine(tmp_path / "s.duckdb")
    assert aside.select("file", "kind", "when", "text").rows() == [
        ("toy, AAA 1h", "bad", "2024-01-01T04:00:00Z", "10.0,2.0,1.0,10.04,4.0"),
        ("toy, AAA 1h", "bad", "2024-01-01T06:00:00Z", "10.0,210.0,1.0,null,6.0"),
    ]
    assert aside["reason"].str.contains("high or low|missing value").all()
    (again,) = fetch(quarantine=True)
    assert (again.added, again.quarantined) == (0, 0)
    assert Toy.asks[-1][2] == at(5)


def test_bars_are_not_asked_for_before_they_can_be_known(fetch: Fetch) -> None:
    fetch(options={"delay_s": 900.0}, now=10)
    fetch(options={"delay_s": 900.0}, now=10, end=at(9))
    assert [ask[3] for ask in Toy.asks] == [at(9.75), at(9)]


def test_an_unfinished_bar_is_refused(fetch: Fetch, tmp_path: Path) -> None:
    Freely.pages = [hourly("AAA", 1, 2), hourly("AAA", 3, 11)]
    with pytest.raises(PluginError, match=r"source 'freely' handed over the bar of AAA at 2024-01-01T11:00:00Z, which is not complete: it is 2024-01-01T10:30:00Z"):  # fmt: skip
        fetch("freely", now=10.5)
    assert stored(tmp_path).equals(hourly("AAA", 1, 2))


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ([hourly("BBB", 1, 1)], "a bar of 'BBB', which was not asked for"),
        (
            [hourly("AAA", 60, 60)],
            "the bar of AAA at 2024-01-03T12:00:00Z; expected times after .* up to 2024-01-03T02",
        ),
        ([hourly("AAA", 0, 0)], "the bar of AAA at 2024-01-01T00:00:00Z; expected times after 2024-01-01T00:00:00Z"),
        (
            [hourly("AAA", 2, 3), hourly("AAA", 3, 4)],
            "at 2024-01-01T03:00:00Z; expected times after 2024-01-01T03:00:00Z",
        ),
        ([hourly("AAA", 2, 3).reverse()], "at 2024-01-01T02:00:00Z; expected times after 2024-01-01T03:00:00Z"),
        ([hourly("AAA", 2, 3).drop("volume")], "a page of .* expected a frame of"),
        ([hourly("AAA", 2, 2).with_columns(ts=pl.lit(None).cast(hourly("AAA", 1, 1)["ts"].dtype))], "AAA at no time"),
        ([{"AAA": 1}], "a page of dict; expected a frame"),
        ([None], None),
        (None, "failed in fetching AAA: TypeError: 'NoneType' object is not iterable; mend the plugin"),
        ((1 / 0 for _ in "x"), "failed in fetching AAA: ZeroDivisionError: division by zero; mend the plugin"),
    ],
)
def test_what_a_source_may_not_hand_over_is_refused(fetch: Fetch, pages: Any, message: str | None) -> None:
    Freely.pages = pages
    if message is None:
        assert fetch("freely", end=at(50)) == [intake.Fetched("AAA", at(0))]
        return
    with pytest.raises(PluginError, match=f"source 'freely' .*{message}"):
        fetch("freely", end=at(50))


def test_an_empty_page_is_not_the_end(fetch: Fetch, tmp_path: Path) -> None:
    Freely.pages = [hourly("AAA", 1, 2), hourly("AAA", 3, 2), hourly("AAA", 3, 4)]
    fetch("freely")
    assert stored(tmp_path).equals(hourly("AAA", 1, 4))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"symbols": []}, "no symbol to fetch"),
        ({"symbols": ["AAA", "AAA"]}, "symbol 'AAA' is asked for twice"),
        ({"symbols": ["a;b"]}, "symbol 'a;b'; expected a name that the store can hold"),
        ({"start": START.replace(tzinfo=None)}, "start = 2024-01-01 00:00:00 has no time zone"),
        ({"end": START.replace(tzinfo=None)}, "end = 2024-01-01 00:00:00 has no time zone"),
        ({"start": at(101)}, "start 2024-01-05T05:00:00Z is not before 2024-01-05T04:00:00Z"),
        ({"end": at(0)}, "start 2024-01-01T00:00:00Z is not before 2024-01-01T00:00:00Z"),
        ({"bar": "1 hour"}, "bar = '1 hour'; expected a number"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(fetch: Fetch, asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        fetch(**asked)
    assert not Toy.asks
    assert not (tmp_path / "s.duckdb").exists()


def test_options_are_checked_against_the_parameters_of_the_source(fetch: Fetch) -> None:
    with pytest.raises(ConfigError, match=r"\[toy\] unknown key 'sizes'; known: delay_s, size; did you mean 'size'"):
        fetch(options={"sizes": 3})


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
)
@given(
    hours=st.sets(st.integers(1, 20), max_size=12),
    size=st.integers(2, 9),
    fetches=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 22)), max_size=3),
    broken=st.sets(st.integers(1, 30), max_size=12),
)
def test_any_fetches_with_any_failures_store_every_bar_once(
    tmp_path_factory: pytest.TempPathFactory,
    hours: set[int],
    size: int,
    fetches: list[tuple[int, int]],
    broken: set[int],
) -> None:
    path = tmp_path_factory.mktemp("any") / "s.duckdb"
    everything = pl.concat(
        [hourly("AAA", 1, 20).filter(pl.col("volume").cast(pl.Int64).is_in(list(hours))), hourly("BBB", 7, 17)]
    )
    Toy.bars, Toy.before = everything, failing(on=broken, error=down())
    for first, now in [*fetches, (0, 22)]:
        if first >= now:
            continue
        for _ in range(20):
            try:
                intake.fetch(
                    path,
                    "toy",
                    {"size": size},
                    symbols=["AAA", "BBB"],
                    bar="1h",
                    start=at(first),
                    clock=lambda now=now: at(now),  # type: ignore[misc]
                    wait=lambda _: None,
                )
            except FoxflowError:
                continue
            break
    assert store.read_bars(path, bar="1h").equals(everything.sort("symbol", "ts"))


def test_an_interrupt_leaves_the_pages_that_came(fetch: Fetch, tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 6)
    Toy.before = failing(on={3}, error=KeyboardInterrupt)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        fetch()
    assert stored(tmp_path).equals(hourly("AAA", 1, 4))
    fetch()
    assert stored(tmp_path).equals(Toy.bars)
