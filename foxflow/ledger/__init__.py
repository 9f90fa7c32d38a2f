"""The ledger: every configuration ever scored on these bars, recorded by itself, so that luck can be reckoned with.

A trial is a recipe and a seed, scored (`Trial`). The file is `ledger.sqlite` beside store and runs, append-only: the
same trial on longer bars is another record of one trial, and the newest counts. The family of a run are all trials that
share a symbol and a session with it, whatever they are called and whatever the bar length: hourly bars of a symbol are
the same luck as its daily ones. Symbols are told apart by name alone, so the sample's AAPL and the store's are one.

Where the ledger was deleted, cut short or edited the number of trials is unknown, and never said to be less than it
was. Docs: decision 15.
"""

import hashlib
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow import bars
from foxflow.dataset import Floats
from foxflow.ledger import chain, traces
from foxflow.ledger.chain import Entry, UnreadableError
from foxflow.ledger.judging import Judgement, beginning, judge
from foxflow.ledger.traces import Height, Trace, mark_run
from foxflow.ledger.trials import Trial, recipe, trials_of

__all__ = ["TRIAL_SCHEMA", "Family", "Height", "Trial", "doubt", "family", "mark_run", "recipe", "record", "trials_of"]

TRIAL_SCHEMA = pl.Schema(
    {
        "key": pl.String(),
        "experiment": pl.String(),
        "model": pl.String(),
        "seed": pl.Int64(),
        "symbols": pl.List(pl.String()),
        "bar": pl.String(),
        "calendar": pl.String(),
        "first": pl.Date(),
        "last": pl.Date(),
        "n_sessions": pl.Int64(),
        "run_id": pl.String(),
        "recorded_at": bars.TS,
        "recipe": pl.String(),
    }
)


@dataclass(frozen=True)
class Family:
    """The trials that a run shares its luck with, itself among them once it is recorded.

    Attributes
    ----------
    trials
        `TRIAL_SCHEMA`, one row a trial, in the order of their first record; each as its newest record says.
    sessions
        `(n_sessions,)` dates: those of any of them, ascending.
    returns
        `(n_sessions, n_trials)`: each trial's return of each session, a fraction; NaN where it has none.
    is_known
        Whether these are all there ever were. Where not, there were at least these.
    note
        How many there are and since when they are recorded, or why that is unknown and what to do.
    """

    trials: pl.DataFrame
    sessions: pl.Series
    returns: Floats
    is_known: bool
    note: str


def record(folder: Path, trials: Sequence[Trial]) -> Height:
    """Record the trials of a run in the ledger of a home folder, all or none, and return how far it has come.

    Call it once a run is scored and before anything of it is shown; `mark_run` the run's folder with the result. A
    ledger that is damaged or gone is begun anew, and says so from then on; one that cannot be read is kept beside it.

    Raises
    ------
    FoxflowError
        Where it cannot be written, or is locked for a minute.
    """
    assert trials
    folder.mkdir(parents=True, exist_ok=True)
    with chain.alone(folder):
        entries, found, judged = _examine(folder)
        documents: list[dict[str, Any]] = []
        now = bars.iso(datetime.now(UTC))
        if judged.ledger is None or judged.damage:
            documents.append(beginning(judged, found, ledger=uuid.uuid4().hex, at=now))
            if not entries and chain.has_content(folder):
                # It gave no entries, so it is none, and must not be written over.
                documents[0]["lost"] += f", and is kept as {chain.set_aside(folder).name}"
        series: dict[str, bytes] = {}
        documents += [_document(trial, series, at=now) for trial in trials]
        made = chain.append(folder, documents, series=series)
        ledger = documents[0]["ledger"] if documents[0]["kind"] == "beginning" else judged.ledger
        height = Height(str(ledger), *made[-1])
        traces.mark_stores(folder, height, found)
    return height


def doubt(folder: Path) -> str | None:
    """Return why the trials of a home folder are unknown, None where they are known.

    To be said before a run, not after it: `record` begins a damaged ledger anew, and a copy put back then comes late.
    """
    _, _, judged = _examine(folder)
    reasons = _reasons(judged, first=None)
    return "; ".join(reasons) or None


def family(folder: Path, *, symbols: Collection[str], first: date, last: date) -> Family:
    """Return all trials recorded in a home folder that share a symbol and at least one session with a run.

    Directly: a trial that shares bars only with another of them is not among them.

    Raises
    ------
    DataError
        Where the ledger, or without one the store, is locked or not permitted to be read: nothing can be said then.
    """
    entries, _, judged = _examine(folder)
    newest: dict[str, dict[str, Any]] = {}
    for entry in chain.sound(entries):
        document = entry.document
        if document.get("kind") == "trial" and _overlaps(document, symbols, first, last):
            newest[document["key"]] = document
    wanted = {d[name] for d in newest.values() for name in ("sessions", "returns")}
    content = chain.read_series(folder, sorted(wanted)) if wanted else {}
    kept = [d for d in newest.values() if {d["sessions"], d["returns"]} <= content.keys()]
    sessions, returns = _matrix(kept, content)
    reasons = _reasons(judged, first=first)
    if len(kept) < len(newest):
        reasons.append(f"the returns of {len(newest) - len(kept)} of {len(newest)} trials are not what was written")
    note = _note(reasons, len(newest), since=_since(entries))
    return Family(_frame(kept), sessions, returns, not reasons, note)


