"""The CUDA kernels, compiled for the CPU, against the recurrence: output, final state and every gradient."""

import re
from collections.abc import Callable

import pytest
import torch
from cuda_shim.shim_runner import SHAPES, SOURCE, Shim, shim_fixture  # noqa: F401
from torch import Tensor
from torch_samples import Inputs, one_thread  # noqa: F401

from foxflow_mamba2.ssd import ssd_scan
from foxflow_mamba2.ssd.cuda import ssd_cuda
from foxflow_mamba2.ssd.cuda.geometry import Variant, shared_bytes
from foxflow_mamba2.ssd.cuda.operator import ssd_forward
from foxflow_mamba2.ssd.naive import ssd_naive

LENGTHS = (1, 2, 15, 16, 17, 31, 33, 64, 100, 257)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 1e-2}


def inputs(
    n_bars: int,
    *,
    head_dim: int = 8,
    d_state: int = 8,
    n_batch: int = 2,
    n_heads: int = 4,
    n_groups: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Inputs:
    g = torch.Generator().manual_seed(n_bars + 1000 * n_groups)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    drawn = Inputs(
        normal(n_batch, n_bars, n_heads, head_dim),
        torch.exp(normal(n_batch, n_bars, n_heads) - 2.0),
        -torch.exp(normal(n_heads)),
        normal(n_batch, n_bars, n_groups, d_state),
        normal(n_batch, n_bars, n_groups, d_state),
        normal(n_heads),
        normal(n_batch, n_heads, head_dim, d_state),
    )
    return Inputs(*(t.to(dtype) for t in drawn))


def gradients(
    data: Inputs, scan: Callable[..., tuple[Tensor, Tensor]], *, rounded_to: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Return the output, the final state and the gradient of every input, of a loss that reads all outputs."""
    leaves = Inputs(*(t.detach().clone().requires_grad_() for t in data))
    y, final = scan(*leaves)
    g = torch.Generator().manual_seed(7)
    drawn = (torch.randn(t.shape, dtype=torch.float64, generator=g) for t in (y, final))
    # The gradient of a bfloat16 output is one itself: the recurrence has to start from the same numbers.
    weight_y, weight_final = (t.to(rounded_to).double() for t in drawn)
    ((y.double() * weight_y).sum() + (final.double() * weight_final).sum()).backward()
    found = {name: leaf.grad for name, leaf in zip(Inputs._fields, leaves, strict=True)}
    return {"y": y.detach(), "final": final.detach(), **found}


def errors(data: Inputs) -> dict[str, float]:
    """Return each tensor's largest error against the recurrence in float64, relative to its largest magnitude."""
    dtype = data.x.dtype
    expected = gradients(Inputs(*(t.double() for t in data)), ssd_naive, rounded_to=dtype)
    found = gradients(data, ssd_cuda, rounded_to=dtype)
    return {name: float((found[name].double() - e).abs().max() / e.abs().max()) for name, e in expected.items()}


def assert_right(data: Inputs) -> None:
    found = errors(data)
    print(data.x.dtype, tuple(data.x.shape), tuple(data.B.shape), {k: f"{v:.1e}" for k, v in found.items()})
    assert max(found.values()) <= TOLERANCE[data.x.dtype], found


def assert_same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("n_bars", LENGTHS)
def test_kernels_equal_naive_at_every_length(shim: Shim, n_bars: int, n_groups: int) -> None:
    assert_right(inputs(n_bars, n_groups=n_groups))


@pytest.mark.parametrize(("head_dim", "d_state"), SHAPES)
def test_kernels_equal_naive_at_every_width(shim: Shim, head_dim: int, d_state: int) -> None:
    for n_bars, n_groups in ((1, 2), (37, 1), (66, 2)):
        data = inputs(n_bars, head_dim=head_dim, d_state=d_state, n_batch=1, n_heads=2, n_groups=n_groups)
        assert_right(data)


def test_kernels_equal_naive_at_widths_without_a_kernel_of_their_own(shim: Shim) -> None:
    assert_right(inputs(20, head_dim=3, d_state=5))
    assert_right(inputs(20, head_dim=12, d_state=9))


@pytest.mark.parametrize("width", [8, 32, 64])
def test_float32_stays_within_its_rounding(shim: Shim, width: int) -> None:
    assert_right(inputs(70, head_dim=width, d_state=width, n_heads=2, dtype=torch.float32))


@pytest.mark.parametrize("n_bars", [37, 256])
def test_bfloat16_inputs_lose_no_more_than_one_rounding_at_any_length(shim: Shim, n_bars: int) -> None:
    assert_right(inputs(n_bars, n_heads=2, n_batch=1, dtype=torch.bfloat16))


def test_bfloat16_at_the_reference_width(shim: Shim) -> None:
    assert_right(inputs(40, head_dim=32, d_state=32, n_heads=2, n_batch=1, dtype=torch.bfloat16))


def test_a_shorter_block_gives_the_same_numbers_as_a_longer_one(shim: Shim) -> None:
    for limit, heads in ((227, 4), (60, 2), (17, 1)):
        shim.limit = limit * 1024
        shim.heads.clear()
        assert_right(inputs(40, n_groups=1))
        assert shim.heads[-1] == heads


def test_no_schedule_of_the_warps_changes_a_bit(shim: Shim) -> None:
    data = inputs(100, n_groups=2)
    first = gradients(data, ssd_cuda)
    for seed in (2, 3):
        shim.seed = seed
        assert_same_bits(gradients(data, ssd_cuda), first)


def test_two_runs_give_the_same_bits_and_a_row_the_same_in_any_batch(shim: Shim) -> None:
    data = inputs(40)
    first = gradients(data, ssd_cuda)
    assert_same_bits(gradients(data, ssd_cuda), first)
    one = Inputs(*(t if t.dim() == 1 else t[:1] for t in data))
    y, final = ssd_cuda(*one)
    assert torch.equal(y, first["y"][:1])
    assert torch.equal(final, first["final"][:1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_stay_right_where_a_chunk_decays_beyond_the_range_of_exp(shim: Shim, dtype: torch.dtype) -> None:
    # 16 bars of -12.5: the chunk decays by exp(-200), then by exp(-16000), which is zero.
    for rate in (-12.5, -1000.0):
        data = inputs(64, dtype=dtype)._replace(
            dt=torch.ones(2, 64, 4, dtype=dtype), A=torch.full((4,), rate, dtype=dtype)
        )
        found = gradients(data, ssd_cuda, rounded_to=dtype)
        assert all(bool(t.isfinite().all()) for t in found.values())
        expected = gradients(Inputs(*(t.double() for t in data)), ssd_naive, rounded_to=dtype)
        for name, value in expected.items():
            error = float((found[name].double() - value).abs().max())
            # The gradients of dt A vanish with exp(-12.5): they are judged beside those of dt, their sum over bars.
            scale = max(float(value.abs().max()), 1.0)
            assert error <= TOLERANCE[dtype] * scale, (name, rate)


def test_strided_sliced_and_expanded_tensors_give_the_bits_of_contiguous_ones(shim: Shim) -> None:
    packed = torch.randn(2, 40, 32 + 8 + 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, B, C = packed.split([32, 8, 8], -1)
    _, _, A, _, _, D, state = inputs(40)
    dt = torch.rand(2, 4, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    views = (x.unflatten(-1, (4, 8)), dt, A, B.unsqueeze(2), C.unsqueeze(2), D[:1].expand(4), state.mT.contiguous().mT)

    def run(tensors: tuple[Tensor, ...], *, expanded: bool) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        y, final = ssd_cuda(*leaves)
        # The gradient of a plain sum is one number expanded with strides of zero.
        weights = torch.ones(()).double().expand(y.shape) if expanded else torch.ones(y.shape).double()
        torch.autograd.backward([y, final], [weights, torch.ones_like(final)])
        return [y.detach(), final.detach(), *(t.grad for t in leaves)]

    strided = run(views, expanded=True)
    contiguous = run(tuple(t.contiguous() for t in views), expanded=False)
    for left, right in zip(strided, contiguous, strict=True):
        assert torch.equal(left, right)


def test_a_run_in_two_parts_with_the_state_passed_on_equals_one_run(shim: Shim) -> None:
    data = inputs(100, n_groups=2)

    def parts(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, A, B, C, D, state = tensors
        first, state = ssd_cuda(x[:, :37], dt[:, :37], A, B[:, :37], C[:, :37], D, state)
        second, state = ssd_cuda(x[:, 37:], dt[:, 37:], A, B[:, 37:], C[:, 37:], D, state)
        return torch.cat([first, second], 1), state

    whole = gradients(data, ssd_cuda)
    for name, value in gradients(data, parts).items():
        assert float((value - whole[name]).abs().max()) <= 1e-12 * float(whole[name].abs().max()), name


def test_without_a_skip_or_an_initial_state_the_door_gives_the_recurrence(shim: Shim) -> None:
    x, dt, A, B, C, _, _ = inputs(20)
    expected = ssd_scan(x, dt, A, B, C, impl="naive")
    found = ssd_scan(x, dt, A, B, C, impl="cuda")
    assert float((found - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


def barriers() -> list[tuple[str, int]]:
    return [
        (path.name, number)
        for path in sorted(SOURCE.glob("*.cuh"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"__sync(threads|warp)\(\)", line)
    ]


def test_the_barriers_are_found() -> None:
    assert len(barriers()) == 12


@pytest.mark.parametrize(("file", "line"), barriers())
def test_a_missing_barrier_is_caught_under_every_schedule(shim: Shim, file: str, line: int) -> None:
    data = inputs(40, n_batch=1, n_heads=2)
    for seed in (1, 2, 3):
        shim.seed = seed
        with shim.without_barrier(file, line), pytest.raises(AssertionError, match=r"race|before written"):
            gradients(data, ssd_cuda)
    gradients(data, ssd_cuda)


def test_an_access_outside_a_tensor_or_the_blocks_memory_is_caught(shim: Shim) -> None:
    x, dt, A, B, C, D, state = inputs(20)
    out = [torch.empty_like(x), torch.empty_like(state), torch.empty(0, dtype=torch.float64)]
    variant = Variant(torch.float64, 8, 8)

    def forward(tensors: list[Tensor], *, n_bytes: int) -> None:
        shim.launch(variant, "ssd_forward", n_blocks=2, heads=4, n_bytes=n_bytes, shape=(2, 20, 4, 1), tensors=tensors)

    enough = shared_bytes(variant, 4, backward=False)
    given = [x, dt, A, B, C, D, state, *out]
    forward(given, n_bytes=enough)
    with pytest.raises(AssertionError, match="shared access out of bounds"):
        forward(given, n_bytes=enough - 8)
    with pytest.raises(AssertionError, match="global access out of bounds"):
        forward([x[:1].contiguous(), *given[1:]], n_bytes=enough)
    with pytest.raises(AssertionError, match="output element never written"):
        forward([*given[:8], torch.empty(600, dtype=torch.float64), given[9]], n_bytes=enough)


def test_shared_memory_is_used_to_its_last_byte(shim: Shim) -> None:
    # One element less is out of bounds, so the sizes that Python asks for are those of the kernels' layout.
    x, dt, A, B, C, D, state = inputs(4, n_batch=1)
    y, final, saved = ssd_forward(x, dt, A, B, C, D, state, save=True)
    variant = Variant(torch.float64, 8, 8)
    outs = [torch.empty_like(t) for t in (x, dt, D[None], B, C, D[None], state)]
    with pytest.raises(AssertionError, match="shared access out of bounds"):
        shim.launch(
            variant,
            "ssd_backward",
            n_blocks=1,
            heads=4,
            n_bytes=shared_bytes(variant, 4, backward=True) - 8,
            shape=(1, 4, 4, 1),
            tensors=[x, dt, A, B, C, D, saved, y, final, *outs],
        )


def test_no_header_is_included_and_no_atomic_used() -> None:
    for path in SOURCE.glob("*.cuh"):
        assert not re.search(r"#include|atomic[A-Z]", path.read_text()), path.name
