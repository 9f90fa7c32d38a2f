"""The spectral projection: after each step of the optimiser every head forgets at least as fast as a limit asks.

A head's spectral radius at its nominal step is `exp(softplus(dt_bias) A)`, exact because A is one number per head.
"""

import math

import torch
from torch import Tensor

# Beyond this the gradient of A is scaled down, as the original system did.
LARGEST_GRADIENT_RADIUS = 1.0


def inverse_softplus(value: float) -> float:
    """Return the x with `log(1 + exp(x)) = value`, for a positive value.

    Examples
    --------
    >>> inverse_softplus(math.log(2.0))
    0.0
    """
    return value + math.log(-math.expm1(-value))


def spectral_radius(matrix_NN: Tensor) -> float:
    """Return the largest magnitude among the eigenvalues of a square matrix.

    Examples
    --------
    >>> spectral_radius(torch.diag(torch.tensor([1.0, 0.0, 0.0, 0.0])))
    1.0
    """
    return float(torch.linalg.eigvals(matrix_NN).abs().max())


def nominal_step(dt_bias_H: Tensor) -> Tensor:
    """Return each head's step where its input adds nothing, `(H,)`."""
    return torch.nn.functional.softplus(dt_bias_H)


def nominal_radius(A_log_H: Tensor, dt_bias_H: Tensor) -> Tensor:
    """Return each head's share of the state that is left after one bar at its nominal step, `(H,)`."""
    return torch.exp(-nominal_step(dt_bias_H) * torch.exp(A_log_H))


@torch.no_grad()
def project(A_log_H: Tensor, dt_bias_H: Tensor, *, dt_limit: tuple[float, float], limit: float) -> int:
    """Move both, in place, to the nearest values allowed; return how many heads the spectral limit binds.

    First the nominal step into `dt_limit`; then A, at that step, to the nearest value with a spectral radius of at most
    `limit`.
    """
    dt_bias_H.clamp_(*map(inverse_softplus, dt_limit))
    slowest_H = torch.log(-math.log(limit) / nominal_step(dt_bias_H))
    bound_H = A_log_H < slowest_H
    A_log_H.copy_(torch.maximum(A_log_H, slowest_H))
    return int(bound_H.sum())


@torch.no_grad()
def scale_gradient(A_log_H: Tensor) -> None:
    """Scale the gradient of A, in place, to a spectral radius of at most 1, that of its largest element.

    The gradient of `A = -exp(A_log)` is that of A_log over A; one factor scales both.
    """
    assert A_log_H.grad is not None
    radius = (A_log_H.grad * torch.exp(-A_log_H)).abs().max()
    A_log_H.grad.div_(torch.clamp(radius / LARGEST_GRADIENT_RADIUS, min=1.0))
