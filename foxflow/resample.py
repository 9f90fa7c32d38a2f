"""Bars of a larger length from smaller ones: no bar spans a session's end or its lunch break.

A session is the exchange's, and it has the date of its close: CME's of Monday opens on Sunday evening. Within it,
`anchor` says where bars of an hour begin: at full hours of the exchange's clock, or an hour after the open. Either way
the session cuts them: the first hour of New York on the clock is 09:30 to 10:00.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.bars import BAR_SCHEMA, bar_length, iso, sessions_around
from foxflow.errors import DataError

Anchor = Literal["clock", "session"]
Outside = Literal["refuse", "drop", "join"]
ANCHORS = ("clock", "session")
OUTSIDE = ("refuse", "drop", "join")

_Ints = NDArray[np.int64]
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class _Parts:
    """Uninterrupted parts of sessions, ascending: a session without a lunch break is one. Microseconds in UTC.

    `day` is where the session's date begins; `day_end` and `week_end` are the end of the session's last part and of
    the last session in its calendar week; `session` and `week` number them.
    """

    start: _Ints
    end: _Ints
    day: _Ints
    session: _Ints
    day_end: _Ints
    week: _Ints
    week_end: _Ints


def resample(
    bars: pl.DataFrame,
    *,
    bar: str,
    to: str,
    calendar: str,
    anchor: Anchor = "clock",
    outside: Outside = "refuse",
    until: datetime | None = None,
) -> pl.DataFrame:
    """Return bars (`BAR_SCHEMA`) of the length `to` made of bars of the length `bar`, sorted by (symbol, ts).

    `ts` is the instant the new bar is complete: its boundary, or the session's close where that comes first. A bar
    whose end has not come by `until` is left out, whether or not data are there. Nothing is made up: where no bar was,
    none comes out. The volume is the sum, and unknown (null) where one of its parts is.

    Parameters
    ----------
    to
        A length below a day, a whole multiple of `bar`; `1d`, a session; `1w`, the sessions of a calendar week.
    calendar
        An exchange_calendars name, as in XNYS, CMES or 24/7.
    anchor
        Where bars below a day begin: at multiples of their length on the exchange's clock (`clock`), or after the
        start of the session and the end of its lunch break (`session`).
    outside
        What becomes of bars outside every session, as those before New York opens: `refuse` them; `drop` them, which
        `outside_sessions` counts; or `join` them to the session of their date, which then lasts from midnight (or its
        open, where that is the evening before) to midnight without a break. Its `ts` is that end, for a later trade
        could still come.
    until
        The instant up to which the bars are known, by default the newest `ts` of all symbols.

    Raises
    ------
    DataError
        On lengths that don't fit, a bar outside every session, or one that spans a boundary of the new ones.

    Notes
    -----
    Bars too coarse for the session's close, as those of an hour where it ends at 15:30, may be stamped after it. The
    new bar's `ts` is then the next multiple of `bar` on the exchange's clock, for every symbol and session alike.
    """
    step = _step(bar, to, anchor)
    if outside not in OUTSIDE:
        raise DataError(f"outside = {outside!r}; expected one of {', '.join(OUTSIDE)}")
    if bars.is_empty():
        return BAR_SCHEMA.to_frame()
    bars = _in_order(bars)
    limit = bars["ts"].max() if until is None else until
    parts = _parts(bars, bar=bar, calendar=calendar, outside=outside)
    part, inside = _place(bars, parts, bar=bar)
    if not inside.all():
        if outside != "drop":
            raise _refusal(
                bars.filter(~inside),
                f"outside every session of {calendar}",
                "drop such bars with outside = 'drop', "
                + ("join them to a session with 'join', " if outside == "refuse" else "")
                + "or name the calendar of their exchange",
            )
        bars, part = bars.filter(inside), part[inside]
    number, end = _bucket(bars, parts, part, bar=bar, to=to, step=step, anchor=anchor)
    return _combine(bars, number, end).filter(pl.col("ts") <= limit)


def outside_sessions(bars: pl.DataFrame, *, bar: str, calendar: str) -> pl.DataFrame:
    """Return the bars that lie outside every session of the calendar."""
    if bars.is_empty():
        return bars
    return bars.filter(~_place(bars, _parts(bars, bar=bar, calendar=calendar, outside="drop"), bar=bar)[1])


def _in_order(bars: pl.DataFrame) -> pl.DataFrame:
    """Return bars sorted by (symbol, ts); looking whether they are takes a tenth of the time of sorting them."""
    symbol, ts = pl.col("symbol"), pl.col("ts")
    backward = (symbol < symbol.shift(1)) | ((symbol == symbol.shift(1)) & (ts < ts.shift(1)))
    return bars.sort("symbol", "ts") if bars.select(backward.any()).item() else bars


def _step(bar: str, to: str, anchor: str) -> int:
    """Return the new length in microseconds (a day's for `1d` and `1w`), or refuse it."""
    length, wanted = bar_length(bar), timedelta(days=7) if to == "1w" else bar_length(to)
    if anchor not in ANCHORS:
        raise DataError(f"anchor = {anchor!r}; expected one of {', '.join(ANCHORS)}")
    if wanted <= length:
        raise DataError(f"bars of {to} from bars of {bar}; expected a length above {bar}")
    if bar.endswith("d") and (bar, to) != ("1d", "1w"):
        raise DataError(f"bars of {to} from bars of {bar}; only 1w can be made of days, and only of 1d")
    if to in ("1d", "1w"):
        return _micros(_DAY)
    if wanted >= _DAY:
        raise DataError(f"bars of {to}; expected a length below a day, 1d (a session) or 1w (a calendar week)")
    if wanted % length:
        raise DataError(f"bars of {to} from bars of {bar}; expected a whole multiple of {bar}")
    if anchor == "clock" and _DAY % wanted:
        raise DataError(f"bars of {to} do not divide a day; use a length that does, or anchor = 'session'")
    return _micros(wanted)


def _parts(bars: pl.DataFrame, *, bar: str, calendar: str, outside: Outside) -> _Parts:
    first, last = bars["ts"].min(), bars["ts"].max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    table = sessions_around(calendar, first, last).with_row_index("number")
    names = ("number", "session", "day")
    if outside == "join" and not bar.endswith("d"):
        begin = pl.min_horizontal("day", "open")
        over = pl.max_horizontal("close", pl.col("day") + _DAY)
        parts = table.select(*names, start=begin, end=pl.min_horizontal(over, begin.shift(-1)))
    else:
        whole, broken = table.filter(pl.col("break_start").is_null()), table.filter(pl.col("break_start").is_not_null())
        parts = pl.concat(
            [
                whole.select(*names, start="open", end="close"),
                broken.select(*names, start="open", end="break_start"),
                broken.select(*names, start="break_end", end="close"),
            ]
        ).sort("start")
    week = parts["session"].dt.truncate("1w")
    start, end, day = (parts[c].dt.timestamp("us").to_numpy() for c in ("start", "end", "day"))
    session, weeks = parts["number"].cast(pl.Int64).to_numpy(), week.rle_id().cast(pl.Int64).to_numpy()
    if not bar.endswith("d"):
        # What bars of that length may be stamped with at the part's end.
        grid = _micros(bar_length(bar))
        end = day - (day - end) // grid * grid
    return _Parts(start, end, day, session, _last_of(session, end), weeks, _last_of(weeks, end))


def _last_of(group: _Ints, end: _Ints) -> _Ints:
    """Return, for each row, the `end` of the last row of its group; groups are ascending."""
    found: _Ints = end[np.searchsorted(group, group, side="right") - 1]
    return found


def _place(bars: pl.DataFrame, parts: _Parts, *, bar: str) -> tuple[_Ints, NDArray[np.bool_]]:
    """Return the part that each bar lies in, and whether it lies in any."""
    ts = bars["ts"].dt.timestamp("us").to_numpy()
    if bar.endswith("d"):
        part = np.searchsorted(parts.end, ts).clip(max=len(parts.end) - 1)
        return part, parts.end[part] == ts
    opened = ts - _micros(bar_length(bar))
    part = np.searchsorted(parts.start, ts) - 1
    before = np.maximum(part - 1, 0)
    spans = (part > 0) & (opened < parts.start[part]) & (parts.end[before] > opened)
    if spans.any():
        raise _refusal(
            bars.filter(spans),
            f"as bar(s) of {bar} that span the end of a session or a lunch break",
            "give the length and the calendar that the bars have",
        )
    return part, (part >= 0) & (parts.end[part] > opened)


def _bucket(
    bars: pl.DataFrame, parts: _Parts, part: _Ints, *, bar: str, to: str, step: int, anchor: Anchor
) -> tuple[_Ints, _Ints]:
    """Return the number of the new bar that each bar is part of, ascending within a symbol, and that bar's `ts`."""
    ts = bars["ts"].dt.timestamp("us").to_numpy()
    late = ts > parts.end[part]
    if late.any():
        raise _refusal(
            bars.filter(late), f"as bar(s) of {bar} past the end of their session", "give the length the bars have"
        )
    if to == "1d":
        return parts.session[part], parts.day_end[part]
    if to == "1w":
        return parts.week[part], parts.week_end[part]
    origin = parts.day[part] if anchor == "clock" else parts.start[part]
    first = np.maximum(ts - _micros(bar_length(bar)), parts.start[part])
    number = -((origin - ts) // step) - 1
    crosses = number != (first - origin) // step
    if crosses.any():
        raise _refusal(
            bars.filter(crosses),
            f"as bar(s) of {bar} that span a boundary between bars of {to}, which begin "
            + ("on the clock" if anchor == "clock" else "at the start of the session"),
            f"use anchor = {'session' if anchor == 'clock' else 'clock'!r} or another length",
        )
    boundary = np.minimum(origin + (number + 1) * step, parts.end[part])
    # Ends tell the new bars of a symbol apart, and they ascend.
    return boundary, boundary


def _combine(bars: pl.DataFrame, number: _Ints, end: _Ints) -> pl.DataFrame:
    """Return one bar for each run of one symbol and number."""
    if bars.is_empty():
        return bars
    symbol = bars["symbol"].rle_id().to_numpy()
    first = np.flatnonzero(np.r_[True, (symbol[1:] != symbol[:-1]) | (number[1:] != number[:-1])])
    last = np.r_[first[1:], len(bars)] - 1
    # Summed in order, which a threaded group-by would not promise: the last bit of a volume has to repeat.
    volume = np.add.reduceat(bars["volume"].to_numpy(), first)
    return pl.DataFrame(
        {
            "symbol": bars["symbol"].gather(first),
            "ts": pl.Series(end[first]).cast(BAR_SCHEMA["ts"]),
            "open": bars["open"].gather(first),
            "high": np.maximum.reduceat(bars["high"].to_numpy(), first),
            "low": np.minimum.reduceat(bars["low"].to_numpy(), first),
            "close": bars["close"].gather(last),
            "volume": pl.Series(volume).fill_nan(None),
        },
        schema=BAR_SCHEMA,
    )


def _refusal(bad: pl.DataFrame, what: str, remedy: str) -> DataError:
    first = bad.row(0, named=True)
    return DataError(f"{len(bad)} bar(s) lie {what}, first {first['symbol']} at {iso(first['ts'])}; {remedy}")


def _micros(length: timedelta) -> int:
    return length // timedelta(microseconds=1)
