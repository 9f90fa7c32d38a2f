"""The scans that are timed: the CUDA kernels, the chunked form, and the rivals that are installed.

Axes: B batch, L bars, H heads, G groups, P head width, N state width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor

from foxflow_mamba2.ssd import ssd_scan


@dataclass(frozen=True)
class Shape:
    """The sizes of one scan."""

    n_batch: int
    n_bars: int
    n_heads: int
    head_dim: int
    d_state: int
    n_groups: int = 1

    def __str__(self) -> str:
        return f"B{self.n_batch} L{self.n_bars} H{self.n_heads} P{self.head_dim} N{self.d_state} G{self.n_groups}"


@dataclass(frozen=True)
class Inputs:
    """What a scan reads, in the axes of `ssd_scan`; it starts from no state."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor

    def leaves(self) -> tuple[Tensor, ...]:
        """Return the tensors in the order of the scan's parameters."""
        return (self.x, self.dt, self.A, self.B, self.C, self.D)


Scan = Callable[[Inputs], Tensor]


def draw(shape: Shape, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Return normal inputs, steps of about 0.1 and decays as a trained model has them, all of which want gradients."""
    g = torch.Generator(device).manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float32, device=device, generator=g)

    s = shape
    drawn = (
        normal(s.n_batch, s.n_bars, s.n_heads, s.head_dim),
        torch.exp(normal(s.n_batch, s.n_bars, s.n_heads) - 2.0),
        -torch.exp(normal(s.n_heads)),
        normal(s.n_batch, s.n_bars, s.n_groups, s.d_state),
        normal(s.n_batch, s.n_bars, s.n_groups, s.d_state),
        normal(s.n_heads),
    )
    return Inputs(*(t.to(dtype).requires_grad_() for t in drawn))


def scan_of(impl: str) -> Scan:
    """Return one of our own implementations."""
    return lambda given: ssd_scan(*given.leaves(), impl=impl)


def mamba_ssm() -> Scan:
    """Return the five Triton kernels of state-spaces/mamba in chunks of 64, as those of its rival.

    Raises
    ------
    ImportError
        mamba_ssm is not installed.
    """
    scan = import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined

    def run(given: Inputs) -> Tensor:
        # Its A and D are float32 whatever the rest is.
        y: Tensor = scan(
            given.x,
            given.dt,
            given.A.float(),
            given.B,
            given.C,
            chunk_size=64,
            D=given.D.float(),
        )
        return y

    return run


def simple_gla() -> Scan:
    """Return flash-linear-attention's simple gated linear attention: q = C, k = B, v = x dt, g = dt A.

    It has no groups, step or skip: they are passes of their own, as a user would have to write them.

    Raises
    ------
    ImportError
        fla is not installed.
    """
    scan = import_module("fla.ops.simple_gla").chunk_simple_gla

    def run(given: Inputs) -> Tensor:
        in_group = given.x.shape[2] // given.B.shape[2]
        k_BLHN, q_BLHN = (t.repeat_interleave(in_group, 2) for t in (given.B, given.C))
        v_BLHP = given.x * given.dt[..., None]
        g_BLH = (given.dt * given.A).float()
        y_BLHP: Tensor = scan(q=q_BLHN, k=k_BLHN, v=v_BLHP, g=g_BLH, scale=1.0)[0]
        return y_BLHP + given.x * given.D[:, None]

    return run


def available() -> dict[str, Scan | str]:
    """Return every scan by name, ours first; the reason in the place of one that cannot be imported."""
    found: dict[str, Scan | str] = {"cuda": scan_of("cuda"), "chunked": scan_of("chunked")}
    for name, load in {"mamba_ssm": mamba_ssm, "simple_gla": simple_gla}.items():
        try:
            found[name] = load()
        # A package built for another torch breaks in its own way while it is imported.
        except (ImportError, AttributeError, OSError, RuntimeError) as e:
            found[name] = f"cannot be imported: {type(e).__name__}: {e}"
    return found
