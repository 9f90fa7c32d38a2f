"""How the scan's work is cut: which variant of the kernels, how many heads in a block, how much shared memory."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

# Bars worked on at once, and bars between two states kept for the backward pass.
CHUNK = 16
SPAN = 64
# Warps in a block: 256 threads leave a thread the 255 registers it can have.
MAX_HEADS = 8
# Blocks lie along the first axis of the grid, which takes this many; the others take 65,535.
MAX_BLOCKS = 2**31 - 1
# Widths of a head and of a state that have kernels; others are padded with zeros to the next.
WIDTHS = (16, 32, 64)

_TYPES = {
    torch.float64: ("double", "double"),
    torch.float32: ("float", "float"),
    torch.bfloat16: ("bfloat16", "float"),
}


@dataclass(frozen=True)
class Variant:
    """One compiled pair of kernels: the type in memory, the head width and the state width."""

    dtype: torch.dtype
    head_dim: int
    d_state: int

    @property
    def stored(self) -> str:
        """The C++ type of x, dt, B and C."""
        return _TYPES[self.dtype][0]

    @property
    def real(self) -> str:
        """The C++ type of the arithmetic, of A, D and the states."""
        return _TYPES[self.dtype][1]

    @property
    def real_dtype(self) -> torch.dtype:
        """The torch type of the arithmetic."""
        return torch.float64 if self.real == "double" else torch.float32

    @property
    def name(self) -> str:
        """A name for messages and files, such as `float_32_32`."""
        return f"{self.stored}_{self.head_dim}_{self.d_state}"


def unsupported(dtype: torch.dtype, head_dim: int, d_state: int) -> str | None:
    """Return why no kernel takes such tensors, or None."""
    if dtype not in _TYPES:
        return f"x is {dtype}; the CUDA scan takes {', '.join(str(t) for t in _TYPES)}"
    if max(head_dim, d_state) > WIDTHS[-1] or min(head_dim, d_state) < 1:
        return f"head width {head_dim} and state width {d_state}; the CUDA scan takes 1 to {WIDTHS[-1]}"
    return None


def padded(width: int) -> int:
    """Return the narrowest width with a kernel that holds `width`."""
    return next(w for w in WIDTHS if w >= width)


def shared_bytes(variant: Variant, heads: int, *, backward: bool) -> int:
    """Return the shared memory of one block; the kernels lay it out alike, each row one element longer."""
    P, N = variant.head_dim + 1, variant.d_state + 1
    elements = 2 * CHUNK * N + heads * 2 * CHUNK
    if backward:
        square = 2 * CHUNK * (CHUNK + 1)
        own = 2 * CHUNK * P + square + variant.d_state * P + 2 * CHUNK * N + 4 * CHUNK
        elements = 2 * CHUNK * N + square + heads * own
    return elements * variant.real_dtype.itemsize


def heads_per_block(heads_in_group: int, bytes_of: Callable[[int], int], limit: int) -> int:
    """Return how many heads of a group share a block: the most that leave room for a second block, else for one.

    It depends on the device and the variant, never on the batch: a row's gradients are the same bits in any batch.

    Raises
    ------
    ValueError
        Not even one head fits into `limit` bytes.
    """
    divisors = [n for n in range(min(heads_in_group, MAX_HEADS), 0, -1) if heads_in_group % n == 0]
    # Two blocks share what one can have and the 1 KB that the driver keeps of it; it keeps as much of each.
    for room in (limit // 2 - 512, limit):
        for heads in divisors:
            if bytes_of(heads) <= room:
                return heads
    raise ValueError(
        f"a block needs {bytes_of(1)} bytes of shared memory; the device gives {limit}; use impl='chunked'"
    )


def blocks(n_batch: int, n_heads: int, heads: int) -> int:
    """Return the blocks of a launch: one for each batch row and `heads` heads.

    Raises
    ------
    ValueError
        More than a grid can have.
    """
    n_blocks = n_batch * n_heads // heads
    if n_blocks > MAX_BLOCKS:
        raise ValueError(
            f"{n_batch} rows of {n_heads} heads are {n_blocks} blocks; a grid has {MAX_BLOCKS}; split the batch"
        )
    return n_blocks
