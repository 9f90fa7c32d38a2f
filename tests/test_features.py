import math

import numpy as np
import polars as pl
import pytest
from conftest import daily_bars

from foxflow import dataset, features
from foxflow.errors import ConfigError
from foxflow.features import FEATURES


@pytest.mark.parametrize("name", FEATURES)
def test_cutting_the_bars_at_t_changes_no_feature_at_or_before_t(name: str, stocks: pl.DataFrame) -> None:
    whole = features.compute(stocks, [name])
    times = stocks["ts"].unique().sort()
    for t in np.random.default_rng(5).choice(len(times) - 1, 12, replace=False):
        seen = features.compute(stocks.filter(pl.col("ts") <= times[int(t)]), [name])
        assert seen.equals(whole.filter(pl.col("ts") <= times[int(t)]))


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_reads_exactly_the_lookback_it_declares(name: str, stocks: pl.DataFrame) -> None:
    lookback = FEATURES[name].lookback
    ibm = stocks.filter(pl.col("symbol") == "IBM")
    values = features.compute(ibm, [name])[name]
    assert values[: lookback - 1].null_count() == lookback - 1
    assert values[lookback - 1 :].null_count() == 0
    # A bar outside the lookback changes nothing; the oldest bar inside it does.
    at = 200
    for back, moves in ((lookback, False), (lookback - 1, True)):
        row = at - back
        bent = ibm.with_columns(
            (pl.when(pl.int_range(pl.len()) == row).then(pl.col(c) * k).otherwise(pl.col(c))).alias(c)
            for c, k in {"open": 1.31, "high": 3.0, "low": 0.9, "close": 2.5, "volume": 7.0}.items()
        )
        changed = features.compute(bent, [name])[name][at]
        assert (abs(changed - values[at]) > 1e-6) == moves


def test_features_have_no_unit(stocks: pl.DataFrame) -> None:
    names = list(FEATURES)
    scaled = stocks.with_columns(
        *(pl.col(c) * 1024 for c in ("open", "high", "low", "close")), volume=pl.col("volume") * 4096
    )
    plain, big = (features.compute(b, names).select(names).to_numpy() for b in (stocks, scaled))
    np.testing.assert_allclose(plain, big, rtol=0, atol=1e-9)


def test_return_1_is_the_log_return_over_its_20_bar_volatility() -> None:
    closes = [100.0 * 1.01**i for i in range(25)]
    row = features.compute(daily_bars(closes), ["return_1", "volatility_20"]).row(-1, named=True)
    assert row["return_1"] == pytest.approx(1.0, abs=1e-9)
    assert row["volatility_20"] == pytest.approx(math.log(math.log(1.01)), abs=1e-9)


def test_a_price_that_does_not_move_gives_finite_features() -> None:
    table = features.compute(daily_bars([50.0] * 70), list(FEATURES))
    last = table.select(list(FEATURES)).row(-1)
    assert all(math.isfinite(v) for v in last)


def test_a_price_that_is_not_positive_gives_null_not_nan() -> None:
    closes = [10.0] * 30 + [-1.0] + [10.0] * 30
    values = features.compute(daily_bars(closes), ["return_1"])["return_1"]
    assert values.is_nan().sum() == 0
    assert values[30] is None
    assert values[31] is None
    assert values[-1] is not None


def test_an_unknown_volume_gives_null_wherever_the_mean_reads_it() -> None:
    bars = daily_bars([10.0] * 60).with_columns(
        volume=pl.when(pl.int_range(pl.len()) == 25).then(None).otherwise("volume")
    )
    values = features.compute(bars, ["volume_ratio"])["volume_ratio"]
    assert [i for i, v in enumerate(values) if v is not None] == [*range(19, 25), *range(45, 60)]
    assert set(values.drop_nulls()) == {0.0}
    data = dataset.build(bars, feature_names=["volume_ratio", "range"], label_name="forward_return", horizon=1)
    assert [*np.flatnonzero(data.series[0].valid)] == [*range(19, 25), *range(45, 60)]


def test_bars_without_any_volume_keep_every_feature_that_reads_prices(stocks: pl.DataFrame) -> None:
    bare = stocks.with_columns(volume=pl.lit(None, dtype=pl.Float64))
    table, whole = features.compute(bare, list(FEATURES)), features.compute(stocks, list(FEATURES))
    assert table.drop("volume_ratio").equals(whole.drop("volume_ratio"))
    assert table["volume_ratio"].null_count() == len(table)


def test_an_unknown_feature_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown feature 'retrun_1'; known: .*did you mean 'return_1'"):
        features.lookback(["retrun_1"])