def _reasons(judged: Judgement, *, first: date | None) -> list[str]:
    """Return why the trials on bars from `first` on are unknown, or those on any bars."""
    reasons = [*judged.damage, *judged.strangers]
    # What was tried before the loss cannot have seen bars that came after it.
    if judged.lost and (first is None or first <= judged.lost[1].date()):
        reasons.insert(0, f"{judged.lost[0]} (noticed on {judged.lost[1]:%Y-%m-%d}, when a new ledger was begun)")
    return reasons


def _examine(folder: Path) -> tuple[list[Entry], list[Trace], Judgement]:
    """Return entries, traces and what is wrong; the traces are read first, see `judge`."""
    found = [*traces.of_runs(folder), *traces.of_stores(folder, has_ledger=chain.has_content(folder))]
    try:
        entries = chain.read(folder)
    except UnreadableError as e:
        return [], found, judge([], found, unreadable=str(e))
    return entries, found, judge(entries, found, unreadable=None)


def _document(trial: Trial, series: dict[str, bytes], *, at: str) -> dict[str, Any]:
    """Return the entry of a trial, and add its series to `series`."""
    days = trial.sessions.to_physical().to_numpy().astype("<i4").tobytes()
    values = trial.returns.astype("<f8").tobytes()
    names = {"sessions": hashlib.sha256(days).hexdigest(), "returns": hashlib.sha256(values).hexdigest()}
    series |= {names["sessions"]: days, names["returns"]: values}
    return {
        "kind": "trial",
        "key": trial.key,
        "recipe": trial.recipe,
        "seed": trial.seed,
        "experiment": trial.experiment,
        "run_id": trial.run_id,
        "symbols": list(trial.symbols),
        "first": trial.first.isoformat(),
        "last": trial.last.isoformat(),
        "n_sessions": len(trial.sessions),
        **names,
        "recorded_at": at,
    }


def _overlaps(document: dict[str, Any], symbols: Collection[str], first: date, last: date) -> bool:
    in_time = document["first"] <= last.isoformat() and document["last"] >= first.isoformat()
    return in_time and not set(symbols).isdisjoint(document["symbols"])


def _matrix(documents: Sequence[dict[str, Any]], content: dict[str, bytes]) -> tuple[pl.Series, Floats]:
    names = {d["sessions"] for d in documents}
    days: dict[str, NDArray[np.int32]] = {name: np.frombuffer(content[name], "<i4") for name in names}
    every = np.unique(np.concatenate(list(days.values()))) if days else np.empty(0, dtype=np.int32)
    at = {name: np.searchsorted(every, own) for name, own in days.items()}
    returns = np.full((len(every), len(documents)), np.nan, order="F")
    for column, document in enumerate(documents):
        returns[at[document["sessions"]], column] = np.frombuffer(content[document["returns"]], "<f8")
    return pl.Series("session", every).cast(pl.Int32).cast(pl.Date), returns


def _frame(documents: Sequence[dict[str, Any]]) -> pl.DataFrame:
    rows = [
        {
            **{name: d[name] for name in ("key", "experiment", "seed", "symbols", "n_sessions", "run_id")},
            "model": d["recipe"]["config"]["model"]["name"],
            "bar": d["recipe"]["config"]["data"]["bar"],
            "calendar": d["recipe"]["config"]["data"]["calendar"],
            "first": date.fromisoformat(d["first"]),
            "last": date.fromisoformat(d["last"]),
            "recorded_at": datetime.fromisoformat(d["recorded_at"]),
            "recipe": chain.canonical(d["recipe"]),
        }
        for d in documents
    ]
    return pl.DataFrame(rows, schema=TRIAL_SCHEMA)


def _since(entries: Sequence[Entry]) -> str:
    return str(entries[0].document.get("at", ""))[:10] if entries else ""


def _note(reasons: Sequence[str], n_trials: int, *, since: str) -> str:
    count = f"{n_trials:,} trial" if n_trials == 1 else f"{n_trials:,} trials"
    if not reasons:
        return f"{count} on these bars, by the ledger begun on {since}" if since else "no trial on these bars so far"
    return f"trials unknown: {'; '.join(reasons)}. At least {count} on these bars"
