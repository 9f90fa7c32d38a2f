"""Compiles the kernels with NVRTC, the compiler that comes with torch's CUDA packages; no toolkit, no header.

A cubin is kept in the user's cache folder under a name that hashes the source, the options, the architecture and
NVRTC's version.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from foxflow.errors import PluginError
from foxflow_mamba2.ssd.cuda.geometry import CHUNK, MAX_HEADS, SPAN, Variant

INSTALL = "pip install nvidia-cuda-nvrtc"
_PARTS = ("device.cuh", "tile.cuh", "forward.cuh", "backward.cuh", "entry.cuh")


class KernelError(PluginError):
    """The CUDA scan cannot be compiled or run here."""


@dataclass(frozen=True)
class Compiler:
    """A loaded NVRTC library and its version."""

    library: ctypes.CDLL
    version: tuple[int, int]

    def architectures(self) -> list[int]:
        """Return the compute capabilities it compiles for, 90 for 9.0."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return list(found)

    def compile(self, variant: Variant, architecture: int) -> tuple[bytes, str]:
        """Return the cubin of a variant and the log, which tells each kernel's registers and spills.

        Raises
        ------
        KernelError
            NVRTC refuses the source or the architecture.
        """
        program = ctypes.c_void_p()
        text = source().encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, b"ssd.cu", 0, None, None)
        try:
            given = [o.encode() for o in options(variant, architecture)]
            result = self.library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if result:
                raise KernelError(f"NVRTC {self.name} did not compile {variant.name} for sm_{architecture}: {log}")
            return self._read(program, "CUBIN"), log
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    @property
    def name(self) -> str:
        """The version as text."""
        return ".".join(str(part) for part in self.version)

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, name)(*arguments)
        if result:
            raise KernelError(f"{name} of NVRTC {self.name} failed with code {result}; reinstall it: {INSTALL}")


@cache
def source() -> str:
    """Return the one text that is compiled for every variant."""
    folder = Path(__file__).parent
    return "\n".join((folder / part).read_text(encoding="utf-8") for part in _PARTS)


def options(variant: Variant, architecture: int) -> list[str]:
    """Return the command line of one compilation."""
    return [
        f"--gpu-architecture=sm_{architecture}",
        "--std=c++17",
        "--ptxas-options=-v",
        f"-DCHUNK={CHUNK}",
        f"-DSPAN={SPAN}",
        f"-DMAX_HEADS={MAX_HEADS}",
        f"-DSTORED={variant.stored}",
        f"-DREAL={variant.real}",
        f"-DHEAD_DIM={variant.head_dim}",
        f"-DD_STATE={variant.d_state}",
    ]


@cache
def compiler() -> Compiler:
    """Return NVRTC, from Python's packages or the system.

    Raises
    ------
    KernelError
        It is not installed.
    """
    for name in _candidates():
        with contextlib.suppress(OSError):
            _load_builtins(Path(name).parent)
            library = ctypes.CDLL(name)
            major, minor = ctypes.c_int(), ctypes.c_int()
            library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
            return Compiler(library, (major.value, minor.value))
    raise KernelError(f"NVRTC is not installed, so the CUDA scan cannot be compiled; install it: {INSTALL}")


def _load_builtins(folder: Path) -> None:
    """Load the library that NVRTC opens by its bare name: not every release looks for it in its own folder."""
    if folder.is_absolute():
        for path in (*folder.glob("libnvrtc-builtins.so.*"), *folder.glob("nvrtc-builtins64_*.dll")):
            ctypes.CDLL(str(path))


def _candidates() -> list[str]:
    """Return where NVRTC may lie: first the packages of torch's CUDA release, whose cubins the driver takes."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    windows = sys.platform == "win32"
    pattern = "*/bin/**/nvrtc64_*.dll" if windows else "*/lib/libnvrtc.so.*"
    found = [p for folder in folders for p in folder.glob(pattern) if not re.search("builtins|alt", p.name)]
    plain = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"] if windows else ["libnvrtc.so.13", "libnvrtc.so.12"]
    release = (torch.version.cuda or "").split(".")[0]
    return [*(str(p) for p in sorted(found, key=lambda p: (release in p.name, p.name), reverse=True)), *plain]


def cubin(variant: Variant, architecture: int) -> bytes:
    """Return a variant's cubin, from the cache folder if it was compiled before."""
    # A cache that cannot be read or written costs a compilation a process, nothing else.
    with contextlib.suppress(OSError):
        return _path(variant, architecture).read_bytes()
    compiled, _ = compiler().compile(variant, architecture)
    keep(variant, architecture, compiled)
    return compiled


def forget(variant: Variant, architecture: int) -> None:
    """Remove a variant's cubin from the cache folder."""
    with contextlib.suppress(OSError):
        _path(variant, architecture).unlink()


def keep(variant: Variant, architecture: int, compiled: bytes) -> None:
    """Write a cubin into the cache folder."""
    with contextlib.suppress(OSError):
        path = _path(variant, architecture)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(compiled)
        # Renamed when complete: another process never reads half a file.
        part.replace(path)


def _path(variant: Variant, architecture: int) -> Path:
    key = "\n".join([source(), *options(variant, architecture), compiler().name])
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return _folder() / f"ssd_{variant.name}_sm{architecture}_{digest}.cubin"


def _folder() -> Path:
    # By its specification a variable that is empty or relative is as none.
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else _home() / ".cache") / "foxflow" / "cubin"


def _home() -> Path:
    try:
        return Path.home()
    # A container's user may have none: then there is no cache either.
    except RuntimeError as e:
        raise FileNotFoundError(str(e)) from e
