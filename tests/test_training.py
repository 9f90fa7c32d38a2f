import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from foxflow import bars, dataset, registry, splits, state, training
from foxflow.config import WalkForward
from foxflow.dataset import Dataset, Scaler, Segments, Series
from foxflow.errors import DataError, LeakageError
from foxflow.training import FORECAST_SCHEMA, Recipe

RULE = WalkForward(train=1000, every=757, embargo=5)
RIDGE = Recipe("ridge", {}, 3, 5.0)


@pytest.fixture(scope="module")
def data(stocks: pl.DataFrame) -> Dataset:
    three = stocks.filter(pl.col("symbol").is_in(["AAPL", "FB", "GOOG"]))
    return dataset.build(three, feature_names=["return_1", "volatility_20"], label_name="forward_return", horizon=5)


def test_scaler_is_fitted_on_the_training_rows_alone(data: Dataset) -> None:
    fold = splits.walk_forward(dataset.bar_times(data), RULE)[1]
    scaler = training.fit_fold(data, fold, RIDGE, folder=None, progress=lambda *_: None).scaler
    rows = [s.features[s.valid & (s.ts < fold.valid_start) & (s.label_end <= fold.train_limit)] for s in data.series]
    low, middle, high = np.quantile(np.concatenate(rows), (0.25, 0.5, 0.75), axis=0)
    np.testing.assert_array_equal(scaler.median, middle)
    np.testing.assert_array_equal(scaler.scale, (high - low) / 1.349)
    # Whatever comes after the training span changes nothing of what is fitted.
    bent = replace(data, series=tuple(_later_times_1000(s, fold.valid_start) for s in data.series))
    again = training.fit_fold(bent, fold, RIDGE, folder=None, progress=lambda *_: None).scaler
    np.testing.assert_array_equal(scaler.median, again.median)
    np.testing.assert_array_equal(scaler.scale, again.scale)
    assert (scaler.label_mean, scaler.label_scale) == (again.label_mean, again.label_scale)


def _later_times_1000(series: Series, start: int) -> Series:
    late = series.ts >= start
    return replace(
        series,
        features=np.where(late[:, None], series.features * 1000, series.features),
        label=np.where(late, series.label * 1000, series.label),
    )


def test_a_bar_that_is_not_valid_becomes_the_scaled_zero_vector() -> None:
    features = np.array([[1.0, 2.0], [np.nan, 2.0], [np.inf, 2.0], [5.0, 2.0]])
    series = Series(
        "A", np.arange(4), features, np.isfinite(features).all(axis=1), np.zeros(4), np.arange(4), np.zeros(4)
    )
    scaler = Scaler(np.array([3.0, 0.0]), np.array([1.0, 1.0]), 1.5, 0.0, 1.0)
    scaled = scaler.apply(Dataset(("a", "b"), "label", 1, 1, (series,))).series[0].features
    assert scaled.tolist() == [[-1.5, 1.5], [0.0, 0.0], [0.0, 0.0], [1.5, 1.5]]


def test_a_label_that_never_varies_is_refused() -> None:
    series = Series("A", np.arange(3), np.ones((3, 1)), np.ones(3, bool), np.zeros(3), np.arange(3), np.ones(3))
    with pytest.raises(DataError, match=r"label 'forward_return' is 0.0 in every training row; expected it to vary"):
        Scaler.fit(Dataset(("a",), "forward_return", 1, 1, (series,)), clip=5.0)


def test_forecasts_are_equal_to_the_bit_however_many_processes_fit(data: Dataset) -> None:
    folds = splits.walk_forward(dataset.bar_times(data), RULE)
    alone, beside = (
        training.forecasts_sha256(training.forecasts_of(training.run(data, folds, RIDGE, workers=n))) for n in (1, 2)
    )
    assert alone == beside


