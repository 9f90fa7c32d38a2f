"""Rows on their way into a store: one Parquet file, in bounded memory, sorted by (symbol, time) and each bar once."""
# ruff: noqa: S608 - a path is all that is put into SQL, quoted; no value is.

import math
import zoneinfo
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from foxflow.bars import PRICES, TS

_VALUES = (*PRICES, "volume")
STAGED_SCHEMA = pl.Schema(
    {"number": pl.Int64(), "symbol": pl.String(), "ts": TS, **dict.fromkeys(_VALUES, pl.Float64())}
)
# More different gaps than these are the gaps of no bars of equal length.
_MOST_GAPS = 5_000
_BATCH = 1 << 20
# Twice DuckDB's own group of rows: groups that end with its own are taken over as they are, others are packed twice.
_GROUP = 2 * 122_880


class Writer:
    """Appends frames of `STAGED_SCHEMA` to a Parquet file, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._schema = pa.schema(
            [
                ("number", pa.int64()),
                ("symbol", pa.large_string()),
                ("ts", pa.timestamp("us", tz="UTC")),
                *[(v, pa.float64()) for v in _VALUES],
            ]
        )
        # It lives for minutes: packing it would take longer than the disk does.
        self._file = pq.ParquetWriter(
            path, self._schema, compression="none", use_dictionary=["symbol"], write_statistics=False
        )
        self._rest = STAGED_SCHEMA.to_frame()
        self._pool = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def write(self, frame: pl.DataFrame) -> None:
        """Append rows."""
        if frame.is_empty():
            return
        rows = pl.concat([self._rest, frame.select(STAGED_SCHEMA.names())])
        whole = len(rows) // _GROUP * _GROUP
        self._rest = rows[whole:]
        if whole:
            self._put(rows[:whole])

    def close(self) -> None:
        """Finish the file."""
        try:
            if len(self._rest):
                self._put(self._rest)
            self._wait()
        finally:
            self._pool.shutdown()
            self._file.close()

    def _put(self, rows: pl.DataFrame) -> None:
        self._wait()
        self._pending = self._pool.submit(self._write, rows)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _write(self, rows: pl.DataFrame) -> None:
        self._file.write_table(rows.to_arrow().cast(self._schema), row_group_size=_GROUP)


@dataclass
class Order:
    """What the order of rows tells, row by row: whether they are sorted and unique, and how far bars are apart.

    Attributes
    ----------
    gaps
        Gap between bars of a symbol (microseconds) to how often it comes; only where rows are sorted.
    n_back, first_back
        Rows earlier than the row of their symbol before them, and the number of the first.
    """

    n_rows: int = 0
    last_number: int = 0
    n_back: int = 0
    n_forward: int = 0
    first_back: int | None = None
    is_sorted: bool = True
    gaps: dict[int, int] = field(default_factory=dict)
    symbols: dict[str, datetime] = field(default_factory=dict)
    first: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    volume: np.longdouble = field(default_factory=lambda: np.longdouble(0))

    def add(self, frame: pl.DataFrame, *, in_order: bool = True) -> None:
        """Take in the next rows, in file order, or from anywhere in the file."""
        if not len(frame):
            return
        self.n_rows += len(frame)
        self.last_number = max(self.last_number, int(frame["number"].max()))  # type: ignore[arg-type]
        self.volume += frame["volume"].drop_nulls().to_numpy().astype(np.longdouble).sum()
        self._ends(frame)
        symbols, at = frame["symbol"], frame["ts"]
        before_symbol, before_at = symbols.shift(1), at.shift(1)
        same = symbols == before_symbol
        gap = (at - before_at).dt.total_microseconds()
        strict = (symbols > before_symbol) | (same & (gap > 0))
        head = self.symbols.get(symbols[0])
        fits = (
            self.n_rows == len(frame)
            or symbols[0] > self._newest
            or (symbols[0] == self._newest and head is not None and at[0] > head)
        )
        if not in_order or not fits or not strict[1:].all():
            self.is_sorted = False
        if self.is_sorted:
            self._count(gap.filter(same))
            if head is not None and symbols[0] == self._newest:
                self._count(pl.Series([(at[0] - head) // timedelta(microseconds=1)]))
            self.n_forward += int(same.sum())
            ends = frame.filter((symbols != symbols.shift(-1)).fill_null(value=True))
            self.symbols.update(zip(ends["symbol"], ends["ts"], strict=True))
        elif in_order:
            self._directions(frame)
        self._newest = symbols[-1]

    _newest: str = ""

    def _ends(self, frame: pl.DataFrame) -> None:
        first = frame.filter(pl.col("ts") == pl.col("ts").min()).row(0, named=True)
        last = frame.filter(pl.col("ts") == pl.col("ts").max()).row(-1, named=True)
        if self.first is None or first["ts"] < self.first["ts"]:
            self.first = first
        if self.last is None or last["ts"] >= self.last["ts"]:
            self.last = last

    def _count(self, gaps: pl.Series) -> None:
        counted = gaps.drop_nulls().value_counts()
        for gap, n in counted.iter_rows():
            self.gaps[gap] = self.gaps.get(gap, 0) + n
        if len(self.gaps) > _MOST_GAPS:
            kept = sorted(self.gaps, key=lambda gap: (-self.gaps[gap], gap))[: _MOST_GAPS // 2]
            self.gaps = {gap: self.gaps[gap] for gap in {*kept, min(self.gaps)}}

    def _directions(self, frame: pl.DataFrame) -> None:
        """Count the rows that go back in time, of each symbol in file order."""
        previous = pl.Series([self.symbols.get(s) for s in frame["symbol"].unique(maintain_order=True)], dtype=TS)
        starts = pl.DataFrame({"symbol": frame["symbol"].unique(maintain_order=True), "previous": previous})
        steps = frame.select("number", "symbol", "ts").join(starts, on="symbol", how="left", maintain_order="left")
        step = pl.col("ts") - pl.col("ts").shift(1).over("symbol", order_by="number").fill_null(pl.col("previous"))
        steps = steps.with_columns(step=step)
        back = steps.filter(pl.col("step") < timedelta(0))
        self.n_back += len(back)
        self.n_forward += len(steps.filter(pl.col("step") > timedelta(0)))
        if len(back) and self.first_back is None:
            self.first_back = int(back["number"].min())  # type: ignore[arg-type]
        ends = frame.group_by("symbol").agg(pl.col("ts").last())
        self.symbols.update(zip(ends["symbol"], ends["ts"], strict=True))

    def ends(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the earliest and the latest row."""
        assert self.first is not None
        assert self.last is not None
        return self.first, self.last

    def is_newest_first(self) -> bool:
        """Return whether every step goes back in time."""
        return self.n_back > 0 and self.n_forward == 0


