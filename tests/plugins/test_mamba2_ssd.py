"""The scan: the recurrence against NumPy, the chunked form against the recurrence in value and every gradient."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_samples import Inputs, one_thread  # noqa: F401

from foxflow_mamba2.ssd import ssd_scan

LENGTHS = (1, 2, 15, 16, 17, 31, 33, 100)


def inputs(n_bars: int, *, n_groups: int = 1, n_heads: int = 4, head_dim: int = 3, d_state: int = 5) -> Inputs:
    g = torch.Generator().manual_seed(n_bars + 1000 * n_groups)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    return Inputs(
        normal(2, n_bars, n_heads, head_dim),
        torch.exp(normal(2, n_bars, n_heads) - 2.0),
        -torch.exp(normal(n_heads)),
        normal(2, n_bars, n_groups, d_state),
        normal(2, n_bars, n_groups, d_state),
        normal(n_heads),
        normal(2, n_heads, head_dim, d_state),
    )


def scan(data: Inputs, impl: str) -> tuple[Tensor, Tensor]:
    *tensors, state = data
    return ssd_scan(*tensors, initial_state=state, return_final_state=True, impl=impl)


def gradients(data: Inputs, impl: str) -> tuple[Tensor, ...]:
    """Return the output, the final state and the gradient of every input, of a loss that reads all outputs."""
    leaves = Inputs(*(t.clone().requires_grad_() for t in data))
    y, state = scan(leaves, impl)
    g = torch.Generator().manual_seed(7)
    weight_y, weight_state = (torch.randn(t.shape, dtype=t.dtype, generator=g) for t in (y, state))
    ((y * weight_y).sum() + (state * weight_state).sum()).backward()
    return y.detach(), state.detach(), *(t.grad for t in leaves)


def assert_close(left: tuple[Tensor, ...], right: tuple[Tensor, ...], *, tolerance: float) -> None:
    for a, b in zip(left, right, strict=True):
        assert float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max()))


def test_naive_doubles_and_halves_as_by_hand() -> None:
    one = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    half = torch.tensor([-math.log(2.0)], dtype=torch.float64)
    x = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64).reshape(1, 3, 1, 1)
    skip = torch.tensor([10.0], dtype=torch.float64)
    y, state = ssd_scan(x, one[..., 0], half, one, 3 * one, skip, return_final_state=True, impl="naive")
    # The state is 1, then 0.5, then 0.25 + 4; the output 3 times it and 10 times the input.
    torch.testing.assert_close(y.flatten(), torch.tensor([13.0, 1.5, 52.75], dtype=torch.float64))
    torch.testing.assert_close(state.flatten(), torch.tensor([4.25], dtype=torch.float64))


def test_naive_equals_the_recurrence_written_in_numpy_with_consecutive_heads_in_a_group() -> None:
    data = inputs(6, n_groups=2)
    x, dt, A, B, C, D, state = (t.numpy() for t in data)
    expected = np.empty_like(x)
    for b in range(2):
        for h, group in enumerate((0, 0, 1, 1)):
            now = state[b, h].copy()
            for t in range(6):
                now = np.exp(dt[b, t, h] * A[h]) * now + dt[b, t, h] * np.outer(x[b, t, h], B[b, t, group])
                expected[b, t, h] = now @ C[b, t, group] + D[h] * x[b, t, h]
    np.testing.assert_allclose(scan(data, "naive")[0].numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("n_bars", LENGTHS)
def test_chunked_equals_naive_in_output_state_and_all_gradients(n_bars: int, n_groups: int) -> None:
    data = inputs(n_bars, n_groups=n_groups)
    assert_close(gradients(data, "chunked"), gradients(data, "naive"), tolerance=1e-12)


@pytest.mark.parametrize("n_bars", [31, 33, 70])
def test_chunked_equals_naive_for_heads_wide_enough_for_long_chunks(n_bars: int) -> None:
    data = inputs(n_bars, n_heads=2, head_dim=20, d_state=8)
    assert_close(gradients(data, "chunked"), gradients(data, "naive"), tolerance=1e-12)


def test_chunked_equals_naive_with_a_group_for_each_head() -> None:
    data = inputs(33, n_groups=4)
    assert_close(gradients(data, "chunked"), gradients(data, "naive"), tolerance=1e-12)


def test_gradients_pass_the_finite_difference_check() -> None:
    data = tuple(t.requires_grad_() for t in inputs(17, n_heads=2, head_dim=2, d_state=2))
    assert torch.autograd.gradcheck(lambda *t: scan(Inputs(*t), "chunked"), data)


def test_gradients_stay_finite_and_right_where_a_chunk_decays_beyond_the_range_of_exp() -> None:
    data = inputs(64)._replace(dt=torch.full((2, 64, 4), 1.0, dtype=torch.float64), A=torch.full((4,), -60.0).double())
    found, expected = gradients(data, "chunked"), gradients(data, "naive")
    assert all(bool(t.isfinite().all()) for t in found)
    assert_close(found, expected, tolerance=1e-12)


@pytest.mark.parametrize("impl", ["naive", "chunked"])
def test_a_run_in_two_parts_with_the_state_passed_on_equals_one_run(impl: str) -> None:
    data = inputs(100, n_groups=2)
    leaves = Inputs(*(t.clone().requires_grad_() for t in data))

    def part(start: int, stop: int, state: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, A, B, C, D, _ = leaves
        cut = Inputs(x[:, start:stop], dt[:, start:stop], A, B[:, start:stop], C[:, start:stop], D, state)
        return scan(cut, impl)

    first, state = part(0, 37, leaves.state)
    second, state = part(37, 100, state)
    (torch.cat([first, second], 1).square().sum() + state.sum()).backward()
    parts = [torch.cat([first, second], 1).detach(), state.detach(), *(t.grad for t in leaves)]

    whole = Inputs(*(t.clone().requires_grad_() for t in data))
    y, state = scan(whole, impl)
    (y.square().sum() + state.sum()).backward()
    assert_close(tuple(parts), (y.detach(), state.detach(), *(t.grad for t in whole)), tolerance=1e-12)


def test_padding_to_a_chunk_leaves_the_state_at_the_last_bar() -> None:
    x = torch.ones(1, 5, 1, 1, dtype=torch.float64)
    half = torch.tensor([-math.log(2.0)], dtype=torch.float64)
    _, state = ssd_scan(x, x[..., 0], half, x, x, return_final_state=True, impl="chunked")
    # 1 + 1/2 + 1/4 + 1/8 + 1/16; eleven bars of padding would have halved it eleven times more.
    torch.testing.assert_close(float(state), 1.9375)


def test_no_initial_state_is_a_state_of_zeros() -> None:
    x, dt, A, B, C, D, state = inputs(20)
    zero = torch.zeros_like(state)
    assert torch.equal(ssd_scan(x, dt, A, B, C, D), ssd_scan(x, dt, A, B, C, D, initial_state=zero))


def test_no_skip_is_a_skip_of_zeros() -> None:
    for impl in ("naive", "chunked"):
        x, dt, A, B, C, D, _ = inputs(20)
        assert torch.equal(
            ssd_scan(x, dt, A, B, C, impl=impl), ssd_scan(x, dt, A, B, C, torch.zeros_like(D), impl=impl)
        )


def test_views_of_one_projection_give_the_bits_of_contiguous_tensors() -> None:
    packed = torch.randn(2, 40, 12 + 5 + 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, dt, A, _, _, D, _ = inputs(40)
    x, B, C = packed.split([12, 5, 5], -1)
    views = (x.unflatten(-1, (4, 3)), B.unsqueeze(2), C.unsqueeze(2))
    copies = [v.contiguous() for v in views]
    assert torch.equal(ssd_scan(views[0], dt, A, *views[1:], D), ssd_scan(copies[0], dt, A, *copies[1:], D))


def test_two_backward_passes_give_the_same_bits() -> None:
    data = inputs(50, n_groups=2)
    for a, b in zip(gradients(data, "chunked"), gradients(data, "chunked"), strict=True):
        assert torch.equal(a, b)


def test_an_unknown_implementation_is_refused_with_the_nearest_name() -> None:
    x, dt, A, B, C, _, _ = inputs(4)
    with pytest.raises(ValueError, match="did you mean 'chunked'"):
        ssd_scan(x, dt, A, B, C, impl="chunkd")


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("dt", torch.ones(2, 4, 3, dtype=torch.float64)),
        ("A", torch.ones(1, dtype=torch.float64)),
        ("C", torch.ones(2, 3, 1, 5, dtype=torch.float64)),
        ("D", torch.ones(4, dtype=torch.float32)),
        ("state", torch.ones(2, 4, 5, 3, dtype=torch.float64)),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(name: str, replacement: Tensor) -> None:
    with pytest.raises(ValueError, match=f"{'initial_state' if name == 'state' else name} "):
        scan(inputs(4)._replace(**{name: replacement}), "auto")


def test_heads_that_do_not_fill_the_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="4 heads in 3 groups"):
        scan(inputs(4, n_groups=3), "auto")
