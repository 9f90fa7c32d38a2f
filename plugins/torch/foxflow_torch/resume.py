"""An unfinished fit on disk, rewritten after each epoch: an interrupted fit goes on from it to the same bits.

A safetensors file of tensors, with the rest as one JSON text in its metadata; no pickle.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
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
from foxflow_torch.options import Training
from foxflow_torch.segments import Batches, Segments

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
    judged = {
        f"valid.{number}.{name}": torch.from_numpy(getattr(series, name))
        for number, series in enumerate(valid.series)
        for name in ("features", "label", "weight")
    }
    return _digest(
        dataclasses.asdict(training), {**dict(fit.tensors()), **dict(_drawn(fit)), **vars(segments), **judged}
    )


def save(fit: Fit, folder: Path, *, of: str) -> None:
    """Replace `folder`'s unfinished fit by this one, in one step; `of` is its `key`.

    Raises
    ------
    PluginError
        The disk is full or the folder cannot be written to.
    """
    tensors = {
        **dict(fit.tensors()),
        **{f"best.{name}": tensor for name, tensor in fit.best.items()},
        **dict(_drawn(fit)),
        "queue": fit.batches.queue,
    }
    state: dict[str, object] = {
        "key": of,
        "n_steps": fit.optimiser.n_steps,
        "best_epoch": fit.best_epoch,
        "history": [dataclasses.asdict(epoch) for epoch in fit.history],
    }
    # One bit that changed on the disk would else change the fit in silence.
    state["sha256"] = _digest(state, tensors)
    content = serialise({n: t.contiguous() for n, t in tensors.items()}, {checkpoint.METADATA_KEY: json.dumps(state)})
    try:
        try:
            _replace(folder, content)
        except FileNotFoundError:
            # Another run of this very fit has ended in between and removed the folder.
            _replace(folder, content)
    except OSError as e:
        raise PluginError(f"cannot write {folder}: {e.strerror}; free space there or give another folder") from e


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
        is_whole = state.pop("sha256") == _digest(state, tensors)
    except (ReleaseError, KeyError) as e:
        raise PluginError(f"{path} is damaged ({e}); remove it, and the fit starts afresh") from e
    if not is_whole:
        raise PluginError(f"{path} is damaged (not what was written); remove it, and the fit starts afresh")
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
    fit.batches.queue = tensors["queue"]
    fit.optimiser.n_steps, fit.best_epoch = state["n_steps"], state["best_epoch"]
    fit.history = [Epoch(**epoch) for epoch in state["history"]]


def _replace(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{UNFINISHED}.", delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(folder / UNFINISHED)


def _digest(state: Mapping[str, object], tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of JSON values and tensors, each with its name and shape."""
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _drawn(fit: Fit) -> Iterator[tuple[str, Tensor]]:
    for generator in _generators(fit.network):
        yield f"generator.{generator.device.type}", generator.get_state()


def _generators(network: Network) -> list[torch.Generator]:
    """Return what a fit draws from: torch's own generator and, on a GPU, that of the device (dropout)."""
    generators = [torch.default_generator]
    if network.device.type == "cuda":
        generators.append(torch.cuda.default_generators[network.device.index or 0])
    return generators