def test_each_fold_is_asked_for_by_its_cut_and_no_more_of_them_wait_than_there_are_processes(data: Dataset) -> None:
    folds = splits.walk_forward(dataset.bar_times(data), replace(RULE, every=400))
    ended: list[int] = []
    asked: list[tuple[int, int]] = []

    def as_of(cut: int) -> Dataset:
        asked.append((cut, len(ended)))
        return data

    def progress(event: training.FoldEvent) -> None:
        if event.epoch is None:
            ended.append(event.fold)

    training.run(data, folds, RIDGE, workers=1, as_of=as_of, progress=progress)
    assert [cut for cut, _ in asked] == [fold.cut for fold in folds]
    # The third fold is asked for when the first has ended, and so on.
    assert all(n_ended >= number - 1 for number, (_, n_ended) in enumerate(asked))
    assert len(asked) == 6


def test_every_fold_forecasts_its_own_span_and_together_they_leave_no_gap(data: Dataset) -> None:
    folds = splits.walk_forward(dataset.bar_times(data), RULE)
    results = training.run(data, folds, RIDGE, workers=2)
    aapl = training.forecasts_of(results).filter(pl.col("symbol") == "AAPL")
    assert aapl["ts"].dt.timestamp("us").to_list() == dataset.bar_times(data)[1000:].tolist()
    for result in results:
        inside = result.forecasts["ts"].dt.timestamp("us")
        assert inside.is_between(result.fold.test_start, result.fold.test_end).all()
        assert result.cut < result.fold.test_start


def test_a_symbol_enters_with_its_lookback_behind_it_and_each_fold_lists_who_is_in(data: Dataset) -> None:
    folds = splits.walk_forward(dataset.bar_times(data), RULE)
    results = training.run(data, folds, RIDGE, workers=1)
    assert [r.entered["FB"] for r in results] == [0, 0, 196 - 20]
    assert [r.rows.get("GOOG", 0) > 0 for r in results] == [False, True, True]
    first = training.forecasts_of(results).filter(pl.col("symbol") == "GOOG")["ts"][0]
    goog = next(s for s in data.series if s.symbol == "GOOG")
    assert int(first.timestamp() * 1e6) == goog.ts[20]


def test_a_forecast_changes_with_no_later_bar(data: Dataset) -> None:
    times = dataset.bar_times(data)
    folds = splits.walk_forward(times, RULE)
    whole = training.forecasts_of(training.run(data, folds[:1], RIDGE, workers=1))
    stop = int(times[1300])
    early = [s for s in data.series if s.ts[0] <= stop]
    cut = replace(data, series=tuple(s.slice(0, int(np.searchsorted(s.ts, stop, side="right"))) for s in early))
    seen = training.forecasts_of(training.run(cut, folds[:1], RIDGE, workers=1))
    assert seen.equals(whole.filter(pl.col("ts").dt.timestamp("us") <= stop))


def test_the_seed_of_a_fit_comes_from_config_seed_and_cut() -> None:
    seeds = {training.fit_seed(seed, cut) for seed in (1, 2) for cut in (10, 11)}
    assert len(seeds) == 4
    assert training.fit_seed(1, 10) == training.fit_seed(1, 10)
    assert all(0 <= s < 2**63 for s in seeds)


def test_forecasts_sha256_is_over_symbol_time_and_the_forecasts_own_bits() -> None:
    import hashlib
    import struct
    from datetime import UTC, datetime

    rows = [("B", datetime(2024, 1, 2, tzinfo=UTC), 0, 0.5), ("A", datetime(2024, 1, 1, tzinfo=UTC), 0, -0.0)]
    expected = hashlib.sha256(
        b"A\0"
        + struct.pack("<qd", 1_704_067_200_000_000, -0.0)
        + b"B\0"
        + struct.pack("<qd", 1_704_153_600_000_000, 0.5)
    ).hexdigest()
    assert training.forecasts_sha256(pl.DataFrame(rows, schema=FORECAST_SCHEMA, orient="row")) == expected


def test_an_error_in_a_fold_reaches_the_caller_as_it_is(data: Dataset, tmp_path: Path) -> None:
    fold = splits.walk_forward(dataset.bar_times(data), RULE)[0]
    empty = replace(data, series=data.series[1:2])
    with pytest.raises(DataError, match="fold 0: no bar of FB has its 21 bars of lookback"):
        training.run(empty, [fold], RIDGE, workers=1, folder=tmp_path / "model")


