"""The CUDA scan as a torch operator, its kernels compiled for the CPU; the door's choice; how the work is cut."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda_shim.shim_runner import Shim, shim_fixture  # noqa: F401
from torch import Tensor
from torch_samples import one_thread  # noqa: F401

from foxflow_mamba2 import ssd
from foxflow_mamba2.ssd import ssd_scan
from foxflow_mamba2.ssd.cuda import driver, nvrtc, operator, ssd_cuda
from foxflow_mamba2.ssd.cuda.geometry import WIDTHS, Variant, blocks, heads_per_block, padded, shared_bytes
from foxflow_mamba2.ssd.cuda.nvrtc import KernelError
from foxflow_mamba2.ssd.cuda.operator import ssd_backward, ssd_forward

F64 = torch.float64
_TOO_WIDE = "head width 72 and state width 8; the CUDA scan takes 1 to 64; the slower chunked scan runs instead"
_WARNED = "no compiler; the slower chunked scan runs instead"


def tensors(n_bars: int = 9, *, width: int = 8, n_batch: int = 1, n_heads: int = 2) -> list[Tensor]:
    g = torch.Generator().manual_seed(n_bars)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=F64, generator=g)

    drawn = [
        uniform(n_batch, n_bars, n_heads, width) - 0.5,
        uniform(n_batch, n_bars, n_heads),
        -uniform(n_heads) - 0.5,
        uniform(n_batch, n_bars, 1, width) - 0.5,
        uniform(n_batch, n_bars, 1, width) - 0.5,
        uniform(n_heads),
        uniform(n_batch, n_heads, width, width) - 0.5,
    ]
    return [t.requires_grad_() for t in drawn]


def test_gradients_pass_the_finite_difference_check(shim: Shim) -> None:
    assert torch.autograd.gradcheck(ssd_cuda, tensors(3, width=2), eps=1e-6)


def test_the_operators_pass_torchs_own_checks(shim: Shim) -> None:
    # Schema, autograd registration, shapes without data, tracing with fixed and with free sizes.
    torch.library.opcheck(ssd_forward, tuple(tensors(width=16)), {"save": True})
    data = [t.detach() for t in tensors(width=16)]
    y, final, saved = ssd_forward(*data, save=True)
    assert saved.shape == (1, 1, 2, 16, 16)
    torch.library.opcheck(ssd_backward, (*data[:6], saved, torch.ones_like(y), torch.ones_like(final)))


def test_compiled_without_a_graph_break_it_gives_the_same_numbers(shim: Shim) -> None:
    def loss(*inputs: Tensor) -> Tensor:
        y, final = ssd_cuda(*inputs)
        return y.sin().sum() + final.sum()

    eager, compiled = tensors(20), tensors(20)
    loss(*eager).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(*compiled).backward()
    for left, right in zip(eager, compiled, strict=True):
        assert torch.equal(left.grad, right.grad)


def test_no_state_is_saved_where_no_gradient_is_wanted(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[bool] = []

    def spy(*inputs: Tensor, save: bool) -> Any:
        saves.append(save)
        return ssd_forward(*inputs, save=save)

    monkeypatch.setattr("foxflow_mamba2.ssd.cuda.ssd_forward", spy)
    ssd_cuda(*tensors())
    ssd_cuda(*(t.detach() for t in tensors()))
    with torch.no_grad():
        ssd_cuda(*tensors())
    assert saves == [True, False, False]


def test_a_backward_pass_without_saved_states_is_refused(shim: Shim) -> None:
    y, _, _ = ssd_forward(*tensors(width=16), save=False)
    with pytest.raises(ValueError, match="save=True"):
        y.sum().backward()


def test_an_unused_output_has_a_gradient_of_zero(shim: Shim) -> None:
    data = tensors()
    ssd_cuda(*data)[1].sum().backward()
    assert torch.equal(data[4].grad, torch.zeros_like(data[4]))
    assert float(data[0].grad.abs().min()) > 0


def test_an_empty_batch_gives_empty_outputs_and_gradients_of_zero(shim: Shim) -> None:
    data = tensors(n_batch=0)
    y, final = ssd_cuda(*data)
    assert (y.shape, final.shape) == ((0, 9, 2, 8), (0, 2, 8, 8))
    y.sum().backward()
    assert torch.equal(data[2].grad, torch.zeros_like(data[2]))


def test_a_scan_of_no_bars_is_refused_by_the_door_and_by_both_operators(shim: Shim) -> None:
    data = [t.detach() for t in tensors(0, width=16)]
    for impl in ("cuda", "chunked", "naive"):
        with pytest.raises(ValueError, match="x has 0 bars; expected at least 1"):
            ssd_scan(*data[:6], initial_state=data[6], impl=impl)
    with pytest.raises(ValueError, match="x has 0 bars; expected at least 1"):
        ssd_forward(*data, save=True)
    saved = data[6].new_empty(1, 0, 2, 16, 16)
    with pytest.raises(ValueError, match="x has 0 bars; expected at least 1"):
        ssd_backward(*data[:6], saved, data[0], data[6])


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (1, Tensor.float, "dt is torch.float32 on cpu; expected torch.float64 on cpu, as x is"),
        (4, lambda t: t.to("meta"), "C is torch.float64 on meta; expected torch.float64 on cpu, as x is"),
        (6, lambda t: t[..., :4], r"initial_state has shape \(1, 2, 8, 4\)"),
    ],
)
def test_tensors_that_do_not_fit_each_other_are_refused_by_name_before_a_launch(
    shim: Shim, index: int, change: Callable[[Tensor], Tensor], message: str
) -> None:
    data = [t.detach() for t in tensors()]
    data[index] = change(data[index])
    with pytest.raises(ValueError, match=message):
        ssd_cuda(*data)
    assert not shim.heads


@pytest.mark.parametrize(
    ("dtype", "width", "message"),
    [(torch.float16, 8, "x is torch.float16"), (F64, 72, "head width 72"), (F64, 8, "tensors on cpu")],
)
def test_tensors_that_no_kernel_takes_are_refused(dtype: torch.dtype, width: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.*use impl='chunked'"):
        ssd_cuda(*(t.detach().to(dtype) for t in tensors(width=width)))


def test_the_door_leaves_cpu_tensors_to_the_chunked_form(shim: Shim) -> None:
    data = [t.detach() for t in tensors()]
    auto = ssd_scan(*data[:6], initial_state=data[6])
    assert not shim.heads
    assert torch.equal(auto, ssd_scan(*data[:6], initial_state=data[6], impl="chunked"))
    ssd_scan(*data[:6], initial_state=data[6], impl="cuda")
    assert shim.heads


@pytest.fixture(autouse=True)
def nothing_known_of_the_devices() -> Iterator[None]:
    ssd._missing.cache_clear()
    ssd._warn_once.cache_clear()
    yield
    ssd._missing.cache_clear()
    ssd._warn_once.cache_clear()


@pytest.fixture
def choice() -> Callable[..., str]:
    """Return the door's choice for tensors that say they are on a GPU."""

    def of(dtype: torch.dtype = torch.float32, width: int = 32) -> str:
        fake = SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype, shape=(1, 1, 1, width))
        return ssd._fastest(fake, fake)

    return of


