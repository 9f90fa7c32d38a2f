"""Bars of the store: read as of a time, as first known, list."""
# ruff: noqa: S608 - the only names put into SQL are constants of this package; values are parameters.

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import polars as pl

from foxflow.bars import BAR_SCHEMA, TS, bar_length
from foxflow.errors import DataError, unknown
from foxflow.store.connection import connect, has_tables
from foxflow.store.order import in_order, with_newest
from foxflow.store.schema import source
from foxflow.store.tables import Keyed, aware

LIST_SCHEMA = pl.Schema({"symbol": pl.String(), "bar": pl.String(), "rows": pl.Int64(), "first_ts": TS, "last_ts": TS})
REVISION_SCHEMA = pl.Schema({**BAR_SCHEMA, "known_at": TS})
BARS = Keyed("bars", key=("symbol", "bar", "ts"), values=("open", "high", "low", "close", "volume"))


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
    with connect(path, read_only=True) as con:
        asked = _Asked(bar_name(bar), tuple(symbols), as_of)
        frame = _first(con, path, asked)
        later = _select(con, "revisions", [*BAR_SCHEMA, "known_at"], asked)
        return with_newest(frame, later, values=BARS.values) if len(later) else frame


def read_first(path: str | Path, *, bar: str, symbols: Sequence[str] = ()) -> pl.DataFrame:
    """Return bars as `read_bars` does, with the values of each that were known first, whatever was corrected later."""
    with connect(path, read_only=True) as con:
        return _first(con, path, _Asked(bar_name(bar), tuple(symbols)))


def read_revisions(path: str | Path, *, bar: str, symbols: Sequence[str] = ()) -> pl.DataFrame:
    """Return all corrections of these bars (`REVISION_SCHEMA`, raw) sorted by (symbol, ts, known_at); often none."""
    with connect(path, read_only=True) as con:
        if not has_tables(con, path):
            return REVISION_SCHEMA.to_frame()
        later = _select(con, "revisions", list(REVISION_SCHEMA), _Asked(bar_name(bar), tuple(symbols)))
        return later.cast(REVISION_SCHEMA).sort("symbol", "ts", "known_at")


def read_delays(path: str | Path, *, bar: str, symbols: Sequence[str] = ()) -> dict[str, timedelta]:
    """Return how long after its `ts` a bar of each symbol was first known at the latest."""
    with connect(path, read_only=True) as con:
        if not has_tables(con, path):
            return {}
        asked = _Asked(bar_name(bar), tuple(symbols))
        longest = "max(epoch_us(known_at) - epoch_us(ts)) as delay"
        rows = _select(con, "bars", ["symbol", longest], asked, then="group by symbol").sort("symbol")
        return dict(rows.select("symbol", pl.col("delay").cast(pl.Duration("us"))).iter_rows())


@dataclass(frozen=True)
class _Asked:
    """Which bars are asked for."""

    bar: str
    symbols: tuple[str, ...]
    as_of: datetime | None = None

    def conditions(self) -> dict[str, tuple[str, object]]:
        """Return conditions in SQL, each with the value of its parameter, by the name of that."""
        found: dict[str, tuple[str, object]] = {"bar": ("bar = $bar", self.bar)}
        if self.symbols:
            # `in` and `list_contains` are planned as a join, after which rows come in another order than they lie in.
            # By the range, blocks are skipped.
            found["symbols"] = ("list_position($symbols, symbol) > 0", list(self.symbols))
            found["lowest"] = ("symbol >= $lowest", min(self.symbols))
            found["highest"] = ("symbol <= $highest", max(self.symbols))
        if self.as_of is not None:
            found["as_of"] = ("known_at <= $as_of", aware(self.as_of, "as_of"))
        return found


def _select(
    con: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str], asked: _Asked, *, then: str = ""
) -> pl.DataFrame:
    conditions = asked.conditions()
    where = " and ".join(sql for sql, _ in conditions.values())
    frame: pl.DataFrame = con.sql(
        f"select {', '.join(columns)} from {source(con, table)} where {where} {then}",
        params={name: value for name, (_, value) in conditions.items()},
    ).pl()
    return frame


def _first(con: duckdb.DuckDBPyConnection, path: str | Path, asked: _Asked) -> pl.DataFrame:
    """Return the first known values of the bars asked for, or say why there are none."""
    if not has_tables(con, path):
        raise DataError(f"{path} holds no bars; import some first")
    # A row's number, which only a table has: where one symbol's end before the next one's begin, and the rows come in
    # the order of their numbers, the names need not be fetched with them, which takes as long as all other columns.
    numbered = source(con, "bars") == "bars"
    spans = ["min(rowid) as first", "max(rowid) as last"] if numbered else ["0 as first", "0 as last"]
    counts = _select(con, "bars", ["symbol", "count(*) as rows", *spans], asked, then="group by symbol order by first")
    if counts.is_empty() or not set(asked.symbols) <= set(counts["symbol"]):
        _explain_missing(_listing(con, path), path, asked.bar, asked.symbols)
    if counts.is_empty():
        raise DataError(f"{path} holds no bars of {asked.bar} that were known at {asked.as_of}; ask for a later time")
    if numbered and (counts["first"] > counts["last"].shift(1)).all():
        # Half as wide, they are fetched in half the time.
        row = "rowid::uinteger as rowid" if counts["last"].max() < 2**32 else "rowid"  # type: ignore[operator]
        frame = _select(con, "bars", [row, *(c for c in BAR_SCHEMA if c != "symbol")], asked)
        # A join in the query, for one, would mix them up.
        if frame["rowid"].is_sorted():
            # As wide as Polars' own indices, which it then need not make.
            number = np.repeat(np.arange(len(counts), dtype=np.uint32), counts["rows"].to_numpy())
            named = frame.drop("rowid").insert_column(0, counts["symbol"].gather(pl.Series(number)))
            return in_order(named.cast(BAR_SCHEMA))
    return in_order(_select(con, "bars", list(BAR_SCHEMA), asked).cast(BAR_SCHEMA))


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
        "select symbol, bar, count(*) as rows, min(ts) as first_ts, max(ts) as last_ts "
        f"from {source(con, 'bars')} group by symbol, bar"
    ).pl()
    return listing.cast(LIST_SCHEMA).sort("symbol", "bar")


def bar_name(bar: str) -> str:
    """Return the name a bar length is stored under: `60m` is `1h`; days stay days, for a session is not 24 hours."""
    seconds = int(bar_length(bar).total_seconds())
    if bar.endswith("d"):
        return bar
    size, unit = next((s, u) for s, u in ((3600, "h"), (60, "m"), (1, "s")) if seconds % s == 0)
    return f"{seconds // size}{unit}"
