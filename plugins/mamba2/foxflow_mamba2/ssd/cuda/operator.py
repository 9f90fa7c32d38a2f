"""The CUDA scan as two torch operators, `foxflow::ssd_forward` and `foxflow::ssd_backward`.

They are opaque to `torch.compile`, which sees their shapes and gradients. There is no second derivative.

Axes: B batch, L bars, H heads, G groups, P head width, N state width; K blocks of heads in a group, S saved states.
"""

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from foxflow_mamba2.ssd.cuda.geometry import SPAN, Variant, blocks, heads_per_block, shared_bytes


class Runner(Protocol):
    """What runs the kernels: the CUDA driver, or a stand-in of tests."""

    def shared_limit(self, device: torch.device) -> int:
        """Return the bytes of shared memory that a block can have."""
        ...

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
        """Run `kernel` on contiguous tensors, in the order of its parameters; an empty tensor is a null pointer."""
        ...


# By the type of the tensors' device. Tests put a stand-in at "cpu".
RUNNERS: dict[str, Runner] = {}


@cache
def _driver() -> Runner:
    from foxflow_mamba2.ssd.cuda.driver import Driver

    return Driver()


def _runner(device: torch.device) -> Runner:
    if device.type in RUNNERS:
        return RUNNERS[device.type]
    if device.type != "cuda":
        raise ValueError(f"tensors on {device}; impl='cuda' expects CUDA tensors; use impl='chunked'")
    return _driver()


def _launch(kernel: str, x: Tensor, B: Tensor, heads: int, tensors: Sequence[Tensor]) -> None:
    if x.shape[1] < 1:
        # Without bars no state is saved, and the backward kernel reads the last one.
        raise ValueError("x has 0 bars; expected at least 1")
    variant = Variant(x.dtype, x.shape[3], B.shape[3])
    # The list holds the contiguous copies until the launch is queued: a pointer alone keeps no memory alive.
    contiguous = [t.contiguous() for t in tensors]
    n_blocks = blocks(x.shape[0], x.shape[2], heads)
    if n_blocks:
        _runner(x.device).launch(
            variant,
            kernel,
            n_blocks=n_blocks,
            heads=heads,
            n_bytes=shared_bytes(variant, heads, backward=kernel == "ssd_backward"),
            shape=(*x.shape[:3], B.shape[2]),
            tensors=contiguous,
        )


def _heads(x: Tensor, B: Tensor, *, backward: bool) -> int:
    variant = Variant(x.dtype, x.shape[3], B.shape[3])
    limit = _runner(x.device).shared_limit(x.device)
    return heads_per_block(
        x.shape[2] // B.shape[2], lambda heads: shared_bytes(variant, heads, backward=backward), limit
    )


def _forward_outputs(x: Tensor, B: Tensor, state: Tensor, *, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    n_batch, n_bars, n_heads, head_dim = x.shape
    saved = (n_batch, -(-n_bars // SPAN), n_heads, B.shape[3], head_dim) if save else (0,)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, torch.empty_like(state, memory_format=torch.contiguous_format), state.new_empty(saved)


@torch.library.custom_op("foxflow::ssd_forward", mutates_args=())
def ssd_forward(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, *, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y `(B, L, H, P)`, the state after the last bar `(B, H, P, N)` and, for a backward pass, saved states.

    A, D and state are in the type of the arithmetic; the saved states are `(B, S, H, N, P)`, or `(0,)`.
    """
    y, final, saved = _forward_outputs(x, B, state, save=save)
    _launch("ssd_forward", x, B, _heads(x, B, backward=False), (x, dt, A, B, C, D, state, y, final, saved))
    return y, final, saved


@ssd_forward.register_fake
def _(
    x: Tensor, _dt: Tensor, _A: Tensor, B: Tensor, _C: Tensor, _D: Tensor, state: Tensor, *, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _forward_outputs(x, B, state, save=save)


@torch.library.custom_op("foxflow::ssd_backward", mutates_args=())
def ssd_backward(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, saved: Tensor, dy: Tensor, dfinal: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, dt, A, B, C, D and the initial state."""
    n_batch, _, n_heads, head_dim = x.shape
    if saved.numel() == 0 and x.numel():
        raise ValueError("no states were saved for the backward pass; call ssd_forward with save=True")
    heads = _heads(x, B, backward=True)
    dx, ddt = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, dt))
    dA_BH, dD_BH = A.new_empty(n_batch, n_heads), A.new_empty(n_batch, n_heads)
    n_blocks = n_heads // B.shape[2] // heads
    dB_KBLGN, dC_KBLGN = A.new_empty(n_blocks, *B.shape), A.new_empty(n_blocks, *B.shape)
    dstate = A.new_empty(n_batch, n_heads, head_dim, B.shape[3])
    inputs = (x, dt, A, B, C, D, saved, dy, dfinal)
    _launch("ssd_backward", x, B, heads, (*inputs, dx, ddt, dA_BH, dB_KBLGN, dC_KBLGN, dD_BH, dstate))
    dB, dC = ((t[0] if n_blocks == 1 else t.sum(0)).to(B.dtype) for t in (dB_KBLGN, dC_KBLGN))
    return dx, ddt, dA_BH.sum(0), dB, dC, dD_BH.sum(0), dstate


@ssd_backward.register_fake
def _(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, _saved: Tensor, _dy: Tensor, dfinal: Tensor
) -> tuple[Tensor, ...]:
    def like(t: Tensor) -> Tensor:
        return torch.empty_like(t, memory_format=torch.contiguous_format)

    return like(x), like(dt), like(A), like(B), like(C), like(D), like(dfinal)


def _keep(
    ctx: FunctionCtx,
    inputs: tuple[Tensor, ...],
    keyword_only_inputs: dict[str, bool],  # noqa: ARG001
    output: tuple[Tensor, Tensor, Tensor],
) -> None:
    # No zeros for the unused gradient of the saved states, which are the largest tensor here.
    ctx.set_materialize_grads(False)
    x, dt, A, B, C, D, _ = inputs
    ctx.save_for_backward(x, dt, A, B, C, D, output[2])


def _differentiate(ctx: FunctionCtx, dy: Tensor | None, dfinal: Tensor | None, _: Tensor | None) -> tuple[Tensor, ...]:
    x, dt, A, B, C, D, saved = ctx.saved_tensors  # type: ignore[attr-defined]
    dy = torch.zeros_like(x) if dy is None else dy
    dfinal = A.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[3]) if dfinal is None else dfinal
    gradients: tuple[Tensor, ...] = ssd_backward(x, dt, A, B, C, D, saved, dy, dfinal)
    return gradients


ssd_forward.register_autograd(_differentiate, setup_context=_keep)
