"""Prices made comparable over splits and dividends, forward from the first bar: no later event changes one."""

import polars as pl

from foxflow.bars import EVENT_SCHEMA, PRICES, TS, sessions_around
from foxflow.errors import DataError

FACTOR_SCHEMA = pl.Schema(
    {
        "symbol": pl.String(),
        "ts": TS,
        "shares_at_open": pl.Float64(),
        "shares_at_close": pl.Float64(),
        "volume_factor": pl.Float64(),
    }
)
"""From adjusted bars to the day's own: one adjusted share is so many raw ones at the bar's open and at its close, and
the bar's adjusted volume times `volume_factor` is its volume in adjusted shares."""


def adjust(bars: pl.DataFrame, events: pl.DataFrame, *, calendar: str | None = None) -> pl.DataFrame:
    """Return bars with prices made comparable over splits and dividends, forward from the first bar.

    Prices are multiplied by the value of one first share with its splits and reinvested dividends, volume is
    divided by the splits alone, so a bar's values use only events at or before its `ts` and a later event changes
    no earlier value. A dividend `d` counts as `1 / (1 - d / previous close)`, both known before the open it
    applies to. Returns of the adjusted prices are total returns. An event before a symbol's first bar or after its
    last changes nothing.

    Parameters
    ----------
    calendar
        The exchange whose sessions the events are dated by, for bars shorter than a session. An event then applies
        from the first bar after its session's date begins (or after its open, where that is the evening before), and
        the previous close is that of the session before, not of trades after it.

    Raises
    ------
    DataError
        An event between those bars has no bar (or no bar in its session), or a dividend is not below the close before
        it.
    """
    touched = bars["symbol"].is_in(events["symbol"].unique().implode())
    if not touched.any():
        return bars
    # Most symbols of a large universe have no events, and joins over all their bars would take seconds.
    place = pl.concat([touched.arg_true(), (~touched).arg_true()])
    counted = _counted(bars.filter(touched), events, calendar).select(
        "symbol",
        "ts",
        *(pl.col(c) * pl.col("shares") for c in PRICES),
        pl.col("volume") / pl.col("splits"),
    )
    made = pl.concat([counted, bars.filter(~touched)])
    return made if place.is_sorted() else made[place.arg_sort()]


def factors(bars: pl.DataFrame, events: pl.DataFrame, *, calendar: str | None = None) -> pl.DataFrame:
    """Return what one adjusted share is in raw ones at each bar, and its volume: parameters and errors of `adjust`.

    Returns
    -------
    Frame `symbol`, `ts`, `shares` (raw ones, with splits and reinvested dividends), `splits` (raw ones, of splits
    alone, which `adjust` divides the volume by), sorted by (symbol, ts).
    """
    touched = bars["symbol"].is_in(events["symbol"].unique().implode())
    plain = bars.filter(~touched).select("symbol", "ts", shares=pl.lit(1.0), splits=pl.lit(1.0))
    if touched.any():
        counted = _counted(bars.filter(touched), events, calendar).select("symbol", "ts", "shares", "splits")
        plain = pl.concat([counted, plain])
    return plain.sort("symbol", "ts")


