"""The scan of Mamba-2 behind one door: `ssd_scan` checks shapes and picks an implementation.

Axes: B batch, L bars, H heads, G groups (H a multiple of G), P head width, N state width.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Literal, overload

import torch
from torch import Tensor

from foxflow.errors import unknown
from foxflow_mamba2.ssd.chunked import ssd_chunked
from foxflow_mamba2.ssd.cuda import ssd_cuda, unsupported
from foxflow_mamba2.ssd.naive import ssd_naive, ssd_step
from foxflow_mamba2.ssd.shapes import check

__all__ = ["SCANS", "ssd_scan", "ssd_step"]

Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]

SCANS: Mapping[str, Scan] = {"chunked": ssd_chunked, "cuda": ssd_cuda, "naive": ssd_naive}


@overload
def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    *,
    initial_state: Tensor | None = ...,
    return_final_state: Literal[False] = ...,
    impl: str = ...,
    chunk: int | None = ...,
) -> Tensor: ...
@overload
def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    *,
    initial_state: Tensor | None = ...,
    return_final_state: Literal[True],
    impl: str = ...,
    chunk: int | None = ...,
) -> tuple[Tensor, Tensor]: ...
def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    impl: str = "auto",
    chunk: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return `y_t = C_t h_t + D x_t` of `h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t^T` (Dao and Gu 2024).

    Parameters
    ----------
    x, dt, A
        `(B, L, H, P)`; `(B, L, H)`, positive; `(H,)`, negative. L is at least 1.
    B, C
        `(B, L, G, N)`; H/G consecutive heads share a group.
    D
        `(H,)`; None adds no skip.
    initial_state
        `(B, H, P, N)`; None is zero.
    return_final_state
        Return `(y, state)`, the state `(B, H, P, N)` after bar L.
    impl
        `auto` (`cuda` for CUDA tensors that have a kernel, else `chunked`) or a name in `SCANS`.
    chunk
        Bars in a chunk of `chunked`, which changes its speed alone; None is the faster of 16 and 32 for these widths.

    Returns
    -------
    y `(B, L, H, P)`, or `(y, state)`. Differentiable in every tensor.

    Raises
    ------
    ValueError
        Unknown `impl`, or tensors whose shapes, dtypes or devices don't fit each other or `impl`.
    KernelError
        `impl="cuda"` without NVRTC.
    """
    if impl != "auto" and impl not in SCANS:
        raise ValueError(unknown("impl", impl, ("auto", *SCANS)))
    check(x, dt, A, B, C, D, initial_state)
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk = {chunk}; expected at least 1 bar, or None")
    name = _fastest(x, B) if impl == "auto" else impl
    scan = partial(ssd_chunked, chunk=chunk) if name == "chunked" else SCANS[name]
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[3]) if initial_state is None else initial_state
    # The last bits of a product depend on how its factors lie in memory.
    x, dt, B, C, state = (t.contiguous() for t in (x, dt, B, C, state))
    y, state = scan(x, dt, A, B, C, D, state)
    return (y, state) if return_final_state else y


def _fastest(x: Tensor, B: Tensor) -> str:
    # An exported graph holds only operations that every runtime knows.
    if x.device.type != "cuda" or torch.compiler.is_exporting():
        return "chunked"
    return "chunked" if _reason_against_cuda(x.device, x.dtype, x.shape[3], B.shape[3]) else "cuda"


def _reason_against_cuda(device: torch.device, dtype: torch.dtype, head_dim: int, d_state: int) -> str | None:
    """Return why no kernel can take such tensors, or None; warn of each reason the first time."""
    # The widths are compared where a graph is traced, since they may be symbols there.
    reason = unsupported(dtype, head_dim, d_state) or _against_device(device)
    if reason is not None:
        _warn(reason)
    return reason


# The caches lie below, because the tracer looks through a cached function.
def _against_device(device: torch.device) -> str | None:
    return _missing(device)


def _warn(reason: str) -> None:
    _warn_once(reason)


# What a device lacks never changes in a process, and a warning is no part of a graph: both run while it is traced.
# This is what `torch.compiler.assume_constant_result` sets; calling it would load the compiler, which takes two seconds
# of every process.
_against_device._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001
_warn._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001


@cache
def _missing(device: torch.device) -> str | None:
    from foxflow_mamba2.ssd.cuda import driver

    return driver.missing(device)


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"{reason}; the slower chunked scan runs instead", RuntimeWarning, stacklevel=6)
