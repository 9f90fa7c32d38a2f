"""What a bar is: schema, invariants, the meaning of `ts`, and the exchange's sessions it lies in.

`ts` is the UTC instant the bar is complete: everything on a bar was known at its `ts`, nothing before.
"""

import hashlib
import re
import warnings
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.errors import DataError

TS = pl.Datetime("us", "UTC")
# Only the volume may be null: not known, as of quotes.
BAR_SCHEMA = pl.Schema(
    {
        "symbol": pl.String(),
        "ts": TS,
        "open": pl.Float64(),
        "high": pl.Float64(),
        "low": pl.Float64(),
        "close": pl.Float64(),
        "volume": pl.Float64(),
    }
)
# `ts` is the close of the first bar that trades without the dividend or after the split. A split's value is new
# shares per old share, a dividend's is money per share held before that bar.
EVENT_KINDS = ("dividend", "split")
EVENT_SCHEMA = pl.Schema({"symbol": pl.String(), "ts": TS, "kind": pl.String(), "value": pl.Float64()})
# A finding covers `count` bars (or sessions, where it says so) from `ts` to `until`.
FINDING_SCHEMA = pl.Schema(
    {
        "symbol": pl.String(),
        "ts": TS,
        "until": TS,
        "check": pl.String(),
        "severity": pl.String(),
        "count": pl.Int64(),
        "detail": pl.String(),
    }
)
SESSION_SCHEMA = pl.Schema(
    {"session": pl.Date(), "day": TS, "open": TS, "break_start": TS, "break_end": TS, "close": TS}
)
PRICES = ("open", "high", "low", "close")
# As exchanges and vendors write them: BTC/USDT, ^GSPC, BRN FMJ0024!, AAPL  250221C00250000.
SYMBOL = re.compile(r"[A-Za-z0-9^$@#_](?:[A-Za-z0-9 ._/=^:+!&*@#$()-]{0,62}[A-Za-z0-9._/=^:+!&*@#$()-])?")
SYMBOL_WORDS = (
    "a letter, a digit or one of _ ^ $ @ #, then letters, digits and . _ / = ^ - : + ! & * @ # $ ( ) or blanks inside, "
    "at most 64"
)
_UNITS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def instant(ts: int) -> datetime:
    """Return the UTC time of int64 microseconds since 1970."""
    return datetime.fromtimestamp(ts / 1e6, UTC)


def instants(ts: NDArray[np.int64]) -> pl.Series:
    """Return the UTC times (dtype `TS`) of int64 microseconds since 1970."""
    return pl.Series(ts).cast(TS)


def sha256(bars: pl.DataFrame) -> str:
    """Return the sha256 over rows by (symbol, ts), column by column: symbols and NULs, ts as int64 us, float64 values.

    Little-endian; an unknown volume counts as NaN.
    """
    rows = bars.sort("symbol", "ts")
    digest = hashlib.sha256("".join(s + "\0" for s in rows["symbol"]).encode())
    digest.update(rows["ts"].dt.timestamp("us").to_numpy().astype("<i8").tobytes())
    for name in ("open", "high", "low", "close", "volume"):
        digest.update(rows[name].fill_null(float("nan")).to_numpy().astype("<f8").tobytes())
    return digest.hexdigest()


