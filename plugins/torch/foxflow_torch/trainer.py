"""The training loop every Torch plugin shares: clipped Adam on mixed segments, the best epoch kept.

Axes: S segments, T bars of a segment, F features.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from foxflow.errors import DataError, PluginError
from foxflow.model import Dataset, Epoch, Floats, Progress
from foxflow_torch.adam import Adam
from foxflow_torch.network import Network
from foxflow_torch.stream import evaluating, mean_squared_error


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a network is trained; a plugin's `Parameters` inherit it.

    `segment_length` bars make a training segment, whose first `burn_in` carry no loss; `warmup_bars` run before a
    symbol's first forecast counts. An epoch is `steps_per_epoch` steps on `batch_size` segments; `patience` epochs
    without a better validation loss end the fit. The learning rate falls to 0 over the planned steps as half a cosine;
    `weight_decay` (decoupled, Loshchilov and Hutter 2019) shrinks matrices only.
    """

    learning_rate: float = 0.003
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    batch_size: int = 16
    segment_length: int = 128
    burn_in: int = 32
    warmup_bars: int = 64
    epochs: int = 20
    steps_per_epoch: int = 4
    patience: int = 6
    dtype: Literal["float64", "float32"] = "float64"

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip_norm"):
            require(getattr(self, name) > 0, f"{name} = {getattr(self, name)}; expected a positive number")
        for name in ("batch_size", "epochs", "steps_per_epoch", "patience"):
            require(getattr(self, name) >= 1, f"{name} = {getattr(self, name)}; expected at least 1")
        require(self.weight_decay >= 0, f"weight_decay = {self.weight_decay}; expected 0 or more")
        require(self.burn_in >= 0, f"burn_in = {self.burn_in}; expected 0 or more bars")
        require(
            self.segment_length > self.burn_in,
            f"segment_length = {self.segment_length}; expected more bars than burn_in = {self.burn_in}",
        )
        require(
            self.burn_in <= self.warmup_bars,
            f"burn_in = {self.burn_in}; expected at most warmup_bars = {self.warmup_bars}, "
            "or forecasts count that are colder than any the training saw",
        )
        require(self.dtype in ("float64", "float32"), f"dtype = {self.dtype!r}; expected 'float64' or 'float32'")

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch knows it."""
        return torch.float64 if self.dtype == "float64" else torch.float32


def require(condition: bool, message: str) -> None:  # noqa: FBT001  (reads as assert does)
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch draw from `seed` inside the block, and from where it was after it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def train(
    network: Network, data: Dataset, valid: Dataset, training: Training, *, progress: Progress
) -> tuple[tuple[Epoch, ...], int]:
    """Fit the network in place; return the epochs and the number of the one whose parameters it now has.

    Draws from torch's generator: run it inside `seeded`. An epoch's `train_loss` is that of a sample of at most
    `batch_size` segments, drawn once and evaluated like `valid`: after the epoch and without dropout. Its `detail`
    holds the mean gradient norm over the steps before and after clipping and what `Network.after_step` last returned.

    Raises
    ------
    DataError
        No row of `data` or of `valid` counts, or a feature or a label that counts is not finite.
    PluginError
        A loss or gradient stops being finite, or a parameter gets no gradient.
    """
    segments = _Segments.of(data, training)
    _require_finite("validation", [s.features for s in valid.series], [s.label[s.weight > 0] for s in valid.series])
    sample = segments.draw(torch.randperm(len(segments))[: training.batch_size])
    batches = _batches(len(segments), training.batch_size)
    optimiser = Adam(network.parameter_groups(training.weight_decay))
    history: list[Epoch] = []
    best: dict[str, Tensor] = {}
    best_epoch = 0
    for number in range(training.epochs + 1):
        if number == 0:
            detail = network.after_step()
        else:
            detail = _train_epoch(network, optimiser, segments, batches, training=training, number=number)
        epoch = Epoch(number, _evaluate(network, sample), mean_squared_error(network, valid), detail)
        if not math.isfinite(epoch.train_loss + epoch.valid_loss):
            raise PluginError(f"the loss after epoch {number} is not finite; expected a number: lower learning_rate")
        history.append(epoch)
        progress(epoch, training.epochs)
        if number == 0 or epoch.valid_loss < history[best_epoch].valid_loss:
            best_epoch = number
            best = {name: p.detach().clone() for name, p in network.named_parameters()}
        if number - best_epoch >= training.patience:
            break
    _restore(network, best)
    return tuple(history), best_epoch


def _train_epoch(
    network: Network,
    optimiser: Adam,
    segments: "_Segments",
    batches: Iterator[Tensor],
    *,
    training: Training,
    number: int,
) -> Mapping[str, float]:
    """Take one epoch's steps; return what to record of them."""
    network.train()
    norms = np.zeros(2)
    detail: Mapping[str, float] = {}
    n_planned = training.epochs * training.steps_per_epoch
    for step in range(training.steps_per_epoch):
        done = (number - 1) * training.steps_per_epoch + step
        network.zero_grad(set_to_none=True)
        loss = _loss(network, segments.draw(next(batches)))
        loss.backward()  # type: ignore[no-untyped-call]
        norms += _clip(network, training.clip_norm, where=f"epoch {number}, step {step + 1}", loss=float(loss.detach()))
        optimiser.step(training.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done / n_planned)))
        detail = network.after_step()
    before, clipped = (norms / training.steps_per_epoch).tolist()
    return {"grad_norm": before, "grad_norm_clipped": clipped, **detail}


