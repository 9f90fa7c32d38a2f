"""Planted leaks of bars, features and labels are caught by the whole audit, and the guilty step is named."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from audit_samples import accusation, daily, experiment, quarter_hours, splits_of, stored

from foxflow import adjustment, dataset, features, labels, resample
from foxflow.config import Config
from foxflow.dataset import Dataset
from foxflow.features import Feature
from foxflow.labels import LabelKind

Patch = pytest.MonkeyPatch
HOURS = {"bar": "1h", "stored_bar": "15m"}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = daily(5, n_bars=220)
    return stored(tmp_path_factory.mktemp("days"), rows, events=splits_of(rows))


@pytest.fixture(scope="module")
def quarters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("quarters"), quarter_hours(5, n_days=30), bar="15m")


@pytest.fixture(autouse=True)
def _few_moments(monkeypatch: Patch) -> None:
    """What no single moment shows is not what is planted here."""
    monkeypatch.setattr("foxflow.audit.samples.FULL_MOMENTS", 6)
    monkeypatch.setattr("foxflow.audit.FULL_CUTS", 3)


def with_feature(monkeypatch: Patch, expression: pl.Expr) -> Config:
    monkeypatch.setitem(features.FEATURES, "planted", Feature(expression, 5, "planted"))  # type: ignore[arg-type]
    return experiment(features={"names": ["return_1", "planted", "volume_ratio"]})


# --- features


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(pl.col("close").rolling_mean(5, center=True) / pl.col("close"), id="centred rolling mean"),
        pytest.param(
            pl.when(pl.col("volume") > 0).then(pl.col("volume")).backward_fill().log(), id="backward fill of the volume"
        ),
        pytest.param(pl.col("close").log().diff(3).backward_fill(), id="backward fill of the warm-up"),
        pytest.param(
            (pl.col("close") - pl.col("close").min()) / (pl.col("close").max() - pl.col("close").min()),
            id="min and max of the whole series",
        ),
        pytest.param(
            pl.col("close").log().diff().reverse().ewm_mean(span=5).reverse(), id="ewm over the series reversed"
        ),
        pytest.param((pl.col("volume") / pl.col("volume").mean()).log(), id="mean of the whole series"),
        pytest.param(pl.col("open").shift(-1) / pl.col("close") - 1, id="the next open"),
        pytest.param(pl.col("close").rank() / pl.len(), id="rank in the whole series"),
    ],
)
def test_a_feature_that_reads_later_bars_is_named(monkeypatch: Patch, days: Path, expression: pl.Expr) -> None:
    message = accusation(with_feature(monkeypatch, expression), days)
    assert "feature 'planted' of " in message
    assert " 2020-" in message or " at 20" in message
    assert "its expression reads a later bar" in message


def test_the_target_as_a_feature_is_called_so(monkeypatch: Patch, days: Path) -> None:
    message = accusation(with_feature(monkeypatch, labels.forward_return(1)), days)
    assert "feature 'planted' (it is a function of the label)" in message


def plant_computed(monkeypatch: Patch, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    original = features.compute

    def compute(bars: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        return change(original(bars, names))

    monkeypatch.setattr(features, "compute", compute)


def test_a_feature_filled_from_another_symbol_is_named(monkeypatch: Patch, days: Path) -> None:
    # The warm-up of BBB takes the last value of AAA, which lies months ahead.
    plant_computed(monkeypatch, lambda f: f.with_columns(pl.col("volatility_5").forward_fill()))
    assert "feature 'volatility_5' of BBB" in accusation(experiment(), days)


def test_the_other_symbols_future_as_a_feature_is_named(monkeypatch: Patch, days: Path) -> None:
    def change(frame: pl.DataFrame) -> pl.DataFrame:
        ahead = frame.filter(symbol="BBB").select("ts", ahead=pl.col("return_1").shift(-1))
        joined = frame.join(ahead, on="ts", how="left", maintain_order="left")
        value = pl.when(pl.col("symbol") == "AAA").then("ahead").otherwise("return_1")
        return joined.with_columns(return_1=value).drop("ahead")

    plant_computed(monkeypatch, change)
    assert "feature 'return_1' of AAA" in accusation(experiment(), days)


def test_samples_scaled_over_the_whole_series_are_named(monkeypatch: Patch, days: Path) -> None:
    original = dataset.build

    def build(bars: pl.DataFrame, **options: Any) -> Dataset:
        data = original(bars, **options)
        return replace(
            data, series=tuple(replace(s, features=s.features - np.nan_to_num(s.features).mean(0)) for s in data.series)
        )

    monkeypatch.setattr(dataset, "build", build)
    assert "dataset.build reads a later bar" in accusation(experiment(), days)


# --- labels


@pytest.mark.parametrize(
    ("entry", "exit_", "words"),
    [
        pytest.param(0, 1, "of 1 bar(s) earlier: it is shifted", id="a bar early"),
        pytest.param(2, 3, "of 1 bar(s) later: it is shifted", id="a bar late"),
        pytest.param(1, 3, "the label of horizon 2", id="a bar too long"),
    ],
)
def test_a_label_that_is_moved_is_named(monkeypatch: Patch, days: Path, entry: int, exit_: int, words: str) -> None:
    expression = pl.col("open").shift(-exit_) / pl.col("open").shift(-entry) - 1
    monkeypatch.setitem(labels.LABELS, "forward_return", LabelKind(lambda *_: expression, "return", "planted"))  # type: ignore[arg-type]
    message = accusation(experiment(), days)
    assert "label 'forward_return' of AAA at 2020-01-02" in message
    assert words in message


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        pytest.param(pl.col("close").shift(-1) / pl.col("close") - 1, "its own", id="from its own close"),
        pytest.param(pl.col("close").shift(-3) / pl.col("open").shift(-1) - 1, "3 bar(s) later", id="past its end"),
        pytest.param(pl.col("close").shift(-2) / pl.col("close").mean() - 1, "", id="over the mean of the series"),
    ],
)
def test_a_users_label_that_reads_other_bars_than_it_says_is_named(
    monkeypatch: Patch, days: Path, expression: pl.Expr, words: str
) -> None:
    monkeypatch.setitem(labels.LABELS, "mine", LabelKind(lambda *_: expression, "return", "planted"))  # type: ignore[arg-type]
    message = accusation(experiment(label={"name": "mine"}), days)
    assert "label 'mine' of " in message
    assert words in message


def test_a_label_end_a_bar_early_is_named(monkeypatch: Patch, days: Path) -> None:
    original = labels.compute

    def compute(bars: pl.DataFrame, *arguments: Any, **options: Any) -> pl.DataFrame:
        frame = original(bars, *arguments, **options)
        early = pl.col("ts").shift(-1).over("symbol", order_by="ts")
        return frame.with_columns(label_end=pl.when(pl.col("label_end").is_not_null()).then(early))

    monkeypatch.setattr(labels, "compute", compute)
    assert "has label_end 2020-01-03T21:00:00Z" in accusation(experiment(), days)


# --- bars


def test_a_split_that_adjusts_earlier_bars_is_named(monkeypatch: Patch, days: Path) -> None:
    original = adjustment.adjust

    def adjust(bars: pl.DataFrame, events: pl.DataFrame, **options: Any) -> pl.DataFrame:
        made = original(bars, events, **options)
        newest = (bars.group_by("symbol").agg(raw=pl.col("close").sort_by("ts").last())).join(
            made.group_by("symbol").agg(made=pl.col("close").sort_by("ts").last()), on="symbol"
        )
        joined = made.join(newest, on="symbol", how="left", maintain_order="left")
        return joined.with_columns(
            pl.col(c) * pl.col("raw") / pl.col("made") for c in ("open", "high", "low", "close")
        ).drop("raw", "made")

    monkeypatch.setattr(adjustment, "adjust", adjust)
    message = accusation(experiment(), days)
    assert "adjustment.adjust reads what came later" in message
    assert "of AAA at 2020-01-02" in message


@pytest.mark.parametrize("column", ["volume", "close"])
def test_bars_filled_backward_are_named(monkeypatch: Patch, days: Path, column: str) -> None:
    original = adjustment.adjust

    def adjust(bars: pl.DataFrame, events: pl.DataFrame, **options: Any) -> pl.DataFrame:
        made = original(bars, events, **options)
        gone = pl.col("ts").dt.day() == 15
        filled = pl.when(~gone).then(pl.col(column)).backward_fill().over("symbol", order_by="ts")
        return made.with_columns(filled.fill_null(pl.col(column)).alias(column))

    monkeypatch.setattr(adjustment, "adjust", adjust)
    monkeypatch.setattr("foxflow.audit.FULL_CUTS", 60)
    assert "adjustment.adjust reads what came later" in accusation(experiment(), days)


def test_bars_made_up_for_missing_dates_are_named(monkeypatch: Patch, days: Path) -> None:
    original = adjustment.adjust

    def adjust(bars: pl.DataFrame, events: pl.DataFrame, **options: Any) -> pl.DataFrame:
        made = original(bars, events, **options)
        first = made.filter(symbol="CCC").head(1)
        return pl.concat([made, first.with_columns(pl.col("ts").dt.offset_by("-1d"))])

    monkeypatch.setattr(adjustment, "adjust", adjust)
    message = accusation(experiment(), days)
    assert "bar of CCC at 2020-03-0" in message
    assert "there is no stored bar" in message


def test_bars_labelled_at_their_start_are_named(monkeypatch: Patch, quarters: Path) -> None:
    original = resample.resample

    def labelled_left(bars: pl.DataFrame, **options: Any) -> pl.DataFrame:
        return original(bars, **options).with_columns(pl.col("ts") - timedelta(minutes=30))

    monkeypatch.setattr(resample, "resample", labelled_left)
    message = accusation(experiment(data=HOURS), quarters)
    assert "bar of AAA at 2020-01-02T14:30:00Z" in message
    assert "made up, or labelled at its start" in message
