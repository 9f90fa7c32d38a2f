"""Probabilistic and deflated Sharpe ratios: published numbers, closed forms, and choices among trials."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foxflow import significance
from foxflow.metrics import Floats
from foxflow.significance import Moments


def noise(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(0.0, 0.01, shape)


def test_probabilistic_sharpe_is_that_of_the_paper() -> None:
    """Bailey and López de Prado (2012): a fund of 24 months, ratio 0.458 a month, is 0.982 if normal, 0.913 as it is."""
    assert significance.probabilistic_sharpe(Moments(0.458, 0.0, 3.0, 24)) == pytest.approx(0.982, abs=5e-4)
    assert significance.probabilistic_sharpe(Moments(0.458, -2.448, 10.164, 24)) == pytest.approx(0.913, abs=5e-4)


@pytest.mark.parametrize(
    ("periods", "skewness", "kurtosis", "years"),
    [(252, 0.0, 3.0, 2.73), (52, 0.0, 3.0, 2.83), (12, 0.0, 3.0, 3.24), (12, -0.72, 5.78, 4.99)],
)
def test_the_minimum_track_record_is_that_of_the_paper(
    periods: int, skewness: float, kurtosis: float, years: float
) -> None:
    """Bailey and López de Prado (2012): for a ratio of 2 a year to be above 1 with 95 %."""
    found = Moments(2 / math.sqrt(periods), skewness, kurtosis, 999)
    needed = significance.minimum_track_record(found, reference=1 / math.sqrt(periods))
    assert needed / periods == pytest.approx(years, abs=5e-3)


@pytest.mark.parametrize(("ratio", "error"), [(0.5, 0.137), (1.0, 0.158), (2.0, 0.224)])
def test_the_standard_error_of_a_ratio_is_los(ratio: float, error: float) -> None:
    """Lo (2002), table 1: 60 independent normal returns. His 60 are the 61 less one of this paper."""
    found = Moments(ratio, 0.0, 3.0, 61)
    assert math.sqrt(found.factor / 60) == pytest.approx(error, abs=5e-4)
    one_error_above = significance.probabilistic_sharpe(found, reference=ratio - math.sqrt((1 + ratio**2 / 2) / 60))
    assert one_error_above == pytest.approx(0.8413447460685429, abs=1e-12)


def test_a_track_record_of_the_minimum_length_has_the_confidence_asked_for() -> None:
    found = Moments(0.08, -0.5, 6.0, 100)
    needed = significance.minimum_track_record(found, confidence=0.9)
    as_long = Moments(0.08, -0.5, 6.0, needed)  # type: ignore[arg-type]
    assert significance.probabilistic_sharpe(as_long) == pytest.approx(0.9, abs=1e-12)
    assert math.isinf(significance.minimum_track_record(Moments(-0.01, 0.0, 3.0, 100)))
    assert math.isinf(significance.minimum_track_record(Moments(0.0, 0.0, 3.0, 100)))


def test_moments_are_those_of_four_returns_by_hand() -> None:
    """Deviations -1, -1, -1, 3 times 0.01: m2 = 3, m3 = 6, m4 = 21; the spread with three degrees of freedom is 2."""
    found = significance.moments(np.array([0.01, 0.01, 0.01, 0.05]))
    assert found is not None
    assert found.sharpe == pytest.approx(0.02 / 0.02, abs=1e-12)
    assert found.skewness == pytest.approx(6 / 3**1.5, abs=1e-12)
    assert found.kurtosis == pytest.approx(21 / 9, abs=1e-12)


@pytest.mark.parametrize("returns", [[], [0.01], [0.01, 0.02], [0.01] * 50, [0.0] * 50])
def test_returns_that_do_not_vary_have_no_moments(returns: list[float]) -> None:
    assert significance.moments(np.array(returns)) is None


@pytest.mark.parametrize(("mean", "expected"), [(2.0, 1.0), (-2.0, 0.0)])
def test_two_values_only_can_leave_no_doubt(mean: float, expected: float) -> None:
    """The estimate's variance is 0 where skewness² = kurtosis - 1 = (2 / ratio)²: a limit, not an error."""
    certain = Moments(mean, 2 / mean, 2.0, 100)
    assert certain.factor == 0
    assert significance.probabilistic_sharpe(certain) == expected


def test_the_deflated_sharpe_ratio_is_that_of_the_paper() -> None:
    """Bailey and López de Prado (2014), a numerical example: 100 trials of variance 1/2 a year, 1,250 days of 250."""
    found = Moments(2.5 / math.sqrt(250), -3.0, 10.0, 1250)
    assert math.sqrt(0.5 / 250) * significance.expected_maximum(100) == pytest.approx(0.1132, abs=5e-5)
    assert significance.deflated_sharpe(found, variance=0.5 / 250, n_trials=100) == pytest.approx(0.9004, abs=5e-5)
    assert significance.deflated_sharpe(found, variance=0.5 / 250, n_trials=46) == pytest.approx(0.9505, abs=5e-5)
    normal = Moments(2.5 / math.sqrt(250), 0.0, 3.0, 1250)
    assert significance.deflated_sharpe(normal, variance=0.5 / 250, n_trials=88) == pytest.approx(0.9505, abs=5e-5)