def test_segments_count_every_row_once_and_burn_in_carries_no_loss() -> None:
    n = 23
    series = Series(
        "A", np.arange(n), np.arange(n, dtype=float)[:, None], np.ones(n, bool), np.arange(n, dtype=float),
        np.arange(n), np.ones(n),
    )  # fmt: skip
    segments: Segments = Dataset(("a",), "label", 1, 1, (series,)).segments(8, 3)
    counted = sorted(segments.label[segments.weight > 0].tolist())
    assert counted == [float(i) for i in range(3, 23)]
    assert (segments.weight[:, :3] == 0).all()
    assert (np.diff(segments.features[:, :, 0], axis=1) == 1).all()


def test_ridge_forecasts_are_the_same_bits_however_many_bars_follow(stocks: pl.DataFrame) -> None:
    from foxflow.features import FEATURES

    ibm = stocks.filter(pl.col("symbol") == "IBM")
    whole = dataset.build(ibm, feature_names=list(FEATURES), label_name="forward_return", horizon=5)
    fold = splits.walk_forward(dataset.bar_times(whole), RULE)[0]
    expected = training.fit_fold(whole, fold, RIDGE, folder=None, progress=lambda *_: None).forecasts
    for stop in (1001, 1002, 1013, 1100):
        seen = replace(whole, series=(whole.series[0].slice(0, stop),))
        night = replace(fold, test_end=int(whole.series[0].ts[stop - 1]))
        found = training.fit_fold(seen, night, RIDGE, folder=None, progress=lambda *_: None).forecasts
        assert found.equals(expected.head(len(found)))
        assert len(found) == stop - 1000


class Counter:
    """A fitted model that forecasts how many bars it has seen."""

    history = (training.Epoch(0, 1.0, 1.0),)
    best_epoch = 0

    def forecast(self, data: Dataset) -> tuple[np.ndarray, ...]:
        return tuple(np.arange(1.0, len(s) + 1) for s in data.series)


class Counting:
    """A model whose state needs 30 bars to be warm."""

    warmup_bars = 30

    def fit(self, *_: object, **__: object) -> Counter:
        return Counter()


def test_a_symbol_is_warm_after_lookback_and_warmup_and_its_stream_starts_warmup_bars_up_to_the_cut(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "build", lambda *_: Counting())
    # No warm-up is long enough for a model that counts.
    monkeypatch.setattr(state, "GAP_LIMIT", math.inf)
    folds = splits.walk_forward(dataset.bar_times(data), RULE)
    result = training.fit_fold(data, folds[2], RIDGE, folder=None, progress=lambda *_: None)
    # FB: 20 bars without all features, 30 of warm-up, its stream from its first bar on.
    assert result.entered["FB"] == 196 - 20 - 30
    scaler = result.scaler
    seen = {s: f["forecast"].to_numpy() for (s,), f in result.forecasts.partition_by("symbol", as_dict=True).items()}
    assert scaler.unscale(np.array([51.0])) == pytest.approx(seen["FB"][0])
    # AAPL: 30 bars up to the cut, then the embargo's 5, then the first test bar.
    assert scaler.unscale(np.array([36.0])) == pytest.approx(seen["AAPL"][0])


def test_a_model_is_never_scored_on_a_bar_at_or_before_its_cut(data: Dataset) -> None:
    folds = splits.walk_forward(dataset.bar_times(data), RULE)
    result = training.fit_fold(data, folds[0], RIDGE, folder=None, progress=lambda *_: None)
    assert len(training.forecasts_of([result])) == len(result.forecasts)
    # The fold's own bars, moved back so that the first lies on the cut.
    seen = result.forecasts.with_columns(ts=pl.col("ts") - (pl.col("ts").min() - bars.instant(result.cut)))
    when = f"{bars.instant(result.cut):%Y-%m-%d %H:%M}Z"
    with pytest.raises(LeakageError, match=rf"fold 0: \d+ forecast\(s\) at or before the model's cut, {when}"):
        training.forecasts_of([replace(result, forecasts=seen)])
