"""Bootstrap and HAC regression: against arch, statsmodels and theory."""

import math

import numpy as np
import pytest

from foxflow import significance
from foxflow.metrics import Floats
from foxflow.significance import bootstrap, regression

YEAR = 252


def noise(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(0.0, 0.01, shape)


@pytest.mark.parametrize("coefficient", [0.0, 0.3, -0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [30, 500])
def test_the_block_length_is_archs(coefficient: float, n: int) -> None:
    from arch.bootstrap import optimal_block_length

    values = noise(11, n)
    for at in range(1, n):
        values[at] += coefficient * values[at - 1]
    expected = optimal_block_length(values)["stationary"].iloc[0]
    assert bootstrap.block_length(values) == pytest.approx(expected, rel=1e-9)


def test_blocks_are_consecutive_as_long_as_asked_on_average_and_start_anywhere() -> None:
    drawn = bootstrap.resample(1000, block=5.0, draws=200, random=np.random.default_rng(12))
    goes_on = np.diff(drawn, axis=1) % 1000 == 1
    # A new block starts with chance 1/5, and by chance goes on in 1 of 1,000 of them.
    assert goes_on.mean() == pytest.approx(0.8 + 0.2 / 1000, abs=0.003)
    assert np.bincount(drawn.ravel(), minlength=1000).mean() == 200
    assert abs(np.corrcoef(np.arange(1000), np.bincount(drawn.ravel(), minlength=1000))[0, 1]) < 0.1
    assert bootstrap.resample(7, block=1e9, draws=3, random=np.random.default_rng(1))[0].tolist() in [
        [(start + k) % 7 for k in range(7)] for start in range(7)
    ]


def test_the_bootstrap_is_the_same_for_a_seed_and_not_for_another() -> None:
    returns = noise(13, 300)
    first, again, other = (significance.intervals(returns, periods_per_year=YEAR, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_sharpe_interval_is_as_wide_as_theory_says() -> None:
    """Independent normal returns: 2 * 1.96 * sqrt((1 + SR² / 2) / n), annualised."""
    found = significance.intervals(noise(14, 2520), periods_per_year=YEAR, seed=1)
    assert found is not None
    low, high = found.sharpe
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(YEAR / 2520), rel=0.06)


def test_dependence_widens_the_interval() -> None:
    """An average of five neighbours: the variance of the mean is five times that of independent values."""
    smooth = np.convolve(noise(15, 2524), np.ones(5) / 5, "valid")
    shuffled = np.random.default_rng(1).permutation(smooth)
    wide, narrow = (significance.intervals(r, periods_per_year=YEAR, seed=1) for r in (smooth, shuffled))
    assert wide is not None
    assert narrow is not None
    ratio = (wide.sharpe[1] - wide.sharpe[0]) / (narrow.sharpe[1] - narrow.sharpe[0])
    assert ratio == pytest.approx(math.sqrt(5), rel=0.2)


def test_a_drawdown_starts_from_the_first_equity() -> None:
    """Whatever is drawn, each of 100 sessions loses 1.00 % or 1.01 %: no drawdown is less than that of all of them."""
    found = significance.intervals(np.tile([-0.01, -0.0101], 50), periods_per_year=YEAR, seed=1)
    assert found is not None
    assert 0.9899**100 - 1 <= found.max_drawdown[0] <= found.max_drawdown[1] <= 0.99**100 - 1


@pytest.mark.parametrize("returns", [np.zeros(100), np.full(100, 0.01), noise(16, 9)])
def test_what_does_not_vary_or_is_too_short_has_no_interval(returns: Floats) -> None:
    assert significance.intervals(returns, periods_per_year=YEAR, seed=1) is None


def test_alpha_beta_and_its_t_are_those_of_statsmodels() -> None:
    import statsmodels.api as sm

    benchmark = noise(17, 700)
    returns = 0.0004 + 0.7 * benchmark + np.convolve(noise(18, 702), np.ones(3), "valid")
    theirs = sm.OLS(returns, sm.add_constant(benchmark)).fit(
        cov_type="HAC", cov_kwds={"maxlags": 6, "use_correction": False}
    )
    assert regression.lags(700) == 6
    ours = significance.line(returns, benchmark)
    assert ours is not None
    assert [ours.alpha, ours.beta] == pytest.approx(theirs.params, rel=1e-9)
    assert ours.alpha_t == pytest.approx(theirs.tvalues[0], rel=1e-9)
    ahead = sm.OLS(returns - benchmark, np.ones(700)).fit(
        cov_type="HAC", cov_kwds={"maxlags": 6, "use_correction": False}
    )
    assert significance.lead_t(returns, benchmark) == pytest.approx(ahead.tvalues[0], rel=1e-9)


def test_the_benchmark_on_itself_is_a_line_without_an_error() -> None:
    benchmark = noise(19, 300)
    found = significance.line(benchmark, benchmark)
    assert found is not None
    assert found.beta == pytest.approx(1.0, abs=1e-12)
    assert found.alpha == pytest.approx(0.0, abs=1e-15)
    assert math.isnan(found.alpha_t)
    assert math.isnan(significance.lead_t(benchmark, benchmark))
    assert significance.line(benchmark, np.zeros(300)) is None
