"""Who leaves the universe, and what a holder gets when bars end: nothing held is left at its last price unsaid.

A member that leaves is sold at its next open. One with a delisting return is closed at its last close times one plus
that return, at the first bar time after its end at which both were known (at the latest at the last bar time, where no
decision can use it). Bars that end with neither are refused, or closed at the last close under a named option.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np
import polars as pl

from foxflow.bars import TS, instant, session_closes
from foxflow.errors import DataError
from foxflow.universe import FOREVER, Membership, Times, Universe

# A download that is a few days behind the others is no end. Both have to pass, so that neither a symbol without a trade
# in the last minutes nor a missing weekly bar is taken for one.
ENDED_SESSIONS = 5
ENDED_BARS = 5
# Nobody fills at a price of 0, vectorbt least of all: a total loss leaves this share of the close.
WORTHLESS = 1e-12

Ended = Literal["last_close"]
Kind = Literal["delisted", "last close", "open"]
EXIT_SCHEMA = pl.Schema({"symbol": pl.String(), "ts": TS})
ENDING_SCHEMA = pl.Schema(
    {
        "symbol": pl.String(),
        "kind": pl.String(),
        "last_ts": TS,
        "close": pl.Float64(),
        "delisting_return": pl.Float64(),
        "ts": TS,
        "price": pl.Float64(),
    }
)
"""A row an ending: `close` is that of the last bar, at `last_ts`; at the open of the bar time `ts` what is held is
closed at `price`. `kind` is `delisted`, `last close`, or `open`, which is not closed: its `ts` and `price` are null."""


@dataclass(frozen=True)
class _Ending:
    symbol: str
    kind: Kind
    last: int
    at: int | None
    delisting_return: float | None


def exits(symbols: Iterable[str], universe: Universe, *, times: Times) -> pl.DataFrame:
    """Return the first bar times (`EXIT_SCHEMA`) at which a member is known to be none any more, with a bar or without.

    `times`: those of the walk-forward, ascending.
    """
    found = []
    for symbol in symbols:
        member = universe.decides_on(symbol, times)
        found += [(symbol, instant(int(t))) for t in times[1:][member[:-1] & ~member[1:]]]
    return pl.DataFrame(found, schema=EXIT_SCHEMA, orient="row").sort("symbol", "ts")


def exits_of(endings: pl.DataFrame) -> pl.DataFrame:
    """Return where endings (`ENDING_SCHEMA`) have closed their symbol (`EXIT_SCHEMA`)."""
    return endings.select("symbol", "ts").drop_nulls()


def require_recorded(
    own: Mapping[str, Times], universe: Universe, *, times: Times, ended: Ended | None, calendar: str
) -> None:
    """Raise DataError where `find` would, without a look at prices; parameters as there."""
    for symbol, ts in own.items():
        list(_endings(symbol, ts, universe, times=times, ended=ended, calendar=calendar))


def find(
    bars: pl.DataFrame, universe: Universe, *, symbols: Iterable[str], ended: Ended | None, calendar: str
) -> pl.DataFrame:
    """Return the endings (`ENDING_SCHEMA`) of symbols that can be held, sorted by (symbol, last_ts).

    Parameters
    ----------
    bars
        Adjusted bars of all symbols, sorted by (symbol, ts): their times are those of the walk-forward.
    ended
        What becomes of a symbol without a recorded end that may be held and has no bar in the last `ENDED_SESSIONS`
        sessions and `ENDED_BARS` bar times: `last_close` closes it at its last close once more of both have passed,
        None refuses it.

    Raises
    ------
    DataError
        Naming the symbol, its last bar and what can be done.
    """
    times = bar_times(bars)
    rows = []
    for symbol, ts in own_times(bars, symbols).items():
        for e in _endings(symbol, ts, universe, times=times, ended=ended, calendar=calendar):
            close = float(bars.filter((pl.col("symbol") == symbol) & (pl.col("ts") == instant(e.last)))["close"].item())
            price = None if e.at is None else close * max(1.0 + (e.delisting_return or 0.0), WORTHLESS)
            at = None if e.at is None else instant(e.at)
            rows.append((symbol, e.kind, instant(e.last), close, e.delisting_return, at, price))
    return pl.DataFrame(rows, schema=ENDING_SCHEMA, orient="row").sort("symbol", "last_ts")


def bar_times(bars: pl.DataFrame) -> Times:
    """Return the bar times of all symbols together, ascending, as int64 microseconds in UTC."""
    return bars["ts"].unique().sort().dt.timestamp("us").to_numpy()


def own_times(bars: pl.DataFrame, symbols: Iterable[str]) -> dict[str, Times]:
    """Return each symbol's bar times, ascending, as int64 microseconds in UTC."""
    chosen = bars.filter(pl.col("symbol").is_in(list(symbols))).sort("symbol", "ts")
    parts = chosen.partition_by("symbol", as_dict=True, maintain_order=True)
    return {str(symbol): rows["ts"].dt.timestamp("us").to_numpy() for (symbol,), rows in parts.items()}


