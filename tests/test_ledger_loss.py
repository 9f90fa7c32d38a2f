"""What was lost from a ledger is never counted as nothing: the number of trials is then unknown, with the reason."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import daily_bars
from ledger_samples import family, finish, trial

from foxflow import ledger, store
from foxflow.errors import DataError
from foxflow.ledger import chain, traces

Damage = Callable[[Path], object]


def edit(*statements: str) -> Damage:
    def change(home: Path) -> None:
        with closing(sqlite3.connect(home / chain.FILE)) as con, con:
            for statement in statements:
                con.execute(statement)

    return change


def reseal(home: Path) -> None:
    """Forge what someone would who knows how: the third entry says another seed, and all seals follow from it."""
    with closing(sqlite3.connect(home / chain.FILE)) as con, con:
        before = ""
        for number, body in con.execute("select number, body from entries order by number").fetchall():
            changed = body.replace('"seed":1', '"seed":9')
            before = chain.seal(before, changed)
            con.execute("update entries set body = ?, seal = ? where number = ?", (changed, before, number))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with three trials, in three runs that are all written."""
    folder = tmp_path_factory.mktemp("three")
    for seed in range(3):
        finish(folder, ledger.record(folder, [trial(seed=seed)]), f"2020011{seed}T000000000000Z-made-ridge-1")
    assert family(folder).is_known
    assert ledger.doubt(folder) is None
    return folder


@pytest.fixture
def home(three: Path, tmp_path: Path) -> Path:
    """Return a home of three trials of its own."""
    return shutil.copytree(three, tmp_path / "home")


def store_of(folder: Path) -> Path:
    """Return a store of bars, made in a home."""
    store.write_bars(folder / "bars.duckdb", daily_bars([1.0, 2.0, 3.0]), bar="1d")
    return folder / "bars.duckdb"


DAMAGES: dict[str, tuple[Damage, str]] = {
    "deleted": (lambda home: (home / chain.FILE).unlink(), "ledger.sqlite is gone, but runs/20200110T"),
    "emptied": (lambda home: (home / chain.FILE).write_bytes(b""), "ledger.sqlite is gone"),
    "cut short as a file": (
        lambda home: (home / chain.FILE).write_bytes((home / chain.FILE).read_bytes()[:5000]),
        "cannot be read",
    ),
    "another database": (lambda home: edit("create table t (x)")(_fresh(home)), "a database of something else"),
    "without its table": (edit("drop table entries"), "cannot be read: no such table"),
    "last entry removed": (edit("delete from entries where number = 4"), "has 3 records, but runs/20200112"),
    "entry removed": (edit("delete from entries where number = 3"), "record 3 of ledger.sqlite is not what was"),
    "beginning removed": (edit("delete from entries where number = 1"), "does not begin as a ledger does"),
    "entries renumbered": (
        edit("delete from entries where number = 2", "update entries set number = number - 1 where number > 2"),
        "record 2 of ledger.sqlite is not what was written",
    ),
    "body edited": (
        edit("update entries set body = replace(body, '\"seed\":1', '\"seed\":2') where number = 3"),
        "record 3 of ledger.sqlite is not what was written",
    ),
    "body is no text": (edit("update entries set body = x'00ff' where number = 3"), "record 3 of"),
    "all entries removed": (edit("delete from entries"), "ledger.sqlite is gone"),
    "edited and sealed again": (reseal, "remember 4 of it, or others"),
    "returns edited": (edit("update series set content = zeroblob(24) where length(content) = 24"), "returns of 3 of 3 trials are not what was"),
    "returns removed": (edit("delete from series"), "returns of 3 of 3 trials are not what was written"),
}  # fmt: skip


def _fresh(home: Path) -> Path:
    (home / chain.FILE).unlink()
    return home


@pytest.mark.parametrize("name", DAMAGES)
def test_a_ledger_that_is_not_whole_reads_unknown_and_never_known_again_for_these_bars(home: Path, name: str) -> None:
    damage, says = DAMAGES[name]
    damage(home)
    before = family(home)
    assert not before.is_known
    assert before.note.startswith("trials unknown: ")
    assert says in before.note
    finish(home, ledger.record(home, [trial("new", returns=(0.5, 0.25, 0.125))]), "20200120T000000000000Z-made-ridge-1")
    after = family(home)
    assert not after.is_known
    assert "new" in after.trials["recipe"][-1]
    shutil.rmtree(home / "runs")
    assert not family(home).is_known


@pytest.mark.parametrize("name", [n for n in DAMAGES if not n.startswith("returns")])
def test_bars_from_after_the_loss_are_known_again(home: Path, name: str) -> None:
    DAMAGES[name][0](home)
    finish(home, ledger.record(home, [trial("new", returns=(0.5, 0.25, 0.125))]), "20200120T000000000000Z-made-ridge-1")
    today = datetime.now(UTC).date()
    assert not family(home, first=today, last=today).is_known
    later = family(home, first=today + timedelta(days=1), last=today + timedelta(days=9))
    assert (later.is_known, len(later.trials)) == (True, 0)
    # And it goes on as any ledger: what is taken from it now is missed.
    finish(home, ledger.record(home, [trial("newer")]), "20200121T000000000000Z-made-ridge-1")
    with closing(sqlite3.connect(home / chain.FILE)) as con, con:
        con.execute("delete from entries where number = (select max(number) from entries)")
    assert not family(home, first=today + timedelta(days=1), last=today + timedelta(days=9)).is_known


