"""Forecasts of whole series by one streaming pass each, and the labels they are judged by.

Axes: T bars, F features.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foxflow.errors import DataError
from foxflow.model import Dataset, Floats
from foxflow_torch.network import Network

BLOCK_BARS = 256


@contextmanager
def exact() -> Iterator[None]:
    """Keep cuDNN from rounding float32 to TF32 and from adding in a changing order; without a GPU nothing changes."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """Switch dropout and gradients off inside the block."""
    was_training = network.training
    network.eval()
    try:
        with torch.inference_mode(), exact():
            yield
    finally:
        network.train(was_training)


def forecast(network: Network, data: Dataset) -> tuple[Floats, ...]:
    """Return one `(n_bars,)` array of forecasts per series, from a zero state at its first bar.

    A bar's forecast is the same in every bit however many bars follow it and whatever other series there are: each
    series runs alone, in blocks of always `BLOCK_BARS` bars, the last filled up with zeros.
    """
    with evaluating(network):
        return tuple(_stream(network, series.features) for series in data.series)


def _stream(network: Network, features_TF: Floats) -> Floats:
    n_bars, n_features = features_TF.shape
    forecasts = np.empty(n_bars)
    state = network.zero_state(1)
    for start in range(0, n_bars, BLOCK_BARS):
        bars = features_TF[start : start + BLOCK_BARS]
        # Cast by numpy, so that no operation of torch sees another dtype than the network's. Only the last block is
        # filled up, and nothing reads the state behind it.
        block = np.zeros((1, BLOCK_BARS, n_features), numpy_dtype(network))
        block[0, : len(bars)] = bars
        output, *present = network(torch.from_numpy(block).to(network.device), *state)
        state = tuple(present)
        forecasts[start : start + len(bars)] = output[0, : len(bars), 0].cpu().numpy()
    return forecasts


def judged(network: Network, data: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """Return the streaming forecasts, the labels and the weights of every row with weight above 0, `(n_rows,)` each.

    Raises
    ------
    DataError
        No row has weight above 0.
    """
    counts = [s.weight > 0 for s in data.series]
    if not any(c.any() for c in counts):
        raise DataError(
            "0 validation rows with weight above 0; expected at least 1: give more bars or a larger validation share"
        )
    columns = (forecast(network, data), [s.label for s in data.series], [s.weight for s in data.series])
    forecasts, labels, weights = (
        torch.from_numpy(
            np.concatenate([a[c] for a, c in zip(column, counts, strict=True)]).astype(numpy_dtype(network))
        )
        for column in columns
    )
    return forecasts, labels, weights


def numpy_dtype(network: Network) -> type[np.floating[Any]]:
    """Return the network's dtype as numpy knows it."""
    return np.float64 if network.dtype == torch.float64 else np.float32
