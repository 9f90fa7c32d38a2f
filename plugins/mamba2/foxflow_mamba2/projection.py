"""The spectral projection: after each step of the optimiser every head forgets at least as fast as a limit asks.

A head's spectral radius at its nominal step is `exp(softplus(dt_bias) A)`, exact because A is one number per head.
The original system also scaled gradients of A where the radius exceeds 1; with `A = -exp(A_log) < 0` it never does.
"""

import math

import torch
from torch import Tensor

DT_MIN, DT_MAX = 1e-6, 1.0


def inverse_softplus(value: float) -> float:
    """Return the x with `log(1 + exp(x)) = value`, for a positive value.

    Examples
    --------
    >>> inverse_softplus(math.log(2.0))
    0.0
    """
    return value + math.log(-math.expm1(-value))


def spectral_radius(A_log_H: Tensor, dt_bias_H: Tensor) -> Tensor:
    """Return each head's share of the state that is left after one bar at its nominal step, `(H,)`."""
    return torch.exp(-torch.nn.functional.softplus(dt_bias_H) * torch.exp(A_log_H))


@torch.no_grad()
def project(A_log_H: Tensor, dt_bias_H: Tensor, *, limit: float) -> int:
    """Move both, in place, to the nearest values allowed; return how many heads the spectral limit binds.

    First the nominal step `softplus(dt_bias)` into `[DT_MIN, DT_MAX]`; then A, at that step, to the nearest value with
    a spectral radius of at most `limit`.
    """
    dt_bias_H.clamp_(inverse_softplus(DT_MIN), inverse_softplus(DT_MAX))
    slowest_H = torch.log(-math.log(limit) / torch.nn.functional.softplus(dt_bias_H))
    bound_H = A_log_H < slowest_H
    A_log_H.copy_(torch.maximum(A_log_H, slowest_H))
    return int(bound_H.sum())
