"""Inputs of a scan, and the comparison of its output, final state and every gradient with the recurrence in float64."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch_samples import Inputs

from foxflow_mamba2.ssd import ssd_scan
from foxflow_mamba2.ssd.cuda import ssd_cuda
from foxflow_mamba2.ssd.naive import ssd_naive

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 1e-2}
CPU = torch.device("cpu")

Scan = Callable[..., tuple[Tensor, Tensor]]


def inputs(
    n_bars: int,
    *,
    head_dim: int = 8,
    d_state: int = 8,
    n_batch: int = 2,
    n_heads: int = 4,
    n_groups: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Inputs:
    g = torch.Generator().manual_seed(n_bars + 1000 * n_groups)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    drawn = Inputs(
        normal(n_batch, n_bars, n_heads, head_dim),
        torch.exp(normal(n_batch, n_bars, n_heads) - 2.0),
        -torch.exp(normal(n_heads)),
        normal(n_batch, n_bars, n_groups, d_state),
        normal(n_batch, n_bars, n_groups, d_state),
        normal(n_heads),
        normal(n_batch, n_heads, head_dim, d_state),
    )
    return Inputs(*(t.to(dtype) for t in drawn))


def without_state(scan: str) -> Scan:
    """Return a scan through the door that starts from no state and leaves the one it is given alone."""

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        *read, state = tensors
        y, final = ssd_scan(*read, return_final_state=True, impl=scan)
        return y, final + 0 * state

    return run


def gradients(
    data: Inputs, scan: Scan, *, rounded_to: torch.dtype = torch.float64, place: torch.device = CPU
) -> dict[str, Tensor]:
    """Return the output, the final state and the gradient of every input, of a loss that reads all outputs."""
    leaves = Inputs(*(t.detach().to(place, copy=True).requires_grad_() for t in data))
    y, final = scan(*leaves)
    g = torch.Generator().manual_seed(7)
    drawn = (torch.randn(t.shape, dtype=torch.float64, generator=g) for t in (y, final))
    # The gradient of a bfloat16 output is one itself: the recurrence has to start from the same numbers.
    weight_y, weight_final = (t.to(rounded_to).double().to(place) for t in drawn)
    ((y.double() * weight_y).sum() + (final.double() * weight_final).sum()).backward()
    found = {name: leaf.grad.cpu() for name, leaf in zip(Inputs._fields, leaves, strict=True)}
    return {"y": y.detach().cpu(), "final": final.detach().cpu(), **found}


def errors(data: Inputs, *, place: torch.device, from_state: bool = True) -> dict[str, float]:
    """Return each tensor's largest error against the recurrence in float64, relative to its largest magnitude."""
    dtype = data.x.dtype
    wide = Inputs(*(t.double() for t in data))
    expected = gradients(wide, ssd_naive if from_state else without_state("naive"), rounded_to=dtype)
    found = gradients(data, ssd_cuda if from_state else without_state("cuda"), rounded_to=dtype, place=place)
    # A tensor of zeros, as the gradient of an unread state, is judged by its error alone.
    return {
        name: float((found[name].double() - e).abs().max() / (e.abs().max() if e.any() else 1.0))
        for name, e in expected.items()
    }


def assert_right(data: Inputs, *, place: torch.device, from_state: bool = True) -> None:
    found = errors(data, place=place, from_state=from_state)
    shapes = tuple(data.x.shape), tuple(data.B.shape), from_state
    # A NaN is larger than nothing, so each is compared by itself.
    assert all(e <= TOLERANCE[data.x.dtype] for e in found.values()), (data.x.dtype, shapes, found)


def assert_same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name
