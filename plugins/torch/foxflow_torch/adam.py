"""Adam with decoupled weight decay.

Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2. Written out because `torch.optim` imports
torch's compiler when an optimiser is made (2.6 s in each process of a walk-forward) and counts its steps in float32;
the arithmetic and its order are those of `torch.optim.AdamW`.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8


class Moments(NamedTuple):
    """A parameter, its weight decay and the running means of its gradient and of that squared."""

    parameter: nn.Parameter
    decay: float
    mean: Tensor
    square: Tensor


class Adam:
    """The moments of each parameter's gradient, in the parameter's dtype, and the steps taken.

    Parameters
    ----------
    groups
        Parameters with their weight decay, as `Network.parameter_groups` returns them.
    """

    def __init__(self, groups: Iterable[tuple[Iterable[nn.Parameter], float]]) -> None:
        self.moments = [
            Moments(parameter, decay, torch.zeros_like(parameter), torch.zeros_like(parameter))
            for parameters, decay in groups
            for parameter in parameters
        ]
        self.n_steps = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move every parameter by its gradient, which must be there."""
        self.n_steps += 1
        correction_1, correction_2 = 1.0 - BETA_1**self.n_steps, 1.0 - BETA_2**self.n_steps
        for parameter, decay, mean, square in self.moments:
            gradient = parameter.grad
            assert gradient is not None
            parameter.mul_(1.0 - learning_rate * decay)
            mean.lerp_(gradient, 1.0 - BETA_1)
            square.mul_(BETA_2).addcmul_(gradient, gradient, value=1.0 - BETA_2)
            scale = (square.sqrt() / math.sqrt(correction_2)).add_(EPS)
            parameter.addcdiv_(mean, scale, value=-learning_rate / correction_1)
