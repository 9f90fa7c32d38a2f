"""What the values say: prices of zero, volumes that say nothing, frozen bars, opens that are copies."""

import math
from collections.abc import Iterator

import numpy as np
import polars as pl

from foxflow.check.tape import Floats, Ints, Mask, Tape, finding

# As near as a vendor's rounding brings it: S&P 500 opens differ by up to 0.01 from the close before.
EQUAL = 1e-5
# A year with fewer opens says nothing about the share that are copied.
FEWEST_OPENS = 20
COPIED, MANY_COPIED, SOME_COPIED = 0.5, 0.25, 0.1
# Runs of frozen bars, and spikes, that are named one by one.
NAMED = 10
# Bars that repeat prices and volume for so long are a feed that stands still.
STOOD_STILL = 20
# In logarithms, and in usual ranges.
SMALLEST_SPIKE, SPIKE = 0.1, 8.0


def zero_prices(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield where a price is 0, which no price is, and where one is below, which some were."""
    lowest = np.minimum.reduce([tape.open, tape.high, tape.low, tape.close])
    for is_bad, check, severity, what in (
        (_any_zero(tape), "zero price", "severe", "a price of 0 is a missing one: remove the bars"),
        (lowest < 0, "negative price", "warning", "valid for some futures, but no logarithmic return exists there"),
    ):
        at = np.flatnonzero(is_bad)
        if len(at):
            detail = f"{_bars(len(at), tape)}, first {tape.day(at[0])} low {tape.low[at[0]]:g}; {what}"
            yield finding(tape, (at[0], at[-1]), check, severity, detail, count=len(at))


def _any_zero(tape: Tape) -> Mask:
    is_zero: Mask = (tape.open == 0) | (tape.high == 0) | (tape.low == 0) | (tape.close == 0)
    return is_zero


def volumes(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield what the volumes do not say: one finding a kind and symbol, with its count."""
    unknown, zero = np.isnan(tape.volume), tape.volume == 0
    for is_bad, check in ((unknown, "volume unknown"), (zero, "zero volume")):
        at = np.flatnonzero(is_bad)
        if len(at):
            where = f"{_bars(len(at), tape)}, first {tape.day(at[0])}"
            what = "features of volume do not exist there"
            what += ": an index or quotes" if len(at) == len(tape) else ""
            yield finding(tape, (at[0], at[-1]), check, "warning", f"{where}; {what}", count=len(at))
    known = tape.volume[~unknown & ~zero]
    if len(known) > 20 and (known == known[0]).all():
        yield finding(tape, (0, len(tape) - 1), "constant volume", "note", f"{known[0]:g} wherever there is one")


def frozen(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield runs of bars whose four prices are those of the bar before, longer than chance makes them.

    How often a bar of this symbol repeats the one before gives the longest run to expect; a thin instrument repeats
    often. A run with volume that repeats as well is a feed that stands still.
    """
    if len(tape) < 3:
        return
    same = _repeats(tape.open) & _repeats(tape.high) & _repeats(tape.low) & _repeats(tape.close)
    if not same.any():
        return
    starts, lengths = runs(same)
    # The median run is the symbol's own habit, so that one long run does not excuse itself.
    habit = same.sum() - lengths.max()
    rate = min(max(habit, 1) / len(tape), 0.9)
    longest = max(5.0, 2 * math.log(len(tape)) / -math.log(rate))
    moved = _repeats(tape.volume) & (tape.volume > 0)
    at = np.flatnonzero(lengths >= longest)
    named = at[np.argsort(-lengths[at], kind="stable")[:NAMED]]
    for n in sorted(named):
        first, last = starts[n] - 1, starts[n] + lengths[n] - 1
        traded = lengths[n] >= STOOD_STILL and moved[starts[n] : last + 1].all()
        price = f"{lengths[n] + 1} bars of {tape.day(first)} to {tape.day(last)} have the same prices, close "
        price += f"{tape.close[first]:g}"
        if traded:
            yield finding(tape, (first, last), "frozen", "severe", f"{price}, and the same volume: a feed stood still")
        else:
            volume = tape.volume[first : last + 1]
            why = "volume 0" if (volume == 0).all() else "volume unknown" if np.isnan(volume).all() else "with volume"
            yield finding(tape, (first, last), "frozen", "warning", f"{price}, {why}")
    rest = np.setdiff1d(at, named)
    if len(rest):
        first, last = starts[rest[0]] - 1, starts[rest[-1]] + lengths[rest[-1]] - 1
        n_bars = int(lengths[rest].sum() + len(rest))
        detail = f"{len(rest)} more runs of the same prices, {n_bars} bars, each of at least {lengths[rest].min() + 1}"
        yield finding(tape, (first, last), "frozen", "warning", detail, count=n_bars)
    usual = int(same.sum() - lengths[at].sum())
    if usual > 0.01 * len(tape):
        detail = f"{_bars(usual, tape)} repeat the bar before in short runs: a thin instrument or coarse prices"
        yield finding(tape, (0, len(tape) - 1), "repeated prices", "note", detail, count=usual)


def copied_opens(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield years in which sessions open at the close of the session before: a fill at the next open is then fiction.

    Bars that do not move at all are left to `frozen`, and so is trading without a night, where it is no fault.
    """
    days = tape.by_session()
    if len(days) < 2 or days.calendar in ("24/7", "24/5") or _has_weekends(days):
        return
    moves = (days.high > days.low)[1:]
    before, opens = days.close[:-1], days.open[1:]
    copied = (np.abs(opens - before) <= EQUAL * np.abs(before)) & moves
    # Close alone, written into all four columns, is another matter than an open that is copied.
    years = days.ts[1:].astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    for year in np.unique(years[copied]):
        inside = np.flatnonzero((years == year) & moves)
        at = inside[copied[inside]]
        share = len(at) / len(inside)
        if len(inside) < FEWEST_OPENS or share < SOME_COPIED:
            continue
        detail = f"{len(at)} of {len(inside)} sessions of {year} open at the close before ({share:.0%})"
        if share >= COPIED:
            detail += ": the opens are copies, and fills at the next open fiction"
        severity = "severe" if share >= COPIED else "warning" if share >= MANY_COPIED else "note"
        yield finding(days, (at[0] + 1, at[-1] + 1), "copied opens", severity, detail, count=len(at))


def close_alone(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield where the close stands in all four columns though prices move: no open, no range was known."""
    flat = (tape.open == tape.close) & (tape.high == tape.low)
    moves = np.diff(tape.close, prepend=tape.close[0]) != 0
    at = np.flatnonzero(flat & moves)
    if len(at) > FEWEST_OPENS and len(at) > 0.9 * moves.sum():
        detail = (
            f"{len(at)} of {moves.sum()} bars that move have one price: the close alone; a fill at the next open "
            "is one at its close"
        )
        yield finding(tape, (at[0], at[-1]), "close alone", "warning", detail, count=len(at))


def spikes(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield bars with a high or low far from open and close, by what ranges around them usually are: bad ticks."""
    sound = tape.low > 0
    low, high = (np.log(np.where(sound, p, 1.0)) for p in (tape.low, tape.high))
    top = np.log(np.where(sound, np.maximum(tape.open, tape.close), 1.0))
    bottom = np.log(np.where(sound, np.minimum(tape.open, tape.close), 1.0))
    wick = np.maximum(high - top, bottom - low)
    far = [i for i in np.flatnonzero(wick >= SMALLEST_SPIKE) if wick[i] >= SPIKE * _usual_range(high - low, int(i)) > 0]
    named = sorted(far, key=lambda i: -wick[i])[:NAMED]
    for i in sorted(named):
        detail = (
            f"open {tape.open[i]:g} high {tape.high[i]:g} low {tape.low[i]:g} close {tape.close[i]:g}: the range is "
            f"{(high - low)[i] / _usual_range(high - low, int(i)):.0f} times the usual one, as of a bad tick"
        )
        yield finding(tape, (i, i), "spike", "warning", detail)
    rest = [i for i in far if i not in named]
    if rest:
        yield finding(tape, (rest[0], rest[-1]), "spike", "warning", f"{len(rest)} more bad ticks", count=len(rest))


def _usual_range(span: Floats, i: int) -> float:
    return float(np.median(span[max(0, i - 20) : i + 21]))


def _has_weekends(days: Tape) -> bool:
    weekday = (days.opened // 86_400_000_000 + 3) % 7
    return bool((weekday >= 5).mean() > 0.1)


def _repeats(values: Floats) -> Mask:
    return np.append(False, values[1:] == values[:-1])


def runs(mask: Mask) -> tuple[Ints, Ints]:
    """Return where runs of true begin, and their lengths."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return edges[::2], edges[1::2] - edges[::2]


def _bars(n: int, tape: Tape) -> str:
    return f"{n} of {len(tape)} bars" + (f" ({n / len(tape):.0%})" if n > 0.005 * len(tape) else "")
