"""The best of many strategies without skill is not taken for a find, and a true skill is not taken for luck."""

from collections.abc import Callable

import numpy as np
import pytest

from foxflow import significance
from foxflow.metrics import Floats

N_FAMILIES, N_TRIALS, N_SESSIONS, YEAR = 100, 200, 504, 252


def independent(random: np.random.Generator) -> Floats:
    """Return 200 strategies, each long or short of one market by the toss of a coin of its own."""
    market = 0.01 * random.standard_normal((N_SESSIONS, 1))
    tossed: Floats = market * random.choice([-1.0, 1.0], (N_SESSIONS, N_TRIALS))
    return tossed


def correlated(random: np.random.Generator) -> Floats:
    """Return 200 strategies on one market that differ in one of ten ideas, and from others of the idea in 3 of 10 bars."""
    market = 0.01 * random.standard_normal((N_SESSIONS, 1))
    idea = np.repeat(random.choice([-1.0, 1.0], (N_SESSIONS, 10)), N_TRIALS // 10, axis=1)
    own = random.choice([-1.0, 1.0], (N_SESSIONS, N_TRIALS))
    return market * np.where(random.random((N_SESSIONS, N_TRIALS)) < 0.3, own, idea)


def moving_averages(random: np.random.Generator) -> Floats:
    """Return a sweep as it is made: 200 crossings of two moving averages on one market."""
    market = 0.01 * random.standard_normal(N_SESSIONS + 200)
    level = np.cumsum(market)
    total = np.concatenate([[0.0], np.cumsum(level)])

    def average(length: int) -> Floats:
        means: Floats = (total[length:] - total[:-length])[-N_SESSIONS - 1 : -1] / length
        return means

    pairs = [(fast, slow) for fast in range(1, 21) for slow in range(25, 196, 18)]
    return np.column_stack([np.sign(average(f) - average(s)) * market[-N_SESSIONS:] for f, s in pairs])


@pytest.mark.slow
@pytest.mark.parametrize("make", [independent, correlated, moving_averages])
def test_the_best_of_200_strategies_without_skill_is_no_find(make: Callable[[np.random.Generator], Floats]) -> None:
    alone, deflated, overfitting, effective = [], [], [], []
    for number in range(N_FAMILIES):
        trials = make(np.random.default_rng([27, number]))
        assert trials.shape == (N_SESSIONS, N_TRIALS)
        best = trials[:, (trials.mean(axis=0) / trials.std(axis=0)).argmax()]
        chosen = significance.selection(trials, seed=number)
        found = significance.moments(best)
        assert found is not None
        alone.append(significance.probabilistic_sharpe(found))
        deflated.append(
            significance.deflated_sharpe(found, variance=chosen.variance(N_SESSIONS), n_trials=chosen.n_effective)
        )
        effective.append(chosen.n_effective)
        # PBO is the dear part: a fourth of the families say enough of its mean.
        if number % 4 == 0:
            split = significance.overfitting(trials, significance.halves(N_SESSIONS, n_groups=10, purge=2))
            assert split is not None
            overfitting.append(split.probability)
    print(
        f"\n{make.__name__}: best has PSR above 0.95 in {np.mean(np.array(alone) > 0.95):.0%}, DSR above 0.95 in "
        f"{np.mean(np.array(deflated) > 0.95):.1%}, median DSR {np.median(deflated):.2f}, {np.mean(effective):.0f} "
        f"effective trials, mean PBO {np.mean(overfitting):.2f}"
    )
    assert np.mean(np.array(deflated) > 0.95) <= 0.05
    # Without deflation luck is called a find far more often: seven independent trials give 1 - 0.95^7 = 30 %.
    assert np.mean(np.array(alone) > 0.95) > 0.15
    # As good as its luck, no better: a deflation that was far too strict would pass the first test too.
    assert 0.3 < np.median(deflated) < 0.7
    assert np.mean(overfitting) > 0.4


@pytest.mark.slow
def test_a_true_sharpe_ratio_of_one_over_ten_years_is_found() -> None:
    """Found: as the only trial its deflated Sharpe ratio, which is then the probabilistic one, is above 0.95.

    By theory in P(N(sqrt(10), 1) > 1.645) = 93.5 % of cases. As one of 20 independent trials of luck, whose best is
    expected at 1.9 standard errors, still in P(N(sqrt(10) - 1.9, 1) > 1.645) = 35 %: the price of trying.
    """
    found, among_twenty = [], []
    for number in range(200):
        random = np.random.default_rng([28, number])
        moments = significance.moments(0.01 * (random.standard_normal(10 * YEAR) + 1 / np.sqrt(YEAR)))
        assert moments is not None
        variance = 1 / (10 * YEAR - 1)
        found.append(significance.deflated_sharpe(moments, variance=variance, n_trials=1) > 0.95)
        among_twenty.append(significance.deflated_sharpe(moments, variance=variance, n_trials=20) > 0.95)
    print(f"\ntrue Sharpe ratio of 1: found in {np.mean(found):.1%}, as one of 20 in {np.mean(among_twenty):.1%}")
    assert np.mean(found) >= 0.8
    assert np.mean(found) == pytest.approx(0.935, abs=0.05)
    assert np.mean(among_twenty) == pytest.approx(0.35, abs=0.1)


@pytest.mark.slow
def test_the_bootstrap_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Returns in bursts (GARCH) with a true ratio of 0.05 a session: 95 % within twice the error of 100 draws, 2.2 %."""
    inside = []
    for number in range(100):
        random = np.random.default_rng([29, number])
        shocks, returns, variance = random.standard_normal(400), np.zeros(400), 1.0
        for at, shock in enumerate(shocks):
            returns[at] = np.sqrt(variance) * shock
            variance = 0.05 + 0.15 * returns[at] ** 2 + 0.8 * variance
        drawn = significance.intervals(0.01 * (returns + 0.05), periods_per_year=1, seed=number)
        assert drawn is not None
        inside.append(drawn.sharpe[0] <= 0.05 <= drawn.sharpe[1])
    print(f"\nbootstrap interval: holds the truth in {np.mean(inside):.1%}")
    assert 0.9 <= np.mean(inside) <= 0.99
