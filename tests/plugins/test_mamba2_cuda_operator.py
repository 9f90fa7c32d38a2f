"""The CUDA scan as a torch operator, its kernels compiled for the CPU; the door's choice; how the work is cut."""

import ctypes
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
from foxflow_mamba2.ssd.cuda.geometry import WIDTHS, Variant, heads_per_block, padded, shared_bytes
from foxflow_mamba2.ssd.cuda.nvrtc import KernelError
from foxflow_mamba2.ssd.cuda.operator import ssd_backward, ssd_forward

F64 = torch.float64
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
    torch.library.opcheck(ssd_forward, tuple(tensors()), {"save": True})
    data = [t.detach() for t in tensors()]
    y, final, saved = ssd_forward(*data, save=True)
    assert saved.shape == (1, 1, 2, 8, 8)
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
    y, _, _ = ssd_forward(*tensors(), save=False)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.half(), "x is torch.float16"),
        (lambda t: t.repeat(*[1] * (t.dim() - 1), 9) if t.dim() == 4 else t, "head width 72"),
        (lambda t: t, "tensors on cpu"),
    ],
)
def test_tensors_that_no_kernel_takes_are_refused(change: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.*use impl='chunked'"):
        ssd_cuda(*(change(t.detach()) for t in tensors()))


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
    old = SimpleNamespace(name="12.4", architectures=lambda: [80, 90])
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


@pytest.mark.parametrize(("reason", "expected"), [(None, 1.0), ("no compiler", -1.0)])
def test_the_choice_is_a_constant_of_a_compiled_graph(
    reason: str | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(driver, "missing", lambda _: reason)

    def one_or_minus_one(x: Tensor) -> Tensor:
        against = ssd._reason_against_cuda(torch.device("cuda", 0), x.dtype, x.shape[-1], 8)
        return x - 1 if against else x + 1

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", RuntimeWarning)
        found = torch.compile(one_or_minus_one, fullgraph=True, backend="eager")(torch.zeros(8))
    assert float(found[0]) == expected
    assert [str(w.message) for w in seen if "no compiler" in str(w.message)] == ([_WARNED] if reason else [])


def test_every_variant_fits_a_block_into_the_smallest_device() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for P in WIDTHS:
            for N in WIDTHS:
                for backward in (False, True):
                    assert shared_bytes(Variant(dtype, P, N), 1, backward=backward) <= 99 * 1024


def test_heads_in_a_block_divide_the_group_and_leave_room_for_a_second_block() -> None:
    per_head = {
        limit: heads_per_block(8, lambda heads: 15 * heads, limit) for limit in (15, 30, 60, 119, 120, 240, 9999)
    }
    assert per_head == {15: 1, 30: 1, 60: 2, 119: 2, 120: 4, 240: 8, 9999: 8}
    assert heads_per_block(12, lambda heads: heads, 10_000) == 6
    assert heads_per_block(7, lambda heads: heads, 10_000) == 7
    assert heads_per_block(11, lambda heads: heads, 10_000) == 1
    with pytest.raises(ValueError, match="needs 15 bytes of shared memory; the device gives 14"):
        heads_per_block(1, lambda heads: 15 * heads, 14)


def test_a_width_is_padded_to_the_next_with_a_kernel() -> None:
    assert [padded(w) for w in (1, 8, 9, 33, 49, 64)] == [8, 8, 16, 48, 64, 64]


class FakeLibrary:
    """Takes the driver's calls and reads the launch parameters back through their addresses."""

    def __init__(self, *, fails: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails = fails

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_INVALID_VALUE"
                return 0
            if name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = 101376
            if name == "cuLaunchKernel":
                shape = (ctypes.c_longlong * 4).from_address(arguments[9][0])
                pointers = [ctypes.c_void_p.from_address(a).value for a in arguments[9][1:]]
                self.calls[-1] = (name, ([a.value for a in arguments[1:8]], list(shape), pointers))
            return 1 if name == self.fails else 0

        return call


@pytest.fixture
def on_fake_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(nvrtc, "cubin", lambda *_: b"cubin")


def launch(library: FakeLibrary, n_bytes: int) -> list[Tensor]:
    data = [torch.ones(3), torch.empty(0)]
    driver.Driver(library).launch(
        Variant(torch.float32, 8, 8),
        "ssd_forward",
        n_blocks=70_000,
        heads=4,
        n_bytes=n_bytes,
        shape=(1, 2, 3, 4),
        tensors=data,
    )
    return data


def test_the_driver_gets_the_shape_by_value_the_pointers_and_the_grid(on_fake_device: None) -> None:
    library = FakeLibrary()
    data = launch(library, 50_000)
    names = [name for name, _ in library.calls]
    loaded = ["cuModuleLoadData", "cuModuleGetFunction", "cuModuleGetFunction"]
    assert names == [*loaded, "cuFuncSetAttribute", "cuLaunchKernel"]
    # Blocks lie along the first axis alone, the only one that takes more than 65,535.
    grid, shape, pointers = library.calls[-1][1]
    assert grid == [70_000, 1, 1, 128, 1, 1, 50_000]
    assert shape == [1, 2, 3, 4]
    assert pointers == [data[0].data_ptr(), None]
    library.calls.clear()
    launch(library, 48 * 1024)
    assert "cuFuncSetAttribute" not in [name for name, _ in library.calls]


def test_the_driver_asks_the_device_for_its_shared_memory_once(on_fake_device: None) -> None:
    library = FakeLibrary()
    held = driver.Driver(library)
    assert [held.shared_limit(torch.device("cuda")) for _ in range(2)] == [101376, 101376]
    assert [name for name, _ in library.calls] == ["cuDeviceGet", "cuDeviceGetAttribute"]


def test_a_failing_driver_call_is_named(on_fake_device: None) -> None:
    with pytest.raises(KernelError, match=r"cuLaunchKernel failed with code 1 \(CUDA_ERROR_INVALID_VALUE\)"):
        launch(FakeLibrary(fails="cuLaunchKernel"), 0)


def test_a_cubin_is_kept_by_source_options_and_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    compiled: list[tuple[str, int]] = []

    def compiler(version: str) -> SimpleNamespace:
        def run(variant: Variant, architecture: int) -> tuple[bytes, str]:
            compiled.append((variant.name, architecture))
            return b"%d" % len(compiled), ""

        return SimpleNamespace(name=version, compile=run)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "compiler", lambda: compiler("13.0"))
    variant = Variant(torch.float32, 32, 32)
    assert [nvrtc.cubin(variant, 90), nvrtc.cubin(variant, 90), nvrtc.cubin(variant, 80)] == [b"1", b"1", b"2"]
    monkeypatch.setattr(nvrtc, "compiler", lambda: compiler("13.1"))
    assert nvrtc.cubin(variant, 90) == b"3"
    monkeypatch.setattr(nvrtc, "source", lambda: "changed")
    assert nvrtc.cubin(variant, 90) == b"4"
    assert len(list((tmp_path / "foxflow" / "cubin").iterdir())) == 4


@pytest.mark.parametrize(
    ("release", "first"), [("13.0", "libnvrtc.so.13"), ("12.6", "libnvrtc.so.12"), (None, "libnvrtc.so.13")]
)
def test_the_compiler_of_torchs_cuda_release_is_tried_first(
    release: str | None, first: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for package, name in (
        ("cuda_nvrtc", "libnvrtc.so.12"),
        ("cu13", "libnvrtc.so.13"),
        ("cu13", "libnvrtc-builtins.so.13.5"),
    ):
        (tmp_path / package / "lib").mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "lib" / name).touch()
    monkeypatch.setattr(
        nvrtc.importlib.util, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    )
    monkeypatch.setattr(nvrtc.sys, "platform", "linux")
    monkeypatch.setattr(torch.version, "cuda", release)
    found = nvrtc._candidates()
    assert found[0].endswith(first)
    assert found[2:] == ["libnvrtc.so.13", "libnvrtc.so.12"]


def test_a_runner_of_another_device_is_not_asked(shim: Shim) -> None:
    assert operator._runner(torch.device("cpu")) is shim
    with pytest.raises(ValueError, match="tensors on meta"):
        operator._runner(torch.device("meta"))
