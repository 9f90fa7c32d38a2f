import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest
from conftest import daily_bars
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foxflow import store
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA
from foxflow.errors import DataError

DAY = timedelta(days=1)
FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)
SPLIT = pl.DataFrame([("AAA", FIRST + DAY, "split", 2.0)], schema=EVENT_SCHEMA, orient="row")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bars.duckdb"


@contextmanager
def other_process(code: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code beside the test, wait for its line `ready`, and end it at the latest with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_bars_read_back_as_written_whatever_the_order_they_came_in(path: Path) -> None:
    both = pl.concat([daily_bars([3, 4], symbol="BBB"), daily_bars([1, 2], symbol="AAA")])
    assert store.write_bars(path, both.reverse(), bar="1d") == store.Counts(added=4, present=0)
    stored = store.read_bars(path, bar="1d")
    assert stored.schema == BAR_SCHEMA
    assert stored.equals(both.sort("symbol", "ts"))
    assert store.read_bars(path, bar="1d", symbols=["BBB"]).equals(daily_bars([3, 4], symbol="BBB"))


def test_list_names_each_symbol_and_bar_length_with_its_span(path: Path) -> None:
    store.write_bars(path, daily_bars([1, 2, 3], symbol="BBB"), bar="1d")
    store.write_bars(path, daily_bars([1], symbol="AAA"), bar="5m")
    store.write_bars(path, daily_bars([1, 2], symbol="AAA"), bar="1d")
    listed = store.list_bars(path)
    assert listed.schema == store.LIST_SCHEMA
    assert listed.rows() == [
        ("AAA", "1d", 2, FIRST, FIRST + DAY),
        ("AAA", "5m", 1, FIRST, FIRST),
        ("BBB", "1d", 3, FIRST, FIRST + 2 * DAY),
    ]


def test_bars_already_there_are_skipped_and_counted(path: Path) -> None:
    store.write_bars(path, daily_bars([1, 2]), bar="1d")
    assert store.write_bars(path, daily_bars([1, 2, 3]), bar="1d") == store.Counts(added=1, present=2)
    assert store.read_bars(path, bar="1d").equals(daily_bars([1, 2, 3]))


def test_the_same_length_under_two_names_is_one_series(path: Path) -> None:
    store.write_bars(path, daily_bars([1, 2]), bar="60m")
    assert store.write_bars(path, daily_bars([1, 2]), bar="3600s") == store.Counts(added=0, present=2)
    assert store.list_bars(path)["bar"].to_list() == ["1h"]
    with pytest.raises(DataError, match="holds no bars of 1d; it holds 1h"):
        # A session is not 24 hours.
        store.read_bars(path, bar="1d")


def test_a_bar_that_differs_from_the_stored_one_is_refused_and_nothing_is_written(path: Path) -> None:
    store.write_bars(path, daily_bars([10, 20, 30]), bar="1d")
    changed = daily_bars([10, 21, 31, 40], [10, 21, 31, 40])
    with pytest.raises(DataError) as refusal:
        store.write_bars(path, changed, bar="1d", where="new.csv")
    message = str(refusal.value)
    assert message.startswith(f"new.csv against {path}: 2 of the bars differ from the stored ones")
    assert "first AAA 1d at 2024-01-02 21:00Z: stored open 20.0, high 20.0" in message
    assert "new open 21.0, high 21.0" in message
    assert store.read_bars(path, bar="1d").equals(daily_bars([10, 20, 30]))


def test_the_same_bars_with_another_delay_are_refused(path: Path) -> None:
    store.write_bars(path, daily_bars([10, 20]), bar="1d")
    with pytest.raises(DataError, match=r"2 of the bars .* another known_at.*stored 2024-01-01 21:00Z, new .* 21:15Z"):
        store.write_bars(path, daily_bars([10, 20]), bar="1d", delay=timedelta(minutes=15))
    with pytest.raises(DataError, match="delay = -1 day"):
        store.write_bars(path, daily_bars([10]), bar="1d", delay=-DAY)


def test_bars_that_break_an_invariant_never_reach_the_store(path: Path) -> None:
    with pytest.raises(DataError, match=r"new.csv: 1 bad bar.*negative volume"):
        store.write_bars(path, daily_bars([10]).with_columns(volume=-1.0), bar="1d", where="new.csv")
    assert not path.exists()


def test_as_of_hides_what_was_not_yet_known(path: Path) -> None:
    store.write_bars(path, daily_bars([1, 2, 3]), bar="1d", delay=timedelta(minutes=15))
    second = FIRST + DAY
    assert store.read_bars(path, bar="1d", as_of=second + timedelta(minutes=14)).equals(daily_bars([1]))
    assert store.read_bars(path, bar="1d", as_of=second + timedelta(minutes=15)).equals(daily_bars([1, 2]))
    with pytest.raises(DataError, match=r"known at 2024-01-01 21:00:00.*ask for a later time"):
        store.read_bars(path, bar="1d", as_of=FIRST)
    with pytest.raises(DataError, match="as_of = 2024-01-02 00:00:00 has no time zone"):
        store.read_bars(path, bar="1d", as_of=datetime(2024, 1, 2, tzinfo=UTC).replace(tzinfo=None))


def test_a_correction_is_read_from_when_it_was_known(path: Path) -> None:
    store.write_bars(path, daily_bars([10, 20, 30]), bar="1d")
    learned = FIRST + 10 * DAY
    assert store.correct_bars(path, daily_bars([10, 25]), bar="1d", known_at=learned) == store.Counts(0, 1, corrected=1)
    assert store.read_bars(path, bar="1d", as_of=learned - timedelta(seconds=1)).equals(daily_bars([10, 20, 30]))
    assert store.read_bars(path, bar="1d", as_of=learned).equals(daily_bars([10, 25, 30]))
    assert store.read_bars(path, bar="1d").equals(daily_bars([10, 25, 30]))
    assert store.list_bars(path)["rows"].to_list() == [3]
    # Neither the correction again nor the first file again is news.
    assert store.correct_bars(path, daily_bars([10, 25]), bar="1d", known_at=learned) == store.Counts(0, 2)
    assert store.write_bars(path, daily_bars([10, 20, 30]), bar="1d") == store.Counts(0, 3)
    assert store.read_bars(path, bar="1d").equals(daily_bars([10, 25, 30]))


def test_a_correction_needs_a_stored_bar_and_a_later_time(path: Path) -> None:
    store.write_bars(path, daily_bars([10, 20]), bar="1d")
    with pytest.raises(DataError, match="first AAA 1d at 2024-01-03 21:00Z: no such bar is stored"):
        store.correct_bars(path, daily_bars([10, 20, 30]), bar="1d", known_at=FIRST + 10 * DAY)
    with pytest.raises(DataError, match="AAA 1d at 2024-01-02 21:00Z: its stored values were not known before"):
        store.correct_bars(path, daily_bars([10, 25]), bar="1d", known_at=FIRST + DAY)
    assert store.read_bars(path, bar="1d").equals(daily_bars([10, 20]))


def test_a_transaction_keeps_all_its_writes_or_none(path: Path) -> None:
    def write_three() -> None:
        with store.transaction(path) as inside:
            store.write_bars(inside, daily_bars([1, 2]), bar="1d")
            store.write_events(inside, SPLIT)
            store.write_bars(inside, daily_bars([9]), bar="1d")

    with pytest.raises(DataError, match="1 of the bars differ"):
        write_three()
    with pytest.raises(DataError, match="holds no bars"):
        store.read_bars(path, bar="1d")
    with store.transaction(path) as inside:
        store.write_bars(inside, daily_bars([1, 2]), bar="1d")
        store.write_events(inside, SPLIT)
    assert store.read_bars(path, bar="1d").equals(daily_bars([1, 2]))
    assert store.read_events(path).equals(SPLIT)


def test_events_are_read_back_and_written_once(path: Path) -> None:
    rows = [("AAA", FIRST, "dividend", 0.5), ("AAA", FIRST, "split", 3.0), ("BBB", FIRST + DAY, "split", 2.0)]
    events = pl.DataFrame(rows, schema=EVENT_SCHEMA, orient="row")
    assert store.write_events(path, events.reverse()) == store.Counts(added=3, present=0)
    assert store.write_events(path, events) == store.Counts(added=0, present=3)
    assert store.read_events(path).equals(events)
    assert store.read_events(path, symbols=["AAA"]).equals(events.head(2))
    assert store.read_events(path, as_of=FIRST).equals(events.head(2))
    assert store.read_events(path, symbols=["CCC"]).equals(EVENT_SCHEMA.to_frame())
    with pytest.raises(DataError, match=r"first BBB split at 2024-01-02 21:00Z: stored value 2.0, new value 4.0"):
        store.write_events(path, events.with_columns(value=pl.col("value").replace(2.0, 4.0)))


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([("AAA", FIRST, "merger", 1.0)], id="another kind"),
        pytest.param([("AAA", FIRST, "dividend", 0.0)], id="zero"),
        pytest.param([("AAA", FIRST, "dividend", float("nan"))], id="not a number"),
        pytest.param([("AAA", None, "dividend", 1.0)], id="no time"),
        pytest.param([("AAA", FIRST, "dividend", 1.0)] * 2, id="two dividends of one day not added up"),
    ],
)
def test_unsound_events_are_refused(path: Path, rows: list[tuple[object, ...]]) -> None:
    with pytest.raises(DataError, match=r"bad event\(s\), first .*; expected kind dividend or split"):
        store.write_events(path, pl.DataFrame(rows, schema=EVENT_SCHEMA, orient="row"))


