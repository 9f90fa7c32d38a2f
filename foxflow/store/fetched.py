"""What sources were asked: by origin, symbol and bar length the times whose bars are all in the store."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import duckdb

from foxflow.bars import instant
from foxflow.store.bars import bar_name
from foxflow.store.connection import Transaction, connect

# Every bar with a `ts` after the first and up to the second time.
Span: TypeAlias = tuple[datetime, datetime]


def read_fetched(path: str | Path, *, origin: str, bar: str, symbols: Sequence[str]) -> dict[str, list[Span]]:
    """Return the spans of each symbol that were fetched from that origin, ascending and apart; none is a valid answer.

    A store that does not exist yet has none.
    """
    if not Path(path).exists():
        return {symbol: [] for symbol in symbols}
    with connect(path, read_only=True) as con:
        found = _spans(con, origin, bar, symbols)
        return {symbol: found.get(symbol, []) for symbol in symbols}


def add_fetched(inside: Transaction, spans: Mapping[str, Span], *, origin: str, bar: str) -> None:
    """Remember one more span of each symbol, joined with those that it touches; in the transaction of its bars."""
    con, key = inside.connection, {"origin": origin, "bar": bar_name(bar)}
    known = _spans(con, origin, bar, list(spans))
    for symbol, span in spans.items():
        con.execute(
            "delete from fetched where origin = $origin and bar = $bar and symbol = $symbol", key | {"symbol": symbol}
        )
        for after, until in _joined([*known.get(symbol, []), span]):
            con.execute(
                "insert into fetched values ($origin, $symbol, $bar, $after, $until)",
                key | {"symbol": symbol, "after": after, "until": until},
            )


def _spans(con: duckdb.DuckDBPyConnection, origin: str, bar: str, symbols: Sequence[str]) -> dict[str, list[Span]]:
    # A store of before has no such table until its next write.
    if not con.sql("select 1 from duckdb_tables() where table_name = 'fetched'").fetchall():
        return {}
    rows = con.sql(
        "select symbol, epoch_us(after), epoch_us(until) from fetched where origin = $origin and bar = $bar "
        "and symbol in (select unnest($symbols)) order by after",
        params={"origin": origin, "bar": bar_name(bar), "symbols": list(symbols)},
    ).fetchall()
    found = defaultdict(list)
    for symbol, after, until in rows:
        found[symbol].append((instant(after), instant(until)))
    return dict(found)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return the spans ascending, those that touch or overlap as one."""
    result: list[Span] = []
    for after, until in sorted(spans):
        if result and after <= result[-1][1]:
            result[-1] = (result[-1][0], max(until, result[-1][1]))
        else:
            result.append((after, until))
    return result
