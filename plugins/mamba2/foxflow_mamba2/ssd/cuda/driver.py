"""Runs the kernels through the CUDA driver, on torch's current stream and in torch's context."""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from foxflow_mamba2.ssd.cuda import nvrtc
from foxflow_mamba2.ssd.cuda.geometry import Variant
from foxflow_mamba2.ssd.cuda.nvrtc import KernelError

# CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN and CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES in cuda.h:
# beyond 48 KB a kernel has to ask.
_SHARED_MEMORY_LIMIT = 97
_MAX_DYNAMIC_SHARED = 8
_DEFAULT_SHARED_BYTES = 48 * 1024
# The first that converts to bfloat16, and the first that the kernels are compiled for in the tests.
_OLDEST = 80


def architecture(device: torch.device) -> int:
    """Return a device's compute capability, 90 for 9.0."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def missing(device: torch.device) -> str | None:
    """Return why no kernel can be compiled for a device, or None."""
    if torch.version.hip is not None:
        return f"torch {torch.__version__} is built for ROCm; the CUDA scan runs on NVIDIA devices"
    wanted = architecture(device)
    if wanted < _OLDEST:
        return f"{device} is sm_{wanted}; the CUDA scan needs sm_{_OLDEST} or newer"
    try:
        compiler = nvrtc.compiler()
        known = compiler.architectures()
        if target(wanted, known) is None:
            newest = max(known, default=0)
            return (
                f"{device} is sm_{wanted}; NVRTC {compiler.name} knows sm_{newest} at most; {nvrtc.INSTALL} --upgrade"
            )
        return _too_old(_library(), compiler)
    except KernelError as e:
        return str(e)


def target(wanted: int, known: Sequence[int]) -> int | None:
    """Return what to compile for: the device's architecture, else an older one whose code it runs: its generation's."""
    return max((k for k in known if k // 10 == wanted // 10 and k <= wanted), default=None)


def _too_old(library: ctypes.CDLL, compiler: nvrtc.Compiler) -> str | None:
    """Return why the driver cannot load what NVRTC makes, or None: it takes code of its own major release at most."""
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    release = version.value // 1000
    if release < compiler.version[0]:
        other = f"{nvrtc.INSTALL}-cu{release}"
        return f"the driver is for CUDA {release}; NVRTC is {compiler.name}; update the driver or {other}"
    return None


def _library() -> ctypes.CDLL:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as e:
        raise KernelError(f"the CUDA driver {name} cannot be loaded: {e}; use impl='chunked'") from e


@dataclass
class Driver:
    """Holds the loaded kernels, one module a variant and device."""

    library: ctypes.CDLL = field(default_factory=_library)
    functions: dict[tuple[int, Variant, str], ctypes.c_void_p] = field(default_factory=dict)
    limits: dict[int, int] = field(default_factory=dict)
    contexts: dict[int, ctypes.c_void_p] = field(default_factory=dict)

    def shared_limit(self, device: torch.device) -> int:
        """Return the bytes of shared memory that a block can ask for."""
        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in self.limits:
            limit = ctypes.c_int()
            self._call(
                "cuDeviceGetAttribute", ctypes.byref(limit), ctypes.c_int(_SHARED_MEMORY_LIMIT), self._handle(index)
            )
            self.limits[index] = limit.value
        return self.limits[index]

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
        """Queue `kernel` on the current stream of the tensors' device.

        Raises
        ------
        KernelError
            The kernel cannot be compiled, loaded or started.
        """
        device = tensors[0].device
        with torch.cuda.device(device):
            self._enter(torch.cuda.current_device())
            function = self._function(device, variant, kernel)
            if n_bytes > _DEFAULT_SHARED_BYTES:
                self._call("cuFuncSetAttribute", function, ctypes.c_int(_MAX_DYNAMIC_SHARED), ctypes.c_int(n_bytes))
            values = [(ctypes.c_longlong * 4)(*shape), *(ctypes.c_void_p(t.data_ptr() or None) for t in tensors)]
            parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
            grid = (ctypes.c_uint(n_blocks), ctypes.c_uint(1), ctypes.c_uint(1))
            block = (ctypes.c_uint(32 * heads), ctypes.c_uint(1), ctypes.c_uint(1))
            stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
            self._call("cuLaunchKernel", function, *grid, *block, ctypes.c_uint(n_bytes), stream, parameters, None)

    def _handle(self, index: int) -> ctypes.c_int:
        handle = ctypes.c_int()
        # Does nothing where torch has done it, which it has before a tensor lies on a device.
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(index))
        return handle

    def _enter(self, index: int) -> None:
        """Make torch's context current on this thread: autograd's threads may have none when they come here first."""
        if index not in self.contexts:
            context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle(index))
            self.contexts[index] = context
        self._call("cuCtxSetCurrent", self.contexts[index])

    def _function(self, device: torch.device, variant: Variant, kernel: str) -> ctypes.c_void_p:
        index = torch.cuda.current_device()
        if (index, variant, kernel) not in self.functions:
            wanted = architecture(device)
            # An architecture that NVRTC doesn't know is refused by NVRTC, in its words.
            built = target(wanted, nvrtc.compiler().architectures()) or wanted
            try:
                module = self._load(nvrtc.cubin(variant, built))
            except KernelError:
                # The cached file may be damaged: it would fail for ever.
                nvrtc.forget(variant, built)
                module = self._load(nvrtc.cubin(variant, built))
            for name in ("ssd_forward", "ssd_backward"):
                function = ctypes.c_void_p()
                self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
                self.functions[index, variant, name] = function
        return self.functions[index, variant, kernel]

    def _load(self, image: bytes) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image))
        return module

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, name)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(ctypes.c_int(result), ctypes.byref(text))
            reason = text.value.decode() if text.value else "unknown"
            raise KernelError(f"{name} failed with code {result} ({reason}); use impl='chunked' and report the device")
