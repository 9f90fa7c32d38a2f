"""Gaps and stray bars against the sessions of an exchange, and holes against the symbol's own habit."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache

import numpy as np
import polars as pl

from foxflow.bars import instant, sessions_around
from foxflow.check.tape import DAY_US, Floats, Ints, Mask, Tape, between, finding
from foxflow.check.values import runs

# Sessions without a bar: from here on what lies on both sides may be another instrument, and the return over the gap
# is no bar's return.
LONG_GAP = 20
# Without a calendar, fewer missing days may be holidays.
HOLIDAYS = 5
NAMED = 10
# A session's hours are looked at in at most this many pieces, habits over this many sessions.
MOST_SLOTS, HABIT = 1440, 250
# Holes are reported where chance would make them once in e^12 = 160,000 times; large ones, of an hour's worth of
# minutes or a quarter of the session, each by itself.
SURPRISE, LARGE_SHARE, LARGE_BARS = 12.0, 0.25, 60
USUAL = 0.5


def gaps(tape: Tape) -> Iterator[pl.DataFrame]:
    """Yield missing sessions, bars outside all sessions, and holes inside sessions."""
    if tape.is_daily and tape.length > DAY_US:
        return
    if tape.is_daily:
        yield from _daily(tape) if tape.calendar is not None else _days_unknown(tape, tape.opened // DAY_US)
    elif tape.schedule.is_known:
        inside = _is_inside(tape)
        yield from _outside(tape, inside)
        yield from _missing_sessions(tape, np.unique(tape.session[inside]), tape.schedule.close)
        yield from _holes(tape, inside)
    else:
        yield from _days_unknown(tape, tape.opened // DAY_US)


def _daily(tape: Tape) -> Iterator[pl.DataFrame]:
    assert tape.calendar is not None
    day, closes = _sessions(tape.calendar, *(instant(int(tape.ts[n])).date() for n in (0, -1)))
    number = np.searchsorted(closes, tape.ts)
    is_close = closes[np.minimum(number, len(closes) - 1)] == tape.ts
    if is_close.mean() < 0.5:
        # Stamped at another time of day than the exchange closes: the date is what counts.
        number = np.minimum(np.searchsorted(day, tape.opened // DAY_US), len(day) - 1)
        is_close = day[number] == tape.opened // DAY_US
    yield from _strays(tape, ~is_close, "close no session")
    yield from _missing_sessions(tape, np.unique(number[is_close]), closes)


@cache
def _sessions(calendar: str, first: date, last: date) -> tuple[Ints, Ints]:
    """Return the sessions around the days from `first` to `last`: day since 1970, and close in microseconds."""
    bounds = (datetime.combine(d, time(), UTC) for d in (first, last))
    table = sessions_around(calendar, *bounds)
    sessions = table.filter(pl.col("session").is_between(first - timedelta(days=1), last + timedelta(days=1)))
    return sessions["session"].cast(pl.Int32).to_numpy().astype(np.int64), sessions["close"].dt.timestamp(
        "us"
    ).to_numpy()


def _strays(tape: Tape, stray: Mask, what: str) -> Iterator[pl.DataFrame]:
    at = np.flatnonzero(stray)
    if not len(at):
        return
    days = sorted({instant(int(t)).date() for t in tape.opened[at[:2000]]})
    weekdays = {d.strftime("%A") for d in days}
    named = f", all on a {weekdays.pop()}" if len(weekdays) == 1 and len(days) > 1 else ""
    detail = f"{len(at)} of {len(tape)} bars {what} of {tape.calendar}{named}: {_dates(days)}"
    yield finding(tape, (at[0], at[-1]), "stray session", "warning", detail, count=len(at))


def _dates(days: list[date]) -> str:
    shown = ", ".join(str(d) for d in days[:5])
    return f"{shown} and {len(days) - 5} more days" if len(days) > 5 else shown


def _missing_sessions(tape: Tape, present: Ints, closes: Ints) -> Iterator[pl.DataFrame]:
    """Yield runs of sessions without a bar between those that have one, whose numbers are `present`."""
    if len(present) < 2:
        return
    after = np.flatnonzero(np.diff(present) > 1)
    length = np.diff(present)[after] - 1
    if not len(after):
        return
    total = (
        f"{length.sum()} of {present[-1] - present[0] + 1} sessions of {tape.calendar} between the first and the last"
    )
    longest = after[np.argsort(-length, kind="stable")[:NAMED]]
    for n in sorted(longest):
        ends = int(closes[present[n] + 1]), int(closes[present[n + 1] - 1])
        yield _gap(tape, ends, int(present[n + 1] - present[n] - 1), total, "sessions")
    rest = np.setdiff1d(after, longest)
    if len(rest):
        n_missing = int((np.diff(present)[rest] - 1).sum())
        ends = int(closes[present[rest[0]] + 1]), int(closes[present[rest[-1] + 1] - 1])
        detail = f"{len(rest)} more gaps, {n_missing} sessions in all, none longer than {np.sort(length)[-NAMED - 1]}"
        yield between(tape.symbol, ends, "missing sessions", "warning", detail, count=n_missing)


def _gap(tape: Tape, ends: tuple[int, int], missing: int, total: str, unit: str) -> pl.DataFrame:
    days = " to ".join(dict.fromkeys(f"{instant(end):%Y-%m-%d}" for end in ends))
    if missing >= LONG_GAP:
        detail = (
            f"no bar for {missing} {unit}, {days}: the return over the gap is no bar's return, and what follows may be "
            "another instrument"
        )
        return between(tape.symbol, ends, "long gap", "severe", detail, count=missing)
    detail = f"no bar on {days}; in all {total}"
    return between(tape.symbol, ends, "missing sessions", "warning", detail, count=missing)


def _days_unknown(tape: Tape, day: Ints) -> Iterator[pl.DataFrame]:
    """Yield stretches without a bar that no holidays explain, where nobody said which exchange this is."""
    present = np.unique(day)
    if len(present) < 10:
        return
    weekday = (present + 3) % 7
    # Days of the week that have bars, and how many of them lie between one day with bars and the next.
    open_days = np.bincount(weekday, minlength=7) > 0.3 * np.bincount(weekday, minlength=7).max()
    cumulated = np.cumsum(np.tile(open_days, 2)).astype(np.int64)
    whole, rest = np.divmod(np.diff(present) - 1, 7)
    missing = whole * int(open_days.sum()) + cumulated[weekday[:-1] + rest] - cumulated[weekday[:-1]]
    at = np.flatnonzero(missing > HOLIDAYS)
    for n in sorted(at[np.argsort(-missing[at], kind="stable")[:NAMED]]):
        total = f"{int(missing[at].sum())} days in gaps of more than {HOLIDAYS}; name the exchange to see each session"
        ends = int(present[n] + 1) * DAY_US, int(present[n + 1] - 1) * DAY_US
        yield _gap(tape, ends, int(missing[n]), total, "days")


def _is_inside(tape: Tape) -> Mask:
    """Return which bars overlap the hours of a session: an hour that holds an opening at half past belongs to it."""
    plan = tape.schedule
    number = np.minimum(np.searchsorted(plan.close, tape.opened, side="right"), len(plan) - 1)
    in_hours = (tape.ts > plan.open[number]) & (tape.opened < plan.close[number])
    in_pause = (tape.opened >= plan.pause[number]) & (tape.ts <= plan.resume[number])
    return in_hours & ~in_pause


def _outside(tape: Tape, inside: Mask) -> Iterator[pl.DataFrame]:
    """Yield bars outside the hours: an hour before and after is a habit where most sessions have it, else a fault."""
    at = np.flatnonzero(~inside)
    if not len(at):
        return
    sessions = set(tape.schedule.day)
    local = pl.Series(tape.opened[at]).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    days = local.dt.convert_time_zone(tape.schedule.zone.key).dt.date()
    # One that opens on the evening before is not closed on that day.
    sessions |= {instant(int(t)).astimezone(tape.schedule.zone).date() for t in tape.schedule.open}
    closed = ~days.is_in(list(sessions)).to_numpy()
    stray = np.zeros(len(tape), bool)
    stray[at[closed]] = True
    yield from _strays(tape, stray, "lie on no session")
    around = at[~closed]
    if not len(around):
        return
    n_sessions = len(np.unique(tape.session))
    n_around = len(np.unique(tape.session[around]))
    is_habit = n_around >= 0.5 * n_sessions and n_sessions > 1
    detail = f"{len(around)} of {len(tape)} bars, in {n_around} of {n_sessions} sessions of {tape.calendar}"
    severity = "note" if is_habit else "warning"
    yield finding(tape, (around[0], around[-1]), "outside hours", severity, detail, count=len(around))


def _holes(tape: Tape, inside: Mask) -> Iterator[pl.DataFrame]:
    """Yield stretches without a bar inside a session, as surprising as this symbol's own fill rate makes them."""
    plan = tape.schedule
    number = np.searchsorted(plan.close, tape.opened[inside], side="right")
    sessions, row = np.unique(number, return_inverse=True)
    if len(sessions) < 2:
        return
    span = int((plan.close - plan.open)[sessions].max())
    width = max(tape.length, -(-span // MOST_SLOTS // tape.length) * tape.length)
    slot = np.maximum(tape.opened[inside] - plan.open[number], 0) // width
    n_slots = -(-span // width)
    small: list[tuple[int, int]] = []
    large: list[tuple[int, int]] = []
    for start in range(0, len(sessions), HABIT):
        stop = min(start + HABIT, len(sessions))
        here = (row >= start) & (row < stop)
        filled = np.zeros((stop - start, n_slots), bool)
        filled[row[here] - start, slot[here]] = True
        planned = _is_planned(tape, sessions[start:stop], width, n_slots)
        for at, first, last, expected, whole in _surprising(filled, planned):
            begins = int(plan.open[sessions[start + at]]) + first * width
            ends = int(plan.open[sessions[start + at]]) + last * width
            if expected * (width / tape.length) >= LARGE_BARS or expected >= LARGE_SHARE * whole:
                large.append((begins, ends))
            else:
                small.append((begins, ends))
    yield from _named_holes(tape, large)
    if small:
        around = small[0][0], small[-1][1]
        detail = f"{len(small)} short holes inside sessions, where this symbol nearly always has a bar"
        yield between(tape.symbol, around, "small holes", "note", detail, count=len(small))


def _named_holes(tape: Tape, large: list[tuple[int, int]]) -> Iterator[pl.DataFrame]:
    longest = sorted(range(len(large)), key=lambda n: large[n][0] - large[n][1])[:NAMED]
    for n in sorted(longest):
        begins, ends = large[n]
        detail = (
            f"no bar from {instant(begins):%Y-%m-%d %H:%M}Z to {instant(ends):%Y-%m-%d %H:%M}Z, inside a session where "
            "this symbol usually has them"
        )
        yield between(tape.symbol, (begins, ends), "hole", "warning", detail, count=(ends - begins) // tape.length)
    rest = [large[n] for n in range(len(large)) if n not in longest]
    if rest:
        detail = f"{len(rest)} more large holes"
        yield between(tape.symbol, (rest[0][0], rest[-1][1]), "hole", "warning", detail, count=len(rest))


def _is_planned(tape: Tape, sessions: Ints, width: int, n_slots: int) -> Mask:
    """Return `(n_sessions, n_slots)`: whether the exchange trades, between the symbol's first bar and its last."""
    plan = tape.schedule
    begins = plan.open[sessions][:, None] + np.arange(n_slots) * width
    trades = begins < plan.close[sessions][:, None]
    trades &= (begins < plan.pause[sessions][:, None]) | (begins >= plan.resume[sessions][:, None])
    trades &= (begins + width > tape.opened[0]) & (begins < tape.ts[-1])
    return np.asarray(trades)


def _surprising(filled: Mask, planned: Mask) -> Iterator[tuple[int, int, int, float, float]]:
    """Yield holes: row, first slot, slot after the last, bars expected in it and in the whole session.

    How unlikely a hole is follows from how often the other sessions have a bar in its slots.
    """
    n = planned.sum(axis=0)
    rate = (filled & planned).sum(axis=0) / np.maximum(n, 1)
    rate = np.where(rate >= USUAL, np.minimum(rate, 1 - 0.5 / (n + 1)), 0.0)
    surprise: Floats = -np.log1p(-rate)
    whole = (planned * rate).sum(axis=1)
    for row in np.flatnonzero((planned & ~filled & (rate > 0)).any(axis=1)):
        starts, lengths = runs(~filled[row] & planned[row])
        for first, length in zip(starts, lengths, strict=True):
            stretch = slice(first, first + length)
            if surprise[stretch].sum() >= SURPRISE and rate[stretch].sum() >= 2:
                usual = first + np.flatnonzero(rate[stretch] > 0)
                yield int(row), int(usual[0]), int(usual[-1]) + 1, float(rate[stretch].sum()), float(whole[row])
