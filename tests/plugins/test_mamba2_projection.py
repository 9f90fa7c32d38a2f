"""The spectral projection, against hand arithmetic."""

import math

import pytest
import torch
from torch_samples import one_thread  # noqa: F401

from foxflow_mamba2.model import Mamba2, Mamba2Parameters
from foxflow_mamba2.projection import inverse_softplus, nominal_radius, project

# Of the nominal step.
LIMITS = (1e-6, 1.0)


def heads(steps: list[float], rates: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A_log and dt_bias of heads with these nominal steps and values of -A."""
    A_log = torch.tensor([math.log(r) for r in rates], dtype=torch.float64)
    return A_log, torch.tensor([inverse_softplus(s) for s in steps], dtype=torch.float64)


def test_radius_is_the_exponential_of_the_nominal_step_times_a() -> None:
    A_log, dt_bias = heads([0.1, 0.5], [1.0, 2.0])
    expected = torch.tensor([0.9048374180359595, 0.36787944117144233], dtype=torch.float64)
    torch.testing.assert_close(nominal_radius(A_log, dt_bias), expected)


def test_a_head_over_the_limit_moves_to_it_and_one_below_stays() -> None:
    # At a limit of 1/2 and a step of 0.1, -A is at least log(2) / 0.1 = 6.931...
    A_log, dt_bias = heads([0.1, 0.1], [1.0, 8.0])
    before = dt_bias.clone()
    assert project(A_log, dt_bias, dt_limit=LIMITS, limit=0.5) == 1
    torch.testing.assert_close(A_log.exp(), torch.tensor([6.931471805599453, 8.0], dtype=torch.float64))
    torch.testing.assert_close(nominal_radius(A_log, dt_bias)[0].item(), 0.5)
    assert torch.equal(dt_bias, before)


def test_nominal_steps_move_to_the_nearest_of_their_limits() -> None:
    A_log, dt_bias = heads([5.0, 1e-9, 0.3], [1.0, 1.0, 1.0])
    project(A_log, dt_bias, dt_limit=LIMITS, limit=0.99)
    steps = torch.nn.functional.softplus(dt_bias)
    torch.testing.assert_close(steps, torch.tensor([1.0, 1e-6, 0.3], dtype=torch.float64), rtol=1e-9, atol=0)


def test_projecting_twice_moves_nothing_more() -> None:
    A_log, dt_bias = heads([5.0, 1e-9, 0.3], [1e-3, 1e-3, 1e-3])
    assert project(A_log, dt_bias, dt_limit=LIMITS, limit=0.99) == 3
    A_log_once, dt_bias_once = A_log.clone(), dt_bias.clone()
    assert project(A_log, dt_bias, dt_limit=LIMITS, limit=0.99) == 0
    assert torch.equal(A_log, A_log_once)
    assert torch.equal(dt_bias, dt_bias_once)


@pytest.mark.parametrize("limit", [0.1, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("head_dim", [16, 4])
def test_the_limit_binds_no_head_at_the_start(limit: float, head_dim: int) -> None:
    network = Mamba2(Mamba2Parameters(d_model=8, head_dim=head_dim, spectral_limit=limit)).network(2)
    detail = network.after_step()
    assert detail["heads_at_limit"] == 0.0
    assert 0.0 < detail["spectral_radius"] < limit


def test_memories_start_spread_between_two_and_64_bars() -> None:
    block = Mamba2(Mamba2Parameters(d_model=8, head_dim=4)).network(2).blocks[0]
    memories = -1.0 / torch.log(nominal_radius(block.A_log_H, block.dt_bias_H))
    # Four heads evenly spread in the logarithm between 0.64 * 99.499 = 63.68 and 2.
    expected = torch.tensor([63.67946, 20.09137, 6.33899, 2.0], dtype=torch.float64)
    torch.testing.assert_close(memories.detach(), expected, rtol=1e-5, atol=0)
