"""The file of the ledger: entries that only ever grow, each sealed by the hash of all before it.

SQLite, in its default journal: one file, whole after a kill at any moment, one writer while readers wait. An entry is
JSON; the series it names by their sha256 lie beside it, each once, however many entries name it.
"""

import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foxflow.errors import DataError, FoxflowError

FILE = "ledger.sqlite"
WAIT_S = 60.0
# "foxl"
APPLICATION = 0x666F786C

# Of a file that may be sound: locked, not permitted, or on a disk that does not answer.
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_FULL,
}

_TABLES = (
    f"pragma application_id = {APPLICATION}",
    "create table if not exists series (sha256 text primary key, content blob not null)",
    "create table if not exists entries (number integer primary key, body text not null, seal text not null)",
)


@dataclass(frozen=True)
class Entry:
    """An entry as it was read: its number from 1 on, its JSON and its seal."""

    number: int
    body: str
    seal: str

    @property
    def document(self) -> dict[str, Any]:
        """What it says; nothing where it is no JSON object, which its seal then tells."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class UnreadableError(DataError):
    """A ledger that is no database, or not one of a ledger."""


def canonical(value: object) -> str:
    """Return a JSON value as the one text that equal values share."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def seal(before: str, body: str) -> str:
    """Return the sha256 over the seal before (empty for the first entry) and the entry."""
    return hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()


def sound(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries whose seal follows from the entry before as it stands: others may say anything."""
    before = ["", *(e.seal for e in entries)]
    return [e for e, seal_before in zip(entries, before, strict=False) if e.seal == seal(seal_before, e.body)]


def broken(entries: Sequence[Entry], *, since: int = 1) -> int | None:
    """Return the number of the first entry from `since` on that is not what was written; None where all are."""
    before = next((e.seal for e in entries if e.number == since - 1), "")
    expected = since
    for entry in entries:
        if entry.number < since:
            continue
        if entry.number != expected or entry.seal != seal(before, entry.body):
            return expected
        before, expected = entry.seal, expected + 1
    return None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other recorders of one home out, for at most a minute, then DataError; a killed one's lock is gone with it.

    The folder itself is locked: a ledger that must be set aside cannot carry the lock.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        end = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as e:
                if time.monotonic() > end:
                    raise DataError(
                        f"{folder} is locked by another process that records trials, still after waiting {WAIT_S:g} s; "
                        "end it and run again"
                    ) from e
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def has_content(folder: Path) -> bool:
    """Return whether there is a file; one of no bytes is what is left of a ledger that was never begun."""
    path = folder / FILE
    return path.exists() and path.stat().st_size > 0


def read(folder: Path) -> list[Entry]:
    """Return all entries, by number; none where there is no ledger, or one that was never written to.

    Raises
    ------
    UnreadableError
        Where the file is there but not a ledger.
    """
    with _opened(folder) as con:
        return [] if con is None else _entries(con)


def read_series(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the named series that are there and have the content they are named after."""
    with _opened(folder) as con:
        found = [] if con is None else _series(con, names)
    return {name: content for name, content in found if hashlib.sha256(content).hexdigest() == name}


def append(
    folder: Path, documents: Sequence[Mapping[str, object]], *, series: Mapping[str, bytes]
) -> list[tuple[int, str]]:
    """Add entries and the series they name, together or not at all; return number and seal of each.

    Made where it is absent. Call it inside `alone`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(folder / FILE, timeout=WAIT_S, isolation_level=None)) as con:
            # After the last sync, the folder's: a new ledger must not lose its name when the power goes.
            con.execute("pragma synchronous = extra")
            con.execute("begin immediate")
            for statement in _TABLES:
                con.execute(statement)
            newest = con.execute("select number, seal from entries order by number desc limit 1").fetchone()
            number, before = newest or (0, "")
            con.executemany("insert or replace into series values (?, ?)", series.items())
            made = []
            for document in documents:
                body = canonical(document)
                number, before = number + 1, seal(before, body)
                con.execute("insert into entries values (?, ?, ?)", (number, body, before))
                made.append((number, before))
            con.execute("commit")
    except sqlite3.Error as e:
        raise FoxflowError(
            f"trials cannot be recorded in {folder / FILE}: {e}; a result is not shown before it is recorded: make the "
            "file and its folder writable, then run again"
        ) from e
    return made


def set_aside(folder: Path) -> Path:
    """Rename a ledger that cannot be read, so that another can be begun; return its new path."""
    aside = folder / f"{FILE}.unreadable-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    (folder / FILE).rename(aside)
    return aside


@contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection | None]:
    """Give a connection for reading, None where there is no file or it is empty."""
    if not has_content(folder):
        yield None
        return
    path = folder / FILE
    try:
        # Not read-only: what a killed writer left must be rolled back first.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=WAIT_S)) as con:
            if con.execute("pragma application_id").fetchone() != (APPLICATION,):
                raise UnreadableError(f"{path} is a database of something else")
            yield con
    except sqlite3.Error as e:
        if e.sqlite_errorcode & 0xFF in _PASSING:
            raise DataError(f"{path} cannot be read now: {e}; give yourself the right, or close what holds it") from e
        raise UnreadableError(f"{path} cannot be read: {e}") from e


def _entries(con: sqlite3.Connection) -> list[Entry]:
    rows = con.execute("select number, body, seal from entries order by number").fetchall()
    return [Entry(int(number), str(body), str(mark)) for number, body, mark in rows]


def _series(con: sqlite3.Connection, names: Sequence[str]) -> list[tuple[str, bytes]]:
    wanted = "select sha256, content from series where sha256 in (select value from json_each(?))"
    return [(str(name), bytes(content)) for name, content in con.execute(wanted, (json.dumps(list(names)),))]
