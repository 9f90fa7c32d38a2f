"""An unfinished fit on disk, rewritten after each epoch: an interrupted fit goes on from it to the same bits.

A safetensors file of tensors, with the rest as one JSON text in its metadata; no pickle.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save as serialise
from torch import Tensor

from foxflow.errors import PluginError, ReleaseError
from foxflow.model import Dataset, Epoch
from foxflow_torch import checkpoint
from foxflow_torch.adam import Adam
from foxflow_torch.network import Network
from foxflow_torch.segments import Batches, Segments
from foxflow_torch.training import Training

UNFINISHED = "unfinished.safetensors"


@dataclass
class Fit:
    """All that changes from epoch to epoch, beside the state of torch's generators.

    `best` holds the parameters of epoch `best_epoch`; `sample` the segments on which `train_loss` is measured.
    """

    network: Network
    optimiser: Adam
    batches: Batches
    sample: Tensor
    history: list[Epoch] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_epoch: int = 0

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor that an epoch changes in place, by name."""
        names = {id(parameter): name for name, parameter in self.network.named_parameters()}
        for parameter, _, mean, square in self.optimiser.moments:
            name = names[id(parameter)]
            yield f"parameter.{name}", parameter.detach()
            yield f"mean.{name}", mean
            yield f"square.{name}", square


def key(fit: Fit, segments: Segments, valid: Dataset, training: Training) -> str:
    """Return the sha256 of all that decides a fit that has not begun: options, data, start and random numbers."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(training), sort_keys=True).encode())
    for name, tensor in (*fit.tensors(), *_drawn(fit), *vars(segments).items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().numpy())
    for series in valid.series:
        for array in (series.features, series.label, series.weight):
            digest.update(array.tobytes())
    return digest.hexdigest()


def save(fit: Fit, folder: Path, *, of: str) -> None:
    """Replace `folder`'s unfinished fit by this one, in one step; `of` is its `key`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        **dict(fit.tensors()),
        **{f"best.{name}": tensor for name, tensor in fit.best.items()},
        **dict(_drawn(fit)),
        "queue": fit.batches.queue,
        "sample": fit.sample,
    }
    state = {
        "key": of,
        "n_steps": fit.optimiser.n_steps,
        "best_epoch": fit.best_epoch,
        "history": [dataclasses.asdict(epoch) for epoch in fit.history],
    }
    half = folder / f"{UNFINISHED}.{os.getpid()}"
    with half.open("wb") as file:
        file.write(
            serialise({n: t.contiguous() for n, t in tensors.items()}, {checkpoint.METADATA_KEY: json.dumps(state)})
        )
        file.flush()
        os.fsync(file.fileno())
    half.replace(folder / UNFINISHED)


@torch.no_grad()
def restore(fit: Fit, folder: Path, *, of: str) -> None:
    """Bring a fit that has not begun to where the one in `folder` was; without one there, leave it as it is.

    Raises
    ------
    PluginError
        The file is damaged, or of a fit with another `key`.
    """
    path = folder / UNFINISHED
    if not path.exists():
        return
    try:
        state, tensors = checkpoint.read(path)
        if state["key"] != of:
            raise PluginError(
                f"{path} is of a fit with other options, data, seed or start; expected this one's: "
                "remove it or give another folder"
            )
        for name, tensor in fit.tensors():
            tensor.copy_(tensors[name])
        for generator in _generators(fit.network):
            generator.set_state(tensors[f"generator.{generator.device.type}"])
        fit.best = {name: tensors[f"best.{name}"].to(fit.network.device) for name, _ in fit.network.named_parameters()}
        fit.batches.queue, fit.sample = tensors["queue"], tensors["sample"]
        fit.optimiser.n_steps, fit.best_epoch = state["n_steps"], state["best_epoch"]
        fit.history = [Epoch(**epoch) for epoch in state["history"]]
    except (ReleaseError, KeyError, TypeError, RuntimeError) as e:
        raise PluginError(f"{path} is damaged ({e}); remove it, and the fit starts afresh") from e


def _drawn(fit: Fit) -> Iterator[tuple[str, Tensor]]:
    for generator in _generators(fit.network):
        yield f"generator.{generator.device.type}", generator.get_state()


def _generators(network: Network) -> list[torch.Generator]:
    """Return what a fit draws from: torch's own generator and, on a GPU, that of the device (dropout)."""
    generators = [torch.default_generator]
    if network.device.type == "cuda":
        generators.append(torch.cuda.default_generators[network.device.index or 0])
    return generators
