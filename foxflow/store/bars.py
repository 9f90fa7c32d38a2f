"""Bars of the store: read as of a time, as first known, list."""
# ruff: noqa: S608 - the only names put into SQL are constants of this package; values are parameters.

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import duckdb
import polars as pl

from foxflow.bars import BAR_SCHEMA, TS, bar_length
from foxflow.errors import DataError, unknown
from foxflow.store.connection import connect, has_tables
from foxflow.store.schema import source
from foxflow.store.tables import Keyed, aware

LIST_SCHEMA = pl.Schema({"symbol": pl.String(), "bar": pl.String(), "rows": pl.Int64(), "first_ts": TS, "last_ts": TS})
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
        asked = _asked(bar, symbols, as_of)
        frame = _first(con, path, bar, symbols, asked)
        later = _select(con, "revisions", [*BAR_SCHEMA, "known_at"], asked)
        return _with_newest(frame, later) if len(later) else frame


def read_first(path: str | Path, *, bar: str, symbols: Sequence[str] = ()) -> pl.DataFrame:
    """Return bars as `read_bars` does, with the values of each that were known first, whatever was corrected later."""
    with connect(path, read_only=True) as con:
        return _first(con, path, bar, symbols, _asked(bar, symbols, None))


def revision_times(path: str | Path, *, bar: str, symbols: Sequence[str] = ()) -> list[datetime]:
    """Return the distinct times at which a correction of these bars became known, ascending; none is a valid answer."""
    with connect(path, read_only=True) as con:
        later = _select(con, "revisions", ["known_at"], _asked(bar, symbols, None), distinct=True)
        return later["known_at"].sort().to_list()


def _asked(bar: str, symbols: Sequence[str], as_of: datetime | None) -> dict[str, tuple[str, object]]:
    """Return conditions in SQL, each with the value of its parameter, by its name."""
    asked: dict[str, tuple[str, object]] = {"bar": ("bar = $bar", bar_name(bar))}
    if symbols:
        asked["symbols"] = ("symbol in (select unnest($symbols))", list(symbols))
    if as_of is not None:
        asked["as_of"] = ("known_at <= $as_of", aware(as_of, "as_of"))
    return asked


def _select(
    con: duckdb.DuckDBPyConnection,
    table: str,
    columns: Sequence[str],
    asked: dict[str, tuple[str, object]],
    *,
    distinct: bool = False,
) -> pl.DataFrame:
    frame: pl.DataFrame = con.sql(
        f"select {'distinct ' if distinct else ''}{', '.join(columns)} from {source(con, table)} "
        f"where {' and '.join(sql for sql, _ in asked.values())}",
        params={name: value for name, (_, value) in asked.items()},
    ).pl()
    return frame


def _first(
    con: duckdb.DuckDBPyConnection,
    path: str | Path,
    bar: str,
    symbols: Sequence[str],
    asked: dict[str, tuple[str, object]],
) -> pl.DataFrame:
    """Return the first known values of the bars asked for, or say why there are none."""
    name = bar_name(bar)
    if not has_tables(con, path):
        raise DataError(f"{path} holds no bars; import some first")
    frame = _in_order(_select(con, "bars", list(BAR_SCHEMA), asked).cast(BAR_SCHEMA))
    if frame.is_empty() or not set(symbols) <= set(frame["symbol"].gather(_starts(frame))):
        _explain_missing(_listing(con, path), path, name, symbols)
    if frame.is_empty():
        as_of = asked["as_of"][1]
        raise DataError(f"{path} holds no bars of {name} that were known at {as_of}; ask for a later time")
    return frame


def _starts(frame: pl.DataFrame) -> pl.Series:
    """Return the rows at which another symbol starts, the first row among them."""
    return frame["symbol"].ne_missing(frame["symbol"].shift(1)).arg_true()


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Return bars sorted by (symbol, ts); rows of one ordered import are so already, and a look is cheap."""
    starts = _starts(frame)
    symbols, rising = frame["symbol"].gather(starts), frame["ts"] > frame["ts"].shift(1)
    if symbols.n_unique() == len(symbols) and symbols.is_sorted() and rising.scatter(starts, True).all():
        return frame
    return frame.sort("symbol", "ts")


def _with_newest(frame: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
    """Return sorted bars with the values of their last revision, found by position and not by a join of every bar."""
    newest = later.sort("known_at").unique(["symbol", "ts"], keep="last").sort("symbol", "ts")
    starts = _starts(frame)
    ends = [*starts[1:], len(frame)]
    spans = {s: (a, b) for s, a, b in zip(frame["symbol"].gather(starts), starts, ends, strict=True)}
    at = []
    for (symbol,), rows in newest.partition_by("symbol", as_dict=True, maintain_order=True).items():
        first, last = spans[symbol]
        at.append(frame["ts"][first:last].search_sorted(rows["ts"]) + first)
    rows = pl.concat(at)
    assert frame["ts"].gather(rows).equals(newest["ts"])
    return frame.with_columns(frame[v].scatter(rows, newest[v]) for v in BARS.values)


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
