"""The planted bars against what their docstring says, read back from the bars alone."""

from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from foxflow import bars, features, labels, metrics
from foxflow.dataset import Floats
from foxflow.testing import synthetic
from foxflow.testing.synthetic import ORACLE_SCHEMA, Planted

KAPPA, NOISE = 0.003, 0.01


@pytest.fixture(scope="module")
def planted() -> Planted:
    return synthetic.planted(seed=11, n_symbols=20, n_bars=10_000, kappa=KAPPA, noise=NOISE, spike_every=30.0)


def known(planted: Planted) -> pl.DataFrame:
    """Return the oracle with the label, where there is one."""
    label = labels.compute(planted.bars, "forward_return", 1)
    return planted.oracle.join(label, on=["symbol", "ts"], maintain_order="left").drop_nulls("label")


def test_a_seed_gives_the_same_bars_again_and_another_seed_others() -> None:
    first, again, other = (synthetic.planted(seed=seed, n_symbols=2, n_bars=50) for seed in (1, 1, 2))
    assert_frame_equal(first.bars, again.bars, check_exact=True)
    assert_frame_equal(first.oracle, again.oracle, check_exact=True)
    for column in ("open", "high", "low", "close", "volume"):
        assert (first.bars[column] != other.bars[column]).mean() > 0.9


def test_bars_are_sorted_valid_and_give_no_warning(planted: Planted) -> None:
    assert_frame_equal(bars.require(planted.bars, where="synthetic"), planted.bars, check_exact=True)
    assert bars.check(planted.bars).is_empty()
    assert planted.oracle.schema == ORACLE_SCHEMA
    assert planted.oracle.select("symbol", "ts").equals(planted.bars.select("symbol", "ts"))
    assert planted.bars["symbol"].value_counts()["count"].to_list() == [10_000] * 20
    steps = planted.bars.select(pl.col("ts").diff().over("symbol")).drop_nulls()["ts"]
    assert steps.unique().to_list() == [timedelta(hours=1)]


def test_every_bar_opens_at_the_close_before_it(planted: Planted) -> None:
    pairs = planted.bars.with_columns(before=pl.col("close").shift(1).over("symbol")).drop_nulls()
    assert (pairs["open"] == pairs["before"]).all()


def test_regime_and_sign_are_read_from_the_bars_up_to_ts(planted: Planted) -> None:
    regime, sign = [], []
    symbol, held = "", 0
    for bar in planted.bars.iter_rows(named=True):
        if bar["symbol"] != symbol:
            symbol, held = bar["symbol"], 0
        if bar["volume"] > 4e6:
            held = 1 if bar["close"] > bar["open"] else -1
        regime.append(held)
        low_body, high_body = sorted((bar["open"], bar["close"]))
        sign.append(1 if low_body - bar["low"] > bar["high"] - high_body else -1)
    assert planted.oracle["regime"].to_list() == regime
    assert planted.oracle["sign"].to_list() == sign


def test_a_volume_spike_is_rare_and_stands_apart(planted: Planted) -> None:
    spikes = planted.bars.filter(pl.col("volume") > 4e6)
    # 6667 +- 81 expected.
    assert 6200 < len(spikes) < 7130
    assert planted.bars["volume"].is_between(1.7e6, 6e6).sum() == 0
    # A spike's direction is plain: 1.5 standard deviations of noise, less what is planted.
    assert ((spikes["close"] / spikes["open"] - 1).abs() > 0.0119).all()


def test_features_show_sign_and_spike(planted: Planted) -> None:
    table = features.compute(planted.bars, ["range_position", "volume_ratio", "return_1"])
    assert (table["range_position"].sign() == planted.oracle["sign"]).all()
    assert table["range_position"].abs().min() > 0.1
    shown = table.with_columns(spike=planted.bars["volume"] > 4e6, rose=planted.bars["close"] > planted.bars["open"])
    shown = shown.drop_nulls()
    # Below 6 times the usual volume no bar shows more, and no spike less unless others came just before it.
    ordinary = shown.filter(~pl.col("spike"))["volume_ratio"]
    assert (shown.filter("spike")["volume_ratio"] > ordinary.max()).mean() > 0.99
    assert ((shown["return_1"] > 0) == shown["rose"]).all()


