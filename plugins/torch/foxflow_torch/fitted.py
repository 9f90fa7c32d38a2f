"""A fitted network as `foxflow.model.Fitted`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from foxflow.errors import DataError, PluginError
from foxflow.model import Dataset, Epoch, Fitted, Floats, Graphs
from foxflow_torch import checkpoint, export, stream
from foxflow_torch.network import Network
from foxflow_torch.options import Training


@dataclass(frozen=True, eq=False)
class TorchFitted:
    """A network with its fit.

    Attributes
    ----------
    model
        The plugin's name.
    parameters
        The plugin's parameters, as JSON values: with the features, all that is needed to build the network again.
    feature_names
        The columns the network was fitted on, in order.
    """

    model: str
    parameters: Mapping[str, object]
    feature_names: tuple[str, ...]
    network: Network
    best_epoch: int
    history: tuple[Epoch, ...] = field(default=())

    def forecast(self, data: Dataset) -> tuple[Floats, ...]:
        """Return one `(n_bars,)` array of scaled forecasts per series; see `stream.forecast`."""
        if data.feature_names != self.feature_names:
            raise DataError(
                f"features {', '.join(data.feature_names)}; expected {', '.join(self.feature_names)}, "
                "in this order, as fitted: build the dataset with the config of the fit"
            )
        return stream.forecast(self.network, data)

    def save(self, folder: Path) -> None:
        """Write `checkpoint.safetensors`."""
        metadata = {
            "model": self.model,
            "parameters": dict(self.parameters),
            "feature_names": list(self.feature_names),
            "best_epoch": self.best_epoch,
        }
        checkpoint.save(self.network, folder, metadata=metadata)

    def to_onnx(self) -> Graphs:
        """Return the step and window graphs, float32."""
        return export.to_onnx(self.network, n_features=len(self.feature_names))


@torch.no_grad()
def start_from(
    network: Network,
    warm_start: Fitted,
    *,
    model: str,
    parameters: Mapping[str, object],
    feature_names: tuple[str, ...],
) -> None:
    """Copy the parameters of an earlier fit into a network about to be trained.

    How it is trained may change, as may its device; what the network is may not.

    Raises
    ------
    PluginError
        The earlier fit is another model's, or its features, its dtype or the network's own options differ.
    """
    if not isinstance(warm_start, TorchFitted) or warm_start.model != model:
        other = getattr(warm_start, "model", type(warm_start).__name__)
        raise PluginError(f"warm start from {other!r}; expected a fitted {model!r}: fit without a warm start")
    if warm_start.feature_names != feature_names:
        raise PluginError(
            f"warm start from features {', '.join(warm_start.feature_names)}; expected {', '.join(feature_names)}: "
            "fit without a warm start"
        )
    # Equal shapes are not enough: other groups or another limit of the step make another network of the same numbers.
    free = {f.name for f in dataclasses.fields(Training)} - {"dtype"}
    for name in parameters.keys() - free:
        if warm_start.parameters[name] != parameters[name]:
            raise PluginError(
                f"warm start from a fit with {name} = {warm_start.parameters[name]!r}; expected {parameters[name]!r}: "
                "fit without a warm start"
            )
    theirs = dict(warm_start.network.named_parameters())
    for name, parameter in network.named_parameters():
        parameter.copy_(theirs[name])
