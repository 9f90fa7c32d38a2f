"""Forecasts of whole series by one streaming pass each, and the loss of them.

Axes: T bars, F features.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from foxflow.errors import DataError
from foxflow.model import Dataset, Floats
from foxflow_torch.network import Network

BLOCK_BARS = 256


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """Switch dropout and gradients off inside the block."""
    was_training = network.training
    network.eval()
    try:
        with torch.inference_mode():
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
        bars = torch.from_numpy(features_TF[start : start + BLOCK_BARS])
        block = torch.zeros(1, BLOCK_BARS, n_features, dtype=network.dtype)
        block[0, : len(bars)] = bars
        # Only the last block is filled up, and nothing reads the state behind it.
        output, *present = network(block, *state)
        state = tuple(present)
        forecasts[start : start + len(bars)] = output[0, : len(bars), 0].numpy()
    return forecasts


def mean_squared_error(network: Network, data: Dataset) -> float:
    """Return the weighted mean squared error of the streaming forecasts over the rows with weight above 0.

    Raises
    ------
    DataError
        No row has weight above 0.
    """
    errors, weights = [], []
    for forecasts, series in zip(forecast(network, data), data.series, strict=True):
        counts = series.weight > 0
        # A network that diverged has an infinite error, which the caller reports better than a warning would.
        with np.errstate(over="ignore", invalid="ignore"):
            errors.append(np.square(forecasts[counts] - series.label[counts]))
        weights.append(series.weight[counts])
    if not sum(map(len, weights)):
        raise DataError(
            "0 validation rows with weight above 0; expected at least 1: give more bars or a larger validation share"
        )
    return float(np.average(np.concatenate(errors), weights=np.concatenate(weights)))