def _endings(
    symbol: str, own: Times, universe: Universe, *, times: Times, ended: Ended | None, calendar: str
) -> Iterator[_Ending]:
    recorded = list(_delistings(symbol, own, universe, times))
    yield from recorded
    last, after = int(own[-1]), times[times > own[-1]]
    if not len(after) or any(e.last == last for e in recorded):
        return
    # What is held at the last bar was decided at its bar before or kept from then, unless it was known by the bar time
    # before the last that it had left: then it is sold at the open of the last.
    known = times[times < last][-1:]
    if len(own) < 2 or not universe.decides_on(symbol, np.concatenate([own[-2:-1], known])).all():
        return
    sessions = _sessions(calendar, last, after)
    has_ended = (np.arange(1, len(after) + 1) > ENDED_BARS) & (sessions > ENDED_SESSIONS)
    if not has_ended.any():
        yield _Ending(symbol, "open", last, None, None)
    elif ended is None:
        raise DataError(
            f"{symbol} has no bar after {instant(last):%Y-%m-%d %H:%M}Z, {sessions[-1]} sessions before the "
            "walk-forward ends, and could be held then: record its end and delisting return in the universe table "
            "(foxflow bars universe FILE), import the bars that follow, leave it out of [data] symbols, or set [data] "
            'ended = "last_close" to close it at its last price'
        )
    else:
        # Any earlier it would be hindsight that no more bars come, and its money would buy something else too soon.
        yield _Ending(symbol, "last close", last, int(after[has_ended.argmax()]), 0.0)


def _delistings(symbol: str, own: Times, universe: Universe, times: Times) -> Iterator[_Ending]:
    memberships: dict[int, list[Membership]] = {}
    for m in universe.memberships.get(symbol, ()):
        memberships.setdefault(m.since, []).append(m)
    for revisions in memberships.values():
        found = [(at, m) for m in revisions if (at := _settles_at(m, times)) is not None]
        if not found:
            continue
        # As it was first known: what is corrected after the money was paid out cannot be paid again.
        at, m = min(found, key=lambda pair: pair[0])
        bars = own[(own > m.since) & (own <= m.until)]
        if len(bars):
            is_due = at < len(times)
            kind: Kind = "delisted" if is_due else "open"
            yield _Ending(symbol, kind, int(bars[-1]), int(times[at]) if is_due else None, m.delisting_return)


def _settles_at(m: Membership, times: Times) -> int | None:
    """Return at which bar time this revision's delisting return is paid; `len(times)`: after the last."""
    if m.delisting_return is None:
        return None
    ends = int(np.searchsorted(times, m.until, side="right"))
    at = max(ends, int(np.searchsorted(times, m.known_at)))
    if at < len(times):
        return at if times[at] < m.superseded else None
    if m.superseded != FOREVER:
        return None
    return len(times) - 1 if ends < len(times) else ends


def _sessions(calendar: str, last: int, times: Times) -> Times:
    """Return how many sessions closed after `last` and by each of the later times."""
    day = timedelta(days=1)
    known = session_closes(calendar, instant(last).date() - day, instant(int(times[-1])).date() + day)
    closes = known["ts"].dt.timestamp("us").to_numpy()
    return np.searchsorted(closes, times, side="right") - np.searchsorted(closes, last, side="right")