def _clip(network: Network, clip_norm: float, *, where: str, loss: float) -> tuple[float, float]:
    """Scale all gradients by one factor to a global norm of at most `clip_norm`; return the norm before and after."""
    gradients = []
    for name, parameter in network.named_parameters():
        if parameter.grad is None:
            raise PluginError(
                f"parameter {name} gets no gradient in {where}; expected the loss to depend on it: remove it"
            )
        gradients.append(parameter.grad)
    before = float(clip_grad_norm_(network.parameters(), clip_norm, foreach=False))
    if not math.isfinite(loss + before):
        raise PluginError(
            f"{where}: loss {loss}, gradient norm {before}; expected finite numbers: lower learning_rate or clip_norm"
        )
    return before, float(get_total_norm(gradients, foreach=False))


@dataclass(frozen=True)
class _Segments:
    """Training segments as tensors: `features (S, T, F)`, `label` and `weight (S, T)`."""

    features: Tensor
    label: Tensor
    weight: Tensor

    @classmethod
    def of(cls, data: Dataset, training: Training) -> "_Segments":
        segments = data.segments(training.segment_length, training.burn_in)
        if not len(segments.weight):
            raise DataError(
                f"0 training rows with weight above 0 behind a burn-in of {training.burn_in} bars; "
                "expected at least 1: start later or lower burn_in"
            )
        _require_finite("training", [segments.features], [segments.label])
        arrays = (segments.features, segments.label, segments.weight)
        return cls(*(torch.from_numpy(a).to(training.torch_dtype) for a in arrays))

    def __len__(self) -> int:
        return len(self.weight)

    def draw(self, index: Tensor) -> "_Segments":
        return _Segments(self.features[index], self.label[index], self.weight[index])


def _batches(n_segments: int, batch_size: int) -> Iterator[Tensor]:
    """Yield indices of segments for ever: each pass a new order, a batch running on into the next pass."""
    n_batch = min(batch_size, n_segments)
    queue = torch.empty(0, dtype=torch.int64)
    while True:
        if len(queue) < n_batch:
            queue = torch.cat([queue, torch.randperm(n_segments)])
        yield queue[:n_batch]
        queue = queue[n_batch:]


def _loss(network: Network, batch: _Segments) -> Tensor:
    """Return the weighted mean squared error of a batch of segments, each from a zero state."""
    forecast, *_ = network(batch.features, *network.zero_state(len(batch)))
    loss: Tensor = (batch.weight * (forecast.squeeze(-1) - batch.label).square()).sum() / batch.weight.sum()
    return loss


def _evaluate(network: Network, batch: _Segments) -> float:
    with evaluating(network):
        return float(_loss(network, batch))


def _require_finite(which: str, features: list[Floats], labels: list[Floats]) -> None:
    for what, arrays in (("features", features), ("labels", labels)):
        n_bad = sum(int(a.size - np.isfinite(a).sum()) for a in arrays)
        if n_bad:
            raise DataError(f"{n_bad} {which} {what} are not finite; expected scaled numbers: check the bars")


@torch.no_grad()
def _restore(network: Network, best: Mapping[str, Tensor]) -> None:
    for name, parameter in network.named_parameters():
        parameter.copy_(best[name])
