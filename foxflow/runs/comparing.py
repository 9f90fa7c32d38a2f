"""Two runs side by side: what was set otherwise, what came out otherwise, and whether the difference is luck."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from foxflow import metrics, scoring
from foxflow.errors import DataError
from foxflow.runs.reading import Run

NUMBERS = (
    "total_return",
    "sharpe",
    "max_drawdown",
    "turnover",
    "n_fills",
    "cost_total",
    "information_ratio",
    "benchmark_total_return",
    "benchmark_sharpe",
    "ic",
    "ic_t",
    "rank_ic",
    "rank_ic_t",
    "hit_rate",
    "n_forecasts",
    "folds_that_learned",
)
SIGNIFICANCE = ("psr", "deflated_sharpe", "n_trials", "pbo")
ABOUT = ("run_id", "experiment", "model", "symbols", "first_ts", "last_ts", "n_folds", "n_seeds", "forecasts_sha256")


@dataclass(frozen=True)
class Comparison:
    """What `--json` prints, and `session`, `a` and `b`: both equities where known, 1 before the first common session.

    Where the runs have no session in common each begins at 1.
    """

    found: dict[str, Any]
    growth: pl.DataFrame


def compare(a: Run, b: Run) -> Comparison:
    """Return two runs side by side; a difference is `a` less `b`.

    `found` holds `runs` (what they are), `config` (the keys that differ; None where one has it not), `numbers`,
    `folds` (by the time a test span begins; return as a fraction, IC pooled over the fold) and `returns`: the sessions
    of each and of both, and over those of both the correlation of the session returns, the mean difference a year and
    its t-statistic with Newey-West standard errors of `lags` lags; None with fewer than three, or without variation.
    `notes` says what limits the comparison. Frames, and so folds and returns, are of each run's first seed.

    Raises
    ------
    DataError
        Where a file of a run is absent or broken.
    """
    ours, theirs = _sessions(a), _sessions(b)
    returns = _returns(ours, theirs, _a_year(a, b))
    found = {
        "runs": [{k: run.summary.get(k) for k in ABOUT} for run in (a, b)],
        "config": _config(a.config(), b.config()),
        "numbers": _numbers(_flat_numbers(a.summary), _flat_numbers(b.summary)),
        "folds": _folds(a, b),
        "returns": returns,
        "notes": _notes(a, b, returns),
    }
    return Comparison(found, _growth(ours, theirs))


def _sessions(run: Run) -> pl.DataFrame:
    """Return `session`, `equity` and `return` of a run."""
    config = run.config()
    try:
        calendar, cash = config["data"]["calendar"], float(config["costs"].get("initial_cash", 1e6))
        equity = _frame(run, "equity").select("ts", "equity", "benchmark")
    except (KeyError, pl.exceptions.PolarsError) as e:
        raise DataError(f"{run.folder} is not the folder of a run that can be compared: {e}; run it again") from e
    sessions = scoring.per_session(equity, calendar)
    gained = metrics.returns_of(sessions["equity"].to_numpy(), initial=cash)
    return sessions.select("session", "equity").with_columns(pl.Series("return", gained))


def _frame(run: Run, name: str) -> pl.DataFrame:
    path = run.folder / f"{name}.parquet"
    try:
        found = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}; run the experiment again") from e
    if found.is_empty():
        raise DataError(f"{path} has no rows; run the experiment again")
    return found


def _a_year(a: Run, b: Run) -> float | None:
    years = {run.summary.get("sessions_per_year") for run in (a, b)}
    return float(years.pop() or math.nan) if len(years) == 1 else None


def _returns(ours: pl.DataFrame, theirs: pl.DataFrame, a_year: float | None) -> dict[str, Any]:
    both = ours.join(theirs, on="session", suffix="_b").sort("session")
    x, y = both["return"].to_numpy(), both["return_b"].to_numpy()
    difference = x - y
    enough = len(both) >= 3
    lags = metrics.persistence_lags(difference) if enough else None
    correlation = float(np.corrcoef(x, y)[0, 1]) if enough and np.ptp(x) > 0 and np.ptp(y) > 0 else None
    t = metrics.t_statistic(difference, lags=lags) if lags is not None and np.ptp(difference) > 0 else None
    return {
        "n_sessions_a": len(ours),
        "n_sessions_b": len(theirs),
        "n_sessions_both": len(both),
        "first_session": both["session"].min(),
        "last_session": both["session"].max(),
        "correlation": _known(correlation),
        "mean_difference_a_year": _known(float(difference.mean()) * a_year if len(both) and a_year else None),
        "difference_t": _known(t),
        "lags": lags,
    }


def _growth(ours: pl.DataFrame, theirs: pl.DataFrame) -> pl.DataFrame:
    both = ours.join(theirs, on="session")["session"]
    start = both.min()
    curves = []
    for name, sessions in (("a", ours), ("b", theirs)):
        # Growth of 1 since the close before the first session of both.
        growth = (1 + sessions["return"]).cum_prod()
        before = growth.filter(sessions["session"] < start) if start is not None else growth.clear()
        curves.append(
            pl.DataFrame({"session": sessions["session"], name: growth / (before[-1] if len(before) else 1.0)})
        )
    return curves[0].join(curves[1], on="session", how="full", coalesce=True).sort("session")


def _config(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    ours, theirs = ({f"{s}.{k}": v for s, body in c.items() for k, v in body.items()} for c in (a, b))
    keys = sorted(ours.keys() | theirs.keys())
    return [
        {"key": k, "a": ours.get(k), "b": theirs.get(k)}
        for k in keys
        if (k in ours) != (k in theirs) or ours[k] != theirs[k]
    ]


def _flat_numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    significance = summary.get("significance") or {}
    return {k: summary.get(k) for k in NUMBERS} | {k: significance.get(k) for k in SIGNIFICANCE}


def _numbers(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name in (*NUMBERS, *SIGNIFICANCE):
        x, y = _known(a[name]), _known(b[name])
        if x is not None or y is not None:
            rows.append({"name": name, "a": x, "b": y, "difference": None if x is None or y is None else x - y})
    return rows


def _folds(a: Run, b: Run) -> list[dict[str, Any]]:
    ours, theirs = _by_start(a), _by_start(b)
    rows = []
    for start in sorted(ours.keys() | theirs.keys()):
        x, y = ours.get(start, {}), theirs.get(start, {})
        row: dict[str, Any] = {"test_start": start}
        for key in ("test_end", "return", "ic"):
            row |= {f"{key}_a": x.get(key), f"{key}_b": y.get(key)}
        rows.append(row)
    return rows


def _by_start(run: Run) -> dict[str, dict[str, Any]]:
    """Return each fold's end, return and IC by the start of its test span."""
    folds = run.summary.get("folds") or []
    if not folds:
        return {}
    try:
        spans = pl.DataFrame(
            [(f["fold"], f["test_start"], f["test_end"]) for f in folds], schema=["fold", "start", "end"], orient="row"
        )
        equity = _frame(run, "equity").select("ts", "equity")
        forecasts = _frame(run, "forecasts").drop_nulls(["forecast", "label"])
        cash = float(run.config()["costs"].get("initial_cash", 1e6))
        ic = dict(forecasts.group_by("fold").agg(pl.corr("forecast", "label")).iter_rows())
    except (KeyError, TypeError, pl.exceptions.PolarsError) as e:
        raise DataError(f"the folds of {run.folder} cannot be read: {e}; run the experiment again") from e
    ends = [pl.Series([t]).str.to_datetime(time_unit="us", time_zone="UTC")[0] for t in spans["end"]]
    at = [equity.filter(pl.col("ts") <= end)["equity"] for end in ends]
    levels = [cash, *(e[-1] if len(e) else cash for e in at)]
    return {
        start: {"test_end": end, "return": _known(after / before - 1), "ic": _known(ic.get(number))}
        for (number, start, end), before, after in zip(spans.iter_rows(), levels, levels[1:], strict=False)
    }


def _notes(a: Run, b: Run, returns: Mapping[str, Any]) -> list[str]:
    said = []
    n, ours, theirs = (returns[f"n_sessions_{k}"] for k in ("both", "a", "b"))
    if not n:
        said.append("The runs have no session in common: nothing can be said of the difference of their returns.")
    elif n < max(ours, theirs):
        said.append(
            f"They share {n:,} sessions, of {ours:,} and {theirs:,}: correlation and t are of those alone, the key "
            "numbers of each run's own."
        )
    if any((run.summary.get("n_seeds") or 1) > 1 for run in (a, b)):
        said.append("Key numbers are means over the seeds; folds, returns and curves are of the first seed.")
    if a.summary.get("forecasts_sha256") == b.summary.get("forecasts_sha256"):
        said.append("Their forecasts are the same to the bit.")
    if a.summary.get("sessions_per_year") != b.summary.get("sessions_per_year"):
        said.append("Their calendars differ in sessions a year, so the difference has no mean a year.")
    return said


def _known(value: object) -> float | None:
    """Return a finite number as it is, None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if math.isfinite(value) else None
