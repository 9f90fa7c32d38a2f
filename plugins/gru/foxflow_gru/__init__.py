"""A gated recurrent unit (Cho et al. 2014) as a foxflow model: a baseline with a memory, and a whole Torch plugin.

Axes: B batch, T bars, F features, W width.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from foxflow_torch.export import OPSET
from foxflow_torch.model import TorchModel
from foxflow_torch.network import Network
from foxflow_torch.options import Training, require


@dataclass(frozen=True, kw_only=True)
class GRUParameters(Training):
    """`width`: numbers kept from bar to bar."""

    width: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width >= 1, f"width = {self.width}; expected at least 1")


class GRUNetwork(Network):
    """One recurrent layer and a linear head that starts at zero: untrained, it forecasts the mean label."""

    def __init__(self, n_features: int, width: int) -> None:
        super().__init__()
        self.layer = nn.GRU(n_features, width, batch_first=True, dtype=torch.float64)
        self.head = nn.Linear(width, 1, dtype=torch.float64)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the one state, `hidden`."""
        return {"hidden": (self.layer.hidden_size,)}

    def forward(self, features_BTF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return a window's forecasts `(B, T, 1)` and the state after its last bar."""
        past_1BW = state[0].unsqueeze(0)
        hidden_BTW, last_1BW = (
            self._as_onnx(features_BTF, past_1BW)
            if torch.compiler.is_exporting()
            else self.layer(features_BTF, past_1BW)
        )
        return self.head(hidden_BTW), last_1BW.squeeze(0)

    def _as_onnx(self, features_BTF: Tensor, past_1BW: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the layer does as ONNX's own operator: traced, the layer would be unrolled to one length."""
        n_batch, n_bars, _ = features_BTF.shape
        width = self.layer.hidden_size

        def gates(parameter: Tensor) -> Tensor:
            # ONNX has update, reset, new; torch has reset before update.
            reset, update, new = parameter[:width], parameter[width : 2 * width], parameter[2 * width :]
            return torch.cat([update, reset, new]).unsqueeze(0)

        from_input, from_state, input_bias, state_bias = (gates(p) for p in self.layer.all_weights[0])
        hidden_T1BW, last_1BW = torch.onnx.ops.symbolic_multi_out(
            "GRU",
            (
                features_BTF.transpose(0, 1),
                from_input,
                from_state,
                torch.cat([input_bias, state_bias], -1),
                None,
                past_1BW,
            ),
            attrs={"hidden_size": width, "linear_before_reset": 1},
            dtypes=(features_BTF.dtype, features_BTF.dtype),
            shapes=((n_bars, 1, n_batch, width), (1, n_batch, width)),
            version=OPSET,
        )
        return hidden_T1BW.squeeze(1).transpose(0, 1), last_1BW

    def step(self, features_BF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return one bar's forecast `(B, 1)` and the state after it."""
        forecast_B11, hidden_BW = self(features_BF.unsqueeze(1), *state)
        return forecast_B11.squeeze(1), hidden_BW


class GRU(TorchModel[GRUParameters]):
    """A GRU, trained and streamed as every Torch plugin."""

    name: ClassVar[str] = "gru"
    Parameters: ClassVar[type[GRUParameters]] = GRUParameters

    def network(self, n_features: int) -> GRUNetwork:
        """Return a network of the width asked for."""
        return GRUNetwork(n_features, self.parameters.width)
