"""The causal convolution against torch's own and finite differences."""

import pytest
import torch
from torch.nn.functional import conv1d
from torch_samples import one_thread  # noqa: F401

from foxflow_mamba2.convolution import causal_convolution


def tensors(n_bars: int, n_taps: int) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(n_bars)
    shapes = ((2, n_bars + n_taps - 1, 3), (n_taps, 3), (3,))
    return tuple(torch.randn(s, dtype=torch.float64, generator=g).requires_grad_() for s in shapes)


def test_the_last_tap_is_the_present_bars() -> None:
    bars = torch.tensor([[[1.0], [2.0], [4.0]]])
    mixed = causal_convolution(bars, torch.tensor([[10.0], [100.0]]), torch.tensor([0.5]))
    assert mixed.flatten().tolist() == [0.5 + 10.0 + 200.0, 0.5 + 20.0 + 400.0]


@pytest.mark.parametrize(("n_bars", "n_taps"), [(1, 2), (1, 4), (7, 4), (20, 3)])
def test_output_and_gradients_equal_those_of_torchs_convolution(n_bars: int, n_taps: int) -> None:
    bars, weight, bias = tensors(n_bars, n_taps)
    expected = conv1d(bars.transpose(1, 2), weight.T.unsqueeze(1), bias, groups=3).transpose(1, 2)
    found = causal_convolution(bars, weight, bias)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    pairs = zip(
        torch.autograd.grad(found, (bars, weight, bias), upstream),
        torch.autograd.grad(expected, (bars, weight, bias), upstream),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_gradients_pass_the_finite_difference_check() -> None:
    assert torch.autograd.gradcheck(causal_convolution, tensors(5, 4))


def test_an_expanded_gradient_is_taken_as_it_is() -> None:
    bars, weight, bias = tensors(6, 4)
    causal_convolution(bars, weight, bias).sum().backward()
    assert bias.grad is not None
    assert bias.grad.tolist() == [12.0, 12.0, 12.0]
