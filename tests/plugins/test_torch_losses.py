"""Validation and what it measures: rows 7 and 8 of what the original system got wrong."""

from typing import Any

import pytest
import torch
from torch_samples import CPU, LagNetwork, loss, memory, noise, one_thread  # noqa: F401

from foxflow.errors import DataError, PluginError
from foxflow_torch import losses
from foxflow_torch.options import Training
from foxflow_torch.trainer import seeded, train

# Row 7: validation looked at 100 samples, and an empty set gave NaN.


def test_validation_uses_every_row_without_dropout_and_restores_the_mode() -> None:
    net = LagNetwork(3, dropout=0.5).train()
    hundred, hundred_and_one = (noise({"A": n}) for n in (100, 101))
    assert loss(net, hundred) != loss(net, hundred_and_one)
    assert loss(net, hundred) == loss(net, hundred)
    assert net.training
    eval_net = LagNetwork(3).eval()
    loss(eval_net, hundred)
    assert not eval_net.training


def test_an_empty_validation_set_is_an_error() -> None:
    with seeded(0, CPU), pytest.raises(DataError, match="0 validation rows"):
        train(
            LagNetwork(3), memory({"A": 200}, seed=1), memory({"A": 20}, seed=2, context=20), Training(), progress=print
        )


# Row 8: accuracy divided by targets near 0.


def test_accuracy_of_a_literal_case_is_the_share_within_ten_percent_and_a_zero_target_is_never_divided_by() -> None:
    label = torch.tensor([1.0, -2.0, 0.0, 0.0, 10.0, 5.0], dtype=torch.float64)
    forecast = torch.tensor([1.05, -1.85, 0.0, 1e-9, 11.5, -5.0], dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.float64)
    # The original: |forecast - target| / |target| < 0.1, true of the first two alone.
    assert float(losses.accuracy(forecast, label, ones)) == pytest.approx(2 / 6, abs=1e-15)
    zero = torch.zeros(3, dtype=torch.float64)
    assert float(losses.accuracy(zero, zero, torch.ones(3, dtype=torch.float64))) == 0.0
    # On their label's side of 0: all but the fourth and the last.
    assert float(losses.directional_accuracy(forecast, label, ones)) == pytest.approx(4 / 6, abs=1e-15)
    weight = torch.tensor([3.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert float(losses.accuracy(forecast, label, weight)) == 1.0


def test_mean_squared_error_of_a_literal_case() -> None:
    forecast, label, weight = (
        torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2.0, 4.0], [0.0, 2.0, 1.0], [1.0, 2.0, 1.0])
    )
    # Squared errors 1, 0 and 9 with weights 1, 2 and 1: ten fourths.
    assert float(losses.mean_squared_error(forecast, label, weight)) == 2.5


@pytest.mark.parametrize("which", [losses.mean_squared_error, losses.accuracy, losses.directional_accuracy])
def test_a_label_of_another_shape_is_refused_not_broadcast(which: Any) -> None:
    with pytest.raises(PluginError, match=r"forecasts \(4, 1\), labels \(4,\), weights \(4,\); expected equal shapes"):
        which(torch.zeros(4, 1), torch.zeros(4), torch.ones(4))
