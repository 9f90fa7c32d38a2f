"""Writing bars: what differs is settled under a named rule; a Parquet file is written without being held whole."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest
from conftest import daily_bars

from foxflow import store
from foxflow.bars import TS
from foxflow.errors import DataError

DAY = timedelta(days=1)
FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)
LEARNED = FIRST + 30 * DAY
AsInput = Callable[[pl.DataFrame], pl.DataFrame | Path]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bars.duckdb"


def in_file(bars: pl.DataFrame, folder: Path, name: str = "bars.parquet") -> Path:
    bars.write_parquet(folder / name)
    return folder / name


def learned_at(path: Path, *, bar: str, symbols: tuple[str, ...] = ()) -> list[datetime]:
    """Return the times at which corrections became known, ascending."""
    return store.read_revisions(path, bar=bar, symbols=symbols)["known_at"].unique().sort().to_list()


@pytest.fixture(params=["frame", "file"])
def as_input(request: pytest.FixtureRequest, tmp_path: Path) -> AsInput:
    return (lambda bars: bars) if request.param == "frame" else (lambda bars: in_file(bars, tmp_path))


def test_a_file_of_bars_is_stored_as_the_frame_is(path: Path, tmp_path: Path) -> None:
    both = pl.concat([daily_bars([1, 2], symbol="AAA"), daily_bars([3, 4, 5], symbol="BBB")])
    folder = tmp_path / "it's [a] *folder?"
    folder.mkdir()
    file = in_file(both, folder)
    assert store.write_bars(path, file, bar="1d") == store.Counts(added=5, present=0)
    assert store.write_bars(path, both, bar="1d") == store.Counts(added=0, present=5)
    assert store.read_bars(path, bar="1d").equals(both)


def test_conflict_refuse_names_the_first_and_writes_nothing(path: Path, as_input: AsInput) -> None:
    store.write_bars(path, daily_bars([10, 20, 30]), bar="1d")
    with pytest.raises(DataError, match=r"new.csv against .*: 2 of the bars differ .*stored open 20.0.*new open 21.0"):
        store.write_bars(path, as_input(daily_bars([10, 21, 31, 40])), bar="1d", where="new.csv")
    assert store.read_bars(path, bar="1d").equals(daily_bars([10, 20, 30]))


def test_conflict_keep_leaves_the_stored_values_and_counts_them(path: Path, as_input: AsInput) -> None:
    store.write_bars(path, daily_bars([10, 20, 30]), bar="1d")
    changed = as_input(daily_bars([10, 21, 31, 40]))
    assert store.write_bars(path, changed, bar="1d", conflict="keep") == store.Counts(added=1, present=1, kept=2)
    assert store.read_bars(path, bar="1d").equals(daily_bars([10, 20, 30, 40]))
    assert learned_at(path, bar="1d") == []


def test_conflict_correct_adds_a_revision_and_new_bars_from_their_own_time(path: Path, as_input: AsInput) -> None:
    store.write_bars(path, daily_bars([10, 20, 30]), bar="1d")
    changed = as_input(daily_bars([10, 21, 31, 40]))
    for expected in (store.Counts(added=1, present=1, corrected=2), store.Counts(added=0, present=4)):
        assert store.write_bars(path, changed, bar="1d", conflict="correct", known_at=LEARNED) == expected
    assert store.read_bars(path, bar="1d").equals(daily_bars([10, 21, 31, 40]))
    before = store.read_bars(path, bar="1d", as_of=LEARNED - timedelta(microseconds=1))
    assert before.equals(daily_bars([10, 20, 30, 40]))
    assert store.read_first(path, bar="1d").equals(daily_bars([10, 20, 30, 40]))
    assert learned_at(path, bar="1d") == [LEARNED]


def test_a_correction_may_go_back_to_the_first_values_and_again(path: Path) -> None:
    def correct(values: list[float], days: int) -> store.Counts:
        return store.write_bars(path, daily_bars(values), bar="1d", conflict="correct", known_at=LEARNED + days * DAY)

    store.write_bars(path, daily_bars([10, 20]), bar="1d")
    assert correct([10, 25], 0).corrected == 1
    assert correct([10, 20], 1).corrected == 1
    # As known then, it stands there already; at a time before the newest it would change what was known later.
    assert correct([10, 25], 0) == store.Counts(added=0, present=2)
    with pytest.raises(
        DataError, match=r"1 correction\(s\) as of 2024-01-31 21:00Z refused, first AAA 1d at 2024-01-02"
    ):
        correct([10, 26], 0)
    with pytest.raises(DataError, match="its stored values were not known before that, but at 2024-02-01 21:00Z"):
        correct([10, 26], 1)
    assert correct([10, 25], 2).corrected == 1
    opens = [store.read_bars(path, bar="1d", as_of=LEARNED + n * DAY)["open"][1] for n in (-1, 0, 1, 2)]
    assert opens == [20, 25, 20, 25]
    assert learned_at(path, bar="1d", symbols=("AAA",)) == [LEARNED + n * DAY for n in range(3)]
    assert learned_at(path, bar="1h") == []
    # Any revision's values are no news to an import.
    assert store.write_bars(path, daily_bars([10, 25]), bar="1d") == store.Counts(added=0, present=2)


def test_an_unknown_volume_is_kept_apart_from_zero(path: Path, tmp_path: Path) -> None:
    quotes = daily_bars([10, 20, 30]).with_columns(volume=pl.Series([None, 0.0, 7.0]))
    file = in_file(quotes, tmp_path)
    store.write_bars(path, file, bar="1d")
    assert store.write_bars(path, file, bar="1d") == store.Counts(added=0, present=3)
    assert store.read_bars(path, bar="1d").equals(quotes)
    other = in_file(quotes.with_columns(volume=pl.Series([0.0, None, 7.0])), tmp_path)
    with pytest.raises(DataError, match=r"2 of the bars differ .*: stored volume None, new volume 0.0"):
        store.write_bars(path, other, bar="1d")
    assert store.write_bars(path, other, bar="1d", conflict="correct", known_at=LEARNED).corrected == 2
    assert store.read_bars(path, bar="1d")["volume"].to_list() == [0.0, None, 7.0]
    assert store.read_first(path, bar="1d").equals(quotes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"close": [10.0, float("nan"), 30.0]}, "1 bad bar.*first symbol AAA, ts 2024-01-02 21:00"),
        ({"close": [10.0, None, 30.0]}, "1 bad bar.*close None"),
        ({"high": [10.0, 20.0, 29.0]}, "1 bad bar.*high 29.0"),
        ({"low": [10.5, 20.0, 30.5]}, "2 bad bar.*low 10.5"),
        ({"volume": [1.0, -1.0, float("inf")]}, "2 bad bar.*volume -1.0"),
        ({"symbol": ["AAA", None, "AAA"]}, "1 bad bar.*symbol None"),
        ({"ts": [FIRST, FIRST, FIRST + DAY]}, r"1 bar\(s\) repeated or out of order, first AAA at 2024-01-01 21:00Z"),
        ({"ts": [FIRST, FIRST + DAY, FIRST]}, "1 bar.*out of order, first AAA at 2024-01-01"),
        ({"symbol": ["BBB", "AAA", "AAA"]}, "1 bar.*out of order, first AAA at 2024-01-02"),
    ],
)
def test_a_file_that_breaks_an_invariant_is_refused(
    path: Path, tmp_path: Path, change: dict[str, list[object]], message: str
) -> None:
    bars = daily_bars([10, 20, 30])
    broken = bars.with_columns(pl.Series(name, values, dtype=bars.schema[name]) for name, values in change.items())
    with pytest.raises(DataError, match=f"new.csv: {message}"):
        store.write_bars(path, in_file(broken, tmp_path), bar="1d", where="new.csv")
    assert store.list_bars(path).is_empty()


def test_a_file_that_is_no_parquet_of_bars_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("x")
    for file, message in (
        (tmp_path / "text.parquet", "expected a Parquet file"),
        (tmp_path / "absent.parquet", "expected a Parquet file"),
        (in_file(daily_bars([1]).drop("volume"), tmp_path), "columns .*; expected .*volume"),
    ):
        with pytest.raises(DataError, match=f"new.csv: .*{message}"):
            store.write_bars(path, file, bar="1d", where="new.csv")


def test_a_rule_that_does_not_fit_is_refused(path: Path) -> None:
    bars = daily_bars([10])
    with pytest.raises(DataError, match="conflict = 'newest'; expected refuse, keep, correct"):
        store.write_bars(path, bars, bar="1d", conflict="newest")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="known_at = None with conflict = 'correct'"):
        store.write_bars(path, bars, bar="1d", conflict="correct")
    with pytest.raises(DataError, match=r"known_at = 2024-01-31 .* with conflict = 'keep'"):
        store.write_bars(path, bars, bar="1d", conflict="keep", known_at=LEARNED)
    with pytest.raises(DataError, match="no time zone"):
        store.write_bars(path, bars, bar="1d", conflict="correct", known_at=LEARNED.replace(tzinfo=None))


def test_no_bars_are_nothing_to_write(path: Path, as_input: AsInput) -> None:
    assert store.write_bars(path, as_input(daily_bars([])), bar="1d") == store.Counts(added=0, present=0)
    store.write_bars(path, daily_bars([1]), bar="1d")
    for conflict, known_at in (("keep", None), ("correct", LEARNED)):
        nothing = as_input(daily_bars([]))
        assert store.write_bars(path, nothing, bar="1d", conflict=conflict, known_at=known_at) == store.Counts(0, 0)


def test_bars_between_and_beside_stored_ones_are_added(path: Path) -> None:
    every = pl.concat([daily_bars([1, 2, 3, 4], symbol=s) for s in ("AAA", "BBB", "CCC")])
    store.write_bars(path, every[[1, 3, 4, 10]], bar="1d")
    store.write_bars(path, every[[0]], bar="1h")
    assert store.write_bars(path, every, bar="1d") == store.Counts(added=8, present=4)
    assert store.read_bars(path, bar="1d").equals(every)
    assert store.read_bars(path, bar="1h").equals(every[[0]])


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 100])
def test_what_is_written_does_not_depend_on_the_size_of_the_pieces(
    path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foxflow.store.additions.PIECE_ROWS", rows)
    # Five bars: where they are cut in two, a bar lies at the very middle.
    every = pl.concat([daily_bars([10, 20, 30, 40, 50], symbol=s) for s in ("AAA", "BBB", "CCC")])
    store.write_bars(path, every[[0, 2, 3, 5, 7, 14]], bar="1d")
    is_changed = pl.int_range(pl.len()).is_in([2, 3, 6, 7])
    changed = every.with_columns(volume=pl.when(is_changed).then(1.0).otherwise("volume"))
    with pytest.raises(DataError, match=r"3 of the bars differ .*first AAA 1d at 2024-01-03"):
        store.write_bars(path, changed, bar="1d")
    counts = store.write_bars(path, changed, bar="1d", conflict="correct", known_at=LEARNED)
    assert counts == store.Counts(added=9, present=3, corrected=3)
    assert store.read_bars(path, bar="1d").equals(changed)


def test_each_row_keeps_its_name_where_a_few_symbols_of_a_large_store_are_read(path: Path, tmp_path: Path) -> None:
    # Several blocks of rows a symbol, which threads read side by side.
    rows = pl.int_range(0, 300_000, eager=True)
    each = pl.DataFrame({"n": rows}).select(
        ts=pl.lit(FIRST) + pl.duration(minutes=pl.col("n")), volume=pl.col("n").cast(pl.Float64)
    )
    every = pl.concat(
        each.select(
            pl.lit(symbol).alias("symbol"),
            pl.col("ts").cast(TS),
            *(pl.lit(price).alias(name) for name in ("open", "high", "low", "close")),
            "volume",
        )
        for symbol, price in (("AAA", 1.0), ("BBB", 2.0), ("CCC", 3.0), ("DDD", 4.0))
    )
    store.write_bars(path, in_file(every, tmp_path), bar="1m")
    night = every.group_by("symbol", maintain_order=True).tail(100).with_columns(pl.col("ts") + DAY)
    for stored in (every, pl.concat([every, night]).sort("symbol", "ts")):
        for symbols in (["AAA", "CCC"], ["BBB", "DDD", "AAA"], ["CCC"], []):
            expected = stored.filter(pl.col("symbol").is_in(symbols)) if symbols else stored
            assert store.read_bars(path, bar="1m", symbols=symbols).equals(expected)
        store.write_bars(path, night, bar="1m")


def test_several_writes_of_a_transaction_see_each_other(path: Path, tmp_path: Path) -> None:
    file = in_file(daily_bars([10, 21]), tmp_path)
    with store.transaction(path) as inside:
        store.write_bars(inside, daily_bars([10, 20]), bar="1d")
        assert store.write_bars(inside, file, bar="1d", conflict="keep") == store.Counts(0, 1, kept=1)
        counts = store.write_bars(inside, file, bar="1d", conflict="correct", known_at=LEARNED)
        assert counts == store.Counts(0, 1, corrected=1)
        assert store.write_bars(inside, file, bar="1d") == store.Counts(0, 2)
    assert store.read_bars(path, bar="1d").equals(daily_bars([10, 21]))


def old_store(path: Path) -> None:
    """Make a store as it was before revisions had a table of their own: AAA corrected once, BBB twice."""
    with duckdb.connect(path) as con:
        con.execute(
            "set TimeZone = 'UTC'; create table bars (symbol varchar not null, bar varchar not null, "
            "ts timestamptz not null, open double not null, high double not null, low double not null, "
            "close double not null, volume double not null, known_at timestamptz not null); create table events "
            "(symbol varchar not null, ts timestamptz not null, kind varchar not null, value double not null, "
            "known_at timestamptz not null)"
        )
        for days, symbol, values in (
            (0, "AAA", [10, 20]),
            (0, "BBB", [1, 2]),
            (5, "AAA", [11]),
            (6, "BBB", [3]),
            (7, "BBB", [4]),
        ):
            rows = daily_bars(values, symbol=symbol).with_columns(  # noqa: F841 - DuckDB finds it by name
                bar=pl.lit("1d"), known_at=pl.col("ts") if days == 0 else pl.lit(LEARNED + days * DAY)
            )
            con.execute("insert into bars by name select * from rows")


@pytest.mark.parametrize("migrated", [False, True])
def test_a_store_with_revisions_among_its_bars_reads_the_same_before_and_after_it_is_brought_up_to_date(
    path: Path, migrated: bool
) -> None:
    old_store(path)
    if migrated:
        assert store.write_bars(path, daily_bars([10, 20]), bar="1d") == store.Counts(0, 2)
        with duckdb.connect(path, read_only=True) as con:
            assert con.sql("select count(*) from bars").fetchall() == [(4,)]
            assert con.sql("select count(*) from revisions").fetchall() == [(3,)]

    def opens(days: int) -> list[float]:
        return store.read_bars(path, bar="1d", as_of=LEARNED + days * DAY)["open"].to_list()

    assert [opens(days) for days in (4, 5, 6, 7)] == [[10, 20, 1, 2], [11, 20, 1, 2], [11, 20, 3, 2], [11, 20, 4, 2]]
    assert store.read_first(path, bar="1d")["open"].to_list() == [10, 20, 1, 2]
    assert learned_at(path, bar="1d") == [LEARNED + days * DAY for days in (5, 6, 7)]
    assert store.list_bars(path)["rows"].to_list() == [2, 2]
    assert store.read_events(path).is_empty()


def test_a_write_into_a_database_of_other_tables_is_refused(path: Path) -> None:
    with duckdb.connect(path) as con:
        con.execute("create table sales (amount double)")
    with pytest.raises(DataError, match=r"a database of other tables \(sales\)"):
        store.write_bars(path, daily_bars([1]), bar="1d")
    with duckdb.connect(path) as con:
        assert con.sql("select table_name from duckdb_tables()").fetchall() == [("sales",)]
