"""How likely a Sharpe ratio is luck: alone, and as the best of many trials.

Ratios here are per session, never annualised; kurtosis is 3 for a normal distribution.

Sources: Bailey and López de Prado (2012), The Sharpe ratio efficient frontier, Journal of Risk 15(2); the same (2014),
The deflated Sharpe ratio, Journal of Portfolio Management 40(5).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from foxflow.metrics import Floats

NORMAL = NormalDist()
# Of fewer trials the variance of their Sharpe ratios is not known: at 10 its own standard error is 47 %.
ENOUGH_TRIALS = 10
# The mean of so many draws of a maximum is known to 1 % of a standard error.
DRAWS = 4_000
# A constant series has a spread of rounding errors, not of returns.
CONSTANT = 1e-14


@dataclass(frozen=True)
class Moments:
    """A stream's Sharpe ratio per session, skewness and kurtosis of its returns, and how many returns there are."""

    sharpe: float
    skewness: float
    kurtosis: float
    n_sessions: int

    @property
    def factor(self) -> float:
        """The variance of the estimated ratio times `n_sessions - 1` (2012, equation 8)."""
        return max(1 - self.skewness * self.sharpe + (self.kurtosis - 1) / 4 * self.sharpe**2, 0.0)


def moments(returns: Floats) -> Moments | None:
    """Return the moments of returns `(n_sessions,)`, None where they do not vary or there are fewer than three."""
    n = len(returns)
    if n < 3 or not returns.std() > CONSTANT:
        return None
    z = (returns - returns.mean()) / returns.std()
    ratio = float(returns.mean() / returns.std(ddof=1))
    return Moments(ratio, float((z**3).mean()), float((z**4).mean()), n)


def probabilistic_sharpe(found: Moments, *, reference: float = 0.0) -> float:
    """Return the probability that the true Sharpe ratio is above a reference ratio per session (2012, equation 9)."""
    ahead = (found.sharpe - reference) * math.sqrt(found.n_sessions - 1)
    if found.factor == 0:
        return 0.5 + 0.5 * math.copysign(1.0, ahead) if ahead else 0.5
    return NORMAL.cdf(ahead / math.sqrt(found.factor))


def minimum_track_record(found: Moments, *, reference: float = 0.0, confidence: float = 0.95) -> float:
    """Return how many sessions the ratio needs to be above the reference with that probability (2012, equation 11).

    Infinite where the ratio is not above the reference.
    """
    if not found.sharpe > reference:
        return math.inf
    return 1 + found.factor * (NORMAL.inv_cdf(confidence) / (found.sharpe - reference)) ** 2


def expected_maximum(n_trials: float) -> float:
    """Return the expected largest of `n_trials` independent standard normal variables (2014, equation 1).

    From 1, where it is 0, to 2, where the equation starts to hold, along a straight line: an effective number of trials
    is no whole number.
    """
    if n_trials <= 2:
        return max(n_trials - 1, 0.0) * expected_maximum(2.0 + 1e-12)
    first, second = NORMAL.inv_cdf(1 - 1 / n_trials), NORMAL.inv_cdf(1 - 1 / (n_trials * math.e))
    return (1 - np.euler_gamma) * first + np.euler_gamma * second


def deflated_sharpe(found: Moments, *, variance: float, n_trials: float) -> float:
    """Return the probability that the true ratio is above 0 given that it is the best of trials (2014, equation 2).

    `variance`: of the trials' Sharpe ratios per session; `n_trials`: independent ones.
    """
    return probabilistic_sharpe(found, reference=math.sqrt(variance) * expected_maximum(n_trials))


@dataclass(frozen=True)
class Selection:
    """What the choice among trials comes to.

    Attributes
    ----------
    n_effective
        How many independent trials have the same expected maximum as these, 1 or more.
    correlation
        The mean correlation of two trials, 0 of a single one.
    spread
        The variance of a trial's Sharpe ratio, where 1 is that of a ratio that is luck alone: `1 / (n_sessions - 1)`.
    """

    n_effective: float
    correlation: float
    spread: float

    def variance(self, n_sessions: int) -> float:
        """Return the variance of a Sharpe ratio per session over so many sessions."""
        return self.spread / (n_sessions - 1)


def selection(returns: Floats, *, seed: int) -> Selection:
    """Return what the choice among trials comes to; none or one of them is no choice.

    Parameters
    ----------
    returns
        `(n_sessions, n_trials)`, NaN where a trial has no value. Trials whose returns do not vary are left out.

    Notes
    -----
    Both numbers are those of all the luck in a trial's Sharpe ratio, what it shares with the others included. The
    variance between the ratios of correlated trials lacks the shared part, so it is divided by 1 less the mean
    correlation; used beside an effective number it would otherwise count the correlation twice. It is never below that
    of luck alone, and is taken to be just that where the effective number is below ten.

    The effective number follows from the whole matrix of correlations: the expected maximum of normal variables so
    correlated, by simulation, is put in place of the maximum in `expected_maximum`. One mean correlation, as in the
    appendix of 2014, says too little where trials come in clusters. See decision 14.
    """
    scores, normal = [], []
    for column in returns.T:
        has = np.isfinite(column)
        found = moments(column[has])
        if found is not None:
            scores.append(found.sharpe * math.sqrt(found.n_sessions - 1))
            centred = np.where(has, column - column[has].mean(), 0.0)
            normal.append(centred / math.sqrt(centred @ centred))
    n = len(scores)
    if n < 2:
        return Selection(1.0, 0.0, 1.0)
    # Two trials share the luck of the sessions both have: zeros elsewhere weigh the correlation by them.
    factor = np.array(normal).T
    correlation = (float((factor.sum(axis=1) ** 2).sum()) - n) / (n * (n - 1))
    n_effective = _effective(_expected_maximum_of(factor, seed=seed), n)
    shared = min(max(correlation, 0.0), 1 - 1e-9)
    spread = float(np.var(scores, ddof=1)) / (1 - shared) if n_effective >= ENOUGH_TRIALS else 1.0
    return Selection(n_effective, correlation, max(spread, 1.0))


def _expected_maximum_of(factor: Floats, *, seed: int) -> float:
    """Return the expected largest of normal variables with correlations `factor.T @ factor`."""
    n_sessions, n_trials = factor.shape
    if n_trials < n_sessions:
        values, vectors = np.linalg.eigh(factor.T @ factor)
        # The one symmetric root: the signs of the vectors are the library's choice.
        factor = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    random = np.random.default_rng(seed)
    # Antithetic pairs: the mean of what all share is then 0 exactly.
    total, chunk = 0.0, 500
    for _ in range(DRAWS // (2 * chunk)):
        drawn = random.standard_normal((chunk, len(factor))) @ factor
        total += float(drawn.max(axis=1).sum() - drawn.min(axis=1).sum())
    return total / DRAWS


def _effective(maximum: float, n_trials: int) -> float:
    low, high = 1.0, float(n_trials)
    if maximum >= expected_maximum(high):
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_maximum(middle) < maximum else (low, middle)
    return low
