"""Runs as they were written, by whatever version: found by id, read, and what is broken said by name."""

import difflib
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foxflow.errors import DataError, FoxflowError

RUNS = "runs"
LAST = "last"
MOST_NAMED = 5
BEGAN = re.compile(r"\d{8}T\d{12}Z-")


@dataclass(frozen=True)
class Run:
    """A run's folder and its summary, as `foxflow backtest --json` printed it."""

    folder: Path
    summary: dict[str, Any]

    def config(self) -> dict[str, Any]:
        """Return the experiment as TOML values.

        Raises
        ------
        DataError
            Where it is absent or broken.
        """
        path = self.folder / "config.toml"
        try:
            return tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as e:
            raise DataError(f"{path} cannot be read: {_words(e)}; run the experiment again") from e


def read(folder: Path) -> Run:
    """Return the run in a folder.

    Raises
    ------
    DataError
        Where it has no summary, or one that is no JSON object of a run.
    """
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise DataError(f"{path} cannot be read: {_words(e)}; remove the folder, or run the experiment again") from e
    if not isinstance(summary, dict) or not isinstance(summary.get("run_id"), str):
        raise DataError(f"{path} is no summary of a run: it has no run_id; remove the folder, or run again")
    return Run(folder, summary)


def listed(home: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each run under a home folder, the newest first, and what is broken about the others.

    A row has run_id, experiment, model, first_ts, last_ts, n_folds, sharpe, deflated_sharpe, n_trials (how many the
    ledger knew when that was worked out) and verdict (its first sentence); None where a run does not say.
    """
    rows, broken = [], []
    for folder in _folders(home):
        try:
            run = read(folder)
        except DataError as e:
            broken.append(str(e))
            continue
        summary = run.summary
        luck = summary.get("significance") or {}
        rows.append(
            {
                **{k: summary.get(k) for k in ("run_id", "experiment", "model", "first_ts", "last_ts", "n_folds")},
                "sharpe": summary.get("sharpe"),
                "deflated_sharpe": luck.get("deflated_sharpe"),
                "n_trials": luck.get("n_trials"),
                "verdict": next(iter(summary.get("verdict") or []), None),
            }
        )
    return rows, broken


def find(home: Path, name: str) -> Run:
    """Return the run whose id is or begins with `name`, or the newest for `last`.

    Raises
    ------
    FoxflowError
        Where no run fits, or more than one does, naming the nearest; DataError where it is broken.
    """
    known = [folder.name for folder in _folders(home)]
    if not known:
        raise FoxflowError(
            f"no run under {str(home / RUNS)!r}; make one with `foxflow backtest`, or give another --out"
        )
    if name == LAST:
        return read(home / RUNS / known[0])
    fitting = [name] if name in known else [k for k in known if name and k.startswith(name)]
    if len(fitting) == 1:
        return read(home / RUNS / fitting[0])
    if fitting:
        raise FoxflowError(f"{name!r} begins {len(fitting)} runs: {_first(fitting)}; give more of the id")
    near = [k for k in known if name and name in k] or _nearest(name, known)
    shown = f"the nearest: {_first(near)}" if near else f"the newest: {_first(known[:3])}"
    raise FoxflowError(f"no run begins with {name!r}; {shown}; `foxflow runs list` names all")


def _folders(home: Path) -> list[Path]:
    """Return the folders of runs, the newest first: their names begin with the time; what was renamed comes last."""
    found = [f for f in (home / RUNS).glob("[!.]*") if f.is_dir()]
    return sorted(found, key=lambda f: (BEGAN.match(f.name) is not None, f.name), reverse=True)


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return up to three ids that begin alike for longest, or look alike where none does."""
    alike = {k: next(n for n in range(len(name), -1, -1) if k.startswith(name[:n])) for k in known}
    longest = max(alike.values())
    found = [k for k in known if alike[k] == longest][:3] if longest else []
    return found or difflib.get_close_matches(name, known, n=3, cutoff=0.3)


def _first(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _words(e: OSError | ValueError) -> str:
    return (e.strerror or str(e)) if isinstance(e, OSError) else str(e)
