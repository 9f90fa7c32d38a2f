"""Runs made up by hand, as their files lie on the disk."""

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli_w
from numpy.typing import NDArray
from report_samples import sample_fold, sample_summary

from foxflow.bars import iso, session_closes
from foxflow.config import load, to_document

TINY = Path(__file__).parent / "tiny.toml"


def closes(first: date, last: date) -> list[Any]:
    return session_closes("XNYS", first, last)["ts"].to_list()


def make_run(
    home: Path,
    run_id: str,
    returns: Sequence[float] | NDArray[np.float64],
    *,
    first: date = date(2024, 1, 2),
    overrides: Sequence[str] = (),
    **changes: Any,
) -> Path:
    """Return the folder of a run with one return a session from `first` on, in two folds of equal length."""
    folder = home / "runs" / run_id
    folder.mkdir(parents=True)
    ts = closes(first, date(first.year + 2, 1, 1))[: len(returns)]
    assert len(ts) == len(returns)
    half = len(ts) // 2
    ends = [(0, ts[0], ts[half - 1]), (1, ts[half], ts[-1])]
    folds = [sample_fold(n, 0, 29, test_start=iso(a), test_end=iso(b)) for n, a, b in ends]
    equity = 1e6 * np.cumprod(1 + np.array(returns))
    pl.DataFrame({"ts": ts, "equity": equity, "benchmark": equity}).write_parquet(folder / "equity.parquet")
    outcome = np.sin(np.arange(len(ts)))
    forecasts = pl.DataFrame(
        {
            "symbol": "AAA",
            "ts": ts,
            "fold": [int(i >= half) for i in range(len(ts))],
            "forecast": np.where(np.arange(len(ts)) < half, outcome, -outcome),
            "label": outcome,
        }
    )
    forecasts.write_parquet(folder / "forecasts.parquet")
    (folder / "config.toml").write_text(tomli_w.dumps(to_document(load(TINY, overrides=overrides, model="ridge"))))
    summary = sample_summary(run_id=run_id, folds=folds, report="report.html", verdict=["One thing.", "Another."])
    summary |= {"first_ts": iso(ts[0]), "last_ts": iso(ts[-1]), **changes}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
