"""Planted leaks of splits, scaler, models, positions and fills are caught, and the guilty one is named."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from audit_samples import accusation, daily, experiment, splits_of, stored

from foxflow import dataset, portfolio, signals, splits, training
from foxflow.config import Backtest, WalkForward
from foxflow.dataset import Dataset, Parts, Scaler
from foxflow.splits import Fold
from foxflow.training import FoldResult
from foxflow_ridge import FittedRidge, Ridge

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = daily(5, n_bars=220)
    return stored(tmp_path_factory.mktemp("days"), rows, events=splits_of(rows))


@pytest.fixture(autouse=True)
def _few_moments(monkeypatch: Patch) -> None:
    """What no single moment shows is not what is planted here."""
    monkeypatch.setattr("foxflow.audit.samples.FULL_MOMENTS", 6)
    monkeypatch.setattr("foxflow.audit.FULL_CUTS", 3)


# --- splits and scaler


def without_proof(monkeypatch: Patch) -> None:
    """Take away the proof that the folds carry themselves: the audit has its own."""
    monkeypatch.setattr(Fold, "prove", lambda *_, **__: None)


def test_a_purge_off_by_one_is_named_with_fold_and_row(monkeypatch: Patch, days: Path) -> None:
    without_proof(monkeypatch)

    def trains_on(self: Fold, ts: splits.Times, label_end: splits.Times) -> splits.Mask:
        found = original(self, ts, label_end)
        found[np.flatnonzero(found)[-1] + 1] = True
        return found

    original = Fold.trains_on
    monkeypatch.setattr(Fold, "trains_on", trains_on)
    message = accusation(experiment(walk_forward={"embargo": 0}), days)
    # Of the last symbol: the fold asks for the rows of all of them at once.
    assert "fold 0 has a training row of CCC at 2020-" in message
    assert "whose label ends at " in message


def test_a_validation_tail_inside_the_test_is_named(monkeypatch: Patch, days: Path) -> None:
    without_proof(monkeypatch)
    original = splits.walk_forward

    def overlapping(times: splits.Times, rule: WalkForward, **options: Any) -> list[Fold]:
        folds = original(times, rule, **options)
        limits = [int(times[np.searchsorted(times, f.test_start) + 5]) for f in folds]
        return [replace(f, valid_limit=limit) for f, limit in zip(folds, limits, strict=True)]

    monkeypatch.setattr(splits, "walk_forward", overlapping)
    message = accusation(experiment(), days)
    assert "fold 0 has a validation row of AAA at 2020-06-" in message
    assert "expected it to end before 2020-06-24T20:00:00Z" in message


def test_an_embargo_that_is_ignored_is_named(monkeypatch: Patch, days: Path) -> None:
    original = splits.walk_forward

    def ignoring(times: splits.Times, rule: WalkForward, **options: Any) -> list[Fold]:
        return original(times, replace(rule, embargo=0), **options)

    monkeypatch.setattr(splits, "walk_forward", ignoring)
    message = accusation(experiment(), days)
    assert "fold 0 has 0 bar time(s) between the newest training label's end" in message
    assert "embargo = 2" in message


def test_a_scaler_of_everything_is_named(monkeypatch: Patch, days: Path) -> None:
    original_parts, original_fit = dataset.parts, Scaler.fit.__func__  # type: ignore[attr-defined]
    everything: dict[str, Dataset] = {}

    def parts(data: Dataset, fold: Fold, *, warmup_bars: int) -> Parts:
        everything["data"] = replace(data, series=tuple(replace(s, weight=s.valid * 1.0) for s in data.series))
        return original_parts(data, fold, warmup_bars=warmup_bars)

    def fit(cls: type[Scaler], train: Dataset, *, clip: float) -> Scaler:
        whole: Scaler = original_fit(cls, _known(everything["data"]), clip=clip)
        own: Scaler = original_fit(cls, train, clip=clip)
        return replace(own, median=whole.median, scale=whole.scale)

    monkeypatch.setattr(dataset, "parts", parts)
    monkeypatch.setattr(Scaler, "fit", classmethod(fit))
    message = accusation(experiment(), days)
    assert "fold 0: the scaler's median of feature 'return_1' is " in message


def _known(data: Dataset) -> Dataset:
    return replace(data, series=tuple(replace(s, weight=s.weight * np.isfinite(s.label)) for s in data.series))


def test_a_scaler_of_rows_that_do_not_count_is_named(monkeypatch: Patch, days: Path) -> None:
    original = Scaler.fit.__func__  # type: ignore[attr-defined]

    def fit(cls: type[Scaler], train: Dataset, *, clip: float) -> Scaler:
        own: Scaler = original(cls, train, clip=clip)
        rows = np.concatenate([s.features[s.valid] for s in train.series])
        return replace(own, median=rows.mean(axis=0))

    monkeypatch.setattr(Scaler, "fit", classmethod(fit))
    message = accusation(experiment(), days)
    assert "the scaler's median of feature 'return_1'" in message


def test_a_label_scale_of_the_test_is_named(monkeypatch: Patch, days: Path) -> None:
    original = dataset.parts

    def parts(data: Dataset, fold: Fold, *, warmup_bars: int) -> Parts:
        made = original(data, fold, warmup_bars=warmup_bars)
        mean = np.nanmean(np.concatenate([s.label for s in data.series]))
        series = tuple(replace(s, label=s.label - mean) for s in made.train.series)
        return replace(made, train=replace(made.train, series=series))

    monkeypatch.setattr(dataset, "parts", parts)
    assert "fold 0: the scaler's label_mean is " in accusation(experiment(), days)


# --- models


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda f: f - f.mean(), "reads later bars", id="batch normalisation over time"),
        pytest.param(lambda f: f + 0.1 * f[::-1].cumsum()[::-1], "reads later bars", id="bidirectional"),
        pytest.param(lambda f: np.append(f[1:], 0.0), "reads later bars", id="a bar ahead"),
    ],
)
def test_a_model_that_reads_later_bars_is_named(
    monkeypatch: Patch, days: Path, change: Callable[[np.ndarray], np.ndarray], words: str
) -> None:
    original = FittedRidge.forecast
    monkeypatch.setattr(FittedRidge, "forecast", lambda self, data: tuple(change(f) for f in original(self, data)))
    message = accusation(experiment(), days)
    assert "model 'ridge'" in message
    assert words in message


def test_a_model_that_reads_its_neighbours_is_named(monkeypatch: Patch, days: Path) -> None:
    original = FittedRidge.forecast

    def forecast(self: FittedRidge, data: Dataset) -> tuple[dataset.Floats, ...]:
        found = original(self, data)
        # The first bar of every symbol, as a batch norm over symbols would, and in no time order.
        return tuple(f + 0.01 * sum(other[0] for other in found) for f in found)

    monkeypatch.setattr(FittedRidge, "forecast", forecast)
    assert "with the bar of AAA at " in accusation(experiment(), days)


def test_a_model_that_saw_the_test_in_its_fit_is_named(monkeypatch: Patch, days: Path) -> None:
    built: list[Dataset] = []
    original_build, original_fit = dataset.build, Ridge.fit

    def build(bars: pl.DataFrame, **options: Any) -> Dataset:
        built.append(original_build(bars, **options))
        return built[-1]

    def fit(self: Ridge, train: Dataset, valid: Dataset, **options: Any) -> FittedRidge:
        level = float(np.nanmean(np.concatenate([s.label for s in built[-1].series])))
        fitted = original_fit(self, train, valid, **options)
        return replace(fitted, intercept=fitted.intercept + level)

    monkeypatch.setattr(dataset, "build", build)
    monkeypatch.setattr(Ridge, "fit", fit)
    message = accusation(experiment(), days)
    assert "model 'ridge', fold 1: the validation forecast of AAA at " in message


# --- positions and fills


def plant_positions(monkeypatch: Patch, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    original = signals.positions

    def positions(forecasts: pl.DataFrame, **options: Any) -> pl.DataFrame:
        return change(original(forecasts, **options))

    monkeypatch.setattr(signals, "positions", positions)


def test_a_threshold_chosen_on_test_data_is_named(monkeypatch: Patch, days: Path) -> None:
    original = signals.positions

    def positions(forecasts: pl.DataFrame, **options: Any) -> pl.DataFrame:
        strong = forecasts["forecast"].abs().quantile(0.6)
        return original(
            forecasts.with_columns(
                pl.when(pl.col("forecast").abs() > strong).then("forecast").otherwise(0.0).alias("forecast")
            ),
            **options,
        )

    monkeypatch.setattr(signals, "positions", positions)
    message = accusation(experiment(), days)
    assert "the signal of " in message
    assert "a threshold, size or limit was chosen on what came later" in message


def test_positions_sized_by_the_whole_sample_are_named(monkeypatch: Patch, days: Path) -> None:
    plant_positions(monkeypatch, lambda p: p.with_columns(pl.col("position") / (1 + pl.col("position").std() * 2)))
    assert "the position of " in accusation(experiment(), days)


def plant_book(
    monkeypatch: Patch, change: Callable[[pl.DataFrame, pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame]]
) -> None:
    original = portfolio.run

    def run(positions: pl.DataFrame, bars: pl.DataFrame, **options: Any) -> portfolio.Book:
        return original(*change(positions, bars), **options)

    monkeypatch.setattr(portfolio, "run", run)


def test_a_fill_in_the_decisions_own_bar_is_named(monkeypatch: Patch, days: Path) -> None:
    earlier = pl.col("ts").shift(1).over("symbol", order_by="ts")
    plant_book(monkeypatch, lambda p, b: (p.with_columns(ts=earlier).drop_nulls("ts"), b))
    message = accusation(experiment(), days)
    assert "the signal of AAA at 2020-" in message
    assert "is filled before it is made" in message


def test_a_fill_at_the_open_of_the_decisions_bar_is_named(monkeypatch: Patch, days: Path) -> None:
    before = pl.col("open").shift(1).over("symbol", order_by="ts").fill_null(pl.col("open"))
    plant_book(monkeypatch, lambda p, b: (p, b.with_columns(open=before)))
    assert "the open of its bar" in accusation(experiment(), days)


def test_an_order_filled_in_the_bar_that_decides_it_is_named(monkeypatch: Patch, days: Path) -> None:
    # What is decided is shown where it was, and traded a bar earlier.
    original = portfolio.run
    earlier = pl.col("ts").shift(1).over("symbol", order_by="ts")

    def run(positions: pl.DataFrame, bars: pl.DataFrame, **options: Any) -> portfolio.Book:
        told = original(positions, bars, **options)
        return replace(original(positions.with_columns(ts=earlier).drop_nulls("ts"), bars, **options), held=told.held)

    monkeypatch.setattr(portfolio, "run", run)
    message = accusation(experiment(), days)
    assert "the fill of " in message
    assert "is another once forecasts at 2020-" in message


def test_a_fill_at_the_close_of_the_decisions_bar_is_named(monkeypatch: Patch, days: Path) -> None:
    before = pl.col("close").shift(1).over("symbol", order_by="ts").fill_null(pl.col("open"))
    plant_book(monkeypatch, lambda p, b: (p, b.with_columns(open=before)))
    message = accusation(experiment(), days)
    assert "the open of its bar" in message


def test_shares_counted_at_the_price_that_fills_are_named(monkeypatch: Patch, days: Path) -> None:
    following = pl.col("open").shift(-1).over("symbol", order_by="ts").fill_null(pl.col("close"))
    plant_book(monkeypatch, lambda p, b: (p, b.with_columns(close=following)))
    assert "the shares of the fill of " in accusation(experiment(), days)


def test_trades_that_are_left_out_where_they_lose_are_named(monkeypatch: Patch, days: Path) -> None:
    def change(positions: pl.DataFrame, bars: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        gain = (pl.col("close").shift(-2) / pl.col("open").shift(-1) - 1).over("symbol", order_by="ts")
        ahead = bars.select("symbol", "ts", gain=gain.fill_null(0.0))
        joined = positions.join(ahead, on=["symbol", "ts"], how="left", maintain_order="left")
        wins = pl.col("gain") * pl.col("position") > 0
        return joined.with_columns(position=pl.when(wins).then("position").otherwise(0.0)).drop("gain"), bars

    plant_book(monkeypatch, change)
    message = accusation(experiment(), days)
    assert "the position of " in message
    assert "a decision reads the bars right after it" in message


def test_an_order_filled_before_its_delay_is_named(monkeypatch: Patch, days: Path) -> None:
    plant_terms(monkeypatch, delay_bars=0)
    message = accusation(experiment(backtest={"delay_bars": 2}), days)
    assert "lies 1 bar(s) after its decision at 2020-" in message
    assert "expected at least 3, by [backtest] delay_bars = 2" in message


def test_an_order_filled_before_its_delay_is_named_though_the_book_does_not_say_so(
    monkeypatch: Patch, days: Path
) -> None:
    plant_terms(monkeypatch, delay_bars=0)
    monkeypatch.setattr("foxflow.audit.trading._require_delays", lambda *_: None)
    message = accusation(experiment(backtest={"delay_bars": 2}), days)
    assert "is another once forecasts at 2020-" in message


def test_a_fill_at_another_price_than_the_config_says_is_named(monkeypatch: Patch, days: Path) -> None:
    plant_terms(monkeypatch, fill="next_open")
    assert "the close of its bar" in accusation(experiment(backtest={"fill": "next_close"}), days)


def plant_terms(monkeypatch: Patch, **terms: Any) -> None:
    original = portfolio.run

    def run(positions: pl.DataFrame, bars: pl.DataFrame, *, execution: Backtest, **options: Any) -> portfolio.Book:
        return original(positions, bars, execution=replace(execution, **terms), **options)

    monkeypatch.setattr(portfolio, "run", run)


def test_thresholds_chosen_with_the_bars_of_the_test_are_named(monkeypatch: Patch, days: Path) -> None:
    # As if the threshold of each fold were what would have paid best, bars of the test span among them.
    original = signals.positions

    def positions(forecasts: pl.DataFrame, *, bars: pl.DataFrame, **options: Any) -> pl.DataFrame:
        move = float((bars["close"] / bars["open"] - 1).abs().mean())  # type: ignore[arg-type]
        strong = pl.col("forecast").abs() > move / 10
        chosen = forecasts.with_columns(forecast=pl.when(strong).then("forecast").otherwise(0.0))
        return original(chosen, bars=bars, **options)

    monkeypatch.setattr(signals, "positions", positions)
    message = accusation(experiment(), days)
    assert "once bars after " in message
    assert "the signal of " in message


def test_a_chosen_threshold_that_saw_its_test_span_is_named(monkeypatch: Patch, days: Path) -> None:
    original = signals.choose

    def choose(results: Sequence[FoldResult], *arguments: Any, **options: Any) -> dict[int, signals.Thresholds]:
        chosen = original(results, *arguments, **options)
        tested = {r.fold.number: float(r.forecasts["forecast"].abs().median()) for r in results}  # type: ignore[arg-type]
        return {n: replace(t, enter_bps=tested[n] * 1e4, exit_bps=tested[n] * 1e4) for n, t in chosen.items()}

    monkeypatch.setattr(signals, "choose", choose)
    config = experiment(strategy={"threshold_bps": "chosen"})
    message = accusation(config, days)
    assert "a threshold, size or limit was chosen on what came later" in message


def test_a_fit_that_scales_by_its_validation_tail_is_named(monkeypatch: Patch, days: Path) -> None:
    original_fold, original_fit = training.fit_fold, Scaler.fit.__func__  # type: ignore[attr-defined]
    own: dict[str, Dataset] = {}

    def fit(cls: type[Scaler], train: Dataset, *, clip: float) -> Scaler:
        tail = own.get("valid")
        made: Scaler = original_fit(cls, train, clip=clip)
        return made if tail is None else replace(made, median=original_fit(cls, tail, clip=clip).median)

    def fit_fold(data: Dataset, fold: Fold, *arguments: Any, **options: Any) -> FoldResult:
        # Inside a fit alone, so that neither parts nor the scaler shows anything by itself.
        own["valid"] = dataset.parts(data, fold, warmup_bars=0).valid
        try:
            return original_fold(data, fold, *arguments, **options)
        finally:
            own.clear()

    monkeypatch.setattr(Scaler, "fit", classmethod(fit))
    monkeypatch.setattr(training, "fit_fold", fit_fold)
    message = accusation(experiment(), days)
    assert "model 'ridge', fold 0: the median of the scaler that it was fitted with is another" in message
