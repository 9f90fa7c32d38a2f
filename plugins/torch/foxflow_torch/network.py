"""What the training loop, the stream and the exporter ask of a network: causal, with an explicit state.

Axes: B batch, T bars, F features.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """A forecast at every bar from that bar and earlier ones.

    `forward(features_BTF, *state)` returns `(forecast_BT1, *state)` of a window, `step(features_BF, *state)` returns
    `(forecast_B1, *state)` of one bar. The state is one tensor for each entry of `state_shapes`, in its order, batch
    first, zero before the first bar; a row of the batch never sees another.
    """

    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the name and the shape, without the batch axis, of each tensor of the state."""
        return {}

    def forward(self, features_BTF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return a window's forecasts and the state after its last bar."""
        raise NotImplementedError

    def step(self, features_BF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return one bar's forecast and the state after it."""
        raise NotImplementedError

    def scale_gradients(self) -> None:
        """Scale gradients of the network's own between clipping and the optimiser; the default leaves them."""

    def after_step(self) -> Mapping[str, float]:
        """Mend the parameters after a step of the optimiser (and once before the first); return what to record."""
        return {}

    def parameter_groups(self, weight_decay: float) -> list[tuple[list[nn.Parameter], float]]:
        """Return every parameter once, with its decay: matrices decay; norms, biases and other vectors don't."""
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        return [(matrices, weight_decay), (vectors, 0.0)]

    def zero_state(self, n_batch: int) -> tuple[Tensor, ...]:
        """Return the state before the first bar, in the dtype of the parameters."""
        one = next(self.parameters())
        return tuple(one.new_zeros(n_batch, *shape) for shape in self.state_shapes().values())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of parameters, state and forecasts."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where parameters and state are."""
        return next(self.parameters()).device
