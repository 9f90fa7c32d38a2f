"""Buy-and-hold: what it is set to, and when."""

import numpy as np

from foxflow.dataset import Floats
from foxflow.portfolio.prices import Masks, Prices


def equal_weights(prices: Prices, enters: Masks, exits: Masks) -> Floats:
    """Return what buy-and-hold is set to at each bar, NaN = left alone: equal weights of all that are in."""
    weights = np.full(enters.shape, np.nan)
    inside, waiting = np.zeros(enters.shape[1], bool), np.zeros(enters.shape[1], bool)
    settled, fills, closes = np.isfinite(prices.settled), np.isfinite(prices.fill), np.isfinite(prices.close)
    waits = False
    leaving: Masks = np.asarray((settled | exits).any(axis=1))
    for i in range(len(enters)):
        if not (leaving[i] or waits or np.greater(enters[i], inside).any()):
            continue
        sells = leaves = np.zeros_like(inside)
        if leaving[i]:
            # An exit that meets no fill before the ending pays out is left to the ending: its money comes only then.
            for j in np.flatnonzero(exits[i] & inside):
                sells[j] = not _pays_first(settled[i + 1 :, j], fills[i + 1 :, j])
            leaves = (settled[i] & inside) | sells
        new = enters[i] & ~(inside & ~leaves)
        if leaves.any() or new.any():
            weights[i, sells] = 0.0
            inside = (inside & ~leaves) | new
            waiting = inside.copy()
        if waiting.any():
            # A symbol without a bar now gets its new weight at its next one.
            now = waiting & closes[i]
            weights[i, now] = 1.0 / max(inside.sum(), 1)
            waiting &= ~now
        waits = bool(waiting.any())
    return weights


def _pays_first(settled: Masks, fills: Masks) -> bool:
    """Return whether one symbol's ending comes at the latest with its next fill."""
    return bool(settled.any()) and not fills[: settled.argmax()].any()
