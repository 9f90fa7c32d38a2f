"""An import that is killed at any moment leaves the store with all of it or nothing, and the repeat succeeds."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from foxflow import store
from foxflow.errors import DataError

N_ROWS = 60_000
SYMBOLS = ("AAA", "BBB")


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 60,000 bars whose rows are not in order, so that every stage of an import takes its time."""
    start = datetime(2023, 1, 2, tzinfo=UTC)
    n = N_ROWS // len(SYMBOLS)
    times = pl.datetime_range(start, start + timedelta(minutes=n - 1), "1m", eager=True).dt.to_string("%Y-%m-%d %H:%M")
    frame = pl.concat(
        pl.DataFrame({"symbol": [symbol] * n, "time": times, "open": 2.0, "high": 3.0, "low": 1.0, "close": 2.5})
        for symbol in SYMBOLS
    ).with_columns(volume=pl.int_range(pl.len()))
    path = tmp_path_factory.mktemp("prices") / "prices.csv"
    frame.reverse().write_csv(path)
    return path


def importing(prices: Path, out: Path) -> "subprocess.Popen[str]":
    options = ["--stamp", "close", "--tz", "UTC", "--out", str(out), "--json"]
    command = [sys.executable, "-c", "from foxflow.cli import main; main()", "bars", "import", str(prices), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def n_stored(out: Path) -> int:
    paths = list(out.rglob("*.duckdb"))
    if not paths:
        return 0
    try:
        return int(store.list_bars(paths[0])["rows"].sum())
    except DataError:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize(("how", "n_moments"), [(signal.SIGKILL, 30), (signal.SIGINT, 6)])
def test_an_import_killed_at_random_moments_is_in_the_store_whole_or_not_at_all(
    how: signal.Signals, n_moments: int, prices: Path, tmp_path: Path
) -> None:
    began = time.monotonic()
    first = importing(prices, tmp_path / "first")
    said, _ = first.communicate()
    whole = time.monotonic() - began
    assert [row["added"] for row in json.loads(said)] == [N_ROWS]
    moments, n_whole = random.Random(how.value), 0
    out = tmp_path / "killed"
    for turn in range(n_moments):
        process = importing(prices, out)
        # Nothing is imported before the modules are loaded: most moments lie in the work itself.
        time.sleep(moments.uniform(0.3 * whole, 1.05 * whole))
        os.kill(process.pid, how)
        _, complaint = process.communicate()
        assert "Traceback" not in complaint
        n = n_stored(out)
        assert n in (0, N_ROWS)
        if n:
            n_whole += 1
            out = tmp_path / f"killed-{turn}"
    said, _ = importing(prices, out).communicate()
    assert [(row["added"], row["present"]) for row in json.loads(said)] == [(N_ROWS, 0)]
    assert n_stored(out) == N_ROWS
    assert not list(out.rglob(".work-*"))
    # Else the moments were all before, or all after what matters.
    assert n_whole < n_moments
