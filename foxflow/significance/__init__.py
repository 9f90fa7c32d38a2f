"""How likely a result is luck, from returns alone: pure functions of arrays. Docs: decision 14.

Returns are fractions per session; a ratio is annualised only in what `assess` returns.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foxflow.errors import DataError
from foxflow.metrics import Floats
from foxflow.significance.bootstrap import Intervals, intervals
from foxflow.significance.overfitting import Overfitting, halves, overfitting
from foxflow.significance.regression import lead_t, line
from foxflow.significance.sharpe import (
    Moments,
    Selection,
    deflated_sharpe,
    expected_maximum,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    selection,
)

__all__ = [
    "Intervals",
    "Moments",
    "Overfitting",
    "Selection",
    "Trials",
    "assess",
    "deflated_sharpe",
    "expected_maximum",
    "halves",
    "intervals",
    "lead_t",
    "line",
    "minimum_track_record",
    "moments",
    "overfitting",
    "probabilistic_sharpe",
    "selection",
]

# 924 splits; of ten years of days a group is ten months.
N_GROUPS = 12
FEWEST_SESSIONS = 10 * N_GROUPS


@dataclass(frozen=True)
class Trials:
    """What has been tried on these bars.

    Attributes
    ----------
    returns
        `(n_sessions, n_trials)`: each trial's return of each session of any of them; NaN where it has none.
    is_known
        Whether these are all there ever were.
    note
        Where they come from, or why they are not known.
    """

    returns: Floats
    is_known: bool
    note: str


def assess(
    returns: Floats | Sequence[Floats],
    benchmark_returns: Floats,
    *,
    periods_per_year: float,
    trials: Trials,
    seed: int,
) -> dict[str, Any]:
    """Return `significance` and `versus_benchmark` of a run's summary.

    Parameters
    ----------
    returns
        `(n_sessions,)`, or one such stream for each seed: every number is then the mean over seeds.
    benchmark_returns
        `(n_sessions,)`, of the same sessions.
    trials
        The run itself is one of them, each seed another. Where they are not known nothing that needs their number is
        computed.
    seed
        Of the bootstrap and of the simulated maximum; equal input then gives equal numbers.

    Raises
    ------
    DataError
        On streams of different lengths, or a return that is not finite.
    """
    streams = [np.asarray(r, dtype=np.float64) for r in ([returns] if isinstance(returns, np.ndarray) else returns)]
    benchmark = np.asarray(benchmark_returns, dtype=np.float64)
    for stream in (*streams, benchmark):
        if stream.shape != benchmark.shape or not np.isfinite(stream).all():
            raise DataError(
                f"returns of shape {stream.shape}, {int((~np.isfinite(stream)).sum())} of them not finite, beside "
                f"those of the benchmark of shape {benchmark.shape}; expected as many, all finite: report this as a bug"
            )
    choice = selection(trials.returns, seed=seed) if trials.is_known else None
    drawn = [intervals(r, periods_per_year=periods_per_year, seed=seed) for r in streams]
    rows = [
        _of_stream(r, drawn=d, choice=choice, periods_per_year=periods_per_year)
        for r, d in zip(streams, drawn, strict=True)
    ]
    lines = [_against(r, benchmark, periods_per_year=periods_per_year) for r in streams]
    found = _means(rows)
    blocks = found["bootstrap_block_sessions"]
    return {
        "significance": {
            **found,
            "n_trials": max(trials.returns.shape[1], len(streams)) if trials.is_known else None,
            "n_effective_trials": choice.n_effective if choice else None,
            "trial_correlation": choice.correlation if choice else None,
            "trials_known": trials.is_known,
            "trials_note": trials.note,
            "n_sessions": len(benchmark),
            **_pbo(trials, purge=math.ceil(blocks) if blocks else 1),
        },
        "versus_benchmark": _means(lines),
    }


def _of_stream(
    returns: Floats, *, drawn: Intervals | None, choice: Selection | None, periods_per_year: float
) -> dict[str, Any]:
    found, n = moments(returns), len(returns)
    variance = choice.variance(n) if choice and n > 1 else None
    largest = None
    if choice is not None and variance is not None:
        largest = math.sqrt(variance * periods_per_year) * expected_maximum(choice.n_effective)
    needed = minimum_track_record(found) if found else math.inf
    return {
        "psr": probabilistic_sharpe(found) if found else None,
        "deflated_sharpe": (
            deflated_sharpe(found, variance=variance, n_trials=choice.n_effective)
            if found and choice and variance is not None
            else None
        ),
        "trial_sharpe_variance": variance,
        "expected_max_sharpe": largest,
        "minimum_track_record_sessions": needed if math.isfinite(needed) else None,
        "sharpe_bootstrap_ci95": list(drawn.sharpe) if drawn else None,
        "max_drawdown_bootstrap_ci95": list(drawn.max_drawdown) if drawn else None,
        "bootstrap_block_sessions": drawn.block_sessions if drawn else None,
    }


def _against(returns: Floats, benchmark: Floats, *, periods_per_year: float) -> dict[str, Any]:
    found = line(returns, benchmark)
    return {
        "alpha": found.alpha * periods_per_year if found else None,
        "alpha_t": found.alpha_t if found else None,
        "beta": found.beta if found else None,
        "lead": float((returns - benchmark).mean()) * periods_per_year if len(returns) else None,
        "lead_t": lead_t(returns, benchmark),
    }


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each number, or of each bound; None where a seed has none: the mean of the rest flatters."""
    return {
        name: None if any(row[name] is None for row in rows) else np.mean([row[name] for row in rows], axis=0).tolist()
        for name in rows[0]
    }


def _pbo(trials: Trials, *, purge: int) -> dict[str, Any]:
    """Return PBO of the trials that share the sessions which most of them have."""
    nothing = {"pbo": None, "pbo_n_trials": None, "pbo_loss_probability": None, "pbo_slope": None}
    if not trials.is_known:
        return nothing | {"pbo_note": "not computed: the trials are not known"}
    n_trials = trials.returns.shape[1]
    if n_trials < 2:
        return nothing | {"pbo_note": "not computed: it needs at least 2 trials"}
    has = np.isfinite(trials.returns)
    rows = has.mean(axis=1) >= 0.5
    shared = trials.returns[rows][:, has[rows].all(axis=0)]
    n_sessions, n_shared = shared.shape
    if n_shared < 2 or n_sessions < FEWEST_SESSIONS:
        return nothing | {
            "pbo_note": f"not computed: {n_shared} trials share {n_sessions} sessions; it needs at least 2 and "
            f"{FEWEST_SESSIONS}"
        }
    purge = min(purge, n_sessions // N_GROUPS // 4)
    found = overfitting(shared, halves(n_sessions, n_groups=N_GROUPS, purge=purge))
    if found is None:
        return nothing | {"pbo_note": "not computed: no two of the trials differ"}
    return {
        "pbo": found.probability,
        "pbo_n_trials": n_shared,
        "pbo_loss_probability": found.probability_of_loss,
        "pbo_slope": found.slope,
        "pbo_note": f"{n_shared} of {n_trials} trials over {n_sessions} sessions in {N_GROUPS} groups, {purge} "
        "sessions left out of training beside each test",
    }
