"""Trials made up by hand, and homes to record them in."""

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow import ledger

FIRST = date(2020, 1, 6)


def days(n: int, *, start: date = FIRST) -> pl.Series:
    return pl.Series("session", [start + timedelta(days=i) for i in range(n)], dtype=pl.Date)


def trial(
    name: str = "a",
    *,
    seed: int = 0,
    symbols: tuple[str, ...] = ("AAA",),
    returns: Sequence[float] | NDArray[np.float64] = (0.01, -0.02, 0.03),
    start: date = FIRST,
    bar: str = "1d",
    run_id: str = "run",
) -> ledger.Trial:
    """Return a trial whose recipe is its name."""
    recipe = {"name": name, "config": {"model": {"name": "ridge"}, "data": {"bar": bar, "calendar": "XNYS"}}}
    values = np.array(returns, dtype=float)
    return ledger.Trial(recipe, seed, "made up", run_id, symbols, days(len(values), start=start), values)


def finish(home: Path, height: ledger.Height, name: str = "20200110T000000000000Z-made-ridge-1") -> Path:
    """Write what is left of a finished run: its summary and its height."""
    run = home / "runs" / name
    run.mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    ledger.mark_run(run, height)
    return run


def family(home: Path, *symbols: str, first: date = FIRST, last: date = FIRST + timedelta(days=2)) -> ledger.Family:
    return ledger.family(home, symbols=symbols or ("AAA",), first=first, last=last)
