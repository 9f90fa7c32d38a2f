"""Small series and a small network for the tests of the Torch plugins."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foxflow.dataset import Dataset, Floats, Series
from foxflow_torch import losses
from foxflow_torch.network import Network
from foxflow_torch.stream import judged

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch in one thread, as foxflow's processes do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loss(network: Network, data: Dataset) -> float:
    """Return the mean squared error of the streaming forecasts."""
    return float(losses.mean_squared_error(*judged(network, data)))


class Inputs(NamedTuple):
    """What a scan reads, in the order of its parameters."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    state: Tensor


def series(symbol: str, features: Floats, label: Floats | None = None, *, context: int = 0) -> Series:
    """Return a series whose rows weigh 1, the first `context` of them 0."""
    n_bars = len(features)
    weight = np.ones(n_bars)
    weight[:context] = 0.0
    ts = np.arange(n_bars, dtype=np.int64)
    label = np.zeros(n_bars) if label is None else label
    return Series(symbol, ts, features, np.ones(n_bars, dtype=bool), label, ts + 2, weight)


def dataset(parts: Sequence[Series]) -> Dataset:
    names = tuple(f"feature_{i}" for i in range(parts[0].features.shape[1]))
    return Dataset(feature_names=names, label_name="label", horizon=1, lookback=1, series=tuple(parts))


def noise(lengths: Mapping[str, int], *, n_features: int = 3, seed: int = 0, context: int = 0) -> Dataset:
    """Return series of independent normal features and labels."""
    rng = np.random.default_rng(seed)
    return dataset(
        [
            series(s, rng.standard_normal((n, n_features)), rng.standard_normal(n), context=context)
            for s, n in lengths.items()
        ]
    )


def memory(lengths: Mapping[str, int], *, seed: int, decay: float = 0.8, context: int = 0) -> Dataset:
    """Return series whose label is a moving average of the first of three features, with a variance of about 1."""
    rng = np.random.default_rng(seed)
    parts = []
    for symbol, n in lengths.items():
        features = rng.standard_normal((n, 3))
        label = np.empty(n)
        average = 0.0
        for t in range(n):
            average = decay * average + (1.0 - decay) * features[t, 0]
            label[t] = average
        parts.append(series(symbol, features, label / np.sqrt((1.0 - decay) / (1.0 + decay)), context=context))
    return dataset(parts)


class LagNetwork(Network):
    """Linear in a bar's features and those of the bar before: the smallest network with a state."""

    def __init__(self, n_features: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.now = nn.Linear(n_features, 1, dtype=torch.float64)
        self.before = nn.Linear(n_features, 1, bias=False, dtype=torch.float64)
        self.dropout = nn.Dropout(dropout)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"bar": (1, self.now.in_features)}

    def forward(self, features_BTF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        (past_B1F,) = state
        bars_BTF = torch.cat([past_B1F, features_BTF], 1)
        forecast_BT1 = self.now(self.dropout(features_BTF)) + self.before(bars_BTF[:, :-1])
        return forecast_BT1, bars_BTF[:, -1:]

    def step(self, features_BF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        (past_B1F,) = state
        return self.now(features_BF) + self.before(past_B1F.squeeze(1)), features_BF.unsqueeze(1)
