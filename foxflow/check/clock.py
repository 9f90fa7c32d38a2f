"""Clock breaks: the hours of the day in which prices move are suddenly other hours."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from foxflow.bars import instant
from foxflow.check.tape import DAY_US, Floats, Ints, Tape, finding

HOUR_US = 3_600_000_000
HOURS = 24
# Days on each side of a break that are compared: enough to be sure, and less than the time between two clock changes.
FEWEST_DAYS, MOST_DAYS = 5, 40
# How alike the two profiles have to be once one is shifted, and how much less alike as they stand (measured gains are
# in docs/decisions/0010).
ALIKE, GAIN = 0.8, 0.25


def clock_breaks(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield where the daily profile of the range moves by whole hours and stays there.

    Judged in the exchange's own time, where a break of one hour shows. Without an exchange, and where trading never
    stops, it is judged in UTC, where markets themselves move an hour twice a year: there only two hours count.
    """
    if tape.is_daily or tape.length > HOUR_US or len(tape) < HOURS:
        return
    has_zone = tape.schedule.is_known and tape.calendar != "24/7"
    days, activity = _profiles(tape)
    shift, gain = _shifts(activity)
    broken = (np.abs(shift) >= (1 if has_zone else 2)) & (gain >= GAIN)
    window = _window(len(days))
    while broken.any():
        at = int(np.argmax(np.where(broken, gain, -1.0)))
        hours = int(shift[at])
        bar = int(np.searchsorted(tape.opened, days[at]))
        when = instant(int(tape.ts[bar]))
        direction = "later" if hours > 0 else "earlier"
        detail = (
            f"from about {when:%Y-%m-%d} ({when:%B %Y}) prices move {abs(hours)} h {direction} "
            f"in the day than before (in {tape.schedule.zone.key} time): the clock of the file changed"
        )
        yield finding(tape, (bar, bar), "clock break", "severe", detail)
        broken[max(0, at - window) : at + window + 1] = False


def _profiles(tape: Tape) -> tuple[Ints, Floats]:
    """Return the UTC start of each local day that has bars, and `(n_days, 24)`: the share of its range in each hour.

    A day of few bars, such as a Sunday of currencies, counts for as little.
    """
    local = _local(tape)
    day = local // DAY_US
    first = np.flatnonzero(np.diff(day, prepend=day[0] - 1) != 0)
    number = np.cumsum(np.diff(day, prepend=day[0]) != 0)
    hour = local // HOUR_US % HOURS
    sound = tape.low > 0
    span = np.log(np.where(sound, tape.high, 1.0)) - np.log(np.where(sound, tape.low, 1.0))
    total = np.bincount(number * HOURS + hour, weights=span, minlength=len(first) * HOURS).reshape(-1, HOURS)
    whole = total.sum(axis=1, keepdims=True)
    n_bars = np.bincount(number)
    weight = np.minimum(1.0, n_bars / np.median(n_bars))[:, None]
    return tape.opened[first], weight * total / np.where(whole > 0, whole, 1.0)


def _local(tape: Tape) -> Ints:
    """Return when each bar opens on the exchange's wall clock, as int64 microseconds."""
    opened = pl.Series(tape.opened).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return opened.dt.convert_time_zone(tape.schedule.zone.key).dt.replace_time_zone(None).dt.timestamp("us").to_numpy()


def _window(n_days: int) -> int:
    return min(MOST_DAYS, n_days // 2)


def _shifts(activity: Floats) -> tuple[Ints, Floats]:
    """Return, per day, the shift in hours that makes the days after most like those before, and what it gains.

    The gain is the difference of two correlations, 0 where even the best is poor.
    """
    n, window = len(activity), _window(len(activity))
    shift, gain = np.zeros(n, np.int64), np.zeros(n)
    if window < FEWEST_DAYS:
        return shift, gain
    sums = np.vstack([np.zeros(HOURS), np.cumsum(activity, axis=0)])
    at = np.arange(window, n - window + 1)
    before, after = sums[at] - sums[at - window], sums[at + window] - sums[at]
    before, after = (p - p.mean(axis=1, keepdims=True) for p in (before, after))
    norm = np.sqrt((before**2).sum(axis=1) * (after**2).sum(axis=1))
    # Circular correlation at all 24 shifts at once.
    spectrum = np.fft.rfft(after) * np.conj(np.fft.rfft(before))
    alike = np.fft.irfft(spectrum, n=HOURS) / np.where(norm > 0, norm, 1.0)[:, None]
    best = alike.argmax(axis=1)
    most = alike.max(axis=1)
    kept = at < n
    shift[at[kept]] = ((best + HOURS // 2) % HOURS - HOURS // 2)[kept]
    gain[at[kept]] = np.where(most >= ALIKE, most - alike[:, 0], 0.0)[kept]
    return shift, gain
