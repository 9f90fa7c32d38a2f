"""The probability of backtest overfitting, by hand and against a plain loop."""

import math
from itertools import combinations

import numpy as np
import pytest

from foxflow import significance
from foxflow.metrics import Floats


def noise(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(0.0, 0.01, shape)


def test_a_trial_that_always_wins_is_not_overfitted() -> None:
    """In all 6 splits the first of three is best in training, and again: rank 3 of 4, logit ln 3."""
    up_and_down = np.tile([0.01, -0.01], 8)
    streams = np.column_stack([up_and_down + drift for drift in (0.002, 0.0, -0.002)])
    found = significance.overfitting(streams, significance.halves(16, n_groups=4, purge=0))
    assert found is not None
    assert found.probability == 0.0
    assert found.logits == pytest.approx([math.log(3)] * 6, abs=1e-9)
    assert found.probability_of_loss == 0.0


def test_trials_that_win_by_turns_are_overfitted() -> None:
    """The first wins groups 0 and 1, the second groups 2 and 3. Trained on either pair, the winner is last of two
    (rank 1 of 3: logit -ln 2); trained on one group of each they are equal, in training and test (logit 0).
    """
    swing = np.tile([0.01, -0.01], 2)
    turns = np.concatenate([swing + 0.002, swing + 0.002, swing - 0.002, swing - 0.002])
    found = significance.overfitting(
        np.column_stack([turns, turns[::-1] * 1.0]), significance.halves(16, n_groups=4, purge=0)
    )
    assert found is not None
    assert found.logits == pytest.approx([-math.log(2), 0, 0, 0, 0, -math.log(2)], abs=1e-9)
    assert found.probability == 1.0
    # Training ratios r, 0, 0, 0, 0, r and test ratios -r, 0, 0, 0, 0, -r: the slope is -1.
    assert found.slope == pytest.approx(-1.0, abs=1e-9)
    assert found.probability_of_loss == pytest.approx(2 / 6)


def test_overfitting_equals_a_plain_loop() -> None:
    streams, n_groups = noise(9, 90, 7), 6
    blocks = np.split(np.arange(90), n_groups)
    logits, pairs = [], []
    for chosen in combinations(range(n_groups), 3):
        test = np.concatenate([blocks[g] for g in chosen])
        train = np.setdiff1d(np.arange(90), test)
        inside, outside = (streams[rows].mean(axis=0) / streams[rows].std(axis=0, ddof=1) for rows in (train, test))
        best = int(np.argmax(inside))
        share = (1 + sum(outside < outside[best])) / 8
        logits.append(math.log(share / (1 - share)))
        pairs.append((inside[best], outside[best]))
    x, y = np.array(pairs).T
    found = significance.overfitting(streams, significance.halves(90, n_groups=n_groups, purge=0))
    assert found is not None
    assert found.logits == pytest.approx(logits, abs=1e-9)
    assert found.slope == pytest.approx(np.polyfit(x, y, 1)[0], abs=1e-9)
    assert found.probability == np.mean(np.array(logits) <= 0)


def test_no_training_session_lies_near_a_test_session() -> None:
    splits = list(significance.halves(40, n_groups=4, purge=2))
    assert len(splits) == 6
    assert sum(test.sum() for _, test in splits) == 3 * 40
    for train, test in splits:
        assert abs(np.flatnonzero(train)[:, None] - np.flatnonzero(test)).min() == 3
    # Groups 0 and 1 to test on: one boundary, two sessions gone. Groups 0 and 2: three of them.
    assert splits[0][0].sum() == 20 - 2
    assert splits[1][0].sum() == 20 - 2 - 4


def test_trials_that_are_all_equal_cannot_be_overfitted() -> None:
    same = np.repeat(noise(10, 60, 1), 3, axis=1)
    assert significance.overfitting(same, significance.halves(60, n_groups=4, purge=0)) is None


def test_a_trial_that_never_trades_has_a_ratio_of_zero() -> None:
    loser = np.tile([0.01, -0.01], 20) - 0.002
    found = significance.overfitting(
        np.column_stack([loser, np.zeros(40)]), significance.halves(40, n_groups=4, purge=0)
    )
    assert found is not None
    assert found.probability == 0.0
    assert math.isnan(found.slope)
