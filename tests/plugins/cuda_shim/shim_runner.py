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
from foxflow_mamba2.ssd.cuda.geometry import CHUNK, SPAN, Variant
from foxflow_mamba2.ssd.cuda.operator import RUNNERS

SOURCE = Path(package.__file__).parent
# Every width as a head's and as a state's, the narrowest with the widest, and the types on the reference width.
SHAPES = ((8, 8), (16, 16), (24, 32), (32, 24), (32, 32), (48, 16), (16, 48), (64, 8), (8, 64), (64, 64))
VARIANTS = (
    *(("double", "double", P, N) for P, N in SHAPES),
    *(("float", "float", P, N) for P, N in ((8, 8), (32, 32), (64, 64))),
    *(("bfloat16", "float", P, N) for P, N in ((8, 8), (32, 32))),
)


@cache
def _library() -> ctypes.CDLL:
    listed = " ".join(f"VARIANT({stored}, {real}, {P}, {N})" for stored, real, P, N in VARIANTS)
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

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.seed = 1
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
        error = self.library.shim_launch(
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
        self.library.shim_skip_barrier(file.encode(), ctypes.c_int(line))
        yield
        self.library.shim_skip_barrier(b"", ctypes.c_int(0))


@pytest.fixture(name="shim")
def shim_fixture() -> Iterator[Shim]:
    """Bind the CUDA operators to the shim for CPU tensors."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed; the CUDA source cannot be compiled for the CPU")
    runner = Shim(_library())
    RUNNERS["cpu"] = runner
    yield runner
    del RUNNERS["cpu"]
