"""How far apart bars are: another length than declared, a length that changes, bars off the grid."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from foxflow.check.tape import DAY_US, Tape, finding
from foxflow.check.values import runs

# A session of bars that all lie a multiple of g apart: by chance once in e^12 times, each step being one by 1 in g.
CHANCE = 12.0
RARE = 0.01
WEEK = 5 * DAY_US
WINDOW = 20


def spacing(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield where bars are closer together or farther apart than bars of the declared length can be."""
    if len(tape) < 3:
        return
    if tape.is_daily:
        yield from _daily(tape)
        return
    yield from _overlapping(tape)
    yield from _longer(tape)
    yield from _off_grid(tape)


def _overlapping(tape: Tape) -> Iterator[pl.DataFrame]:
    steps = np.diff(tape.ts)
    at = np.flatnonzero(steps < tape.length)
    if len(at):
        detail = (
            f"{len(at)} bars end {_span(int(np.median(steps[at])))} after the one before, though bars of "
            f"{_span(tape.length)} were declared: bars of another length, or rows of another series"
        )
        yield finding(tape, (at[0] + 1, at[-1] + 1), "bar length", "severe", detail, count=len(at))


def _longer(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield stretches of sessions whose bars all lie a multiple of the declared length apart."""
    starts = tape.starts
    steps = np.diff(tape.ts, append=tape.ts[-1]) // tape.length
    # The step over a session's end says nothing; 0 leaves a greatest common divisor alone.
    steps[starts[1:] - 1] = 0
    divisor = np.gcd.reduceat(steps, starts)
    n_steps = np.diff(np.append(starts, len(tape))) - 1
    sure = (divisor > 1) & (n_steps * np.log(np.maximum(divisor, 1)) >= CHANCE)
    for first, length in zip(*runs(sure), strict=True):
        last = first + length - 1
        begin, end = starts[first], (np.append(starts, len(tape))[last + 1]) - 1
        found = int(np.gcd.reduce(divisor[first : last + 1]))
        if found < 2:
            continue
        whole = length == len(starts)
        said = "throughout" if whole else f"from {tape.day(begin)} to {tape.day(end)}"
        detail = f"bars lie {_span(found * tape.length)} apart {said}, though {_span(tape.length)} were declared: " + (
            "declare that length" if whole else "the length changes inside the series"
        )
        yield finding(tape, (begin, end), "bar length", "severe", detail)


def _off_grid(tape: Tape) -> Iterator[pl.DataFrame]:
    phase, counts = np.unique(tape.ts % tape.length, return_counts=True)
    if len(phase) == 1:
        return
    if counts.max() < 0.05 * len(tape):
        detail = "bars end at no regular times: bars of equal value or volume have no length in time"
        yield finding(tape, (0, len(tape) - 1), "bar length", "severe", detail)
        return
    rare = phase[counts < RARE * len(tape)]
    at = np.flatnonzero(np.isin(tape.ts % tape.length, rare))
    if len(at):
        detail = f"{len(at)} bars end off the grid of {_span(tape.length)}, first {tape.day(at[0])}"
        yield finding(tape, (at[0], at[-1]), "off the grid", "warning", detail, count=len(at))


def _daily(tape: Tape) -> Iterator[pl.DataFrame]:
    steps = np.diff(tape.ts)
    close = np.flatnonzero(steps < DAY_US // 2)
    if len(close):
        detail = f"{len(close)} bars end less than 12 h after the one before, first {tape.day(close[0] + 1)}"
        yield finding(tape, (close[0] + 1, close[-1] + 1), "bar length", "severe", detail, count=len(close))
    if tape.length != DAY_US:
        return
    width = min(WINDOW, len(steps))
    starts = np.arange(0, len(steps) - width + 1, width)
    usual = np.median(steps[: len(starts) * width].reshape(-1, width), axis=1)
    for first, length in zip(*runs(usual >= WEEK), strict=True):
        begin, end = starts[first], starts[first] + length * width
        whole = length == len(starts)
        detail = (
            f"bars lie {_span(int(usual[first]))} apart from {tape.day(begin)} to {tape.day(end)}, though days were "
            "declared: " + ("declare that length" if whole else "the length changes inside the series")
        )
        yield finding(tape, (begin, end), "bar length", "severe", detail)


def _span(us: int) -> str:
    """Return a length of time in its largest unit."""
    for unit, size in (("d", DAY_US), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000)):
        if us >= size:
            return f"{us / size:.4g} {unit}"
    return f"{us} us"
