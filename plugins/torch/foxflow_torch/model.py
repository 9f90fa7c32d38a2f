"""A Torch plugin in a few lines: a network and its options; fit, load and warm start are shared.

Torch is imported by what needs it: a run whose folds are all kept asks a plugin for its options alone.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from foxflow.config import from_mapping
from foxflow.errors import ConfigError, PluginError, ReleaseError
from foxflow.model import CHECKPOINT, Dataset, Fitted, Progress
from foxflow_torch.options import Training

if TYPE_CHECKING:
    import torch

    from foxflow_torch.fitted import TorchFitted
    from foxflow_torch.network import Network

P = TypeVar("P", bound=Training)


class TorchModel(Generic[P]):
    """What is the same in every Torch plugin; one of its own sets `name` and `Parameters` and writes `network`."""

    name: ClassVar[str]
    Parameters: ClassVar[type[Training]]

    def __init__(self, parameters: P) -> None:
        self.parameters = parameters

    def network(self, n_features: int) -> "Network":
        """Return a new network in float64, its start drawn from torch's generator; `fit` casts it to its dtype."""
        raise NotImplementedError

    @property
    def warmup_bars(self) -> int:
        """Bars a symbol's state is run over before its first forecast counts."""
        return self.parameters.warmup_bars

    def fit(
        self,
        train: Dataset,
        valid: Dataset,
        *,
        seed: int,
        warm_start: Fitted | None = None,
        checkpoints: Path | None = None,
        progress: Progress,
    ) -> "TorchFitted":
        """Return the network fitted to `train`, with the parameters that were best on `valid`."""
        from foxflow_torch.fitted import TorchFitted, start_from
        from foxflow_torch.trainer import seeded
        from foxflow_torch.trainer import train as fit_network

        device = self._device()
        with seeded(seed, device):
            network = self.network(len(train.feature_names)).to(device, self.parameters.torch_dtype)
            if warm_start is not None:
                start_from(
                    network,
                    warm_start,
                    model=self.name,
                    parameters=dataclasses.asdict(self.parameters),
                    feature_names=train.feature_names,
                )
            history, best_epoch = fit_network(
                network, train, valid, self.parameters, checkpoints=checkpoints, progress=progress
            )
        return TorchFitted(
            model=self.name,
            parameters=dataclasses.asdict(self.parameters),
            feature_names=train.feature_names,
            network=network,
            best_epoch=best_epoch,
            history=history,
        )

    def load(self, folder: Path) -> "TorchFitted":
        """Return the fitted network saved in `folder`, built on the CPU with the parameters saved beside it.

        Raises
        ------
        ReleaseError
            The checkpoint is absent, damaged or another model's.
        """
        import torch

        from foxflow_torch import checkpoint
        from foxflow_torch.fitted import TorchFitted
        from foxflow_torch.trainer import seeded

        path = folder / CHECKPOINT
        metadata, tensors = checkpoint.read(path)
        if metadata.get("model") != self.name:
            raise ReleaseError(
                f"{path} is of model {metadata.get('model')!r}; expected {self.name!r}: load it with that"
            )
        try:
            parameters = from_mapping(self.Parameters, metadata["parameters"], section="model")
            feature_names = tuple(map(str, metadata["feature_names"]))
            best_epoch = int(metadata["best_epoch"])
        except (ConfigError, KeyError, TypeError, ValueError) as e:
            raise ReleaseError(f"{path} has unfit metadata ({e}); restore the file or fit the model again") from e
        # Its start is drawn only to be overwritten: whoever loads a model keeps their random numbers.
        with seeded(0, torch.device("cpu")):
            network = type(self)(parameters).network(len(feature_names))  # type: ignore[arg-type]
        network = network.to(parameters.torch_dtype)
        checkpoint.restore(network, tensors, source=str(path))
        return TorchFitted(
            model=self.name,
            parameters=dataclasses.asdict(parameters),
            feature_names=feature_names,
            network=network,
            best_epoch=best_epoch,
        )

    def _device(self) -> "torch.device":
        import torch

        if self.parameters.device == "cuda" and not torch.cuda.is_available():
            raise PluginError(
                "device = 'cuda'; expected a GPU that torch can use, which `foxflow doctor` shows: set device = 'cpu'"
            )
        return torch.device(self.parameters.device)
