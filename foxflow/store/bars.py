"""Bars in the store: write, correct, read as of a time, list."""
# ruff: noqa: S608 - the only names put into SQL are constants of this package; values are parameters.

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl

from foxflow.bars import BAR_SCHEMA, TS, bar_length, require
from foxflow.errors import DataError, unknown
from foxflow.store.connection import Transaction, connect, has_tables, within
from foxflow.store.tables import NO_DELAY, Counts, Keyed, append, aware, equal, known, read, utc

LIST_SCHEMA = pl.Schema({"symbol": pl.String(), "bar": pl.String(), "rows": pl.Int64(), "first_ts": TS, "last_ts": TS})
BARS = Keyed("bars", key=("symbol", "bar", "ts"), values=("open", "high", "low", "close", "volume"))


def write_bars(
    store: str | Path | Transaction,
    bars: pl.DataFrame,
    *,
    bar: str,
    delay: timedelta = NO_DELAY,
    where: str = "bars to write",
) -> Counts:
    """Add bars (`BAR_SCHEMA`, raw) known `delay` after their `ts`, all or none; skip those already there.

    A message calls them by `where`: the file they come from.

    Raises
    ------
    DataError
        On bars that break an invariant, or that differ from the stored ones: naming the count and the first.
    """
    rows = require(bars, where=where).with_columns(bar=pl.lit(bar_name(bar)))
    with within(store) as inside:
        return append(inside, BARS, known(rows, delay), where=where)


def correct_bars(store: str | Path | Transaction, bars: pl.DataFrame, *, bar: str, known_at: datetime) -> Counts:
    """Add other values for stored bars, as learned at `known_at`; skip bars whose newest values are the same.

    Raises
    ------
    DataError
        When a bar is not stored, or `known_at` is not after that of its stored values.
    """
    rows = require(bars, where="bars to correct").with_columns(
        bar=pl.lit(bar_name(bar)), known_at=pl.lit(aware(known_at, "known_at")).cast(TS)
    )
    with within(store) as inside:
        con = inside.connection
        con.register("incoming", rows)
        newest = con.sql(
            f"select i.symbol, i.ts, i.known_at, max(b.known_at) as newest, {equal(BARS, newest=True)} as same "
            "from incoming i left join bars b using (symbol, bar, ts) group by all order by i.symbol, i.ts"
        ).pl()
        for fault, what in (
            (pl.col("newest").is_null(), "no such bar is stored; import it first"),
            (
                (pl.col("known_at") <= pl.col("newest")) & ~pl.col("same"),
                "its stored values were not known before that; give a later known_at",
            ),
        ):
            bad = newest.filter(fault)
            if len(bad):
                raise DataError(
                    f"{inside.path}: {len(bad)} of {len(rows)} correction(s) as of {utc(known_at)} refused, first "
                    f"{bad['symbol'][0]} {bar} at {utc(bad['ts'][0])}: {what}"
                )
        changed = rows.join(newest.filter(~pl.col("same")), on=["symbol", "ts"], how="semi").sort("symbol", "ts")
        con.register("incoming", changed)
        con.execute("insert into bars by name select * from incoming")
        con.unregister("incoming")
        return Counts(added=len(changed), present=len(rows) - len(changed))


def read_bars(
    path: str | Path, *, bar: str, symbols: Sequence[str] = (), as_of: datetime | None = None
) -> pl.DataFrame:
    """Return bars (`BAR_SCHEMA`, raw) sorted by (symbol, ts), the newest revision of each, all symbols by default.

    Parameters
    ----------
    as_of
        Return only what was known at this instant.

    Raises
    ------
    DataError
        When the store is absent, damaged or empty, has no bars of that length or symbol, or none known by `as_of`.
    """
    name = bar_name(bar)
    with connect(path, read_only=True) as con:
        frame = read(con, path, BARS, BAR_SCHEMA, bar=name, symbols=symbols, as_of=as_of)
        if frame.is_empty() or not set(symbols) <= set(frame["symbol"].unique()):
            _explain_missing(_listing(con, path), path, name, symbols)
        if frame.is_empty():
            raise DataError(f"{path} holds no bars of {name} that were known at {as_of}; ask for a later time")
        return frame


def _explain_missing(present: pl.DataFrame, path: str | Path, bar: str, symbols: Sequence[str]) -> None:
    """Raise a DataError when bars asked for are not stored at all, and not just unknown by some time."""
    lengths = present["bar"].unique().sort().to_list()
    if not lengths:
        raise DataError(f"{path} holds no bars; import some first")
    if bar not in lengths:
        raise DataError(f"{path} holds no bars of {bar}; it holds {', '.join(lengths)}")
    known = present.filter(pl.col("bar") == bar)["symbol"].to_list()
    for symbol in symbols:
        if symbol not in known:
            raise DataError(f"{path}, bars of {bar}: {unknown('symbol', symbol, known)}")


def list_bars(path: str | Path) -> pl.DataFrame:
    """Return what the store holds (`LIST_SCHEMA`): a row a symbol and bar length, sorted; none for an empty store."""
    with connect(path, read_only=True) as con:
        return _listing(con, path)


def _listing(con: duckdb.DuckDBPyConnection, path: str | Path) -> pl.DataFrame:
    if not has_tables(con, path):
        return LIST_SCHEMA.to_frame()
    listing: pl.DataFrame = con.sql(
        "select symbol, bar, count(distinct ts) as rows, min(ts) as first_ts, max(ts) as last_ts "
        "from bars group by symbol, bar"
    ).pl()
    return listing.cast(LIST_SCHEMA).sort("symbol", "bar")


def bar_name(bar: str) -> str:
    """Return the name a bar length is stored under: `60m` is `1h`; days stay days, for a session is not 24 hours."""
    seconds = int(bar_length(bar).total_seconds())
    if bar.endswith("d"):
        return bar
    size, unit = next((s, u) for s, u in ((3600, "h"), (60, "m"), (1, "s")) if seconds % s == 0)
    return f"{seconds // size}{unit}"