def test_the_next_return_is_what_is_expected_plus_noise_of_the_stated_size(planted: Planted) -> None:
    rows = known(planted)
    assert len(rows) == 199_960
    product = KAPPA * rows["regime"].to_numpy().astype(float) * rows["sign"].to_numpy()
    np.testing.assert_array_equal(rows["expected"].to_numpy(), product)
    noise = (rows["label"] - rows["expected"]).to_numpy() / NOISE
    # Standard errors over 200,000 rows: 0.0022 of mean and correlations, 0.0016 of the spread, 0.022 of
    # the fourth moment, 0.0075 of the slope.
    assert abs(noise.mean()) < 0.012
    assert abs(noise.std() - 1) < 0.009
    assert abs(np.mean(noise**4) - 3) < 0.12
    slope = (rows["label"].to_numpy() @ product) / (product @ product)
    assert abs(slope - 1) < 0.04
    for name in ("regime", "sign"):
        assert abs(np.corrcoef(noise, rows[name].to_numpy())[0, 1]) < 0.012
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.012


def test_regime_and_sign_are_even_and_independent(planted: Planted) -> None:
    oracle = planted.oracle
    # Standard errors: 0.0022; 0.018 of the regime, which is held for 30 bars.
    assert abs(oracle["sign"].cast(pl.Float64).mean()) < 0.012
    assert abs(oracle["regime"].cast(pl.Float64).mean()) < 0.1
    assert abs((oracle["regime"].cast(pl.Float64) * oracle["sign"]).mean()) < 0.012


def test_nothing_linear_in_lagged_features_forecasts_the_return(planted: Planted) -> None:
    names = ["return_1", "range_position", "volume_ratio", "range"]
    lags = [pl.col(name).shift(k).over("symbol").alias(f"{name} {k}") for name in names for k in range(31)]
    table = features.compute(planted.bars, names).select("symbol", "ts", *lags)
    rows = known(planted).join(table, on=["symbol", "ts"], maintain_order="left").drop_nulls()
    X = np.column_stack([rows.select(pl.selectors.matches(r" \d+$")).to_numpy(), np.ones(len(rows))])
    y, expected = rows["label"].to_numpy(), rows["expected"].to_numpy()
    # Odd symbols learn, even ones judge; what a regression finds in noise has a standard error of 0.0032.
    train = rows["symbol"].str.slice(1).cast(pl.Int64).to_numpy() % 2 == 1
    date = rows["ts"].dt.timestamp("us").to_numpy()

    def score(columns: Floats) -> float:
        learned = columns[train]
        forecast = columns @ np.linalg.solve(learned.T @ learned, learned.T @ y[train])
        return metrics.information_coefficient(forecast[~train], y[~train], date[~train], overlap=1).value

    assert abs(score(X)) < 0.02
    # The same regression sees it as soon as the product is among its columns.
    assert score(np.column_stack([X, expected])) > 0.25


def test_a_kappa_of_0_plants_nothing() -> None:
    nothing = synthetic.planted(seed=3, n_symbols=1, n_bars=500, kappa=0.0)
    assert (nothing.oracle["expected"] == 0).all()
    assert {-1, 1} <= set(nothing.oracle["regime"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_bars": 0}, "1 symbols of 0 bars; expected 1 to 1,000 symbols and at least 1 bar"),
        ({"n_symbols": 1001}, "1001 symbols of 10 bars; expected 1 to 1,000 symbols"),
        ({"kappa": 0.02}, "kappa = 0.02, noise = 0.01; expected 0 <= kappa <= noise <= 0.03"),
        ({"noise": 0.1}, "kappa = 0.003, noise = 0.1; expected"),
        ({"spike_every": 2.0}, "spike_every = 2.0; expected at least 8 bars"),
    ],
)
def test_a_number_outside_its_limits_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        synthetic.planted(**({"seed": 1, "n_symbols": 1, "n_bars": 10} | wrong))  # type: ignore[arg-type]
