import math

import numpy as np
import pytest

from foxflow import metrics


def test_information_coefficient_is_the_pooled_pearson_correlation() -> None:
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(2, 60))
    found = metrics.information_coefficient(x, y, np.repeat(np.arange(20), 3), overlap=1)
    assert found.value == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-14)
    assert found.n_dates == 20


def test_rank_information_coefficient_is_spearmans_with_ties() -> None:
    from scipy.stats import spearmanr

    x, y = np.array([1.0, 2.0, 2.0, 5.0, 9.0, 4.0]), np.array([2.0, 1.0, 4.0, 4.0, 8.0, 4.0])
    found = metrics.rank_information_coefficient(x, y, np.arange(6), overlap=1)
    assert found.value == pytest.approx(spearmanr(x, y).statistic, abs=1e-14)


def test_overlapping_outcomes_are_not_counted_as_independent() -> None:
    generator = np.random.default_rng(3)
    t_values = []
    for _ in range(300):
        noise = generator.normal(size=405)
        outcome = np.convolve(noise, np.ones(5), "valid")
        forecast = np.convolve(generator.normal(size=405), np.ones(5), "valid")
        t_values.append(
            metrics.information_coefficient(forecast, outcome, np.arange(len(outcome)), overlap=5).t_statistic
        )
    # Two unrelated series: |t| > 1.96 in about 5 % of cases, and far more often if overlap were ignored.
    assert np.mean(np.abs(t_values) > 1.96) < 0.12


def test_a_forecast_that_does_not_vary_has_no_correlation() -> None:
    found = metrics.information_coefficient(np.zeros(5), np.arange(5.0), np.arange(5), overlap=1)
    assert math.isnan(found.value)
    assert math.isnan(found.t_statistic)


def test_hit_rate_leaves_ties_out() -> None:
    assert metrics.hit_rate(np.array([1.0, -1.0, 0.0, 2.0]), np.array([1.0, 1.0, 1.0, 0.0])) == 0.5


def test_within_ten_percent_counts_as_the_original_did() -> None:
    outcome = np.array([100.0, 100.0, -10.0, 0.0])
    assert metrics.within_ten_percent(np.array([110.0, 111.0, -9.0, 0.1]), outcome) == 0.5


def test_sharpe_is_the_textbook_ratio_and_its_interval_narrows_with_the_sample() -> None:
    returns = np.array([0.01, -0.005, 0.02, 0.0, 0.004] * 50)
    found = metrics.sharpe(returns, periods_per_year=252)
    assert found.value == pytest.approx(returns.mean() / returns.std(ddof=1) * math.sqrt(252), rel=1e-12)
    longer = metrics.sharpe(np.tile(returns, 4), periods_per_year=252)
    assert (longer.high - longer.low) / (found.high - found.low) == pytest.approx(0.5, rel=0.01)


def test_sharpe_interval_covers_the_truth_95_times_in_100() -> None:
    generator = np.random.default_rng(11)
    inside = [
        (s := metrics.sharpe(generator.normal(0.05, 1.0, 500), periods_per_year=1)).low <= 0.05 <= s.high
        for _ in range(1000)
    ]
    assert 0.93 < np.mean(inside) < 0.97


def test_sharpe_of_constant_returns_is_not_a_number() -> None:
    assert math.isnan(metrics.sharpe(np.full(50, 0.001), periods_per_year=252).value)


def test_drawdown_is_the_fraction_below_the_highest_equity_so_far() -> None:
    assert metrics.drawdown(np.array([100.0, 120.0, 90.0, 130.0])).tolist() == [0.0, 0.0, -0.25, 0.0]


def test_returns_of_equity_start_from_the_initial_cash() -> None:
    assert metrics.returns_of(np.array([110.0, 99.0]), initial=100.0) == pytest.approx([0.1, -0.1])


def test_qlike_is_zero_for_a_perfect_forecast_and_punishes_too_low_more_than_too_high() -> None:
    truth = np.array([1.0, 4.0])
    assert metrics.qlike(truth, truth) == 0.0
    assert metrics.qlike(truth / 2, truth) == pytest.approx(2 - math.log(2) - 1)
    assert metrics.qlike(truth * 2, truth) == pytest.approx(0.5 + math.log(2) - 1)


def test_r_squared_is_zero_for_the_reference_itself() -> None:
    outcome, reference = np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.0, 2.0])
    assert metrics.r_squared(reference, outcome, reference) == 0.0
    assert metrics.r_squared(np.array([1.0, 2.0, 2.0]), outcome, reference) == pytest.approx(1 - 4 / 5)