def step_of(gaps: dict[int, int]) -> tuple[int | None, int | None, int | None]:
    """Return the smallest gap, the most frequent one and the greatest common divisor, in microseconds."""
    if not gaps:
        return None, None, None
    return min(gaps), max(gaps, key=lambda gap: (gaps[gap], -gap)), math.gcd(*gaps)


@dataclass
class Repeats:
    """Rows of one symbol and time: equal ones are dropped, others decided by the rule the user named."""

    n_equal: int = 0
    n_resolved: int = 0
    first_equal: tuple[int, int] | None = None
    conflicts: list[dict[str, object]] = field(default_factory=list)
    n_conflicts: int = 0
    first_resolved: dict[str, object] | None = None


def tidy(source: Path, target: Path, folder: Path, *, keep: Literal["first", "last"] | None) -> tuple[Order, Repeats]:
    """Write the rows of `source` to `target` sorted by (symbol, ts), each once, and return what was found.

    Rows that differ in values under one key are kept by the rule `keep` (by file order); without a rule they are
    counted as conflicts and both left out, for the caller to refuse.
    """
    ordered = folder / "sorted.parquet"
    quoted = [str(path).replace("'", "''") for path in (folder, source, ordered)]
    with duckdb.connect() as con:
        con.execute("set threads = 2")
        con.execute("set enable_progress_bar = false")
        con.execute("set memory_limit = '512MB'")
        con.execute(f"set temp_directory = '{quoted[0]}'")
        con.execute("set TimeZone = 'UTC'")
        con.execute(
            f"copy (select * from read_parquet('{quoted[1]}') order by symbol, ts, number) "
            f"to '{quoted[2]}' (format parquet, compression uncompressed)"
        )
    order, repeats, writer = Order(), Repeats(), Writer(target)
    for batch in _groups(ordered):
        rows = _once(batch, repeats, keep=keep)
        order.add(rows)
        writer.write(rows)
    writer.close()
    return order, repeats