def iso(moment: datetime) -> str:
    """Return a time as ISO 8601 in UTC.

    Examples
    --------
    >>> iso(instant(1_710_446_400_000_000))
    '2024-03-14T20:00:00Z'
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def bar_length(bar: str, *, name: str = "bar") -> timedelta:
    """Return the length of a bar name such as `1m`, `15m`, `1h`, `1d`; `name` is what an error calls it.

    Examples
    --------
    >>> bar_length("15m")
    datetime.timedelta(seconds=900)
    """
    match = re.fullmatch(r"([1-9]\d{0,4})([smhd])", bar)
    if match is None:
        raise DataError(f"{name} = {bar!r}; expected a number and one of s, m, h, d, as in 1m, 15m, 1h, 1d")
    return int(match[1]) * _UNITS[match[2]]


def session_closes(calendar: str, start: date, end: date) -> pl.DataFrame:
    """Return the sessions of an exchange from `start` to `end` and the UTC instant each closes.

    Returns
    -------
    Frame with `session` (Date) and `ts` (UTC), ascending.

    Source: the `exchange_calendars` package; half days close early there too.
    """
    return sessions(calendar, start, end).select("session", ts="close")


# To make a calendar takes as long for a month as for these years, which most reads share.
_USUAL = (date(1999, 12, 1), date(2025, 12, 31))


@cache
def sessions(calendar: str, start: date, end: date) -> pl.DataFrame:
    """Return the sessions of an exchange from `start` to `end`: when each begins, breaks for lunch and ends.

    A session that crosses midnight has the date of its close: CME's of Monday opens on Sunday evening.

    Returns
    -------
    Frame (`SESSION_SCHEMA`), ascending: `day` is the instant the session's date begins in the exchange's zone;
    `break_start` and `break_end` are null where nothing interrupts the session.

    Source: the `exchange_calendars` package; half days close early there too.
    """
    try:
        whole = _sessions(calendar, min(start, _USUAL[0]), max(end, _USUAL[1]))
    except DataError:
        # Some calendars begin or end within these years.
        whole = _sessions(calendar, start, end)
    return whole.filter(pl.col("session").is_between(start, end))


@cache
def _sessions(calendar: str, start: date, end: date) -> pl.DataFrame:
    found = exchange(calendar, start, end)
    table = found.schedule
    instants = {
        name: table[name].dt.tz_convert(None).to_numpy().astype("datetime64[us]")
        for name in ("open", "break_start", "break_end", "close")
    }
    frame = pl.DataFrame({"session": table.index.to_numpy().astype("datetime64[us]"), **instants})
    zone = str(found.tz)
    midnight, one = (
        pl.col("session").dt.offset_by(by).dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        for by in ("0h", "1h")
    )
    return (
        frame.select(
            pl.col("session").cast(pl.Date),
            # Where clocks go forward over midnight, the date begins at one.
            pl.coalesce(midnight, one).dt.convert_time_zone("UTC").alias("day"),
            *(pl.col(c).dt.replace_time_zone("UTC") for c in instants),
        )
        .filter(pl.col("session").is_between(start, end))
        .cast(SESSION_SCHEMA)
    )


def sessions_around(calendar: str, first: datetime, last: datetime) -> pl.DataFrame:
    """Return the sessions (`SESSION_SCHEMA`) that bars from `first` to `last` can belong to, and some beside them.

    Whole years, and to the end of the week that a year ends in, so that reads of one store share a calendar, which
    takes half a second to make. Raises as `sessions` does.
    """
    try:
        return sessions(calendar, date(first.year - 1, 12, 25), date(last.year + 1, 1, 7))
    except DataError:
        # Some calendars begin or end within these years.
        return sessions(calendar, first.date() - timedelta(days=1), last.date() + timedelta(days=1))


@cache
def exchange(calendar: str, start: date, end: date) -> Any:  # noqa: ANN401  (the package has no types)
    """Return the calendar of `exchange_calendars`, with days around `start` to `end`.

    Raises
    ------
    DataError
        On a name the package does not know, and on dates it does not cover.
    """
    # The package still uses what pandas 4 will drop; that is no concern of whoever imports bars.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import exchange_calendars

        try:
            # A margin on both sides, because a calendar must start and end on a session.
            first, last = start - timedelta(days=14), end + timedelta(days=14)
            try:
                return exchange_calendars.get_calendar(calendar, start=str(first), end=str(last))
            except ValueError:
                # Some calendars are only known to the end of the year.
                return exchange_calendars.get_calendar(calendar, start=str(first), end=str(end))
        except exchange_calendars.errors.InvalidCalendarName as e:
            raise DataError(
                f"unknown calendar {calendar!r}; expected an exchange_calendars name, as in XNYS or 24/7"
            ) from e
        except (ValueError, OverflowError, NotImplementedError) as e:
            raise DataError(f"calendar {calendar} from {start} to {end}: {e}; expected dates that it covers") from e


def zone_of(calendar: str) -> str:
    """Return the time zone of an exchange, as in America/New_York. Raises as `exchange` does."""
    return str(exchange(calendar, date(2024, 1, 2), date(2024, 1, 31)).tz)


def sessions_per_year(calendar: str) -> int:
    """Return the mean number of sessions a year, rounded: 252 for XNYS, 365 for 24/7.

    Over 2000 to 2019, or over 2022 to 2025 for a calendar that does not reach back so far.
    """
    try:
        return round(len(session_closes(calendar, date(2000, 1, 1), date(2019, 12, 31))) / 20)
    except DataError:
        return round(len(session_closes(calendar, date(2022, 1, 1), date(2025, 12, 31))) / 4)


def require(bars: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Return the bars sorted by (symbol, ts) if they keep every invariant, else raise.

    Raises
    ------
    DataError
        On a wrong schema, a price that is null, a number that is not finite, a repeated (symbol, ts), a high or low
        that the other prices break, or a negative volume: naming the place, the count and the first case.
    """
    if bars.schema != BAR_SCHEMA:
        raise DataError(f"{where}: columns {dict(bars.schema)}; expected {dict(BAR_SCHEMA)}")
    bars = bars.sort("symbol", "ts")
    faults = check(bars)
    if len(faults):
        first = faults.row(0, named=True)
        raise DataError(
            f"{where}: {len(faults)} bad bar(s), first {first['symbol']} at {first['ts']:%Y-%m-%d %H:%M}Z: "
            f"{first['check']}, {first['detail']}; mend or remove the row(s) in the file"
        )
    return bars


