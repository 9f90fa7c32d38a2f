"""What forecasts are worth beside labels of the same shape, every row with its weight."""

import torch
from torch import Tensor

from foxflow.errors import PluginError

# The original system's accuracy: a forecast is right within this share of the label.
ACCURATE_WITHIN = 0.1


def mean_squared_error(forecast: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of the squared errors.

    Raises
    ------
    PluginError
        The shapes differ: a broadcast would average errors of rows with the labels of others.
    """
    _require_equal_shapes(forecast, label, weight)
    loss: Tensor = (weight * (forecast - label).square()).sum() / weight.sum()
    return loss


def accuracy(forecast: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted share of forecasts within 10 % of their label; a label of 0 is never met.

    The original system's figure, kept for comparison; it divided by the label.
    """
    _require_equal_shapes(forecast, label, weight)
    return _share((forecast - label).abs() < ACCURATE_WITHIN * label.abs(), weight)


def directional_accuracy(forecast: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted share of forecasts on their label's side of 0, which is the mean of the training labels."""
    _require_equal_shapes(forecast, label, weight)
    return _share(torch.sign(forecast) == torch.sign(label), weight)


def _share(hits: Tensor, weight: Tensor) -> Tensor:
    return torch.where(hits, weight, torch.zeros_like(weight)).sum() / weight.sum()


def _require_equal_shapes(forecast: Tensor, label: Tensor, weight: Tensor) -> None:
    if not forecast.shape == label.shape == weight.shape:
        raise PluginError(
            f"forecasts {tuple(forecast.shape)}, labels {tuple(label.shape)}, weights {tuple(weight.shape)}; "
            "expected equal shapes: one label and one weight a forecast"
        )
