"""The CUDA kernels against the recurrence: output, final state and every gradient.

Each case runs twice: compiled for the CPU and, where torch finds a GPU, on the device (`-m gpu`).
"""

from itertools import product

import pytest
import torch
from cuda_shim.shim_runner import place_fixture, shim_fixture  # noqa: F401
from scan_checks import TOLERANCE, assert_right, assert_same_bits, gradients, inputs
from torch import Tensor
from torch_samples import Inputs, one_thread  # noqa: F401

from foxflow_mamba2.ssd import ssd_scan
from foxflow_mamba2.ssd.cuda import ssd_cuda
from foxflow_mamba2.ssd.cuda.geometry import WIDTHS
from foxflow_mamba2.ssd.naive import ssd_naive

LENGTHS = (1, 2, 15, 16, 17, 31, 33, 64, 100, 257)
# Those without a kernel of their own are padded with zeros: 8, 24 and 48.
TESTED_WIDTHS = (8, 16, 24, 32, 48, 64)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("d_state", TESTED_WIDTHS)
@pytest.mark.parametrize("head_dim", TESTED_WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_equal_naive(place: torch.device, dtype: torch.dtype, head_dim: int, d_state: int) -> None:
    """Every pair of widths in every type, one row and two heads: they share a block, or with two groups lie in two.

    In float64 the whole product: each length with 1 and 2 groups, with and without an initial state, at each pair. In
    float32 and bfloat16 each length once at each pair; groups and state rotate, so that over the 36 pairs each length
    meets each of their four combinations nine times.
    """
    rotation = TESTED_WIDTHS.index(head_dim) * len(TESTED_WIDTHS) + TESTED_WIDTHS.index(d_state)
    for i, n_bars in enumerate(LENGTHS):
        combinations = tuple(product((1, 2), (True, False)))
        if dtype != torch.float64:
            combinations = (combinations[(rotation + i) % 4],)
        for n_groups, from_state in combinations:
            data = inputs(
                n_bars, head_dim=head_dim, d_state=d_state, n_batch=1, n_heads=2, n_groups=n_groups, dtype=dtype
            )
            assert_right(data, place=place, from_state=from_state)


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("n_bars", LENGTHS)
def test_kernels_equal_naive_at_every_length(place: torch.device, n_bars: int, n_groups: int) -> None:
    # Several rows and several heads a group: heads 0 and 1 read group 0, 2 and 3 group 1.
    assert_right(inputs(n_bars, n_groups=n_groups), place=place)


def test_kernels_equal_naive_at_uneven_widths(place: torch.device) -> None:
    for head_dim, d_state in ((1, 1), (3, 5), (12, 9), (33, 20)):
        assert_right(inputs(20, head_dim=head_dim, d_state=d_state), place=place)


@pytest.mark.parametrize("n_bars", [256, 1024])
def test_bfloat16_inputs_lose_no_more_than_one_rounding_at_any_length(place: torch.device, n_bars: int) -> None:
    assert_right(inputs(n_bars, n_heads=2, n_batch=1, dtype=torch.bfloat16), place=place)


def test_more_heads_than_a_block_holds_are_cut_into_blocks(place: torch.device) -> None:
    # 8 heads in a block: 16 take two blocks, whose gradients of B and C are added; 11 is prime.
    for n_heads in (16, 11):
        assert_right(inputs(20, n_heads=n_heads, n_batch=1), place=place)


def test_two_runs_give_the_same_bits_and_a_row_the_same_in_any_batch(place: torch.device) -> None:
    data = inputs(40)
    first = gradients(data, ssd_cuda, place=place)
    assert_same_bits(gradients(data, ssd_cuda, place=place), first)
    one = Inputs(*((t if t.dim() == 1 else t[:1]).to(place) for t in data))
    y, final = ssd_cuda(*one)
    assert torch.equal(y.cpu(), first["y"][:1])
    assert torch.equal(final.cpu(), first["final"][:1])
    # Rows in another order: their own gradients move with them. dA and dD are sums over rows.
    turned = gradients(Inputs(*(t if t.dim() == 1 else t.flip(0) for t in data)), ssd_cuda, place=place)
    assert torch.equal(turned["y"].flip(0), first["y"])


def test_two_backward_passes_of_one_graph_give_the_same_bits(place: torch.device) -> None:
    leaves = [t.to(place).requires_grad_() for t in inputs(70, n_groups=2)]
    y, final = ssd_cuda(*leaves)
    first, second = (torch.autograd.grad([y.sum(), final.sum()], leaves, retain_graph=True) for _ in range(2))
    for left, right in zip(first, second, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_stay_right_where_a_chunk_decays_beyond_the_range_of_exp(
    place: torch.device, dtype: torch.dtype
) -> None:
    # 16 bars of -12.5: the chunk decays by exp(-200), then by exp(-16000), which is zero; -8 is that of 64 bars.
    for rate in (-8.0, -12.5, -1000.0):
        data = inputs(64, dtype=dtype)._replace(
            dt=torch.ones(2, 64, 4, dtype=dtype), A=torch.full((4,), rate, dtype=dtype)
        )
        found = gradients(data, ssd_cuda, rounded_to=dtype, place=place)
        assert all(bool(t.isfinite().all()) for t in found.values())
        expected = gradients(Inputs(*(t.double() for t in data)), ssd_naive, rounded_to=dtype)
        for name, value in expected.items():
            error = float((found[name].double() - value).abs().max())
            # The gradients of dt A vanish with exp(-12.5): they are judged beside those of dt, their sum over bars.
            scale = max(float(value.abs().max()), 1.0)
            assert error <= TOLERANCE[dtype] * scale, (name, rate)


def test_bfloat16_gradients_are_finite_where_a_chunk_decays_by_exp_200(place: torch.device) -> None:
    data = inputs(64, dtype=torch.bfloat16)._replace(
        dt=torch.ones(2, 64, 4, dtype=torch.bfloat16), A=torch.full((4,), -12.5, dtype=torch.bfloat16)
    )
    found = gradients(data, ssd_cuda, rounded_to=torch.bfloat16, place=place)
    assert all(bool(t.isfinite().all()) for t in found.values())


def test_strided_sliced_and_expanded_tensors_give_the_bits_of_contiguous_ones(place: torch.device) -> None:
    packed = torch.randn(2, 40, 32 + 8 + 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, B, C = packed.to(place).split([32, 8, 8], -1)
    A, D, state = (t.to(place) for t in (inputs(40).A, inputs(40).D, inputs(40).state))
    drawn = torch.rand(2, 4, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    dt = drawn.to(place).transpose(1, 2)
    views = (x.unflatten(-1, (4, 8)), dt, A, B.unsqueeze(2), C.unsqueeze(2), D[:1].expand(4), state.mT.contiguous().mT)

    def run(tensors: tuple[Tensor, ...], *, expanded: bool) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        y, final = ssd_cuda(*leaves)
        # The gradient of a plain sum is one number expanded with strides of zero.
        one = torch.ones((), dtype=torch.float64, device=place)
        weights = one.expand(y.shape) if expanded else one.repeat(y.shape)
        torch.autograd.backward([y, final], [weights, torch.ones_like(final)])
        return [y.detach(), final.detach(), *(t.grad for t in leaves)]

    strided = run(views, expanded=True)
    contiguous = run(tuple(t.contiguous() for t in views), expanded=False)
    for left, right in zip(strided, contiguous, strict=True):
        assert torch.equal(left, right)


def test_a_transposed_gradient_of_the_output_gives_the_bits_of_a_contiguous_one(place: torch.device) -> None:
    leaves = [t.to(place).requires_grad_() for t in inputs(40)]
    y, _ = ssd_cuda(*leaves)
    weights = torch.randn(y.shape[::-1], dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(place)
    turned = torch.autograd.grad(y, leaves[:6], weights.permute(3, 2, 1, 0), retain_graph=True)
    straight = torch.autograd.grad(y, leaves[:6], weights.permute(3, 2, 1, 0).contiguous())
    for left, right in zip(turned, straight, strict=True):
        assert torch.equal(left, right)


def test_100_bars_as_37_and_63_with_the_state_passed_on_equal_one_run(place: torch.device) -> None:
    data = inputs(100, n_groups=2)

    def parts(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, A, B, C, D, state = tensors
        first, state = ssd_cuda(x[:, :37], dt[:, :37], A, B[:, :37], C[:, :37], D, state)
        second, state = ssd_cuda(x[:, 37:], dt[:, 37:], A, B[:, 37:], C[:, 37:], D, state)
        return torch.cat([first, second], 1), state

    whole = gradients(data, ssd_cuda, place=place)
    for name, value in gradients(data, parts, place=place).items():
        assert float((value - whole[name]).abs().max()) <= 1e-12 * float(whole[name].abs().max()), name


def test_bars_of_padding_with_a_step_of_zero_leave_the_final_state_alone(place: torch.device) -> None:
    data = inputs(33)
    # A limit of the step from below would let the state decay over the padding: it has to be applied before.
    clamped = data._replace(dt=data.dt.clamp(0.01, 0.1))
    padded = Inputs(*(torch.cat([t, torch.ones_like(t)], 1) if t.dim() > 2 else t for t in clamped))
    padded = padded._replace(dt=torch.cat([clamped.dt, torch.zeros_like(clamped.dt)], 1), state=clamped.state)
    expected = gradients(clamped, ssd_naive)["final"]
    _, final = ssd_cuda(*(t.to(place) for t in padded))
    assert float((final.cpu() - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
    _, short = ssd_cuda(*(t.to(place) for t in clamped))
    assert torch.equal(final, short)


def test_the_gradient_vanishes_where_a_limit_holds_the_step(place: torch.device) -> None:
    data = inputs(33)
    raw = data.dt.detach().to(place).requires_grad_()
    x, _, *rest = (t.to(place) for t in data)
    y, final = ssd_cuda(x, raw.clamp(0.05, 0.2), *rest)
    (y.sum() + final.sum()).backward()
    held = (raw < 0.05) | (raw > 0.2)
    assert 0 < int(held.sum()) < raw.numel()
    assert torch.equal(raw.grad[held], torch.zeros_like(raw.grad[held]))
    assert float(raw.grad[~held].abs().min()) > 0


def test_without_a_skip_or_an_initial_state_the_door_gives_the_recurrence(place: torch.device) -> None:
    x, dt, A, B, C, _, _ = (t.to(place) for t in inputs(20))
    expected = ssd_scan(x, dt, A, B, C, impl="naive")
    found = ssd_scan(x, dt, A, B, C, impl="cuda")
    assert float((found - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


def test_heads_read_the_group_they_lie_in(place: torch.device) -> None:
    # Against four scans of one head each: heads 0 and 1 read group 0, heads 2 and 3 group 1.
    x, dt, A, B, C, D, state = (t.to(place) for t in inputs(20, n_groups=2))
    y, final = ssd_cuda(x, dt, A, B, C, D, state)
    for head, group in enumerate((0, 0, 1, 1)):
        h, g = slice(head, head + 1), slice(group, group + 1)
        alone, end = ssd_cuda(x[:, :, h], dt[:, :, h], A[h], B[:, :, g], C[:, :, g], D[h], state[:, h])
        assert torch.equal(alone, y[:, :, h])
        assert torch.equal(end, final[:, h])


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements_are_addressed_to_the_last_row() -> None:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")
    n_batch, n_bars, n_heads, width = 4100, 1024, 16, 32
    assert n_batch * n_bars * n_heads * width > 2**31
    # x, y and what is saved, with room for torch's own.
    needed = 6 * n_batch * n_bars * n_heads * width * 2
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"the device has less than {needed >> 30} GiB free")
    last = inputs(n_bars, head_dim=width, d_state=width, n_batch=1, n_heads=n_heads, dtype=torch.bfloat16)
    rows = [t if t.dim() == 1 else t.expand(n_batch, *t.shape[1:]) for t in (t.to("cuda") for t in last)]
    # Rows of zeros but the last, so that an offset which wraps reads or writes a zero.
    x = torch.zeros(n_batch, *last.x.shape[1:], dtype=torch.bfloat16, device="cuda")
    x[-1:] = last.x.to("cuda")
    y, _ = ssd_cuda(x, *rows[1:6], torch.zeros_like(rows[6]))
    alone, _ = ssd_cuda(x[-1:], *(t if t.dim() == 1 else t[:1] for t in rows[1:6]), torch.zeros_like(rows[6][:1]))
    assert torch.equal(y[-1:], alone)
    assert not bool(y[:-1].any())


def test_every_tested_width_has_a_kernel_that_holds_it() -> None:
    assert set(WIDTHS) <= set(TESTED_WIDTHS)
    assert max(TESTED_WIDTHS) == max(WIDTHS)
