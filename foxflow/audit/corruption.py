"""What an attack does to bars and samples: everything after an instant is made another, or taken away."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.bars import PRICES, instant, iso
from foxflow.dataset import Dataset, Floats, Series

Times = NDArray[np.int64]
Corruption = Callable[[pl.DataFrame, int], pl.DataFrame]
"""Returns the bars with those after a time (int64 us) made others."""


def _after(after: int) -> pl.Expr:
    return pl.col("ts") > instant(after)


def cut(bars: pl.DataFrame, after: int) -> pl.DataFrame:
    """Return the bars up to a time."""
    return bars.filter(~_after(after))


def noise(bars: pl.DataFrame, after: int, *, size: float = 0.1) -> pl.DataFrame:
    """Return bars whose later prices and volumes are moved at random, each bar another way, high and low still around.

    `size`: standard deviation of the log of each factor.
    """
    random = np.random.default_rng(after % 2**32)
    rows = bars.select(*PRICES, "volume").to_numpy()
    moved = rows * np.exp(size * random.standard_normal(rows.shape))
    ends = moved[:, [0, 3]]
    moved[:, 1] = np.fmax(moved[:, 1], ends.max(axis=1))
    moved[:, 2] = np.fmin(moved[:, 2], ends.min(axis=1))
    values = {name: pl.Series(moved[:, i]).fill_nan(None) for i, name in enumerate((*PRICES, "volume"))}
    other = pl.DataFrame(values)
    return bars.with_columns(
        pl.when(_after(after)).then(other[name]).otherwise(pl.col(name)).alias(name) for name in other.columns
    )


def times_1000(bars: pl.DataFrame, after: int) -> pl.DataFrame:
    """Return bars whose later prices and volumes are a thousand times as large."""
    return bars.with_columns(
        pl.when(_after(after)).then(pl.col(c) * 1000.0).otherwise(pl.col(c)) for c in (*PRICES, "volume")
    )


def missing(bars: pl.DataFrame, after: int) -> pl.DataFrame:
    """Return bars whose later prices and volumes are null."""
    return bars.with_columns(pl.when(~_after(after)).then(pl.col(c)) for c in (*PRICES, "volume"))


def not_a_number(bars: pl.DataFrame, after: int) -> pl.DataFrame:
    """Return bars whose later prices and volumes are NaN."""
    return bars.with_columns(
        pl.when(_after(after)).then(float("nan")).otherwise(pl.col(c)).alias(c) for c in (*PRICES, "volume")
    )


CORRUPTIONS: Mapping[str, Corruption] = {
    "cut": cut,
    "noise": noise,
    "times 1000": times_1000,
    "null": missing,
    "NaN": not_a_number,
}


def holed(bars: pl.DataFrame, at: int) -> pl.DataFrame:
    """Return bars whose newest up to a time are poor: by turns without volume, with a volume of 0, without a range.

    What fills holes from later bars shows itself only where there is a hole.
    """
    newest = (pl.col("ts") == pl.col("ts").filter(~_after(at)).max().over("symbol")).fill_null(value=False)
    turn = (pl.col("symbol").rle_id() + at // 60_000_000) % 3
    empty, none, flat = (newest & (turn == i) for i in range(3))
    volume = pl.when(empty).then(None).when(none).then(0.0).otherwise(pl.col("volume"))
    return bars.with_columns(
        *(pl.when(flat).then(pl.col("close")).otherwise(pl.col(c)).alias(c) for c in PRICES), volume=volume
    )


def with_impulses(bars: pl.DataFrame, at: Mapping[str, Iterable[int]]) -> pl.DataFrame:
    """Return bars whose prices are half as high again at some bars (row numbers by symbol, within the symbol)."""
    hits = [(symbol, row) for symbol, rows in at.items() for row in rows]
    table = pl.DataFrame(hits, schema={"symbol": pl.String(), "row": pl.Int64()}, orient="row")
    numbered = bars.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64).over("symbol"))
    joined = numbered.join(table.with_columns(hit=True), on=["symbol", "row"], how="left", maintain_order="left")
    return joined.with_columns(
        pl.when(pl.col("hit")).then(pl.col(c) * 1.5).otherwise(pl.col(c)) for c in PRICES
    ).select(bars.columns)


def with_later_features(data: Dataset, after: int, change: Callable[[Floats], Floats]) -> Dataset:
    """Return the data with the feature rows after a time changed; bars keep being valid or not."""
    starts = [int(np.searchsorted(s.ts, after, side="right")) for s in data.series]
    changed = [_changed(s, start, change) for s, start in zip(data.series, starts, strict=True)]
    return replace(data, series=tuple(changed))


def _changed(series: Series, start: int, change: Callable[[Floats], Floats]) -> Series:
    features = series.features.copy()
    features[start:] = np.where(series.valid[start:, None], change(features[start:]), features[start:])
    return replace(series, features=features)


@dataclass(frozen=True)
class Difference:
    """The first row in which two arrays of one symbol differ."""

    symbol: str
    ts: int
    row: int
    column: int
    before: float
    after: float

    @property
    def when(self) -> str:
        """Symbol and time as a message names them."""
        return f"{self.symbol} at {shown(self.ts)}"


def shown(ts: int) -> str:
    """Return a time (int64 us) as messages show it."""
    return iso(instant(ts))


def first_difference(
    pairs: Iterable[tuple[str, Times, Floats, Floats]], *, tolerance: float = 0.0
) -> Difference | None:
    """Return the earliest row in which `before` and `after` differ, NaN equal to NaN; None where all are equal.

    `pairs`: symbol, `ts (n_rows,)`, and two arrays `(n_rows,)` or `(n_rows, n_columns)`.
    """
    found: Difference | None = None
    for symbol, ts, one, other in pairs:
        if not len(ts):
            continue
        before, after = one.reshape(len(ts), -1), other.reshape(len(ts), -1)
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        if tolerance:
            same |= np.abs(before - after) <= tolerance
        rows, columns = np.nonzero(~same)
        if len(rows) and (found is None or ts[rows[0]] < found.ts):
            row, column = int(rows[0]), int(columns[0])
            found = Difference(symbol, int(ts[row]), row, column, float(before[row, column]), float(after[row, column]))
    return found


def spread(times: Times, n: int, *, first: int) -> list[int]:
    """Return up to `n` of the times, from number `first` on, drawn evenly with a little chance; ascending."""
    if len(times) <= first:
        return []
    edges = np.linspace(first, len(times) - 1, min(n, len(times) - first) + 1)
    random = np.random.default_rng(len(times))
    picked = edges[:-1] + random.random(len(edges) - 1) * np.diff(edges)
    return sorted({int(times[int(i)]) for i in picked})


def at(frame: pl.DataFrame) -> Times:
    """Return a frame's `ts` as int64 microseconds."""
    found: Times = frame["ts"].dt.timestamp("us").to_numpy()
    return found
