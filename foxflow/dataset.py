"""Samples: features, label and weight per (symbol, ts), as contiguous arrays a model can read."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow import features, labels
from foxflow.bars import TS
from foxflow.errors import DataError
from foxflow.splits import Fold, Mask, Times
from foxflow.universe import EVERYTHING, Universe

Floats = NDArray[np.float64]
UNKNOWN_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Series:
    """One symbol's consecutive bars.

    Attributes
    ----------
    ts
        `(n_bars,)` int64, microseconds since 1970 in UTC, ascending.
    features
        `(n_bars, n_features)`. Raw in what `build` returns; scaled, with a row of zeros where not `valid`, in
        what a model is given.
    valid
        `(n_bars,)` bool: every raw feature of the bar is finite.
    label
        `(n_bars,)`; NaN where the label is not known. Raw, or scaled like `features`.
    label_end
        `(n_bars,)` int64: the `ts` of the last bar the label reads; `UNKNOWN_END` where it has not come yet.
    weight
        `(n_bars,)`: how much a row counts in the loss; 0 = context only, never to be fitted or scored on.
    """

    symbol: str
    ts: NDArray[np.int64]
    features: Floats
    valid: NDArray[np.bool_]
    label: Floats
    label_end: NDArray[np.int64]
    weight: Floats

    def __len__(self) -> int:
        return len(self.ts)

    def slice(self, start: int, stop: int) -> "Series":
        """Return bars `start` to `stop - 1`."""
        return Series(self.symbol, *(getattr(self, f)[start:stop] for f in _ARRAYS))


_ARRAYS = ("ts", "features", "valid", "label", "label_end", "weight")


@dataclass(frozen=True)
class Table:
    """Rows for a tabular model: `features (n_rows, n_features)`, `label (n_rows,)`, `weight (n_rows,)`."""

    features: Floats
    label: Floats
    weight: Floats


@dataclass(frozen=True)
class Segments:
    """Equally long stretches of bars for a sequence model.

    `features (n_segments, length, n_features)`, `label` and `weight (n_segments, length)`. The burn-in at the start of
    a segment, and padding in front of a symbol shorter than a segment, has weight 0 and label 0.
    """

    features: Floats
    label: Floats
    weight: Floats


@dataclass(frozen=True)
class Dataset:
    """The bars of several symbols, each a `Series`, symbols in ascending order, and who of them is a member when.

    `delays`: how long after its `ts` a symbol's bar was known at the latest; none where it is not named.
    """

    feature_names: tuple[str, ...]
    label_name: str
    horizon: int
    lookback: int
    series: tuple[Series, ...]
    universe: Universe = EVERYTHING
    delays: Mapping[str, timedelta] = field(default_factory=dict)

    def table(self) -> Table:
        """Return the rows that count (weight above 0), by symbol and time."""
        if not self.series:
            return Table(np.empty((0, len(self.feature_names))), np.empty(0), np.empty(0))
        weight = joined(self, "weight")
        keep = weight > 0
        return Table(joined(self, "features")[keep], joined(self, "label")[keep], weight[keep])

    def segments(self, length: int, burn_in: int) -> Segments:
        """Return stretches of `length` bars in which every row counts at most once.

        Segments end at a symbol's last bar and overlap by at least `burn_in` bars, whose loss the segment before
        carries; a symbol's own first `burn_in` rows carry none. A symbol with fewer bars than `length` is padded
        in front with rows of zeros.
        """
        if not 0 <= burn_in < length:
            raise DataError(f"burn_in = {burn_in}; expected 0 or more and less than the segment length {length}")
        parts = [part for s in self.series for part in _segments(s, length, burn_in) if part[2].any()]
        if not parts:
            empty = np.empty((0, length))
            return Segments(np.empty((0, length, len(self.feature_names))), empty, empty)
        return Segments(*(np.stack(arrays) for arrays in zip(*parts, strict=True)))


def _segments(series: Series, length: int, burn_in: int) -> Iterator[tuple[Floats, Floats, Floats]]:
    head = max(0, length - len(series))
    features = np.concatenate([np.zeros((head, series.features.shape[1])), series.features])
    weight = np.concatenate([np.zeros(head), series.weight])
    weight[: head + burn_in] = 0.0
    label = np.where(weight > 0, np.concatenate([np.zeros(head), series.label]), 0.0)
    stop = len(features)
    while stop > burn_in:
        start = max(0, stop - length)
        counted = weight[start : start + length].copy()
        counted[stop - start :] = 0.0
        if start > 0:
            counted[:burn_in] = 0.0
        yield features[start : start + length], label[start : start + length], counted
        stop = start + burn_in if start > 0 else 0


@dataclass(frozen=True)
class Scaler:
    """Pooled robust scaling, fitted on training rows only; it travels inside the exported graph.

    `features`: `clip((x - median) / scale, -clip, clip)` with `scale` = interquartile range / 1.349 (a standard
    deviation where the data are normal); `label`: `(y - label_mean) / label_scale`.
    """

    median: Floats
    scale: Floats
    clip: float
    label_mean: float
    label_scale: float

    @classmethod
    def fit(cls, train: Dataset, *, clip: float) -> "Scaler":
        """Return the scaler of the rows that count in a raw training set."""
        table = train.table()
        if len(table.label) < 2:
            raise DataError(
                f"{len(table.label)} training row(s); expected at least 2: start later or use fewer features"
            )
        low, median, high = np.quantile(table.features, (0.25, 0.5, 0.75), axis=0)
        scale = (high - low) / 1.349
        mean = float(np.average(table.label, weights=table.weight))
        spread = float(np.sqrt(np.average((table.label - mean) ** 2, weights=table.weight)))
        if not spread > 0:
            raise DataError(
                f"label {train.label_name!r} is {mean} in every training row; expected it to vary: check the bars"
            )
        # A feature that never varied in training says nothing: its scale of 1 leaves it at 0 there.
        return cls(median, np.where(scale > 0, scale, 1.0), clip, mean, spread)

    def apply(self, data: Dataset) -> Dataset:
        """Return the data as a model reads them: scaled, clipped, a row of zeros where not valid."""
        if not data.series:
            return data
        # All symbols at once: many short arrays cost more in calls than in numbers.
        scaled = joined(data, "features")
        # The gate looks at raw features: behind the clip an infinity would pass for a number.
        scaled[~joined(data, "valid")] = self.median
        scaled -= self.median
        scaled /= self.scale
        np.clip(scaled, -self.clip, self.clip, out=scaled)
        return _with(data, features=scaled, label=(joined(data, "label") - self.label_mean) / self.label_scale)

    def unscale(self, forecast: Floats) -> Floats:
        """Return a model's forecasts in the label's own units."""
        return forecast * self.label_scale + self.label_mean


def sample_schema(feature_names: Sequence[str]) -> pl.Schema:
    """Return the columns of a frame of samples: key, features, label and its end (null where not known)."""
    return pl.Schema(
        {"symbol": pl.String(), "ts": TS}
        | dict.fromkeys(feature_names, pl.Float64())
        | {"label": pl.Float64(), "label_end": TS}
    )


def samples(
    bars: pl.DataFrame, *, feature_names: Sequence[str], label_name: str, horizon: int, bar: str = "1d"
) -> pl.DataFrame:
    """Return one row a bar (`sample_schema`), sorted by (symbol, ts); the newest rows have a null label.

    `bars` are adjusted and start at each symbol's first stored bar.
    """
    table = features.compute(bars, feature_names)
    label = labels.compute(bars, label_name, horizon, bar=bar).drop("symbol", "ts")
    return pl.concat([table, label], how="horizontal").cast(sample_schema(feature_names))


def build(
    bars: pl.DataFrame,
    *,
    feature_names: Sequence[str],
    label_name: str,
    horizon: int,
    bar: str = "1d",
    universe: Universe = EVERYTHING,
    delays: Mapping[str, timedelta] | None = None,
) -> Dataset:
    """Return the samples of adjusted bars, of the length `bar`, as arrays; no row counts yet (weight 0)."""
    frame = samples(bars, feature_names=feature_names, label_name=label_name, horizon=horizon, bar=bar)
    series = tuple(
        _series(str(symbol), rows, feature_names)
        for (symbol,), rows in frame.partition_by("symbol", as_dict=True, maintain_order=True).items()
    )
    lookback = features.lookback(feature_names)
    return Dataset(tuple(feature_names), label_name, horizon, lookback, series, universe, dict(delays or {}))


def _series(symbol: str, rows: pl.DataFrame, feature_names: Sequence[str]) -> Series:
    raw = rows.select(pl.col(feature_names).fill_null(float("nan"))).to_numpy(order="c")
    end = rows["label_end"].dt.timestamp("us").fill_null(UNKNOWN_END)
    return Series(
        symbol=symbol,
        ts=rows["ts"].dt.timestamp("us").to_numpy(),
        features=np.ascontiguousarray(raw, dtype=np.float64),
        valid=np.isfinite(raw).all(axis=1),
        label=rows["label"].fill_null(float("nan")).to_numpy(),
        label_end=end.to_numpy(),
        weight=np.zeros(len(rows)),
    )


def sha256(data: Dataset) -> bytes:
    """Return the sha256 over what the features and the label are, and over all arrays of every series."""
    head = json.dumps([data.feature_names, data.label_name, data.horizon, data.lookback])
    digest = hashlib.sha256(head.encode())
    for series in data.series:
        digest.update(f"{series.symbol} {series.features.shape}".encode())
        for name in _ARRAYS:
            digest.update(np.ascontiguousarray(getattr(series, name)).data)
    return digest.digest()


def bar_times(data: Dataset) -> Times:
    """Return the bar times of the universe: sorted, unique, int64 microseconds."""
    return np.unique(np.concatenate([s.ts for s in data.series]))


def known_times(data: Dataset) -> Times:
    """Return when every bar of each of the universe's bar times (`bar_times`) was known, int64 microseconds."""
    at = np.concatenate([s.ts for s in data.series])
    delay = [data.delays.get(s.symbol, timedelta()) // timedelta(microseconds=1) for s in data.series]
    known = at + np.repeat(np.array(delay, dtype=np.int64), [len(s) for s in data.series])
    times, index = np.unique(at, return_inverse=True)
    latest = times.copy()
    np.maximum.at(latest, index, known)
    return latest


@dataclass(frozen=True)
class Parts:
    """A fold's data, raw, with weights."""

    train: Dataset
    valid: Dataset


def joined(data: Dataset, name: str) -> NDArray[Any]:
    """Return an attribute of all series, one after the other, as a new array."""
    return np.concatenate([getattr(s, name) for s in data.series])


def _with(data: Dataset, **arrays: Any) -> Dataset:  # noqa: ANN401  (arrays)
    """Return the data with other arrays, each of all series one after the other."""
    series, start = [], 0
    for s in data.series:
        stop = start + len(s)
        series.append(replace(s, **{name: array[start:stop] for name, array in arrays.items()}))
        start = stop
    return replace(data, series=tuple(series))


def parts(data: Dataset, fold: Fold, *, warmup_bars: int) -> Parts:
    """Return the training and validation data of a fold, proven free of the test span.

    Rows count equally per date, then per symbol; a row that is not valid, whose label is not known or whose symbol is
    no member (at the row's time, as known at the fold's cut) counts for nothing. `valid` has `warmup_bars` bars of
    context in front of each symbol's first validation row, features only. No row lies before the fold's `train_start`.

    Raises
    ------
    DataError
        Where nothing is left to train or validate on.
    LeakageError
        Where a label reaches into the span after it.
    """
    train = _counted(data, fold, fold.trains_on)
    valid = _counted(data, fold, fold.validates_on)
    fold.prove(train_end=newest_label_end(train), valid_end=newest_label_end(valid))
    return Parts(
        train=_clipped(train, lambda s: _with_context(s, fold.train_start, fold.valid_start - 1, 0)),
        valid=_clipped(valid, lambda s: _with_context(s, fold.valid_start, fold.cut, warmup_bars, fold.train_start)),
    )


def test_data(data: Dataset, fold: Fold, *, warmup_bars: int) -> Dataset:
    """Return the bars a fold's model streams over, without labels: `warmup_bars` up to the cut, then to the test's end.

    A symbol with fewer bars starts at its first one. The core keeps the forecasts of the test span only.
    """
    return _without_label(_clipped(data, lambda s: _with_context(s, fold.cut + 1, fold.test_end, warmup_bars)))


def seen(data: Dataset, *, cut: int) -> Dataset:
    """Return every bar up to the cut, without labels."""
    return _without_label(_clipped(data, lambda s: (0, int(np.searchsorted(s.ts, cut, side="right")))))


def _without_label(data: Dataset) -> Dataset:
    n = sum(len(s) for s in data.series)
    return _with(data, label=np.full(n, np.nan), label_end=np.full(n, UNKNOWN_END), weight=np.zeros(n))


def _with_context(series: Series, start: int, end: int, context: int, oldest: int = 0) -> tuple[int, int]:
    first, floor = np.searchsorted(series.ts, [start, oldest]).tolist()
    return max(floor, first - context), int(np.searchsorted(series.ts, end, side="right"))


def _clipped(data: Dataset, bounds: Callable[[Series], tuple[int, int]]) -> Dataset:
    """Return the data without the bars outside `bounds` and without the symbols that then have none."""
    series = tuple(s.slice(*bounds(s)) for s in data.series)
    return replace(data, series=tuple(s for s in series if len(s)))


def newest_label_end(data: Dataset) -> int:
    """Return the newest label_end of the rows that count (int64 us)."""
    return int(joined(data, "label_end")[joined(data, "weight") > 0].max())


def span(data: Dataset) -> tuple[int, int]:
    """Return the first and last ts of the rows that count (int64 us)."""
    times = joined(data, "ts")[joined(data, "weight") > 0]
    return int(times.min()), int(times.max())


def _counted(data: Dataset, fold: Fold, chosen: Callable[[Times, Times], Mask]) -> Dataset:
    ts, label, label_end = (joined(data, name) for name in ("ts", "label", "label_end"))
    mask = chosen(ts, label_end) & joined(data, "valid") & np.isfinite(label)
    if data.universe.is_recorded:
        mask &= np.concatenate([data.universe.decides_on(s.symbol, s.ts, as_of=fold.cut) for s in data.series])
    times, index, counts = np.unique(ts[mask], return_inverse=True, return_counts=True)
    if not len(times):
        never = [
            name
            for i, name in enumerate(data.feature_names)
            if not any(np.isfinite(s.features[:, i]).any() for s in data.series)
        ]
        if never:
            raise DataError(
                f"feature {never[0]!r} has no value on any bar of {', '.join(s.symbol for s in data.series)} (a "
                "volume that is 0 or not known, or too few bars); take it out of [features] names or import bars that "
                "have it"
            )
        raise DataError(
            f"fold {fold.number}: no bar of {', '.join(s.symbol for s in data.series)} has its {data.lookback} bars of "
            f"lookback and a known label inside the training or validation span{_as_a_member(data)}; import more bars "
            "or raise [walk_forward] train"
        )
    weight = np.zeros(len(ts))
    weight[mask] = counts.sum() / len(times) / counts[index]
    # A row that does not count keeps its features as context but shows no label.
    return _with(
        data,
        weight=weight,
        label=np.where(mask, label, np.nan),
        label_end=np.where(mask, label_end, UNKNOWN_END),
    )


def _as_a_member(data: Dataset) -> str:
    return " while it is a member of the recorded universe" if data.universe.is_recorded else ""