def test_unknown_symbols_and_lengths_are_refused_with_what_is_there(path: Path) -> None:
    store.write_bars(path, pl.concat([daily_bars([1], symbol=s) for s in ("AAPL", "IBM")]), bar="1d")
    store.write_bars(path, daily_bars([1], symbol="SPY"), bar="5m")
    with pytest.raises(DataError, match="unknown symbol 'APPL'; known: AAPL, IBM; did you mean 'AAPL'"):
        store.read_bars(path, bar="1d", symbols=["IBM", "APPL"])
    with pytest.raises(DataError, match="holds no bars of 1h; it holds 1d, 5m"):
        store.read_bars(path, bar="1h")
    with pytest.raises(DataError, match="bar = 'daily'; expected"):
        store.read_bars(path, bar="daily")


def test_an_absent_an_empty_and_a_foreign_store_are_refused(path: Path, tmp_path: Path) -> None:
    for read in (store.list_bars, store.read_events):
        with pytest.raises(DataError, match=f"no store at '{path}'; import bars"):
            read(path)
    with pytest.raises(DataError, match="no store at"):
        store.read_bars(path, bar="1d")
    with store.transaction(path):
        pass
    assert store.list_bars(path).equals(store.LIST_SCHEMA.to_frame())
    with pytest.raises(DataError, match="holds no bars; import some"):
        store.read_bars(path, bar="1d")
    foreign = tmp_path / "other.duckdb"
    with duckdb.connect(foreign) as con:
        con.execute("create table sales (amount double)")
    with pytest.raises(DataError, match=r"a database of other tables \(sales\)"):
        store.read_bars(foreign, bar="1d")


