"""Who is in the universe when: membership by symbol, as it was known at the time.

A membership lasts from `since`, exclusive, to `until`, inclusive: the bars that end after `since` and at the latest at
`until` are a member's. So a decision at `ts`, which fills at the next open, is one about a member where
`since <= ts < until`, and that one rule says who is forecast, traded and trained on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.bars import SYMBOL, SYMBOL_WORDS, TS
from foxflow.errors import DataError

UNIVERSE_SCHEMA = pl.Schema(
    {"symbol": pl.String(), "since": TS, "until": TS, "delisting_return": pl.Float64(), "known_at": TS}
)
"""One row a revision of a membership, which its symbol and `since` name.

`until` is null for one whose end was not known at `known_at`. `delisting_return` is a fraction, from the last close up
to `until` to what a holder got after it; null where none is recorded.
"""
ORDER = ("symbol", "since", "known_at")
FOREVER = int(np.iinfo(np.int64).max)

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Membership:
    """One revision: what was known from `known_at` to before `superseded`; times are int64 microseconds in UTC.

    `until` and `superseded` are `FOREVER` where there is none; `delisting_return` is None where none is recorded.
    """

    since: int
    until: int
    known_at: int
    superseded: int
    delisting_return: float | None


@dataclass(frozen=True)
class Universe:
    """The memberships of each symbol, by (since, known_at). Without any, every symbol is a member at all times."""

    memberships: Mapping[str, tuple[Membership, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: pl.DataFrame) -> "Universe":
        """Return the universe of a table (`UNIVERSE_SCHEMA`) with every revision of it."""
        rows = require(table, where="the universe table")
        micros = rows.with_columns(pl.col("since", "until", "known_at").dt.timestamp("us"))
        superseded = pl.col("known_at").shift(-1).over("symbol", "since", order_by="known_at")
        full = micros.with_columns(superseded=superseded).with_columns(pl.col("until", "superseded").fill_null(FOREVER))
        found: dict[str, list[Membership]] = {}
        columns = ("symbol", "since", "until", "known_at", "superseded", "delisting_return")
        for symbol, *values in full.select(columns).iter_rows():
            found.setdefault(symbol, []).append(Membership(*values))
        return cls({symbol: tuple(memberships) for symbol, memberships in found.items()})

    @property
    def is_recorded(self) -> bool:
        """Whether there is any membership."""
        return bool(self.memberships)

    def decides_on(self, symbol: str, ts: Times, *, as_of: int | None = None) -> NDArray[np.bool_]:
        """Return at which times a decision may be one about this symbol: a member right after `ts`.

        Parameters
        ----------
        as_of
            Judge every time by what was known then; by default each by what was known at that time.
        """
        if not self.is_recorded:
            return np.ones(len(ts), dtype=bool)
        found = np.zeros(len(ts), dtype=bool)
        for m in self.memberships.get(symbol, ()):
            at = ts if as_of is None else as_of
            found |= (m.since <= ts) & (ts < m.until) & (m.known_at <= at) & (at < m.superseded)
        return found

    def mask(self, rows: pl.DataFrame, *, as_of: int | None = None) -> NDArray[np.bool_]:
        """Return `decides_on` of each row's `symbol` and `ts`."""
        found = np.ones(len(rows), dtype=bool)
        if self.is_recorded:
            symbols, ts = rows["symbol"].to_numpy(), rows["ts"].dt.timestamp("us").to_numpy()
            for symbol in np.unique(symbols):
                at = symbols == symbol
                found[at] = self.decides_on(symbol, ts[at], as_of=as_of)
        return found

    def within(self, first: int, last: int) -> list[str]:
        """Return the symbols with a membership, by its newest revision, that meets the times `first` to `last`."""
        return sorted({s for s, m in self._all() if m.superseded == FOREVER and m.since <= last and m.until > first})

    def _all(self) -> Iterator[tuple[str, Membership]]:
        return ((symbol, m) for symbol, memberships in self.memberships.items() for m in memberships)


