"""Intervals that allow for dependence from session to session: the stationary bootstrap.

Sources: Politis and Romano (1994), The stationary bootstrap, JASA 89(428); Politis and White (2004), Automatic
block-length selection for the dependent bootstrap, Econometric Reviews 23(1), as corrected by Patton, Politis and White
(2009), Econometric Reviews 28(4).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foxflow.metrics import Floats

RESAMPLES = 2_000
# What is held at a time: 250 resamples of ten years of days are 5 MB an array.
_CHUNK = 250


@dataclass(frozen=True)
class Intervals:
    """95 % percentile intervals of the annualised Sharpe ratio and of the maximum drawdown; the mean block length."""

    sharpe: tuple[float, float]
    max_drawdown: tuple[float, float]
    block_sessions: float


def intervals(returns: Floats, *, periods_per_year: float, seed: int) -> Intervals | None:
    """Return the intervals of returns `(n_sessions,)`; None where they do not vary or are fewer than ten.

    Blocks are as long as returns or their squares ask for, whichever is more: a Sharpe ratio rests on both.
    """
    n = len(returns)
    if n < 10 or not returns.std() > 1e-14:
        return None
    block = max(block_length(returns), block_length(returns**2), 1.0)
    random = np.random.default_rng(seed)
    ratios, depths = [], []
    for start in range(0, RESAMPLES, _CHUNK):
        drawn = returns[resample(n, block=block, draws=min(_CHUNK, RESAMPLES - start), random=random)]
        spread = drawn.std(axis=1, ddof=1)
        # A resample of one value only has no ratio.
        ratios.append(drawn.mean(axis=1)[spread > 1e-14] / spread[spread > 1e-14])
        equity = np.cumprod(1 + drawn, axis=1)
        peak = np.maximum(np.maximum.accumulate(equity, axis=1), 1.0)
        depths.append((equity / peak - 1).min(axis=1))
    ends = (0.025, 0.975)
    low, high = math.sqrt(periods_per_year) * np.quantile(np.concatenate(ratios), ends)
    deep, shallow = np.quantile(np.concatenate(depths), ends)
    return Intervals((float(low), float(high)), (float(deep), float(shallow)), block)


def resample(n: int, *, block: float, draws: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return indices `(draws, n)` of blocks that start anywhere, go on round the end, and last `block` on average."""
    begins = random.random((draws, n)) < 1 / block
    begins[:, 0] = True
    starts = random.integers(0, n, (draws, n))
    at = np.arange(n)
    newest = np.maximum.accumulate(np.where(begins, at, 0), axis=1)
    indices: NDArray[np.int64] = (np.take_along_axis(starts, newest, axis=1) + at - newest) % n
    return indices


def block_length(values: Floats) -> float:
    """Return the mean block length that estimates the variance of a mean best, at most `3 sqrt(n)` or `n / 3`.

    0 where neighbours are not correlated. Equation 9 of Patton, Politis and White (2009), with their flat-top window
    and their rule for its width.
    """
    n = len(values)
    centred = values - values.mean()
    if not centred @ centred > 0:
        return 0.0
    run = max(5, int(math.log10(n)))
    longest = min(math.ceil(math.sqrt(n)) + run, n - 2)
    covariance = np.array([centred[lag:] @ centred[: n - lag] / n for lag in range(longest + 1)])
    # Each correlation over the pairs it is made of.
    power = np.concatenate([[0.0], np.cumsum(centred**2)])
    lags = np.arange(longest + 1)
    heads, tails = power[n - 1 - lags], power[n] - power[lags + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.abs(covariance) * n / np.sqrt(heads * tails) < 2 * math.sqrt(math.log10(n) / n)
    first = next((at for at in range(longest + 1 - run) if small[at : at + run].all()), None)
    width = longest if first is None else min(2 * max(first, 1), longest)
    share = np.arange(1, width + 1) / width
    window = np.where(share <= 0.5, 1.0, 2 * (1 - share))
    terms = 2 * window * covariance[1 : width + 1]
    slope, spectrum = float(terms @ np.arange(1, width + 1)), float(covariance[0] + terms.sum())
    most = math.ceil(min(3 * math.sqrt(n), n / 3))
    if not spectrum**2 > 0:
        return float(most)
    return float(min((slope**2 / spectrum**2) ** (1 / 3) * n ** (1 / 3), most))