def test_the_door_chooses_the_kernel_for_cuda_tensors(choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "missing", lambda _: None)
    assert choice() == "cuda"


def test_without_nvrtc_the_door_warns_once_and_names_what_to_install(
    choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> nvrtc.Compiler:
        raise KernelError(f"NVRTC is not installed; install it: {nvrtc.INSTALL}")

    monkeypatch.setattr(nvrtc, "compiler", absent)
    monkeypatch.setattr(driver, "architecture", lambda _: 90)
    with pytest.warns(RuntimeWarning, match="pip install nvidia-cuda-nvrtc") as seen:
        assert [choice(), choice(width=16)] == ["chunked", "chunked"]
    assert len(seen) == 1


def test_a_rocm_build_of_torch_falls_back(choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its devices, too, are of type "cuda".
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.warns(RuntimeWarning, match="built for ROCm"):
        assert choice() == "chunked"


def test_a_device_newer_than_nvrtc_falls_back_with_the_upgrade_named(
    choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = SimpleNamespace(name="12.4", version=(12, 4), architectures=lambda: [80, 90])
    monkeypatch.setattr(nvrtc, "compiler", lambda: old)
    monkeypatch.setattr(driver, "architecture", lambda _: 120)
    with pytest.warns(RuntimeWarning, match=r"sm_120; NVRTC 12.4 knows sm_90 at most; pip install .* --upgrade"):
        assert choice() == "chunked"


def test_tensors_too_wide_for_a_kernel_fall_back_with_a_warning(choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "missing", lambda _: None)
    with pytest.warns(RuntimeWarning, match="head width 128"):
        assert choice(width=128) == "chunked"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choice(width=64) == "cuda"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("reason", "width", "warned"),
    [(None, 8, []), ("no compiler", 8, [_WARNED]), (None, 72, [_TOO_WIDE])],
)
def test_the_choice_is_a_constant_of_a_compiled_graph(
    reason: str | None, width: int, warned: list[str], dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(driver, "missing", lambda _: reason)

    def one_or_minus_one(x: Tensor) -> Tensor:
        against = ssd._reason_against_cuda(torch.device("cuda", 0), x.dtype, x.shape[-1], 8)
        return x - 1 if against else x + 1

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", RuntimeWarning)
        compiled = torch.compile(one_or_minus_one, fullgraph=True, backend="eager", dynamic=dynamic)
        found = compiled(torch.zeros(width))
    assert float(found[0]) == (-1.0 if warned else 1.0)
    assert [str(w.message) for w in seen if "chunked scan runs instead" in str(w.message)] == warned


def test_the_plugin_is_imported_without_torchs_compiler() -> None:
    # It takes two seconds, which every process of a walk-forward would pay.
    code = "import sys, foxflow_mamba2.model; print(*(m for m in sys.modules if m.startswith('torch._dynamo')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_every_variant_fits_a_block_into_the_smallest_device() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for P in WIDTHS:
            for N in WIDTHS:
                for backward in (False, True):
                    assert shared_bytes(Variant(dtype, P, N), 1, backward=backward) <= 99 * 1024


def test_heads_in_a_block_divide_the_group_and_leave_room_for_a_second_block() -> None:
    # In KB, of which the driver keeps one of each block: two of 15 take 32, and a device that gives 31 has 32.
    per_head = {
        limit: heads_per_block(8, lambda heads: 15 * 1024 * heads, limit * 1024)
        for limit in (15, 31, 60, 61, 120, 121, 240, 241, 9999)
    }
    assert per_head == {15: 1, 31: 1, 60: 1, 61: 2, 120: 2, 121: 4, 240: 4, 241: 8, 9999: 8}
    assert heads_per_block(12, lambda heads: heads, 10_000) == 6
    assert heads_per_block(7, lambda heads: heads, 10_000) == 7
    assert heads_per_block(11, lambda heads: heads, 10_000) == 1
    with pytest.raises(ValueError, match="needs 15 bytes of shared memory; the device gives 14"):
        heads_per_block(1, lambda heads: 15 * heads, 14)


def test_blocks_lie_along_the_axis_that_takes_more_than_65535() -> None:
    # Batch by heads is over the 65,535 of the other axes; the length does not enter.
    assert blocks(4096, 16, 1) == 65_536
    assert blocks(4096, 16, 8) == 8192
    assert blocks(2**20, 16, 8) == 2**21
    assert blocks(2**31 - 1, 8, 8) == 2**31 - 1
    with pytest.raises(ValueError, match="a grid has 2147483647; split the batch"):
        blocks(2**31, 8, 8)


def test_a_width_is_padded_to_the_next_with_a_kernel() -> None:
    assert [padded(w) for w in (1, 16, 17, 32, 33, 64)] == [16, 16, 32, 32, 64, 64]


def test_a_runner_of_another_device_is_not_asked(shim: Shim) -> None:
    assert operator._runner(torch.device("cpu")) is shim
    with pytest.raises(ValueError, match="tensors on meta"):
        operator._runner(torch.device("meta"))
