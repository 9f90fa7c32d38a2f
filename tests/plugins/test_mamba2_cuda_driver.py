"""The driver's calls and the compiler's cache without a GPU: what is passed, in which order, and what is said."""

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from foxflow_mamba2.ssd.cuda import driver, nvrtc
from foxflow_mamba2.ssd.cuda.geometry import Variant
from foxflow_mamba2.ssd.cuda.nvrtc import KernelError

CUBIN = nvrtc.cubin


class FakeLibrary:
    """Takes the driver's calls and reads the launch parameters back through their addresses."""

    def __init__(self, *, fails: str = "", refuses: bytes = b"") -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails = fails
        self.refuses = refuses

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_INVALID_VALUE"
                return 0
            if name == "cuDriverGetVersion":
                arguments[0]._obj.value = 12080
            if name == "cuDevicePrimaryCtxRetain":
                arguments[0]._obj.value = 0xC0 + arguments[1].value
            if name == "cuDeviceGet":
                arguments[0]._obj.value = arguments[1].value
            if name == "cuCtxSetCurrent":
                self.calls[-1] = (name, arguments[0].value)
            if name == "cuModuleLoadData":
                self.calls[-1] = (name, arguments[1].value)
                return int(arguments[1].value == self.refuses)
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
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(nvrtc, "compiler", lambda: SimpleNamespace(architectures=lambda: [80, 90]))
    monkeypatch.setattr(nvrtc, "cubin", lambda *_: b"cubin")


def launch(library: FakeLibrary, n_bytes: int, held: driver.Driver | None = None) -> list[Tensor]:
    data = [torch.ones(3), torch.empty(0)]
    (held or driver.Driver(library)).launch(
        Variant(torch.float32, 16, 16),
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
    entered = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    loaded = ["cuModuleLoadData", "cuModuleGetFunction", "cuModuleGetFunction"]
    assert names == [*entered, *loaded, "cuFuncSetAttribute", "cuLaunchKernel"]
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
    assert [name for name, _ in library.calls] == ["cuInit", "cuDeviceGet", "cuDeviceGetAttribute"]


def test_the_context_of_the_tensors_device_is_made_current_before_every_launch(
    on_fake_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thread that comes here first, as autograd's do, has none; torch sets one only where the device changes.
    library = FakeLibrary()
    held = driver.Driver(library)
    order = []
    for index in (1, 0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda index=index: index)
        library.calls.clear()
        launch(library, 0, held)
        names = [name for name, _ in library.calls]
        assert names.index("cuCtxSetCurrent") < names.index("cuLaunchKernel")
        order.append((dict(library.calls)["cuCtxSetCurrent"], names.count("cuModuleLoadData")))
    # One module a device, loaded once.
    assert order == [(0xC1, 1), (0xC0, 1), (0xC1, 0)]


def test_the_architecture_compiled_for_is_the_devices_or_one_whose_code_it_runs() -> None:
    known = [75, 80, 86, 90, 100, 120]
    found = {wanted: driver.target(wanted, known) for wanted in (80, 86, 89, 90, 103, 120, 121, 75, 110, 130)}
    assert found == {80: 80, 86: 86, 89: 86, 90: 90, 103: 100, 120: 120, 121: 120, 75: 75, 110: None, 130: None}


@pytest.mark.parametrize(
    ("architecture", "release", "reason"),
    [
        (75, 12, "sm_75; the CUDA scan needs sm_80 or newer"),
        (90, 13, "driver is for CUDA 12; NVRTC is 13.0; update the driver or pip install nvidia-cuda-nvrtc-cu12"),
        (90, 12, None),
        (89, 12, None),
        (110, 12, "sm_110; NVRTC 12.0 knows sm_90 at most; pip install nvidia-cuda-nvrtc --upgrade"),
    ],
)
def test_what_stands_against_the_kernels_is_said(
    architecture: int, release: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = SimpleNamespace(name=f"{release}.0", version=(release, 0), architectures=lambda: [80, 86, 90])
    monkeypatch.setattr(nvrtc, "compiler", lambda: compiler)
    monkeypatch.setattr(driver, "architecture", lambda _: architecture)
    monkeypatch.setattr(driver, "_library", FakeLibrary)
    found = driver.missing(torch.device("cuda", 0))
    assert found is None if reason is None else reason in (found or "")


def test_the_compilers_second_library_is_loaded_from_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    # NVRTC 13.0 looks for it on the system's path alone.
    loaded: list[str] = []
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", loaded.append)
    (tmp_path / "libnvrtc-builtins.so.13.0").touch()
    nvrtc._load_builtins(tmp_path)
    nvrtc._load_builtins(Path())
    assert loaded == [str(tmp_path / "libnvrtc-builtins.so.13.0")]


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


def test_the_cache_is_where_the_variable_says_else_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("HOME", str(tmp_path))
    for empty in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", empty)
        assert nvrtc._folder() == tmp_path / ".cache" / "foxflow" / "cubin"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert nvrtc._folder() == tmp_path / ".cache" / "foxflow" / "cubin"
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert nvrtc._folder() == tmp_path / "foxflow" / "cubin"
    # With neither, each process compiles.
    monkeypatch.delenv("XDG_CACHE_HOME")
    compiler = SimpleNamespace(name="13.0", compile=lambda *_: (b"compiled", ""))
    monkeypatch.setattr(nvrtc, "compiler", lambda: compiler)
    assert nvrtc.cubin(Variant(torch.float32, 32, 32), 90) == b"compiled"
    nvrtc.forget(Variant(torch.float32, 32, 32), 90)


@pytest.mark.parametrize("compiled", [b"whole", b"half"])
def test_a_damaged_cubin_in_the_cache_is_compiled_once_more(
    compiled: bytes, on_fake_device: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = SimpleNamespace(name="13.0", architectures=lambda: [90], compile=lambda *_: (compiled, ""))
    monkeypatch.setattr(nvrtc, "compiler", lambda: compiler)
    monkeypatch.setattr(nvrtc, "cubin", CUBIN)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nvrtc.keep(Variant(torch.float32, 16, 16), 90, b"half")
    library = FakeLibrary(refuses=b"half")
    if compiled == b"half":
        with pytest.raises(KernelError, match="cuModuleLoadData failed"):
            launch(library, 0)
    else:
        launch(library, 0)
        assert nvrtc.cubin(Variant(torch.float32, 16, 16), 90) == b"whole"
    assert [v for name, v in library.calls if name == "cuModuleLoadData"] == [b"half", compiled]


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
