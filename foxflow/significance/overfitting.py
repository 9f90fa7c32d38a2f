"""Whether choosing the best of many trials by its past pays afterwards: combinatorially symmetric cross-validation.

Source: Bailey, Borwein, López de Prado and Zhu (2017), The probability of backtest overfitting, Journal of
Computational Finance 20(4), algorithm 2.3.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from foxflow import splits
from foxflow.metrics import Floats
from foxflow.splits import Mask


@dataclass(frozen=True)
class Overfitting:
    """What became of the trial that was best in training, over all splits.

    Attributes
    ----------
    probability
        PBO: the share of splits in which it was no better than the median in the test.
    logits
        `(n_splits,)`: of its relative rank in the test; below 0 = worse than the median.
    slope
        Of its Sharpe ratio in the test on that in training: performance degradation.
    probability_of_loss
        The share of splits in which it lost money in the test.
    """

    probability: float
    logits: Floats
    slope: float
    probability_of_loss: float


def overfitting(returns: Floats, halves: Iterable[tuple[Mask, Mask]]) -> Overfitting | None:
    """Return what choosing by training Sharpe comes to; None where no two trials differ.

    Parameters
    ----------
    returns
        `(n_sessions, n_trials)`, without NaN.
    halves
        Which sessions train and which test, each mask `(n_sessions,)`, as `halves` gives them.

    Notes
    -----
    Returns that do not vary in a mask have a ratio of 0 there. Equal ratios share their mean rank; of those equal in
    training the first trial is chosen.
    """
    if returns.shape[1] < 2 or not np.ptp(returns, axis=1).any():
        return None
    source, in_train, in_test, ranks, losses = iter(halves), [], [], [], []
    while batch := list(islice(source, 500)):
        train = _ratios(np.array([a for a, _ in batch]), returns)
        test = _ratios(np.array([b for _, b in batch]), returns)
        each, best = np.arange(len(batch)), train.argmax(axis=1)
        own = test[each, best]
        in_train.append(train[each, best])
        in_test.append(own)
        ranks.append((test < own[:, None]).sum(axis=1) + ((test == own[:, None]).sum(axis=1) + 1) / 2)
        losses.append(own < 0)
    share = np.concatenate(ranks) / (returns.shape[1] + 1)
    logits: Floats = np.log(share / (1 - share))
    x, y = np.concatenate(in_train), np.concatenate(in_test)
    power = float(((x - x.mean()) ** 2).sum())
    slope = float((x - x.mean()) @ (y - y.mean())) / power if power > 0 else float("nan")
    return Overfitting(float((logits <= 0).mean()), logits, slope, float(np.concatenate(losses).mean()))


def _ratios(masks: NDArray[np.bool_], returns: Floats) -> Floats:
    """Return the Sharpe ratio of each trial in each mask, `(n_masks, n_trials)`."""
    weights = masks.astype(np.float64)
    counts = weights.sum(axis=1)[:, None]
    # A mean that dwarfs the spread would leave nothing of it in the difference of the squares.
    middle = returns.mean(axis=0)
    sums, squares = weights @ (returns - middle), weights @ (returns - middle) ** 2
    variance = (squares - sums**2 / counts) / (counts - 1)
    spread = np.sqrt(np.maximum(variance, 0.0))
    ratios: Floats = np.divide(sums / counts + middle, spread, out=np.zeros_like(sums), where=spread > 1e-12)
    return ratios


def halves(n_sessions: int, *, n_groups: int, purge: int) -> Iterator[tuple[Mask, Mask]]:
    """Give every choice of half the groups of consecutive sessions to train on, the other half to test on.

    `n_groups` is even. Training sessions within `purge` sessions of a test session, before or after, are left out.
    """
    assert n_groups % 2 == 0
    session = np.arange(n_sessions)
    # A row that is known so many sessions later keeps them apart before a test span, and the span's own rows after it.
    for split in splits.combinatorial(
        session, session + purge, n_groups=n_groups, n_test_groups=n_groups // 2, embargo=0
    ):
        yield split.trains, split.tests
