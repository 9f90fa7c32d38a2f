"""What else remembers the ledger: a height in every run's folder, and in the store of its bars.

A height says how far a ledger had come. A ledger that is lower, or another one, has lost something.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from foxflow import store
from foxflow.errors import DataError

RUNS = "runs"
STORES = ("bars.duckdb", "sample.duckdb")
FILE = "ledger.json"
# How long a store's heights are waited for: with a ledger at hand they are its second witness, without one its only.
PATIENT_S, BRIEF_S = 30.0, 2.0


@dataclass(frozen=True)
class Height:
    """How far a ledger had come: its id, how many records it had, and the seal of the last of them."""

    ledger: str
    n_records: int
    head: str


@dataclass(frozen=True)
class Trace:
    """Where a height was found, or a run that no ledger recorded (`height` None), and when that ran."""

    where: str
    height: Height | None
    at: datetime | None = None


def mark_run(folder: Path, height: Height) -> None:
    """Write the height that a run's record reached into the run's folder, before that is shown."""
    (folder / FILE).write_text(json.dumps(asdict(height), indent=2) + "\n", "utf-8")


def of_runs(folder: Path) -> Iterator[Trace]:
    """Yield what the runs under a home folder remember; one that is not finished has no summary and is left out."""
    for run in sorted((folder / RUNS).glob("[!.]*")):
        where = f"{RUNS}/{run.name}"
        try:
            found = json.loads((run / FILE).read_text("utf-8"))
            height = Height(str(found["ledger"]), int(found["n_records"]), str(found["head"]))
        except (FileNotFoundError, NotADirectoryError):
            if (run / "summary.json").exists():
                yield Trace(where, None, _began(run))
        except (ValueError, TypeError, KeyError):
            yield Trace(f"{where} ({FILE} cannot be read)", None, _began(run))
        else:
            yield Trace(where, height)


def _began(run: Path) -> datetime:
    """Return when a run was written: its name says so, else its folder's time."""
    try:
        return datetime.strptime(run.name.partition("-")[0], "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(run.stat().st_mtime, UTC)


def of_stores(folder: Path, *, has_ledger: bool) -> list[Trace]:
    """Return what the stores of a home folder remember.

    Raises
    ------
    DataError
        Without a ledger, where a store cannot be asked: nothing else would tell that there was one.
    """
    found = []
    for name in STORES:
        try:
            heights = store.read_heights(folder / name, wait_s=BRIEF_S if has_ledger else PATIENT_S)
        except DataError:
            if not has_ledger:
                raise
            continue
        found += [Trace(name, Height(*height)) for height in heights]
    return found


def mark_stores(folder: Path, height: Height, known: Sequence[Trace]) -> None:
    """Leave a height in each store that has none of this ledger, or one less than half as high.

    So a store is written to a dozen times in two thousand trials. One that is locked or read-only is left as it is: the
    next record tries again.
    """
    for name in STORES:
        own = [t.height for t in known if t.where == name and t.height]
        highest = max((h.n_records for h in own if h.ledger == height.ledger), default=0)
        if not (folder / name).exists() or height.n_records < 2 * highest:
            continue
        try:
            store.write_height(folder / name, (height.ledger, height.n_records, height.head), wait_s=BRIEF_S)
        except DataError:
            continue
