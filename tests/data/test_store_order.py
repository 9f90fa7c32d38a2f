"""Whatever the order, the pieces and the repeats in which bars come in, the store holds and gives back the same."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foxflow import store
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA
from foxflow.store.order import in_order, with_newest

FIRST = datetime(2024, 3, 9, 23, 58, tzinfo=UTC)
VALUES = ("open", "high", "low", "close", "volume")


def bars_at(places: list[tuple[str, int]], *, base: float = 1.0) -> pl.DataFrame:
    """Return a bar at each place (symbol, minute) whose values tell the place; each third volume is unknown."""
    rows = [
        (s, FIRST + timedelta(minutes=m), *[base + ord(s[0]) * 100 + m] * 4, None if m % 3 == 0 else float(m))
        for s, m in places
    ]
    return pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row")


PLACES = st.tuples(st.sampled_from(["A", "B", "C/D", "é"]), st.integers(0, 12))


@given(places=st.lists(PLACES, unique=True, max_size=40))
def test_bars_in_any_order_are_put_in_the_order_of_a_sort(places: list[tuple[str, int]]) -> None:
    bars = bars_at(places)
    assert in_order(bars).equals(bars.sort("symbol", "ts"))


@given(nights=st.lists(st.lists(PLACES, unique=True, max_size=12), max_size=5))
def test_whole_runs_are_put_in_order_too(nights: list[list[tuple[str, int]]]) -> None:
    # Night by night each in order, as a store that grows holds them.
    places = [(s, m + 20 * night) for night, rows in enumerate(nights) for s, m in sorted(rows)]
    bars = bars_at(places)
    assert in_order(bars).equals(bars.sort("symbol", "ts"))


@given(
    places=st.lists(PLACES, unique=True, min_size=1, max_size=30),
    revised=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 3)), unique=True, min_size=1, max_size=20),
)
def test_the_last_revision_of_each_bar_is_read(places: list[tuple[str, int]], revised: list[tuple[int, int]]) -> None:
    bars = bars_at(sorted(places))
    rows = [(places[n % len(places)], at) for n, at in revised]
    revisions = pl.concat(
        bars_at([place], base=1e6 * (at + 1) + i).with_columns(known_at=FIRST + timedelta(days=1 + 100 * i + at))
        for i, (place, at) in enumerate(rows)
    )
    newest = {place: 1e6 * (at + 1) + i for i, (place, at) in enumerate(rows)}
    expected = pl.concat(bars_at([place], base=newest.get(place, 1.0)) for place in sorted(places))
    assert with_newest(bars, revisions.reverse(), values=VALUES).equals(expected)


def content(path: Path) -> list[list[tuple[object, ...]]]:
    with duckdb.connect(path, read_only=True) as con:
        return [con.sql(f"from {table} order by all").fetchall() for table in ("bars", "revisions", "events")]


EVERY = bars_at([(s, m) for s in ("A", "B") for m in range(8)])
CHANGED = EVERY.filter(pl.col("ts").dt.minute() % 2 == 0).with_columns(volume=pl.lit(99.0))
LEARNED = FIRST + timedelta(days=10)
EVENTS = pl.DataFrame([("A", FIRST, "split", 2.0), ("B", FIRST, "dividend", 1.0)], schema=EVENT_SCHEMA, orient="row")


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_writes_in_any_order_and_pieces_and_twice_make_the_same_store(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    once, pieces = folder / "once.duckdb", folder / "pieces.duckdb"
    store.write_bars(once, EVERY, bar="1m")
    store.write_events(once, EVENTS)
    store.correct_bars(once, CHANGED, bar="1m", known_at=LEARNED)

    # Each bar lies in at least one piece, some in several, and the pieces come in any order.
    homes = data.draw(st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=len(EVERY), max_size=len(EVERY)))
    order = data.draw(st.permutations([0, 1, 2, 3, "events", "again"]))
    as_file = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))
    for step in order:
        if step == "events":
            store.write_events(pieces, EVENTS.reverse())
            continue
        number = data.draw(st.integers(0, 3)) if step == "again" else int(step)
        piece = EVERY[[i for i, home in enumerate(homes) if number in home]]
        if as_file[number]:
            piece.write_parquet(folder / "piece.parquet")
            store.write_bars(pieces, folder / "piece.parquet", bar="1m")
        else:
            store.write_bars(pieces, piece.reverse(), bar="1m")
    cut = data.draw(st.integers(0, len(CHANGED)))
    for part in (CHANGED[cut:], CHANGED[:cut], CHANGED):
        store.write_bars(pieces, part, bar="1m", conflict="correct", known_at=LEARNED)
    # The first files once more, after the corrections.
    store.write_bars(pieces, EVERY, bar="1m")

    assert content(pieces) == content(once)
    for as_of in (None, LEARNED, LEARNED - timedelta(seconds=1)):
        assert store.read_bars(pieces, bar="1m", as_of=as_of).equals(store.read_bars(once, bar="1m", as_of=as_of))
    assert store.read_events(pieces).equals(store.read_events(once))
