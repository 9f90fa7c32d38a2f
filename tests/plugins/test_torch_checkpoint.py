"""Checkpoints: what is written comes back, and anything else is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch_samples import CPU, LagNetwork, one_thread  # noqa: F401

from foxflow.errors import ReleaseError
from foxflow.model import CHECKPOINT
from foxflow_torch import checkpoint
from foxflow_torch.trainer import seeded


def network(seed: int = 0, n_features: int = 2) -> LagNetwork:
    with seeded(seed, CPU):
        return LagNetwork(n_features)


def test_metadata_and_every_parameter_come_back(tmp_path: Path) -> None:
    saved, restored = network(0), network(1)
    checkpoint.save(saved, tmp_path / "new", metadata={"b": 1, "a": [1.5, None, "x"]})
    metadata, tensors = checkpoint.read(tmp_path / "new" / CHECKPOINT)
    assert metadata == {"a": [1.5, None, "x"], "b": 1}
    checkpoint.restore(restored, tensors, source="here")
    for a, b in zip(saved.parameters(), restored.parameters(), strict=True):
        assert torch.equal(a, b)


def test_equal_networks_give_equal_bytes(tmp_path: Path) -> None:
    for name in "ab":
        checkpoint.save(network(), tmp_path / name, metadata={"x": 1, "y": 2, "z": 3})
    a, b = ((tmp_path / name / "checkpoint.safetensors").read_bytes() for name in "ab")
    assert a == b


def test_an_absent_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=f"no checkpoint at {tmp_path / CHECKPOINT}"):
        checkpoint.read(tmp_path / CHECKPOINT)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"\xff" * 64])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(content)
    with pytest.raises(ReleaseError, match="is not a foxflow checkpoint"):
        checkpoint.read(tmp_path / CHECKPOINT)


def test_tensors_of_another_program_are_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "checkpoint.safetensors")
    with pytest.raises(ReleaseError, match="is not a foxflow checkpoint"):
        checkpoint.read(tmp_path / CHECKPOINT)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"now.weight": torch.zeros(1, 2)}, "differ in parameters before.weight, now.bias"),
        (
            dict(network(n_features=3).named_parameters()),
            r"(before|now)\.weight is .*\(1, 3\); expected .*\(1, 2\)",
        ),
        (dict(network().float().named_parameters()), "torch.float32 .*; expected torch.float64"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(other: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        checkpoint.restore(network(), other, source="here")
