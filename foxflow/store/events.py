"""Splits and dividends in the store."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

from foxflow.bars import EVENT_KINDS, EVENT_SCHEMA
from foxflow.errors import DataError
from foxflow.store.connection import Transaction, connect, within
from foxflow.store.tables import NO_DELAY, Counts, Keyed, append, known, read

EVENTS = Keyed("events", key=("symbol", "ts", "kind"), values=("value",))


def write_events(
    store: str | Path | Transaction,
    events: pl.DataFrame,
    *,
    delay: timedelta = NO_DELAY,
    where: str = "events to write",
) -> Counts:
    """Add splits and dividends (`EVENT_SCHEMA`) known `delay` after their `ts`, all or none; skip those already there.

    Raises
    ------
    DataError
        On a kind that is neither `split` nor `dividend`, a value that is not positive, two events of one kind on one
        bar, or an event that differs from the stored one.
    """
    if events.schema != EVENT_SCHEMA:
        raise DataError(f"{where}: columns {dict(events.schema)}; expected {dict(EVENT_SCHEMA)}")
    rows = events.sort("symbol", "ts", "kind")
    sound = pl.col("kind").is_in(EVENT_KINDS) & (pl.col("value") > 0) & pl.col("value").is_finite()
    once = ~pl.struct("symbol", "ts", "kind").is_duplicated()
    bad = rows.filter(~(sound & once & pl.all_horizontal(pl.all().is_not_null())).fill_null(False))
    if len(bad):
        raise DataError(
            f"{where}: {len(bad)} bad event(s), first {bad.row(0)}; expected kind {' or '.join(EVENT_KINDS)}, a "
            "positive value, and one event of a kind on a bar (the total of several)"
        )
    with within(store) as inside:
        return append(inside, EVENTS, known(rows, delay), where=where)


def read_events(path: str | Path, *, symbols: Sequence[str] = (), as_of: datetime | None = None) -> pl.DataFrame:
    """Return splits and dividends (`EVENT_SCHEMA`) sorted by (symbol, ts, kind); none is a valid answer.

    `as_of` is that of `read_bars`.
    """
    with connect(path, read_only=True) as con:
        return read(con, path, EVENTS, EVENT_SCHEMA, symbols=symbols, as_of=as_of)
