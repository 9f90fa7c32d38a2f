"""Every Torch plugin in a small size, fitted in a moment through the registry."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch_samples import memory

from foxflow import registry
from foxflow.dataset import Floats
from foxflow.model import Epoch

PLUGINS = ("gru", "mamba2")
SIZES: Mapping[str, dict[str, object]] = {
    "gru": {"width": 8},
    "mamba2": {"n_layers": 2, "d_model": 8, "head_dim": 4, "d_state": 4, "n_groups": 2},
}
SHORT = {
    "learning_rate": 0.02,
    "warmup_steps": 2,
    "weight_decay": 0.01,
    "clip_norm": 0.1,
    "batch_size": 5,
    "segment_length": 48,
    "burn_in": 8,
    "warmup_bars": 16,
    "epochs": 4,
    "steps_per_epoch": 3,
    "patience": 4,
}
TRAIN = memory({"A": 200, "B": 120}, seed=1)
VALID = memory({"A": 80, "B": 60}, seed=2, context=16)


def silent(epoch: Epoch, n_planned: int) -> None:
    """Ignore progress."""


def fit(name: str, *, seed: int = 0, checkpoints: Path | None = None, progress: Any = silent, **options: object) -> Any:
    model = registry.build(name, {**SHORT, **SIZES[name], **options})
    return model.fit(TRAIN, VALID, seed=seed, checkpoints=checkpoints, progress=progress)


def same_bits(left: tuple[Floats, ...], right: tuple[Floats, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))