def test_a_path_that_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"no store can be made at .*file/bars.duckdb"):
        store.write_bars(tmp_path / "file" / "bars.duckdb", daily_bars([1]), bar="1d")
    with pytest.raises(DataError, match=f"{tmp_path} cannot be used as a store"):
        store.read_bars(tmp_path, bar="1d")


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.02, 0.5, 0.99])
def test_a_store_file_cut_short_is_refused_by_name(path: Path, kept: float) -> None:
    store.write_bars(path, daily_bars([float(n) for n in range(1, 3000)]), bar="1d")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    for use in (lambda: store.read_bars(path, bar="1d"), lambda: store.write_bars(path, daily_bars([1]), bar="1d")):
        with pytest.raises(DataError, match=f"{path} cannot be used as a store: .*restore a copy"):
            use()


@pytest.mark.parametrize("content", [b"symbol,ts\n" * 500, b"\x00" * 20000], ids=["text", "zeros"])
def test_a_file_that_is_no_database_is_refused_by_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} cannot be used as a store"):
        store.read_bars(path, bar="1d")
    assert path.read_bytes() == content


def test_a_damaged_block_is_refused_by_name(path: Path) -> None:
    store.write_bars(path, daily_bars([float(n) for n in range(1, 3000)]), bar="1d")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} cannot be used as a store"):
        store.read_bars(path, bar="1d")


def hold(path: Path, *, read_only: bool, seconds: float) -> str:
    return (
        f"import duckdb, time; con = duckdb.connect({str(path)!r}, read_only={read_only}); "
        f"print('ready', flush=True); time.sleep({seconds}); con.close()"
    )


