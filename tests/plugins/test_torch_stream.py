"""Streaming forecasts: bits that depend on nothing later and nothing beside."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_samples import CPU, LagNetwork, dataset, loss, noise, one_thread, series  # noqa: F401

from foxflow.errors import DataError
from foxflow_mamba2.model import Mamba2, Mamba2Parameters
from foxflow_torch.network import Network
from foxflow_torch.stream import BLOCK_BARS, forecast
from foxflow_torch.trainer import seeded


@pytest.fixture(scope="module", params=["float64", "float32"])
def network(request: pytest.FixtureRequest) -> Network:
    with seeded(3, CPU):
        made = Mamba2(Mamba2Parameters(n_layers=2, d_model=8, head_dim=8, d_state=4)).network(3)
        torch.nn.init.normal_(made.head.weight)
    return made.to(getattr(torch, request.param))


@pytest.mark.parametrize("n_bars", [1, 2, 100, BLOCK_BARS - 1, BLOCK_BARS, BLOCK_BARS + 1, 2 * BLOCK_BARS, 599])
def test_leaving_later_bars_off_changes_no_bit(network: Network, n_bars: int) -> None:
    (whole,) = noise({"A": 600}).series
    (expected,) = forecast(network, dataset([whole]))
    (found,) = forecast(network, dataset([whole.slice(0, n_bars)]))
    assert np.array_equal(found, expected[:n_bars])


@pytest.mark.parametrize("first_changed", [1, 17, 300])
def test_changing_later_bars_changes_no_earlier_bit(network: Network, first_changed: int) -> None:
    (whole,) = noise({"A": 400}).series
    changed = whole.features.copy()
    changed[first_changed:] = -5.0
    (expected,) = forecast(network, dataset([whole]))
    (found,) = forecast(network, dataset([replace(whole, features=changed)]))
    assert np.array_equal(found[:first_changed], expected[:first_changed])
    assert (found[first_changed:] != expected[first_changed:]).all()


def test_a_series_is_forecast_as_if_it_were_alone(network: Network) -> None:
    data = noise({"A": 300, "B": 40, "C": 257})
    together = forecast(network, data)
    for series_alone, expected in zip(data.series, together, strict=True):
        (alone,) = forecast(network, dataset([series_alone]))
        assert np.array_equal(alone, expected)


def test_a_series_without_bars_has_no_forecasts(network: Network) -> None:
    (found,) = forecast(network, dataset([series("A", np.empty((0, 3)))]))
    assert found.shape == (0,)


def test_state_passes_from_block_to_block_and_starts_at_zero() -> None:
    network = LagNetwork(1)
    with torch.no_grad():
        for p, value in ((network.now.weight, 1.0), (network.now.bias, 0.0), (network.before.weight, 10.0)):
            p.fill_(value)
    bars = np.arange(1.0, 2 * BLOCK_BARS + 10)
    (found,) = forecast(network, dataset([series("A", bars[:, None])]))
    np.testing.assert_array_equal(found, bars + 10.0 * np.concatenate([[0.0], bars[:-1]]))


def test_forecasting_leaves_dropout_as_it_was_and_does_not_use_it() -> None:
    network = LagNetwork(3, dropout=0.5).train()
    first, second = forecast(network, noise({"A": 50})), forecast(network, noise({"A": 50}))
    assert np.array_equal(first[0], second[0])
    assert network.training


def test_loss_is_the_weighted_mean_over_rows_that_count() -> None:
    network = LagNetwork(1)
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
    part = series("A", np.zeros((4, 1)), np.array([np.nan, 1.0, 2.0, 3.0]))
    part = replace(part, weight=np.array([0.0, 1.0, 0.0, 3.0]))
    # Forecasts are 0: (1 * 1 + 3 * 9) / 4.
    assert loss(network, dataset([part])) == 7.0


def test_a_loss_over_no_rows_is_refused() -> None:
    with pytest.raises(DataError, match="0 validation rows"):
        loss(LagNetwork(3), noise({"A": 20}, context=20))
