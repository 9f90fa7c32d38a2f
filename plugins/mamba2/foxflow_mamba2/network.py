"""The network: features in, layers of `Block`, one forecast at every bar.

Axes: B batch, T bars, F features, M model width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from foxflow_mamba2.block import Block, RMSNorm
from foxflow_mamba2.projection import nominal_radius, project, scale_gradient
from foxflow_torch.network import Network

Layer = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Mamba2Network(Network):
    """A stack of Mamba-2 layers whose state is each layer's last convolved bars and its scan's state.

    A linear skip leads from the features to the forecast: what is linear in them would else have to pass norms that
    take the size away. Head and skip start at zero: untrained, it forecasts the mean of the training labels, so
    any validation loss below epoch 0's is something learned.
    """

    def __init__(
        self,
        n_features: int,
        *,
        n_layers: int,
        d_model: int,
        d_inner: int,
        head_dim: int,
        d_state: int,
        n_groups: int,
        d_conv: int,
        dropout: float,
        dt_limit: tuple[float, float],
        spectral_limit: float,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.dt_limit, self.spectral_limit = dt_limit, spectral_limit
        self.in_proj = nn.Linear(n_features, d_model, dtype=torch.float64)
        self.blocks = nn.ModuleList(
            Block(
                d_model,
                d_inner=d_inner,
                head_dim=head_dim,
                d_state=d_state,
                n_groups=n_groups,
                d_conv=d_conv,
                dropout=dropout,
                dt_limit=dt_limit,
                depth=n_layers,
                spectral_limit=spectral_limit,
                chunk=chunk,
            )
            for _ in range(n_layers)
        )
        self.norm = RMSNorm(d_model)
        self.head = nn.Linear(d_model, 1, dtype=torch.float64)
        nn.init.zeros_(self.head.weight)
        self.skip = nn.Linear(n_features, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.skip.weight)
        nn.init.zeros_(self.head.bias)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return `conv_i` and `ssm_i` for each layer i."""
        shapes: dict[str, tuple[int, ...]] = {}
        for i, block in enumerate(self._layers()):
            shapes[f"conv_{i}"], shapes[f"ssm_{i}"] = block.state_shapes()
        return shapes

    def forward(self, features_BTF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return a window's forecasts `(B, T, 1)` and the state after its last bar."""
        return self._run([block.__call__ for block in self._layers()], features_BTF, state)

    def step(self, features_BF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return one bar's forecast `(B, 1)` and the state after it."""
        return self._run([block.step for block in self._layers()], features_BF, state)

    def scale_gradients(self) -> None:
        """Scale the gradient of every layer's A to a spectral radius of at most 1."""
        for block in self._layers():
            scale_gradient(block.A_log_H)

    def after_step(self) -> dict[str, float]:
        """Project every head to the spectral limit; record how many it binds and the largest radius left."""
        layers = self._layers()
        bound = [project(b.A_log_H, b.dt_bias_H, dt_limit=self.dt_limit, limit=self.spectral_limit) for b in layers]
        radii = [float(nominal_radius(b.A_log_H, b.dt_bias_H).max().detach()) for b in layers]
        return {"spectral_radius": max(radii), "heads_at_limit": float(sum(bound))}

    def _layers(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _run(self, layers: list[Layer], features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = self.in_proj(features)
        present: list[Tensor] = []
        for layer, past_conv, past_ssm in zip(layers, state[::2], state[1::2], strict=True):
            hidden, conv, ssm = layer(hidden, past_conv, past_ssm)
            present += (conv, ssm)
        return self.head(self.norm(hidden)) + self.skip(features), *present
