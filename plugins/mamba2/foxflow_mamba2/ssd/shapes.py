"""What the tensors of a scan have to be beside each other.

Axes: B batch, L bars, H heads, G groups (H a multiple of G), P head width, N state width.
"""

from torch import Tensor


def check(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor | None) -> None:
    """Refuse a scan's tensors whose shapes, dtypes or devices don't fit each other.

    Raises
    ------
    ValueError
        It names the tensor, what it is and what was expected.
    """
    if x.dim() != 4 or B.dim() != 4:
        raise ValueError(f"x {tuple(x.shape)} and B {tuple(B.shape)}; expected axes (B, L, H, P) and (B, L, G, N)")
    n_batch, n_bars, n_heads, head_dim = x.shape
    n_groups, d_state = B.shape[2:]
    if n_bars < 1:
        raise ValueError("x has 0 bars; expected at least 1")
    if n_groups < 1 or n_heads % n_groups:
        raise ValueError(f"{n_heads} heads in {n_groups} groups; expected a whole number of heads in a group")
    expected: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "dt": (dt, (n_batch, n_bars, n_heads)),
        "A": (A, (n_heads,)),
        "B": (B, (n_batch, n_bars, n_groups, d_state)),
        "C": (C, (n_batch, n_bars, n_groups, d_state)),
        "D": (D, (n_heads,)),
        "initial_state": (state, (n_batch, n_heads, head_dim, d_state)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {shape} beside x {tuple(x.shape)}")
        if tensor.dtype != x.dtype or tensor.device != x.device:
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}; expected {x.dtype} on {x.device}, as x is")
