"""The network: window and steps agree, later bars are not seen, limits hold inside a layer."""

import pytest
import torch
from torch import Tensor
from torch_samples import CPU, one_thread  # noqa: F401

from foxflow_mamba2.block import RMSNorm
from foxflow_mamba2.model import Mamba2, Mamba2Parameters
from foxflow_mamba2.network import Mamba2Network
from foxflow_torch.trainer import seeded

PARAMETERS = Mamba2Parameters(n_layers=2, d_model=8, head_dim=8, d_state=4, dropout=0.0)


def network(seed: int = 0, *, n_features: int = 3) -> Mamba2Network:
    """Return a small network with a head that is not zero."""
    with seeded(seed, CPU):
        made = Mamba2(PARAMETERS).network(n_features)
        torch.nn.init.normal_(made.head.weight)
    return made.eval()


def features(n_batch: int, n_bars: int, *, seed: int = 1) -> Tensor:
    return torch.randn(n_batch, n_bars, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def steps(net: Mamba2Network, bars_BTF: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    forecasts = []
    for bar_BF in bars_BTF.unbind(1):
        forecast_B1, *present = net.step(bar_BF, *state)
        state = tuple(present)
        forecasts.append(forecast_B1)
    return torch.stack(forecasts, 1), state


def test_a_norm_in_groups_scales_each_part_of_a_row_by_its_own_size() -> None:
    norm = RMSNorm(4, n_groups=2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 1.0, 1.0, 10.0]))
    # Mean squares 12.5 and 200: 3 / sqrt(12.5) and so on, the last times its weight.
    expected = torch.tensor([[0.8485281374, 1.1313708499, 0.0, 14.142135624]], dtype=torch.float64)
    found = norm(torch.tensor([[3.0, 4.0, 0.0, 20.0]], dtype=torch.float64))
    torch.testing.assert_close(found.detach(), expected, rtol=1e-6, atol=0)


def test_default_network_has_about_8500_parameters() -> None:
    made = Mamba2(Mamba2Parameters()).network(12)
    assert sum(p.numel() for p in made.parameters()) == 8_377


def test_untrained_network_forecasts_exactly_zero() -> None:
    made = Mamba2(PARAMETERS).network(3)
    forecast, *_ = made(features(2, 20), *made.zero_state(2))
    assert torch.equal(forecast, torch.zeros(2, 20, 1, dtype=torch.float64))


@torch.no_grad()
def test_steps_equal_the_window_in_forecasts_and_state() -> None:
    net, bars = network(), features(3, 70)
    start = tuple(torch.full_like(s, 0.1) for s in net.zero_state(3))
    window, *window_state = net(bars, *start)
    stepped, stepped_state = steps(net, bars, start)
    torch.testing.assert_close(stepped, window, rtol=0, atol=1e-12)
    for a, b in zip(stepped_state, window_state, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("cut", [1, 2, 16, 33])
def test_a_window_in_two_parts_equals_one_window(cut: int) -> None:
    net, bars = network(), features(2, 50)
    whole, *whole_state = net(bars, *net.zero_state(2))
    first, *state = net(bars[:, :cut], *net.zero_state(2))
    second, *state = net(bars[:, cut:], *state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
    for a, b in zip(state, whole_state, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_forecast_has_no_gradient_in_a_later_bar_and_one_in_an_early_bar() -> None:
    net, bars = network(), features(1, 40).requires_grad_()
    forecast, *_ = net(bars, *net.zero_state(1))
    forecast[0, 20, 0].backward()
    assert bars.grad is not None
    sizes = bars.grad[0].abs().sum(-1)
    assert torch.equal(sizes[21:], torch.zeros(19, dtype=torch.float64))
    # Four taps of convolution in two layers reach six bars back; what bar 3 does to bar 20 went through the state.
    assert float(sizes[3]) > 0


@torch.no_grad()
def test_a_row_of_the_batch_does_not_change_another() -> None:
    net, bars = network(), features(2, 40)
    other = bars.clone()
    other[1] = 5.0
    first, *_ = net(bars, *net.zero_state(2))
    second, *_ = net(other, *net.zero_state(2))
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])


@pytest.mark.parametrize(("raw", "expected"), [(-40.0, 1e-6), (40.0, 1.0)])
def test_steps_outside_their_limits_are_cut_and_carry_no_gradient(raw: float, expected: float) -> None:
    block = network().blocks[0]
    x = torch.full((1, 2), raw, dtype=torch.float64, requires_grad=True)
    dt = block._step_size(x)
    assert torch.equal(dt, torch.full((1, 2), expected, dtype=torch.float64))
    dt.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_step_size_is_the_softplus_of_torch_between_its_limits() -> None:
    block = network().blocks[0]
    x = torch.linspace(-9.0, -1.0, 20, dtype=torch.float64).reshape(10, 2)
    expected = torch.nn.functional.softplus(x + block.dt_bias_H)
    torch.testing.assert_close(block._step_size(x), expected, rtol=0, atol=1e-15)


def test_weight_decay_spares_every_vector_and_every_head_number() -> None:
    net = network()
    (decayed, rate), (spared, none) = net.parameter_groups(0.1)
    assert (rate, none) == (0.1, 0.0)
    names = {id(p): name for name, p in net.named_parameters()}
    assert {names[id(p)].rsplit(".", 1)[-1] for p in spared} == {
        *("weight", "bias", "conv_bias_C", "A_log_H", "dt_bias_H", "D_H")
    }
    assert all("norm" in names[id(p)] for p in spared if names[id(p)].endswith("weight"))
    assert {names[id(p)].rsplit(".", 1)[-1] for p in decayed} == {"weight", "conv_weight_KC"}
    assert len(decayed) + len(spared) == len(names)