EVERYTHING = Universe()
"""No universe recorded: a symbol is a member whenever it has bars."""


def require_rows(table: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Return rows, which may need others beside them, sorted by (symbol, since, known_at) if each is sound by itself.

    Raises
    ------
    DataError
        On a wrong schema, an empty field, an end that is not after its start, a delisting return below -1 or without
        an end, or a revision that stands twice: naming the place, the count and the first case.
    """
    if table.schema != UNIVERSE_SCHEMA:
        raise DataError(f"{where}: columns {dict(table.schema)}; expected {dict(UNIVERSE_SCHEMA)}")
    rows = table.sort(ORDER)
    gain = pl.col("delisting_return")
    rules = [
        (pl.any_horizontal(pl.col(ORDER).is_null()), "expected a symbol, a start and when it was known"),
        (
            ~pl.col("symbol").str.contains(f"^(?:{SYMBOL.pattern})$"),
            f"expected a symbol: {SYMBOL_WORDS}",
        ),
        (pl.col("until") <= pl.col("since"), "expected an end after its start"),
        (gain.is_not_null() & pl.col("until").is_null(), "a delisting return needs the end it belongs to"),
        (
            ~(gain.is_finite() & (gain >= -1)),
            "expected a delisting return as a fraction of -1 or more, as in -0.6 for a loss of 60 %",
        ),
        (pl.struct(ORDER).is_duplicated(), "the same symbol, start and known_at stand in more than one row"),
    ]
    for broken, expected in rules:
        _refuse(rows, broken, expected, where=where)
    return rows


def require(table: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Return a whole table sorted by (symbol, since, known_at) if it keeps every rule, else raise.

    Raises
    ------
    DataError
        As `require_rows`, and on a start or a later end first known when it was over, or two memberships of a symbol
        that overlap as known at any time.
    """
    rows = require_rows(table, where=where)
    before = pl.col("until").shift(1).over("symbol", "since", order_by="known_at")
    is_first = pl.col("known_at") == pl.col("known_at").min().over("symbol", "since")
    is_over = pl.col("known_at") >= pl.col("until")
    expected = "first known when it was over, so no bar could use it: give its start a row of its own, without an end"
    _refuse(rows, is_first & is_over, expected, where=where)
    expected = "a longer membership than the one known before it, known only when it was over: no bar could use it"
    _refuse(rows, (before < pl.col("until")) & is_over, expected, where=where)
    for _, of_symbol in groupby(rows.iter_rows(named=True), key=itemgetter("symbol")):
        _refuse_overlaps(list(of_symbol), where=where)
    return rows


def _refuse(rows: pl.DataFrame, broken: pl.Expr, expected: str, *, where: str) -> None:
    bad = rows.filter(broken.fill_null(value=False))
    if len(bad):
        raise DataError(f"{where}: {len(bad)} bad row(s), first {shown(bad.row(0, named=True))}: {expected}")


def _refuse_overlaps(rows: list[dict[str, Any]], *, where: str) -> None:
    """Refuse memberships of one symbol, in their order, that overlap by what was known at any time."""
    if rows[0]["since"] == rows[-1]["since"]:
        return
    for instant in sorted({row["known_at"] for row in rows}):
        newest = {row["since"]: row for row in rows if row["known_at"] <= instant}
        for one, other in pairwise(newest.values()):
            if one["until"] is None or one["until"] > other["since"]:
                raise DataError(
                    f"{where}: as known at {_utc(instant)}, {shown(one)} overlaps {shown(other)}; end the first, known "
                    "by then, before the second starts"
                )


def shown(row: Mapping[str, Any]) -> str:
    """Return a row as a message shows it."""
    gain = "" if row["delisting_return"] is None else f", delisting return {row['delisting_return']:g}"
    end = "with no end" if row["until"] is None else f"until {_utc(row['until'])}"
    return f"{row['symbol']} since {_utc(row['since'])} {end}{gain}, known at {_utc(row['known_at'])}"


def _utc(instant: datetime | None) -> str:
    return "(empty)" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M}Z"