def _counted(bars: pl.DataFrame, events: pl.DataFrame, calendar: str | None) -> pl.DataFrame:
    """Return bars with the raw `shares` that one first share has become by each, and by `splits` alone."""
    spans = bars.group_by("symbol").agg(first=pl.col("ts").min(), last=pl.col("ts").max())
    # Before a symbol's first bar nobody held it.
    events = events.join(spans, on="symbol").filter(pl.col("ts") >= pl.col("first"))
    if calendar is None:
        # What comes after its last has not happened yet.
        placed = events.filter(pl.col("ts") <= pl.col("last")).with_columns(bar="ts", reference=None)
        stray = placed.join(bars, on=["symbol", "ts"], how="anti")
    else:
        placed = _in_sessions(bars, events, calendar)
        stray = placed.filter(pl.col("bar").is_null())
    if len(stray):
        raise DataError(
            f"{len(stray)} split(s) or dividend(s) without a bar, first {stray['symbol'][0]} at "
            f"{stray['ts'][0]:%Y-%m-%d %H:%M}Z; import that bar or mend the event's date"
        )
    moved = placed.with_columns(ts="bar")
    closes = moved.select("symbol", "ts", pl.col("reference").cast(pl.Float64)).unique()
    joined = _with_events(bars, moved.select(EVENT_SCHEMA.names()))
    joined = joined.join(closes, on=["symbol", "ts"], how="left", maintain_order="left").with_columns(
        previous=pl.coalesce("reference", "previous")
    )
    bad = joined.filter((pl.col("dividend") > 0) & ~(pl.col("dividend") < pl.col("previous")))
    if len(bad):
        raise DataError(
            f"dividend {bad['dividend'][0]} of {bad['symbol'][0]} at {bad['ts'][0]:%Y-%m-%d} is not below the previous "
            f"close {bad['previous'][0]}; mend the event or import the bar before it"
        )
    # A dividend of a symbol's first bar is nobody's.
    yielded = pl.when(pl.col("dividend") > 0).then(pl.col("dividend") / pl.col("previous")).fill_null(0.0)
    growth = pl.col("split") / (1 - yielded)
    return joined.with_columns(
        shares=growth.cum_prod().over("symbol", order_by="ts"),
        splits=pl.col("split").cum_prod().over("symbol", order_by="ts"),
    )


def _in_sessions(bars: pl.DataFrame, events: pl.DataFrame, calendar: str) -> pl.DataFrame:
    """Return the events of sessions that have begun by a symbol's last bar, with the `bar` each applies from.

    `bar` is null where the session has none; `reference` is the newest close at or before the close of the session
    before, null where there is none.
    """
    times = bars["ts"].sort()
    begins = pl.min_horizontal("day", "open")
    table = sessions_around(calendar, times[0], times[-1]).select(
        ts="close", begin=begins, next=begins.shift(-1), closed=pl.col("close").shift(1)
    )
    dated = events.sort("ts").join(table, on="ts", how="left", maintain_order="left")
    undated = dated.filter(pl.col("begin").is_null() & (pl.col("ts") <= pl.col("last")))
    if len(undated):
        first = undated.row(0, named=True)
        raise DataError(
            f"{len(undated)} split(s) or dividend(s) dated by no session of {calendar}, first {first['symbol']} "
            f"at {first['ts']:%Y-%m-%d %H:%M}Z, when none closes; name the calendar that they were imported with"
        )
    begun = dated.filter(pl.col("begin") < pl.col("last"))
    closes = bars.select("symbol", "ts", "close").sort("ts")
    after = begun.sort("begin").join_asof(
        closes.select("symbol", bar="ts"),
        left_on="begin",
        right_on="bar",
        by="symbol",
        strategy="forward",
        allow_exact_matches=False,
        coalesce=False,
        check_sortedness=False,
    )
    before = after.sort("closed").join_asof(
        closes.select("symbol", closing="ts", reference="close"),
        left_on="closed",
        right_on="closing",
        by="symbol",
        check_sortedness=False,
    )
    # A bar at the instant the next session begins is the last that this one can have.
    own = pl.when(pl.col("bar") <= pl.col("next")).then(pl.col("bar"))
    return before.with_columns(bar=own)


def _with_events(bars: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return bars with `split` (1 where none), `dividend` (0 where none) and the `previous` close of the symbol."""
    wide = events.group_by("symbol", "ts").agg(
        split=pl.col("value").filter(pl.col("kind") == "split").product(),
        dividend=pl.col("value").filter(pl.col("kind") == "dividend").sum(),
    )
    return bars.join(wide, on=["symbol", "ts"], how="left", maintain_order="left").with_columns(
        split=pl.col("split").fill_null(1.0),
        dividend=pl.col("dividend").fill_null(0.0),
        previous=pl.col("close").shift(1).over("symbol", order_by="ts"),
    )