def check(bars: pl.DataFrame) -> pl.DataFrame:
    """Return the bars that break an invariant, one row a fault (`FINDING_SCHEMA`), all of them severe.

    What else may be wrong with bars is the matter of `foxflow.check`.
    """
    price = [pl.col(c) for c in PRICES]
    # Quotes have no volume: null says so, and is no fault.
    finite = pl.all_horizontal(
        [p.is_finite().fill_null(False) for p in price] + [pl.col("volume").is_finite().fill_null(True)]
    )
    rules = [
        ("missing value", ~finite, pl.lit("a price is null, or a number not finite")),
        (
            "repeated bar",
            _repeated(bars),
            pl.lit("the same symbol and time stand in more than one row"),
        ),
        (
            "high or low",
            finite & ((pl.col("high") < pl.max_horizontal(price)) | (pl.col("low") > pl.min_horizontal(price))),
            pl.format("open {} high {} low {} close {}", *price),
        ),
        ("negative volume", pl.col("volume") < 0, pl.format("volume {}", "volume")),
    ]
    found = [
        bars.filter(condition.fill_null(False)).select(
            "symbol",
            "ts",
            pl.col("ts").alias("until"),
            pl.lit(name).alias("check"),
            pl.lit("severe").alias("severity"),
            pl.lit(1).alias("count"),
            detail.alias("detail"),
        )
        for name, condition, detail in rules
    ]
    return pl.concat([f.cast(FINDING_SCHEMA) for f in found]).sort("symbol", "ts", "check", maintain_order=True)


def _repeated(bars: pl.DataFrame) -> pl.Expr:
    """Return which rows share symbol and time with another; sorted rows need only look at their neighbours."""
    symbol, ts = pl.col("symbol"), pl.col("ts")
    backward = (symbol < symbol.shift(1)) | ((symbol == symbol.shift(1)) & (ts < ts.shift(1)))
    if bars.null_count().select("symbol", "ts").sum_horizontal().sum() or bars.select(backward.any()).item():
        return pl.struct("symbol", "ts").is_duplicated()
    as_before = ((symbol == symbol.shift(1)) & (ts == ts.shift(1))).fill_null(value=False)
    return as_before | as_before.shift(-1).fill_null(value=False)


def log_price(column: str) -> pl.Expr:
    """Return the natural logarithm of a price, null where the price is not positive."""
    return pl.when(pl.col(column) > 0).then(pl.col(column).log())
