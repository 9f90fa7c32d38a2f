"""The store beside other processes: readers and writers wait for each other; one that is killed leaves all or nothing."""

import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from conftest import daily_bars

from foxflow import store
from foxflow.bars import BAR_SCHEMA

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
LEARNED = FIRST + timedelta(days=3000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bars.duckdb"


def minutes(n_bars: int, *, symbols: tuple[str, ...] = ("AAA", "BBB", "CCC"), close: float = 10.0) -> pl.DataFrame:
    """Return bars of one price, one a minute."""
    ts = pl.datetime_range(FIRST, FIRST + timedelta(minutes=n_bars - 1), "1m", time_unit="us", eager=True)
    prices = dict.fromkeys(("open", "high", "low", "close"), close)
    each = pl.DataFrame({"ts": ts}).with_columns(
        volume=pl.int_range(pl.len()) * 1.0, **{k: pl.lit(v) for k, v in prices.items()}
    )
    return pl.concat([each.with_columns(symbol=pl.lit(s)) for s in symbols]).select(BAR_SCHEMA.names())


def beside(code: str) -> "subprocess.Popen[str]":
    """Start Python code that says `ready` before the part that counts."""
    head = "import time; from datetime import UTC, datetime; from pathlib import Path; from foxflow import store\n"
    process = subprocess.Popen(
        [sys.executable, "-c", head + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def finished(processes: "list[subprocess.Popen[str]]") -> list[str]:
    """Return what each process said, once all have ended well."""
    said = []
    for process in processes:
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        said.append(out)
    return said


def test_a_reader_held_open_lets_the_nightly_writer_finish_after_it(path: Path) -> None:
    store.write_bars(path, daily_bars([1, 2]), bar="1d")
    reader = beside(
        f"with store.connect({str(path)!r}, read_only=True) as con:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(0.7)\n"
        "    print(con.sql('select count(*) from bars').fetchall()[0][0])\n"
    )
    assert store.write_bars(path, daily_bars([1, 2, 3]), bar="1d") == store.Counts(added=1, present=2)
    assert finished([reader]) == ["2\n"]


def test_four_readers_and_one_import_all_finish(path: Path, tmp_path: Path) -> None:
    every = minutes(4000)
    parts = []
    for n in range(4):
        parts.append(tmp_path / f"{n}.parquet")
        every.filter(pl.col("ts").dt.minute() % 4 == n).write_parquet(parts[-1])
    store.write_bars(path, parts[0], bar="1m")
    reading = (
        "print('ready', flush=True); sizes = []\n"
        "for _ in range(6):\n"
        f"    bars = store.read_bars({str(path)!r}, bar='1m'); sizes.append(len(bars)); time.sleep(0.05)\n"
        "    assert bars.equals(bars.sort('symbol', 'ts')) and not bars.select('symbol', 'ts').is_duplicated().any()\n"
        "print(*sizes)\n"
    )
    readers = [beside(reading) for _ in range(4)]
    writer = beside(
        "print('ready', flush=True)\n"
        f"for part in {[str(part) for part in parts]!r}:\n"
        f"    store.write_bars({str(path)!r}, Path(part), bar='1m'); time.sleep(0.05)\n"
    )
    *seen, _ = finished([*readers, writer])
    # Each saw whole imports only, none undone.
    for sizes in ([int(n) for n in line.split()] for line in seen):
        assert set(sizes) <= {3000, 6000, 9000, 12000}
        assert sizes == sorted(sizes)
    assert store.read_bars(path, bar="1m").equals(every)


def import_both(path: Path) -> None:
    """Import a file of new bars and a file of corrections in one transaction."""
    with store.transaction(path) as inside:
        store.write_bars(inside, path.parent / "new.parquet", bar="1m")
        changed = path.parent / "changed.parquet"
        store.write_bars(inside, changed, bar="1m", conflict="correct", known_at=LEARNED)


@pytest.mark.parametrize("n", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_an_import_killed_at_any_moment_is_there_whole_or_not_at_all(path: Path, n: int) -> None:
    old, new = minutes(50_000, symbols=("AAA", "BBB")), minutes(60_000, symbols=("BBB", "CCC"))
    changed = minutes(50_000, symbols=("AAA",), close=11.0)
    store.write_bars(path, old, bar="1m")
    new.write_parquet(path.parent / "new.parquet")
    changed.write_parquet(path.parent / "changed.parquet")

    def state() -> tuple[int, int, float]:
        with store.connect(path, read_only=True) as con:
            row = con.sql("select (select count(*) from bars), (select count(*) from revisions)").fetchall()[0]
        return (*row, store.read_bars(path, bar="1m")["close"].sum())

    nothing = (100_000, 0, 1_000_000.0)
    everything = (170_000, 50_000, 1_750_000.0)
    assert state() == nothing
    before = path.read_bytes()
    began = time.monotonic()
    import_both(path)
    whole = time.monotonic() - began
    assert state() == everything
    moments, found = random.Random(n), []
    code = (
        "from test_store_beside_others import import_both\n"
        f"print('ready', flush=True); import_both(Path({str(path)!r})); time.sleep(60)\n"
    )
    for _ in range(n):
        path.write_bytes(before)
        process = beside(code)
        time.sleep(moments.uniform(0, 1.5 * whole))
        process.kill()
        process.communicate()
        found.append(state())
        # The repeat succeeds from whatever was left.
        import_both(path)
        assert state() == everything
    assert set(found) <= {nothing, everything}
    if n == 30:
        # The moments lie on both sides of the end, else they would show little.
        assert set(found) == {nothing, everything}
