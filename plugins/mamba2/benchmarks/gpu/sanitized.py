"""Runs both kernels once in every type, with a tail chunk and two groups: what compute-sanitizer watches."""

from collections.abc import Iterator

import torch
from torch import Tensor

from foxflow_mamba2.ssd.cuda import ssd_cuda


def run(device: torch.device) -> Iterator[Tensor]:
    """Yield the gradient of x for each type; few kernels but ours run."""
    g = torch.Generator().manual_seed(0)
    sizes = ((2, 37, 8, 32), (2, 37, 8), (8,), (2, 37, 2, 16), (2, 37, 2, 16), (8,), (2, 8, 32, 16))
    drawn = [torch.rand(s, generator=g, dtype=torch.float64) for s in sizes]
    drawn[2] = -drawn[2]
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        leaves = [t.to(dtype).to(device).requires_grad_() for t in drawn]
        y, final = ssd_cuda(*leaves)
        torch.autograd.backward([y, final], [torch.ones_like(y), torch.ones_like(final)])
        assert leaves[0].grad is not None
        yield leaves[0].grad


if __name__ == "__main__":
    for gradient in run(torch.device("cuda")):
        assert bool(gradient.cpu().isfinite().all())
