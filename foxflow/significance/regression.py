"""Returns against a benchmark's, with standard errors that allow for dependence and changing variance (HAC).

Source: Newey and West (1987), Econometrica 55(3), equation 5; (1994), Review of Economic Studies 61(4), for the lags.
"""

from dataclasses import dataclass

import numpy as np

from foxflow import metrics
from foxflow.metrics import Floats


@dataclass(frozen=True)
class Line:
    """`returns = alpha + beta * benchmark + error`: alpha per session, and the HAC t-statistic of alpha."""

    alpha: float
    beta: float
    alpha_t: float


def lags(n: int) -> int:
    """Return how many lags a sample of that size allows for: `4 (n / 100)^(2/9)`, rounded down."""
    return int(4 * (n / 100) ** (2 / 9))


def line(returns: Floats, benchmark: Floats) -> Line | None:
    """Return the line through both `(n_sessions,)`, None where the benchmark does not vary or there are under four."""
    n = len(returns)
    if n < 4 or not benchmark.std() > 1e-14:
        return None
    x = np.column_stack([np.ones(n), benchmark])
    (alpha, beta), *_ = np.linalg.lstsq(x, returns, rcond=None)
    scores = x * (returns - x @ (alpha, beta))[:, None]
    meat = scores.T @ scores
    for lag in range(1, min(lags(n), n - 1) + 1):
        ahead = scores[lag:].T @ scores[:-lag]
        meat += (1 - lag / (lags(n) + 1)) * (ahead + ahead.T)
    bread = np.linalg.inv(x.T @ x)
    variance = float((bread @ meat @ bread)[0, 0])
    # A line without errors, as of the benchmark on itself, has an error of rounding only.
    is_exact = not returns.std() > 1e-14 or np.abs(scores[:, 0]).max() < 1e-13
    return Line(float(alpha), float(beta), float("nan") if is_exact else float(alpha / np.sqrt(variance)))


def lead_t(returns: Floats, benchmark: Floats) -> float:
    """Return the HAC t-statistic of the mean return over the benchmark."""
    ahead = returns - benchmark
    return metrics.t_statistic(ahead, lags=lags(len(ahead))) if len(ahead) > 1 and ahead.std() > 1e-14 else float("nan")
