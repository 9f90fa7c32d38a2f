"""The plugin: Mamba-2 as a foxflow model."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from foxflow.config import from_mapping
from foxflow.errors import ConfigError, ReleaseError
from foxflow.model import CHECKPOINT, Dataset, Epoch, Fitted, Progress
from foxflow_mamba2.network import Mamba2Network
from foxflow_torch import checkpoint
from foxflow_torch.fitted import TorchFitted, start_from
from foxflow_torch.trainer import Training, require, seeded
from foxflow_torch.trainer import train as train_network


@dataclass(frozen=True, kw_only=True)
class Mamba2Parameters(Training):
    """The network's sizes beside how it is trained; about 8,500 network parameters at 12 features.

    The inner width is `expand * d_model`, in heads of `head_dim`; each head keeps `head_dim * d_state` numbers from bar
    to bar, and the convolution before it sees `d_conv` bars. At its nominal step no head keeps more than
    `spectral_limit` of its state from one bar to the next: 0.99 is a memory of about 100 bars.
    """

    d_model: int = 32
    n_layers: int = 1
    expand: int = 2
    head_dim: int = 16
    d_state: int = 16
    d_conv: int = 4
    dropout: float = 0.1
    spectral_limit: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("d_model", "n_layers", "expand", "head_dim", "d_state"):
            require(getattr(self, name) >= 1, f"{name} = {getattr(self, name)}; expected at least 1")
        require(
            self.expand * self.d_model % self.head_dim == 0,
            f"head_dim = {self.head_dim}; expected a divisor of expand * d_model = {self.expand * self.d_model}",
        )
        require(self.d_conv >= 2, f"d_conv = {self.d_conv}; expected at least 2 bars")
        require(0 <= self.dropout < 1, f"dropout = {self.dropout}; expected a share in [0, 1)")
        require(0 < self.spectral_limit < 1, f"spectral_limit = {self.spectral_limit}; expected a share in (0, 1)")


class Mamba2:
    """Mamba-2 (Dao and Gu 2024), trained on mixed segments of all symbols, streamed bar by bar."""

    name: ClassVar[str] = "mamba2"
    Parameters: ClassVar[type[Mamba2Parameters]] = Mamba2Parameters

    def __init__(self, parameters: Mamba2Parameters) -> None:
        self.parameters = parameters

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
        progress: Progress,
    ) -> TorchFitted:
        """Return the network fitted to `train`, with the parameters that were best on `valid`."""
        with seeded(seed):
            network = _network(self.parameters, n_features=len(train.feature_names))
            if warm_start is not None:
                start_from(network, warm_start, model=self.name, feature_names=train.feature_names)
            history, best_epoch = train_network(network, train, valid, self.parameters, progress=progress)
        return _fitted(self.parameters, train.feature_names, network, best_epoch, history)

    def load(self, folder: Path) -> TorchFitted:
        """Return the fitted network saved in `folder`, built with the parameters saved beside it.

        Raises
        ------
        ReleaseError
            The checkpoint is absent, damaged or another model's.
        """
        metadata, tensors = checkpoint.read(folder)
        source = str(folder / CHECKPOINT)
        if metadata.get("model") != self.name:
            raise ReleaseError(
                f"{source} is of model {metadata.get('model')!r}; expected {self.name!r}: load it with that"
            )
        try:
            parameters = from_mapping(Mamba2Parameters, metadata["parameters"], section="model")
            feature_names = tuple(map(str, metadata["feature_names"]))
            best_epoch = int(metadata["best_epoch"])
        except (ConfigError, KeyError, TypeError, ValueError) as e:
            raise ReleaseError(f"{source} has unfit metadata ({e}); restore the file or fit the model again") from e
        network = _network(parameters, n_features=len(feature_names))
        checkpoint.restore(network, tensors, source=source)
        return _fitted(parameters, feature_names, network, best_epoch, ())


def _network(parameters: Mamba2Parameters, *, n_features: int) -> Mamba2Network:
    network = Mamba2Network(
        n_features,
        d_model=parameters.d_model,
        n_layers=parameters.n_layers,
        expand=parameters.expand,
        head_dim=parameters.head_dim,
        d_state=parameters.d_state,
        d_conv=parameters.d_conv,
        dropout=parameters.dropout,
        spectral_limit=parameters.spectral_limit,
    )
    return network.to(parameters.torch_dtype)


def _fitted(
    parameters: Mamba2Parameters,
    feature_names: tuple[str, ...],
    network: Mamba2Network,
    best_epoch: int,
    history: tuple[Epoch, ...],
) -> TorchFitted:
    return TorchFitted(
        model=Mamba2.name,
        parameters=dataclasses.asdict(parameters),
        feature_names=feature_names,
        network=network,
        best_epoch=best_epoch,
        history=history,
    )
