"""The scan: the recurrence against NumPy, the chunked form against the recurrence in value and every gradient."""

import math
import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_samples import Inputs, one_thread  # noqa: F401

from foxflow_mamba2.ssd import ssd_scan

LENGTHS = (1, 2, 15, 16, 17, 31, 33, 64, 100, 257)
WIDTHS = (8, 16, 24, 32, 48, 64)
IMPLS = ("naive", "chunked")


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


def leaves_of(data: Inputs) -> Inputs:
    return Inputs(*(t.detach().clone().requires_grad_() for t in data))


def gradients(data: Inputs, impl: str) -> tuple[Tensor, ...]:
    """Return the output, the final state and the gradient of every input, of a loss that reads all outputs."""
    leaves = leaves_of(data)
    y, state = scan(leaves, impl)
    # Drawn in half precision: the same numbers for every type of the outputs.
    g = torch.Generator().manual_seed(7)
    weights = [torch.randn(t.shape, generator=g).bfloat16().to(t.dtype) for t in (y, state)]
    torch.autograd.backward((y, state), weights)
    return y.detach(), state.detach(), *(t.grad for t in leaves)


def assert_close(
    left: tuple[Tensor, ...], right: tuple[Tensor, ...], *, tolerance: float, least_scale: float = 0.0
) -> None:
    """Compare each pair relative to the largest magnitude of the right one."""
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape
        assert bool(a.isfinite().all())
        assert float((a.double() - b).abs().max()) <= tolerance * max(least_scale, float(b.abs().max()))


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
    expected, after = np.empty_like(x), np.empty_like(state)
    for b in range(2):
        for h, group in enumerate((0, 0, 1, 1)):
            now = state[b, h].copy()
            for t in range(6):
                now = np.exp(dt[b, t, h] * A[h]) * now + dt[b, t, h] * np.outer(x[b, t, h], B[b, t, group])
                expected[b, t, h] = now @ C[b, t, group] + D[h] * x[b, t, h]
            after[b, h] = now
    y, end = scan(data, "naive")
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(end.numpy(), after, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d_state", WIDTHS)
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_chunked_equals_naive_in_output_state_and_all_gradients(head_dim: int, d_state: int) -> None:
    for n_bars in LENGTHS:
        for n_groups in (1, 2):
            data = inputs(n_bars, n_groups=n_groups, n_heads=2, head_dim=head_dim, d_state=d_state)
            # The first row starts without a state, the second with one.
            data.state[0] = 0.0
            assert_close(gradients(data, "chunked"), gradients(data, "naive"), tolerance=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(("head_dim", "d_state"), [(8, 8), (24, 48), (32, 32), (64, 64)])
def test_chunked_in_fewer_digits_is_near_the_float64_recurrence(
    head_dim: int, d_state: int, dtype: torch.dtype, tolerance: float
) -> None:
    for n_bars in (1, 17, 100, 257):
        data = inputs(n_bars, n_groups=2, head_dim=head_dim, d_state=d_state)
        rounded = Inputs(*(t.to(dtype) for t in data))
        expected = gradients(Inputs(*(t.double() for t in rounded)), "naive")
        found = gradients(rounded, "chunked")
        assert {t.dtype for t in found} == {dtype}
        assert_close(found, expected, tolerance=tolerance)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_chunks_of_any_length_give_the_same_numbers(chunk: int) -> None:
    data = inputs(50, n_groups=2)
    x, dt, A, B, C, D, state = data
    y, end = ssd_scan(x, dt, A, B, C, D, initial_state=state, return_final_state=True, impl="chunked", chunk=chunk)
    expected_y, expected_end = scan(data, "naive")
    torch.testing.assert_close(y, expected_y, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, expected_end, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="chunk = 0; expected at least 1 bar"):
        ssd_scan(x, dt, A, B, C, chunk=0)


def test_chunked_equals_naive_with_a_group_for_each_head() -> None:
    data = inputs(33, n_groups=4)
    assert_close(gradients(data, "chunked"), gradients(data, "naive"), tolerance=1e-12)


@pytest.mark.parametrize("impl", IMPLS)
def test_each_head_reads_the_group_of_its_neighbours(impl: str) -> None:
    data = inputs(40, n_groups=2)
    leaves = leaves_of(data)
    alone = []
    for h, group in enumerate((0, 0, 1, 1)):
        x, dt, A, B, C, D, state = leaves
        head, its = slice(h, h + 1), slice(group, group + 1)
        one = Inputs(x[:, :, head], dt[:, :, head], A[head], B[:, :, its], C[:, :, its], D[head], state[:, head])
        alone.append(scan(one, impl)[0])
    y = torch.cat(alone, 2)
    y.square().sum().backward()
    together = leaves_of(data)
    expected = scan(together, impl)[0]
    expected.square().sum().backward()
    assert_close(
        (y.detach(), *(t.grad for t in leaves)), (expected.detach(), *(t.grad for t in together)), tolerance=1e-12
    )


@pytest.mark.parametrize(("impl", "n_bars"), [("naive", 4), ("chunked", 17)])
def test_gradients_pass_the_finite_difference_check(impl: str, n_bars: int) -> None:
    data = tuple(t.requires_grad_() for t in inputs(n_bars, n_heads=2, head_dim=2, d_state=2))
    assert torch.autograd.gradcheck(lambda *t: scan(Inputs(*t), impl), data)


@pytest.mark.parametrize("total", [-200.0, -16000.0])
@pytest.mark.parametrize("n_sinking", [1, 16, 32])
def test_gradients_stay_finite_and_right_where_a_chunk_decays_beyond_the_range_of_exp(
    total: float, n_sinking: int
) -> None:
    data = inputs(64, head_dim=20)
    dt = torch.full((2, 64, 4), 0.01, dtype=torch.float64)
    dt[:, 5 : 5 + n_sinking] = 1.0
    data = data._replace(dt=dt, A=torch.full((4,), total / n_sinking, dtype=torch.float64))
    # What is left of such a decay is no magnitude to be relative to.
    assert_close(gradients(data, "chunked"), gradients(data, "naive"), tolerance=1e-12, least_scale=1.0)


@pytest.mark.parametrize("impl", IMPLS)
def test_bars_of_no_time_leave_the_state_alone_but_have_a_gradient(impl: str) -> None:
    still = torch.tensor([0, 3, 4, 20, 49])
    moving = torch.tensor([t for t in range(50) if t not in still])
    data = inputs(50)
    data.dt[:, still] = 0.0
    x, dt, A, B, C, D, state = data
    without = Inputs(x[:, moving], dt[:, moving], A, B[:, moving], C[:, moving], D, state)
    y, end, *grads = gradients(data, impl)
    expected, expected_end = scan(without, "naive")
    assert_close((y[:, moving], end), (expected, expected_end), tolerance=1e-12)
    assert_close(tuple(grads), gradients(data, "naive")[2:], tolerance=1e-12)
    assert float(grads[1][:, still].abs().min()) > 0.0


@pytest.mark.parametrize("impl", IMPLS)
def test_a_run_in_two_parts_with_the_state_passed_on_equals_one_run(impl: str) -> None:
    data = inputs(100, n_groups=2)
    leaves = leaves_of(data)

    def part(start: int, stop: int, state: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, A, B, C, D, _ = leaves
        cut = Inputs(x[:, start:stop], dt[:, start:stop], A, B[:, start:stop], C[:, start:stop], D, state)
        return scan(cut, impl)

    first, state = part(0, 37, leaves.state)
    second, state = part(37, 100, state)
    (torch.cat([first, second], 1).square().sum() + state.sum()).backward()
    parts = [torch.cat([first, second], 1).detach(), state.detach(), *(t.grad for t in leaves)]

    whole = leaves_of(data)
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


def bits(data: Inputs, *, grad_y: Tensor) -> tuple[Tensor, ...]:
    """Return output, state and gradients of inputs in the memory layout they have."""
    leaves = Inputs(*(t.detach().requires_grad_() for t in data))
    y, state = scan(leaves, "chunked")
    return y, state, *torch.autograd.grad((y, state), leaves, (grad_y, torch.ones_like(state)))


def sliced(t: Tensor) -> Tensor:
    wide = torch.full((*t.shape[:-1], t.shape[-1] + 3), torch.nan, dtype=t.dtype)
    wide[..., 2:-1] = t
    return wide[..., 2:-1]


def every_other(t: Tensor) -> Tensor:
    return t.repeat_interleave(2, 1)[:, ::2] if t.dim() > 1 else t.repeat_interleave(2)[::2]


def transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT if t.dim() > 1 else t.repeat_interleave(2)[::2]


@pytest.mark.parametrize("layout", [sliced, every_other, transposed])
@pytest.mark.parametrize("n_bars", [32, 40])
def test_other_layouts_give_the_bits_of_contiguous_tensors(n_bars: int, layout: Callable[[Tensor], Tensor]) -> None:
    data = inputs(n_bars, n_groups=2, head_dim=16, d_state=16)
    views = Inputs(*(layout(t) for t in data))
    assert not views.x.is_contiguous()
    grad_y = torch.randn(data.x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for a, b in zip(bits(views, grad_y=layout(grad_y)), bits(data, grad_y=grad_y), strict=True):
        assert torch.equal(a, b)


def test_expanded_tensors_give_the_bits_of_contiguous_ones() -> None:
    data = inputs(40, n_groups=2, head_dim=16, d_state=16)
    views = Inputs(*(t[:1].expand(t.shape) for t in data))
    grad_y = torch.tensor(1.0, dtype=torch.float64).expand(data.x.shape)
    copies = Inputs(*(t.contiguous() for t in views))
    for a, b in zip(bits(views, grad_y=grad_y), bits(copies, grad_y=grad_y.contiguous()), strict=True):
        assert torch.equal(a, b)


def test_two_backward_passes_give_the_same_bits() -> None:
    data = inputs(50, n_groups=2)
    for a, b in zip(gradients(data, "chunked"), gradients(data, "chunked"), strict=True):
        assert torch.equal(a, b)


def test_an_exported_scan_equals_the_recurrence_at_lengths_it_was_not_traced_with() -> None:
    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            return scan(Inputs(*tensors), "auto")

    bars = {1: torch.export.Dim.AUTO}
    axes = (bars, bars, None, bars, bars, None, None)
    exported = torch.export.export(Module(), tuple(inputs(50, n_groups=2)), dynamic_shapes=(axes,)).module()
    # torch.export guards against lengths that fill their chunks; the ONNX graph, which drops guards, has its own tests.
    for n_bars in (17, 33, 257):
        data = inputs(n_bars, n_groups=2)
        assert_close(exported(*data), scan(data, "naive"), tolerance=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_compiled_without_a_graph_break_it_gives_the_same_numbers() -> None:
    def run(compiled: bool) -> tuple[Tensor, ...]:
        leaves = leaves_of(inputs(70, n_groups=2, head_dim=32))
        backend = "inductor" if shutil.which("g++") else "aot_eager"
        form = torch.compile(scan, fullgraph=True, backend=backend) if compiled else scan
        y, state = form(leaves, "chunked")
        (y.sin().sum() + state.sum()).backward()
        return y.detach(), state.detach(), *(t.grad for t in leaves)

    assert_close(run(True), run(False), tolerance=1e-12)


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