@pytest.mark.parametrize("read_only", [False, True], ids=["a writer", "a reader"])
def test_a_store_that_stays_locked_is_refused_with_its_holder(path: Path, read_only: bool) -> None:
    store.write_bars(path, daily_bars([1]), bar="1d")
    with other_process(hold(path, read_only=read_only, seconds=60)) as holder:
        began = time.monotonic()
        # The command line tells a notebook from a nightly run.
        named = rf"process {holder.pid} \(.*python.* -c import duckdb, time;.*\.\.\.\)"
        refused = pytest.raises(DataError, match=rf"{path} is locked by {named}, still after waiting 0.3 s; close what")
        with refused, store.transaction(path, wait_s=0.3):
            pass
        assert 0.3 <= time.monotonic() - began < 3


def test_readers_do_not_lock_each_other_out(path: Path) -> None:
    store.write_bars(path, daily_bars([1]), bar="1d")
    with other_process(hold(path, read_only=True, seconds=60)), store.connect(path, read_only=True, wait_s=0):
        assert store.read_bars(path, bar="1d").equals(daily_bars([1]))


def test_a_write_waits_for_a_lock_that_is_given_back(path: Path) -> None:
    store.write_bars(path, daily_bars([1]), bar="1d")
    with other_process(hold(path, read_only=False, seconds=0.5)):
        assert store.write_bars(path, daily_bars([1, 2]), bar="1d") == store.Counts(added=1, present=1)


def test_a_reader_beside_a_writer_of_the_same_process_waits_too(path: Path) -> None:
    store.write_bars(path, daily_bars([1]), bar="1d")
    with (
        store.transaction(path),
        pytest.raises(DataError, match="is locked by this very process"),
        store.connect(path, read_only=True, wait_s=0.1),
    ):
        pass
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with store.transaction(path) as open_store:
            store.write_bars(open_store, daily_bars([1, 2]), bar="1d")
            inside.set()
            leave.wait(10)

    writer = threading.Thread(target=write)
    writer.start()
    inside.wait(10)
    threading.Timer(0.2, leave.set).start()
    assert store.read_bars(path, bar="1d").equals(daily_bars([1, 2]))
    writer.join()


def test_times_are_utc_whatever_the_zone_of_the_machine(path: Path) -> None:
    code = (
        "from datetime import UTC, datetime; from conftest import daily_bars; from foxflow import store\n"
        f"store.write_bars({str(path)!r}, daily_bars([1, 2]), bar='1d')\n"
        f"stored = store.read_bars({str(path)!r}, bar='1d', as_of=datetime(2024, 1, 2, 20, 59, tzinfo=UTC))\n"
        "assert stored.equals(daily_bars([1])), stored\n"
        "print('ready', flush=True)\n"
    )
    with other_process(code, TZ="Asia/Tokyo", PYTHONPATH=str(Path(__file__).parents[1])) as tokyo:
        assert tokyo.wait(30) == 0
    assert store.read_bars(path, bar="1d").equals(daily_bars([1, 2]))
    with store.connect(path, read_only=True) as con:
        assert con.sql("select current_setting('TimeZone')").fetchall() == [("UTC",)]


def test_a_process_killed_in_the_middle_of_a_write_leaves_the_old_state(path: Path) -> None:
    store.write_bars(path, daily_bars([1, 2]), bar="1d")
    code = (
        "import time; from conftest import daily_bars; from foxflow import store\n"
        f"with store.transaction({str(path)!r}) as inside:\n"
        "    store.write_bars(inside, daily_bars([1, 2] + [3] * 50_000), bar='1d')\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with other_process(code, PYTHONPATH=str(Path(__file__).parents[1])) as writer:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert store.read_bars(path, bar="1d").equals(daily_bars([1, 2]))
    assert store.write_bars(path, daily_bars([1, 2, 3]), bar="1d") == store.Counts(added=1, present=2)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True), min_size=2, max_size=3))
def test_any_overlapping_imports_end_in_the_same_store(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "bars.duckdb"
    every = daily_bars([float(n) for n in range(10)])
    added = sum(store.write_bars(path, every[sorted(part, reverse=True)], bar="1d").added for part in parts)
    union = sorted(set().union(*parts))
    assert added == len(union)
    assert store.read_bars(path, bar="1d").equals(every[union])
