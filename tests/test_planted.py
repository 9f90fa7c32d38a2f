"""Mamba-2 finds what is planted, which a linear model cannot, on the very path of a backtest."""

import time

import numpy as np
import polars as pl
import pytest

from foxflow import dataset, labels, metrics, splits, training
from foxflow.config import WalkForward
from foxflow.dataset import Dataset
from foxflow.splits import Fold
from foxflow.testing import synthetic
from foxflow.training import FoldResult, Recipe

# 200,000 bars: 160,000 to learn from, of which the last fifth says when to stop, then 40,000 to judge.
N_SYMBOLS, N_BARS, RULE = 20, 10_000, WalkForward(train=8_000, every=2_000, embargo=5)
FEATURES = ["return_1", "range_position", "volume_ratio"]
# Without a rise of the learning rate over the first steps some seeds stuck at half of the product: a correlation with the
# oracle of 0.73, where 0.71 is that of a forecast for one of the two regimes or signs. A spike is remembered for 30 bars on
# average; in one of 600 cases for more than the 192 of warm-up.
MAMBA2 = {
    "learning_rate": 0.008,
    "warmup_steps": 60,
    "dropout": 0.0,
    "warmup_bars": 192,
    "epochs": 12,
    "steps_per_epoch": 60,
    "patience": 12,
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mamba2_finds_the_planted_product_that_ridge_cannot_see(seed: int) -> None:
    started, worked = time.monotonic(), time.process_time()
    # Oracle's IC 0.003 / sqrt(0.003² + 0.01²) = 0.287, so 92 % of the variance is noise.
    planted = synthetic.planted(
        seed=seed, n_symbols=N_SYMBOLS, n_bars=N_BARS, kappa=0.003, noise=0.01, spike_every=30.0
    )
    data = dataset.build(planted.bars, feature_names=FEATURES, label_name="forward_return", horizon=1)
    (fold,) = splits.walk_forward(dataset.bar_times(data), RULE)
    mamba2 = fit(data, fold, Recipe("mamba2", MAMBA2, seed, 5.0))
    ridge = fit(data, fold, Recipe("ridge", {}, seed, 5.0))
    truth = known(planted)
    oracle = information_coefficient(mamba2.forecasts, truth, of="expected")
    learned = information_coefficient(mamba2.forecasts, truth, of="forecast")
    linear = information_coefficient(ridge.forecasts, truth, of="forecast")
    print(
        f"\nseed {seed}: IC oracle {oracle:.4f}, mamba2 {learned:.4f} ({learned / oracle:.3f} of it), "
        f"ridge {linear:.4f} ({linear / oracle:.3f}); validation loss {mamba2.untrained_loss:.4f} to "
        f"{mamba2.best_loss:.4f} in epoch {mamba2.best_epoch}; {time.monotonic() - started:.0f} s, "
        f"{time.process_time() - worked:.0f} s of them on a processor"
    )
    # Over 40,000 rows the oracle's own IC has a standard error of 0.005.
    assert oracle == pytest.approx(0.287, abs=0.025)
    # A forecast without error would lower the loss by 0.287² = 0.083 of the label's variance.
    assert mamba2.best_loss < mamba2.untrained_loss - 0.05
    assert learned >= 0.85 * oracle
    assert abs(linear) <= 0.15 * oracle


def fit(data: Dataset, fold: Fold, recipe: Recipe) -> FoldResult:
    return training.fit_fold(data, fold, recipe, folder=None, progress=lambda *_: None)


def known(planted: synthetic.Planted) -> pl.DataFrame:
    label = labels.compute(planted.bars, "forward_return", 1)
    return planted.oracle.join(label, on=["symbol", "ts"], maintain_order="left").drop_nulls("label")


def information_coefficient(forecasts: pl.DataFrame, truth: pl.DataFrame, *, of: str) -> float:
    rows = forecasts.join(truth, on=["symbol", "ts"], maintain_order="left").drop_nulls("label")
    # The last two bars of each symbol have no label yet.
    assert len(rows) == N_SYMBOLS * (RULE.every - 2)
    forecast, outcome = rows[of].to_numpy(), rows["label"].to_numpy()
    date = rows["ts"].dt.timestamp("us").to_numpy().astype(np.int64)
    return metrics.information_coefficient(forecast, outcome, date, overlap=1).value