def test_the_expected_maximum_is_near_the_exact_one_and_continuous() -> None:
    """The largest of 10 has expectation 1.53875, of 100 2.50759 (Harter 1961): the equation is asymptotic."""
    assert significance.expected_maximum(1) == 0.0
    assert significance.expected_maximum(10) == pytest.approx(1.53875, rel=0.03)
    assert significance.expected_maximum(100) == pytest.approx(2.50759, rel=0.02)
    assert significance.expected_maximum(2) == pytest.approx(significance.expected_maximum(2 + 1e-9), abs=1e-8)
    assert 0 < significance.expected_maximum(1.5) < significance.expected_maximum(2)


def test_one_trial_is_no_choice() -> None:
    returns = noise(1, 500, 1)
    chosen = significance.selection(returns, seed=0)
    assert (chosen.n_effective, chosen.correlation, chosen.spread) == (1.0, 0.0, 1.0)
    found = significance.moments(returns[:, 0])
    assert found is not None
    deflated = significance.deflated_sharpe(found, variance=chosen.variance(500), n_trials=chosen.n_effective)
    assert deflated == significance.probabilistic_sharpe(found)


def test_equal_trials_are_one() -> None:
    same = np.repeat(noise(2, 400, 1), 30, axis=1)
    chosen = significance.selection(same, seed=0)
    assert chosen.n_effective == pytest.approx(1.0, abs=1e-6)
    assert chosen.correlation == pytest.approx(1.0, abs=1e-9)


def test_trials_in_clusters_count_as_clusters() -> None:
    """Ten kinds of twenty near copies are little more than ten trials; their mean correlation of 0.09 says 183."""
    random = np.random.default_rng(3)
    kinds = np.repeat(random.normal(size=(1000, 10)), 20, axis=1)
    chosen = significance.selection(0.01 * (kinds + 0.05 * random.normal(size=(1000, 200))), seed=0)
    assert 9 < chosen.n_effective < 13


def test_copies_of_one_trial_do_not_hide_the_others() -> None:
    """A hundred copies and a hundred others are 101 trials: the share of variance in one component would say four."""
    random = np.random.default_rng(4)
    streams = random.normal(size=(1000, 200))
    streams[:, :100] = streams[:, :1]
    assert 85 < significance.selection(0.01 * streams, seed=0).n_effective < 110


def test_trials_that_share_no_session_share_no_luck() -> None:
    both = np.full((600, 2), np.nan)
    stream = noise(5, 300)
    both[:300, 0], both[300:, 1] = stream, stream
    assert significance.selection(both, seed=0).correlation == 0.0
    half = np.full((450, 2), np.nan)
    half[:300, 0], half[150:, 1] = stream, np.concatenate([stream[150:], noise(6, 150)])
    assert significance.selection(half, seed=0).correlation == pytest.approx(0.5, abs=0.1)


def test_trials_that_truly_differ_raise_the_bar_beyond_luck() -> None:
    """True ratios of variance 0.1² beside a luck of 1/1000: their variance is 1 + 0.01 * 999 = 11 of luck's."""
    random = np.random.default_rng(6)
    streams = 0.01 * (random.normal(size=(1000, 200)) + random.normal(0.0, 0.1, 200))
    assert significance.selection(streams, seed=0).spread == pytest.approx(11.0, rel=0.25)


def test_what_correlated_trials_share_is_given_back_to_their_variance() -> None:
    """At a correlation of 0.5 half of luck's variance is between trials: (0.5 + 0.1² * 999) / 0.5 = 21 of luck's."""
    random = np.random.default_rng(43)
    common, own = random.normal(size=(1000, 1)), random.normal(size=(1000, 200))
    streams = 0.01 * (math.sqrt(0.5) * (common + own) + random.normal(0.0, 0.1, 200))
    assert significance.selection(streams, seed=0).spread == pytest.approx(21.0, rel=0.25)


def test_no_variance_between_trials_is_below_that_of_luck() -> None:
    streams = noise(44, 500, 40)
    even = significance.selection(streams - streams.mean(axis=0), seed=0)
    assert even.n_effective > 10
    assert even.spread == 1.0


def test_the_variance_of_few_trials_is_not_known() -> None:
    streams = noise(7, 500, 5) + np.array([0.0, 0.0, 0.0, 0.0, 0.01])
    assert significance.selection(streams, seed=0).spread == 1.0


def test_a_trial_that_never_traded_is_no_luck() -> None:
    streams = noise(8, 500, 3)
    idle = np.column_stack([streams, np.zeros(500), np.full(500, np.nan)])
    assert significance.selection(idle, seed=0) == significance.selection(streams, seed=0)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 12), m=st.integers(3, 40), seed=st.integers(0, 2**20), holes=st.floats(0, 0.7))
def test_the_effective_number_lies_between_one_and_all(n: int, m: int, seed: int, holes: float) -> None:
    random = np.random.default_rng(seed)
    streams = random.normal(size=(m, n))
    streams[random.random((m, n)) < holes] = np.nan
    chosen = significance.selection(streams, seed=seed)
    assert 1.0 <= chosen.n_effective <= n
    assert -1.0 - 1e-9 <= chosen.correlation <= 1.0 + 1e-9
    assert chosen.spread >= 1.0
