"""The plugin: Mamba-2 as a foxflow model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from foxflow_torch.model import TorchModel
from foxflow_torch.options import Training, require

if TYPE_CHECKING:
    from foxflow_mamba2.network import Mamba2Network


@dataclass(frozen=True, kw_only=True)
class Mamba2Parameters(Training):
    """The network's sizes beside how it is trained; about 8,500 network parameters at 12 features.

    The inner width is `expand * d_model`, in heads of `head_dim`; each head keeps `head_dim * d_state` numbers from bar
    to bar, and the convolution before it sees `d_conv` bars. Heads of one of the `n_groups` share where in the state
    they write and read. A bar's step lies within `dt_min` and `dt_max`; at its nominal step no head keeps more than
    `spectral_limit` of its state from one bar to the next: 0.99 is a memory of about 100 bars. `chunk` bars are scanned
    at a time on a CPU, which changes speed and last bits alone; 0 takes the faster of 16 and 32.
    """

    d_model: int = 32
    n_layers: int = 1
    expand: int = 2
    head_dim: int = 16
    d_state: int = 16
    n_groups: int = 1
    d_conv: int = 4
    dropout: float = 0.1
    dt_min: float = 1e-6
    dt_max: float = 1.0
    spectral_limit: float = 0.99
    chunk: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("d_model", "n_layers", "expand", "head_dim", "d_state", "n_groups"):
            require(getattr(self, name) >= 1, f"{name} = {getattr(self, name)}; expected at least 1")
        require(
            self.expand * self.d_model % self.head_dim == 0,
            f"head_dim = {self.head_dim}; expected a divisor of expand * d_model = {self.expand * self.d_model}",
        )
        n_heads = self.expand * self.d_model // self.head_dim
        require(n_heads % self.n_groups == 0, f"n_groups = {self.n_groups}; expected a divisor of the {n_heads} heads")
        require(
            0 < self.dt_min < self.dt_max,
            f"dt_min = {self.dt_min}, dt_max = {self.dt_max}; expected two positive numbers, the smaller first",
        )
        require(
            not (self.chunk and self.device == "cuda"),
            f"chunk = {self.chunk} with device = 'cuda', whose kernel scans bar by bar; expected 0",
        )
        require(self.chunk >= 0, f"chunk = {self.chunk}; expected at least 1 bar, or 0 for the faster of 16 and 32")
        require(self.d_conv >= 2, f"d_conv = {self.d_conv}; expected at least 2 bars")
        require(0 <= self.dropout < 1, f"dropout = {self.dropout}; expected a share in [0, 1)")
        require(0 < self.spectral_limit < 1, f"spectral_limit = {self.spectral_limit}; expected a share in (0, 1)")


class Mamba2(TorchModel[Mamba2Parameters]):
    """Mamba-2 (Dao and Gu 2024), trained on mixed segments of all symbols, streamed bar by bar."""

    name: ClassVar[str] = "mamba2"
    Parameters: ClassVar[type[Mamba2Parameters]] = Mamba2Parameters

    def network(self, n_features: int) -> "Mamba2Network":
        """Return a network of these sizes that forecasts 0, the mean of the training labels."""
        from foxflow_mamba2.network import Mamba2Network

        sizes = self.parameters
        return Mamba2Network(
            n_features,
            n_layers=sizes.n_layers,
            d_model=sizes.d_model,
            d_inner=sizes.expand * sizes.d_model,
            head_dim=sizes.head_dim,
            d_state=sizes.d_state,
            n_groups=sizes.n_groups,
            d_conv=sizes.d_conv,
            dropout=sizes.dropout,
            dt_limit=(sizes.dt_min, sizes.dt_max),
            spectral_limit=sizes.spectral_limit,
            chunk=sizes.chunk or None,
        )
