"""What may be wrong with bars: findings that are severe, a warning or a note, each placed and counted.

Pure functions over bars. A check reads one symbol at a time; only large moves are kept of all, to tell a symbol's jump
from the market's. How each judgement is made, and how often it was right on real files: docs/decisions/0010.
"""

from collections.abc import Iterable, Iterator

import polars as pl

from foxflow.bars import EVENT_SCHEMA, FINDING_SCHEMA
from foxflow.bars import check as invariants
from foxflow.check import clock, gaps, jumps, spacing, values
from foxflow.check.tape import SEVERITIES, Tape, tapes

__all__ = ["FINDING_SCHEMA", "SEVERITIES", "findings", "findings_of"]


def findings(
    bars: pl.DataFrame, *, bar: str, calendar: str | None = None, events: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return what may be wrong with bars (`FINDING_SCHEMA`), severe first, then by symbol and time.

    Parameters
    ----------
    bars
        `bars.BAR_SCHEMA`, raw, in any order. Bars that break an invariant are reported and left out of the rest.
    bar
        The bars' length, as in `1d`.
    calendar
        The exchange's name in `exchange_calendars`; without one nobody knows which sessions are missing.
    events
        Recorded splits and dividends (`bars.EVENT_SCHEMA`) of these bars.
    """
    return findings_of([bars], bar=bar, calendar=calendar, events=events)


def findings_of(
    parts: Iterable[pl.DataFrame], *, bar: str, calendar: str | None = None, events: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return the findings of bars that come in parts, each with all bars of its symbols: one part is held at a time."""
    known = EVENT_SCHEMA.to_frame() if events is None else events
    moves, found = jumps.Moves(), [FINDING_SCHEMA.to_frame()]
    waiting: list[jumps.Jump | jumps.Block] = []
    for part in parts:
        faults = invariants(part)
        found.append(_grouped(faults))
        sound = part.sort("symbol", "ts")
        if len(faults):
            # Of a bar that stands twice nobody knows which is right.
            sound = sound.join(faults.select("symbol", "ts"), on=["symbol", "ts"], how="anti", maintain_order="left")
        for tape in tapes(sound, known, bar=bar, calendar=calendar):
            found += _of_one(tape)
            decided, undecided = jumps.jumps(tape)
            found += decided
            waiting += undecided
            moves.add(tape.by_session())
    for jump in waiting:
        found += jumps.judged(jump, moves)
    rank = pl.col("severity").replace_strict({s: n for n, s in enumerate(SEVERITIES)}, return_dtype=pl.Int8)
    return pl.concat(found).sort(rank, "symbol", "ts", "check", maintain_order=True)


def _grouped(faults: pl.DataFrame) -> pl.DataFrame:
    """Return one finding a symbol and invariant, with the count and the first bar's detail."""
    return (
        faults.group_by("symbol", "check", "severity", maintain_order=True)
        .agg(pl.col("ts").first(), pl.col("until").last(), pl.col("count").sum(), pl.col("detail").first())
        .with_columns(pl.format("{} bars, the first with {}", "count", "detail").alias("detail"))
        .select(FINDING_SCHEMA.names())
        .cast(FINDING_SCHEMA)
    )


def _of_one(tape: Tape) -> Iterator[pl.DataFrame]:
    yield from values.zero_prices(tape)
    yield from values.volumes(tape)
    yield from values.frozen(tape)
    yield from values.copied_opens(tape)
    yield from values.close_alone(tape)
    yield from values.spikes(tape)
    yield from spacing.spacing(tape)
    yield from gaps.gaps(tape)
    yield from clock.clock_breaks(tape)
