"""Checkpoints: parameters as safetensors, all else as one JSON text in their metadata; no pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from foxflow.errors import ReleaseError
from foxflow.model import CHECKPOINT

# One key, because safetensors writes several in no fixed order.
METADATA_KEY = "foxflow"


def save(network: nn.Module, folder: Path, *, metadata: Mapping[str, object]) -> None:
    """Write the network's parameters and `metadata` (JSON values) to `checkpoint.safetensors` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in network.named_parameters()}
    save_file(tensors, folder / CHECKPOINT, {METADATA_KEY: json.dumps(metadata, sort_keys=True)})


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the tensors by name of a file that foxflow wrote.

    Raises
    ------
    ReleaseError
        The file is absent, damaged or not one of ours.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(json.loads((file.metadata() or {})[METADATA_KEY]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as e:
        raise ReleaseError(
            f"no checkpoint at {path}; expected the file that saving a model writes: fit it again"
        ) from e
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as e:
        raise ReleaseError(f"{path} is not a foxflow checkpoint ({e}); restore the file or fit the model again") from e
    return metadata, tensors


def restore(network: nn.Module, tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Copy the tensors into the network's parameters.

    Raises
    ------
    ReleaseError
        Names, shapes or dtypes differ.
    """
    parameters = dict(network.named_parameters())
    if tensors.keys() != parameters.keys():
        odd = ", ".join(sorted(tensors.keys() ^ parameters.keys()))
        raise ReleaseError(
            f"{source} and the network differ in parameters {odd}; expected the same names: fit it again"
        )
    for name, parameter in parameters.items():
        tensor = tensors[name]
        if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
            raise ReleaseError(
                f"{source}: {name} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"expected {parameter.dtype} {tuple(parameter.shape)}: fit the model again"
            )
        parameter.data.copy_(tensor)
