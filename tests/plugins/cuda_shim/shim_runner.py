"""Builds the CUDA source of the scan with g++ and runs it in the place of the CUDA driver."""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import foxflow_mamba2.ssd.cuda as package
from foxflow_mamba2.ssd.cuda.geometry import CHUNK, SPAN, WIDTHS, Variant
from foxflow_mamba2.ssd.cuda.operator import RUNNERS

SOURCE = Path(package.__file__).parent


@cache
def _library(stored: str, real: str) -> ctypes.CDLL:
    """Build the variants of one type, once a session: 20 seconds that a test of another type doesn't wait for."""
    listed = " ".join(f"VARIANT({stored}, {real}, {P}, {N})" for P in WIDTHS for N in WIDTHS)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "shim.so"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
        # Some systems turn on a longjmp that refuses to jump to another stack, which is what a fiber is.
        command += ["-U_FORTIFY_SOURCE"]
        command += [f"-DCHUNK={CHUNK}", f"-DSPAN={SPAN}", f"-DVARIANTS={listed}", f"-I{SOURCE}", "-o", str(built)]
        subprocess.run([*command, str(Path(__file__).parent / "shim.cpp")], check=True)
        library = ctypes.CDLL(str(built))
    library.shim_launch.restype = ctypes.c_char_p
    return library


class Shim:
    """Runs the kernels on CPU tensors; `seed` draws the schedule, `limit` is the shared memory of a block."""

    def __init__(self) -> None:
        self.seed = 1
        self.skipped = ("", 0)
        self.limit = 227 * 1024
        self.heads: list[int] = []

    def shared_limit(self, device: torch.device) -> int:
        return self.limit

    def launch(
        self,
        variant: Variant,
        kernel: str,
        *,
        n_blocks: int,
        heads: int,
        n_bytes: int,
        shape: Sequence[int],
        tensors: Sequence[Tensor],
    ) -> None:
        self.heads.append(heads)
        assert all(t.is_contiguous() for t in tensors)
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() or None for t in tensors))
        counts = (ctypes.c_longlong * len(tensors))(*(t.numel() for t in tensors))
        library = _library(variant.stored, variant.real)
        library.shim_skip_barrier(self.skipped[0].encode(), ctypes.c_int(self.skipped[1]))
        error = library.shim_launch(
            variant.name.encode(),
            ctypes.c_int(kernel == "ssd_forward"),
            ctypes.c_longlong(n_blocks),
            ctypes.c_int(heads),
            ctypes.c_longlong(n_bytes),
            ctypes.c_uint(self.seed),
            pointers,
            counts,
            (ctypes.c_longlong * 4)(*shape),
        )
        if error:
            raise AssertionError(f"{kernel} {variant.name}: {error.decode()}")

    @contextmanager
    def without_barrier(self, file: str, line: int) -> Iterator[None]:
        """Run as if the barrier on that line of that file were not there."""
        self.skipped = (file, line)
        yield
        self.skipped = ("", 0)

    def offsets(self, shape: Sequence[int], heads: int, block: int, thread: int) -> list[int]:
        """Return the last offsets that one thread of one block computes: into x, B, the states and the saved states."""
        found = (ctypes.c_longlong * 4)()
        sizes = (ctypes.c_longlong * 4)(*shape)
        _library("double", "double").shim_place(
            sizes, ctypes.c_int(heads), ctypes.c_uint(block), ctypes.c_uint(thread), found
        )
        return list(found)


@pytest.fixture(name="shim")
def shim_fixture() -> Iterator[Shim]:
    """Bind the CUDA operators to the shim for CPU tensors."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed; the CUDA source cannot be compiled for the CPU")
    runner = Shim()
    RUNNERS["cpu"] = runner
    yield runner
    del RUNNERS["cpu"]


@pytest.fixture(name="place", params=["shim", pytest.param("device", marks=pytest.mark.gpu)])
def place_fixture(request: pytest.FixtureRequest) -> torch.device:
    """Return where the kernels run: the same cases on the CPU, by the shim, and on a GPU, by the driver."""
    if request.param == "shim":
        request.getfixturevalue("shim")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")
    return torch.device("cuda")
