"""Recorders of one home, as real processes: nothing is lost, nothing is half there, whoever is killed when."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ledger_samples import family, trial

from foxflow import ledger
from foxflow.ledger import chain

TESTS = Path(__file__).parent
RECORD = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from ledger_samples import trial
from foxflow import ledger
home, name, n = Path({home!r}), {name!r}, {n}
for i in range(n):
    height = ledger.record(home, [trial(name, seed=i), trial(name, seed=i, symbols=("BBB",))])
    print(i, height.n_records, flush=True)
"""


def recorder(home: Path, name: str, n: int) -> subprocess.Popen[str]:
    code = RECORD.format(tests=str(TESTS), home=str(home), name=name, n=n)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_recorders_at_once_lose_nothing_and_the_same_trial_is_one(tmp_path: Path) -> None:
    running = [recorder(tmp_path, name, 12) for name in ("a", "b", "a")]
    done = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 3, done
    heights = sorted(int(line.split()[1]) for out, _ in done for line in out.splitlines())
    # Two trials and, once, the beginning: every height was reached by one record alone.
    assert heights == list(range(3, 3 * 12 * 2 + 2, 2))
    found = family(tmp_path)
    assert (len(found.trials), found.is_known) == (24, True)


@pytest.mark.parametrize("seed", range(2))
def test_a_recorder_killed_at_any_moment_leaves_whole_records(tmp_path: Path, seed: int) -> None:
    wait = random.Random(seed)
    said = 0
    for attempt in range(4):
        process = recorder(tmp_path, f"killed {attempt}", 500)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait.random() / 5)
        process.send_signal(signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
        said += 1 + out.count("\n")
    entries = chain.read(tmp_path)
    assert chain.broken(entries) is None
    # Pairs, and no more of them than were said but the one in hand at each kill.
    pairs = (len(entries) - 1) / 2
    assert said <= pairs <= said + 4
    found, other = family(tmp_path), family(tmp_path, "BBB")
    assert (found.is_known, len(found.trials), len(other.trials)) == (True, pairs, pairs)
    ledger.record(tmp_path, [trial("after")])
    assert len(family(tmp_path).trials) == pairs + 1


def test_what_a_writer_left_when_it_was_killed_between_its_writes_is_rolled_back(tmp_path: Path) -> None:
    ledger.record(tmp_path, [trial("a")])
    code = (
        "import os, sqlite3, sys\n"
        "con = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "con.execute('pragma cache_size = 1')\n"
        "con.execute('begin immediate')\n"
        "con.execute('delete from entries')\n"
        "con.executemany('insert into series values (?, ?)', [(str(i), os.urandom(5000)) for i in range(500)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / chain.FILE], check=False)
    assert done.returncode == -signal.SIGKILL
    # Its pages are in the file, and the journal knows what was there.
    assert (tmp_path / f"{chain.FILE}-journal").stat().st_size > 0
    found = family(tmp_path)
    assert (found.is_known, len(found.trials)) == (True, 1)


def test_a_reader_waits_for_a_writer_and_a_ledger_held_for_long_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3
    from contextlib import closing

    from foxflow.errors import FoxflowError

    ledger.record(tmp_path, [trial("a")])
    monkeypatch.setattr(chain, "WAIT_S", 0.2)
    with closing(sqlite3.connect(tmp_path / chain.FILE, isolation_level=None)) as con:
        con.execute("begin exclusive")
        with pytest.raises(FoxflowError, match="cannot be read now: database is locked"):
            family(tmp_path)
        with pytest.raises(FoxflowError, match="database is locked"):
            ledger.record(tmp_path, [trial("b")])
    with chain.alone(tmp_path), pytest.raises(FoxflowError, match="locked by another process that records trials"):
        ledger.record(tmp_path, [trial("b")])
    assert len(family(tmp_path).trials) == 1
