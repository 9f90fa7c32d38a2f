"""Positions of all symbols together under the gross and the net limit."""

from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.dataset import Floats

# What rounding adds to a sum of positions is no position and passes no limit.
ROUNDING = 1e-12


def to_wide(rows: pl.DataFrame, column: str, times: pl.Series, symbols: pl.Series) -> Floats:
    """Return a column as an array `(n_times, n_symbols)`, NaN where there is no row."""
    wide = np.full((len(times), len(symbols)), np.nan)
    at = times.search_sorted(rows["ts"]).to_numpy()
    of = symbols.search_sorted(rows["symbol"]).to_numpy()
    wide[at, of] = rows[column].to_numpy()
    return wide


def limited(wanted: Floats, *, gross_limit: float, net_limit: float | None) -> Floats:
    """Return the positions that the limits leave of those wanted.

    Parameters
    ----------
    wanted
        `(n_times, n_symbols)`, fractions of equity decided at each time; NaN: nothing decided, what was decided last
        stays.

    Returns
    -------
    The same, scaled down, with a number also where a position that stays had to be cut for the net limit. At every
    time the absolute positions, those that stay included, sum to at most `gross_limit` and the positions to at most
    `net_limit` either way. A row reads nothing after its time.

    Notes
    -----
    Gross first: what is decided at one time is scaled down by one factor to the room beside what stays. Then net: the
    heavier side, longs or shorts, of what is decided is scaled down by one factor, as far as it takes; where even
    without it the side stays too heavy, for its counterweight has gone, what stays on that side is scaled down too.
    """
    held = np.zeros(wanted.shape[1])
    found = wanted.copy()
    is_whole = _decide_alone(wanted)
    # Runs of times that do not depend on the one before are done together, the others one by one.
    starts = np.flatnonzero(np.diff(is_whole.astype(np.int8), prepend=-1))
    for start, stop in pairwise([*starts.tolist(), len(wanted)]):
        if is_whole[start]:
            found[start:stop] = _whole(wanted[start:stop], gross_limit, net_limit)
            held = np.nan_to_num(found[stop - 1])
        else:
            for i in range(start, stop):
                found[i] = _beside(wanted[i], held, gross_limit, net_limit)
                held = np.where(np.isnan(found[i]), held, found[i])
    return found


def carried(decided: Floats) -> Floats:
    """Return what is in force at each time, `(n_times, n_symbols)`: the newest number up to it, 0 before the first."""
    rows = np.arange(len(decided))[:, None]
    newest = np.maximum.accumulate(np.where(np.isnan(decided), -1, rows), axis=0)
    found: Floats = np.where(newest < 0, 0.0, np.take_along_axis(decided, np.maximum(newest, 0), axis=0))
    return found


def _decide_alone(wanted: Floats) -> NDArray[np.bool_]:
    """Return at which times nothing stays beside what is decided: every symbol without a decision is flat."""
    stays: NDArray[np.bool_] = (carried(wanted) != 0) & np.isnan(wanted)
    return np.asarray(~stays.any(axis=1))


def _whole(wanted: Floats, gross_limit: float, net_limit: float | None) -> Floats:
    gross = np.abs(np.nan_to_num(wanted)).sum(axis=1)
    found: Floats = wanted * np.minimum(1.0, gross_limit / np.maximum(gross, 1e-300))[:, None]
    if net_limit is None:
        return found
    net = np.nan_to_num(found).sum(axis=1)
    is_heavier = np.sign(found) == np.sign(net)[:, None]
    side = np.where(is_heavier, np.abs(found), 0.0).sum(axis=1)
    over = np.maximum(np.abs(net) - net_limit, 0.0)
    factor = 1.0 - over / np.maximum(side, 1e-300)
    factor[factor < ROUNDING] = 0.0
    cut: Floats = np.where(is_heavier & (over > 0)[:, None], found * factor[:, None], found)
    return cut


def _beside(wanted: Floats, held: Floats, gross_limit: float, net_limit: float | None) -> Floats:
    """Return one time's positions beside those that stay; NaN where what stays is left alone."""
    new = np.isfinite(wanted)
    stays = np.where(new, 0.0, held)
    room = gross_limit - np.abs(stays).sum()
    room = room if room > ROUNDING else 0.0
    found: Floats = wanted * min(1.0, room / max(np.abs(wanted[new]).sum(), 1e-300))
    if net_limit is None:
        return found
    net = stays.sum() + found[new].sum()
    over, heavier = abs(net) - net_limit, np.sign(net)
    for cut in (new & (np.sign(found) == heavier), ~new & (np.sign(stays) == heavier)):
        if over <= ROUNDING:
            break
        values = np.where(new, found, stays)
        side = np.abs(values[cut]).sum()
        if side > 0:
            left = 1.0 - over / side
            found[cut] = values[cut] * (left if left > ROUNDING else 0.0)
        over -= side
    return found