@pytest.mark.parametrize("name", [n for n in DAMAGES if n != "returns edited"])
def test_a_copy_put_back_before_the_next_run_makes_it_whole(home: Path, name: str) -> None:
    copy = (home / chain.FILE).read_bytes()
    DAMAGES[name][0](home)
    (home / chain.FILE).write_bytes(copy)
    found = family(home)
    assert (found.is_known, len(found.trials)) == (True, 3)


def test_an_older_copy_put_back_is_missed_by_the_runs(tmp_path: Path) -> None:
    home = tmp_path
    first = ledger.record(home, [trial()])
    copy = (home / chain.FILE).read_bytes()
    finish(home, first, "20200110T000000000000Z-a")
    finish(home, ledger.record(home, [trial(seed=1)]), "20200111T000000000000Z-b")
    (home / chain.FILE).write_bytes(copy)
    assert ledger.doubt(home) == (
        "ledger.sqlite has 2 records, but runs/20200111T000000000000Z-b remember 3 of it, or others"
    )
    # Another trial in the place of the lost one does not hide it.
    ledger.record(home, [trial(seed=2)])
    assert not family(home).is_known


def test_deleting_the_runs_alone_changes_nothing(home: Path) -> None:
    shutil.rmtree(home / "runs")
    found = family(home)
    assert (found.is_known, len(found.trials)) == (True, 3)


def test_the_store_remembers_when_ledger_and_runs_are_deleted(home: Path) -> None:
    store_of(home)
    ledger.record(home, [trial()])
    shutil.rmtree(home / "runs")
    (home / chain.FILE).unlink()
    found = family(home)
    assert not found.is_known
    assert found.note == (
        "trials unknown: ledger.sqlite is gone, but bars.duckdb remember it. At least 0 trials on these bars"
    )
    finish(home, ledger.record(home, [trial()]))
    assert not family(home).is_known


def test_a_home_without_anything_is_fresh(home: Path) -> None:
    shutil.rmtree(home)
    assert family(home).is_known


def test_runs_of_before_there_was_a_ledger_make_the_trials_unknown(tmp_path: Path) -> None:
    old = tmp_path / "runs" / "20200110T000000000000Z-old-ridge-1"
    old.mkdir(parents=True)
    (old / "summary.json").write_text("{}")
    assert "no ledger recorded runs/20200110T000000000000Z-old-ridge-1" in family(tmp_path).note
    ledger.record(tmp_path, [trial()])
    later = datetime.now(UTC).date() + timedelta(days=1)
    assert family(tmp_path, first=later, last=later).is_known
    shutil.rmtree(old)
    assert not family(tmp_path).is_known


def test_a_run_brought_from_elsewhere_makes_the_trials_unknown_while_it_is_there(home: Path, tmp_path: Path) -> None:
    here, theirs = home, finish(tmp_path / "there", ledger.record(tmp_path / "there", [trial()]))
    brought = shutil.copytree(theirs, here / "runs" / "20200111T000000000000Z-theirs-ridge-1")
    assert ledger.doubt(here) == "another ledger recorded runs/20200111T000000000000Z-theirs-ridge-1"
    # It is no damage: the ledger goes on, and is whole again without the run.
    ledger.record(here, [trial(seed=5)])
    assert not family(here).is_known
    shutil.rmtree(brought)
    assert family(here).is_known


def test_a_run_that_no_ledger_recorded_or_whose_height_is_spoilt_makes_the_trials_unknown(home: Path) -> None:
    run = finish(home, ledger.record(home, [trial(seed=7)]), "20900101T000000000000Z-made-ridge-1")
    (run / "ledger.json").write_text(json.dumps({"ledger": "x"}))
    assert "ledger.json cannot be read" in family(home).note
    (run / "ledger.json").unlink()
    assert family(home).note.startswith("trials unknown: no ledger recorded runs/20900101T000000000000Z-made-ridge-1.")
    # Half done, or no run: said of nothing.
    (run / "summary.json").unlink()
    (home / "runs" / ".work-1-x").mkdir()
    (home / "runs" / "notes.txt").write_text("x")
    assert family(home).is_known


def test_the_store_is_written_to_when_the_ledger_has_doubled(tmp_path: Path) -> None:
    path = store_of(tmp_path)
    for seed in range(9):
        ledger.record(tmp_path, [trial(seed=seed)])
    assert [n for _, n, _ in store.read_heights(path, wait_s=1)] == [2, 4, 8]
    # What is tried on the bars is not part of them.
    store.export(path, tmp_path / "lake")
    store.restore(tmp_path / "lake", tmp_path / "other.duckdb")
    assert store.read_heights(tmp_path / "other.duckdb", wait_s=1) == []


def test_a_store_without_bars_stays_empty(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    with store.connect(path, read_only=False):
        pass
    ledger.record(tmp_path, [trial()])
    assert store.read_heights(path, wait_s=1) == []
    store.write_bars(path, daily_bars([1.0]), bar="1d")


def test_a_store_that_is_locked_is_a_witness_the_ledger_can_do_without_but_nothing_else_can(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store_of(home)
    monkeypatch.setattr(traces, "PATIENT_S", 0.2)
    monkeypatch.setattr(traces, "BRIEF_S", 0.2)
    code = "import duckdb, sys; con = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    height = ledger.record(home, [trial("new")])
    assert family(home).is_known
    (home / chain.FILE).unlink()
    with pytest.raises(DataError, match="locked by process"):
        family(home)
    holder.communicate("")
    # It was not written to, and is as soon as it can be.
    assert store.read_heights(path, wait_s=1) == []
    assert not family(home).is_known
    assert store.read_heights(path, wait_s=1) == []
    again = ledger.record(home, [trial("new")])
    assert store.read_heights(path, wait_s=1) == [(again.ledger, again.n_records, again.head)]
    assert again.ledger != height.ledger
