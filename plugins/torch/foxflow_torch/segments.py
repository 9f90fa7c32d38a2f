"""Training segments as tensors, and the order in which they are drawn.

Axes: S segments, T bars of a segment, F features.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foxflow.errors import DataError
from foxflow.model import Dataset, Floats
from foxflow_torch.options import Training


@dataclass(frozen=True)
class Segments:
    """`features (S, T, F)`, `label` and `weight (S, T)`, in the dtype of the fit."""

    features: Tensor
    label: Tensor
    weight: Tensor

    @classmethod
    def of(cls, data: Dataset, training: Training) -> "Segments":
        """Return the segments that a fit with these options trains on.

        Raises
        ------
        DataError
            No row counts, or a number is not finite.
        """
        segments = data.segments(training.segment_length, training.without_loss)
        if not len(segments.weight):
            raise DataError(
                f"0 training rows with weight above 0 behind a burn-in of {training.without_loss} bars; "
                "expected at least 1: start later or lower burn_in"
            )
        require_finite("training", [segments.features], [segments.label])
        arrays = (segments.features, segments.label, segments.weight)
        # Cast by numpy, so that no operation of torch ever sees another dtype than the fit's.
        return cls(*(torch.from_numpy(np.asarray(a, dtype=training.dtype)) for a in arrays))

    def __len__(self) -> int:
        return len(self.weight)

    def to(self, device: torch.device) -> "Segments":
        """Return the segments on a device."""
        return Segments(self.features.to(device), self.label.to(device), self.weight.to(device))

    def draw(self, index: Tensor) -> "Segments":
        """Return the segments of an index, in its order."""
        index = index.to(self.weight.device)
        return Segments(self.features[index], self.label[index], self.weight[index])


class Batches:
    """Indices of segments for ever: each pass a new order, a batch running on into the next pass.

    Attributes
    ----------
    queue
        What is left of the present pass; with torch's generator, all that the next batches depend on.
    """

    def __init__(self, n_segments: int, batch_size: int) -> None:
        self._n_segments, self._n_batch = n_segments, min(batch_size, n_segments)
        self.queue = torch.empty(0, dtype=torch.int64)

    def draw(self) -> Tensor:
        """Return the next batch's indices."""
        if len(self.queue) < self._n_batch:
            self.queue = torch.cat([self.queue, torch.randperm(self._n_segments)])
        batch, self.queue = self.queue[: self._n_batch], self.queue[self._n_batch :]
        return batch


def require_finite(which: str, features: list[Floats], labels: list[Floats]) -> None:
    """Raise DataError where a feature or a label is NaN or infinite."""
    for what, arrays in (("features", features), ("labels", labels)):
        n_bad = sum(int(a.size - np.isfinite(a).sum()) for a in arrays)
        if n_bad:
            raise DataError(f"{n_bad} {which} {what} are not finite; expected scaled numbers: check the bars")