def batches(path: Path) -> Iterator[pl.DataFrame]:
    """Yield the rows of a staged file in bounded frames, in file order."""
    for batch in pq.ParquetFile(path).iter_batches(batch_size=_BATCH):
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        yield frame.cast(STAGED_SCHEMA)


def by_symbol(path: Path) -> Iterator[pl.DataFrame]:
    """Yield the bars (`bars.BAR_SCHEMA`) of a staged file, each symbol's in one frame."""
    rest: list[pl.DataFrame] = []
    for batch in batches(path):
        for part in batch.drop("number").partition_by("symbol", maintain_order=True):
            if rest and rest[-1]["symbol"][0] != part["symbol"][0]:
                yield pl.concat(rest)
                rest = []
            rest.append(part)
    if rest:
        yield pl.concat(rest)


def _groups(path: Path) -> Iterator[pl.DataFrame]:
    """Yield bounded frames that never part the rows of one symbol and time."""
    rest = STAGED_SCHEMA.to_frame()
    for batch in batches(path):
        frame = pl.concat([rest, batch])
        last = frame.row(-1, named=True)
        is_last = (frame["symbol"] == last["symbol"]) & (frame["ts"] == last["ts"])
        rest = frame.filter(is_last)
        yield frame.filter(~is_last)
    yield rest


def _once(rows: pl.DataFrame, repeats: Repeats, *, keep: Literal["first", "last"] | None) -> pl.DataFrame:
    key = pl.struct("symbol", "ts")
    doubled = rows.filter(key.is_duplicated())
    if not len(doubled):
        return rows
    once = rows.filter(~key.is_duplicated())
    groups = doubled.group_by("symbol", "ts", maintain_order=True).agg(
        pl.col("number"), n=pl.len(), differing=pl.any_horizontal([pl.col(v).n_unique() > 1 for v in _VALUES])
    )
    equal = groups.filter(~pl.col("differing"))
    repeats.n_equal += int(equal.select((pl.col("n") - 1).sum()).item() or 0)
    if len(equal) and repeats.first_equal is None:
        numbers = sorted(equal["number"][0])
        repeats.first_equal = (numbers[0], numbers[1])
    conflicts = groups.filter("differing")
    if keep is None:
        repeats.n_conflicts += len(conflicts)
        repeats.conflicts += conflicts.head(max(0, 20 - len(repeats.conflicts))).to_dicts()
        kept = doubled.join(equal.select("symbol", "ts"), on=["symbol", "ts"], how="semi")
    else:
        repeats.n_resolved += int(conflicts.select((pl.col("n") - 1).sum()).item() or 0)
        if len(conflicts) and repeats.first_resolved is None:
            repeats.first_resolved = conflicts.row(0, named=True)
        kept = doubled
    rule: Literal["first", "last"] = keep or "first"
    one = kept.sort("number").unique(["symbol", "ts"], keep=rule, maintain_order=True)
    return pl.concat([once, one]).sort("symbol", "ts")


def place_of(row: dict[str, object], unit: str, *, tz: str | None = None) -> str:
    """Return how a message names rows of one symbol and time; with `tz`, by the day that ends there in that zone."""
    at, numbers = row["ts"], row["number"]
    assert isinstance(at, datetime)
    assert isinstance(numbers, list)
    shown = " and ".join(map(str, sorted(numbers)[:4]))
    if tz is None:
        return f"{unit}s {shown} ({row['symbol']} at {at:%Y-%m-%d %H:%M}Z)"
    day = (at - timedelta(microseconds=1)).astimezone(zoneinfo.ZoneInfo(tz))
    return f"{unit}s {shown} ({row['symbol']} on {day:%Y-%m-%d})"
