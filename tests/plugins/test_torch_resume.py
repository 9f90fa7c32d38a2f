"""A fit that was interrupted, or killed, goes on to the bits of one that never was; asked of every Torch plugin."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plugin_samples import PLUGINS, SHORT, SIZES, TRAIN, VALID, fit, same_bits, silent
from safetensors import safe_open
from torch_samples import one_thread  # noqa: F401

from foxflow import registry
from foxflow.errors import PluginError
from foxflow.model import Epoch
from foxflow_torch.fitted import TorchFitted
from foxflow_torch.resume import UNFINISHED


@pytest.fixture(scope="module", params=PLUGINS)
def fitted(request: pytest.FixtureRequest) -> TorchFitted:
    return fit(request.param)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_interrupted_fit_goes_on_to_the_bits_of_one_never_interrupted(
    fitted: TorchFitted, at: int, tmp_path: Path
) -> None:
    def stop(epoch: Epoch, n_planned: int) -> None:
        if epoch.number == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(fitted.model, checkpoints=tmp_path, progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == [UNFINISHED]
    heard: list[int] = []
    resumed = fit(fitted.model, checkpoints=tmp_path, progress=lambda epoch, _: heard.append(epoch.number))
    assert heard == [0, 1, 2, 3, 4]
    assert resumed.history == fitted.history
    for (name, left), right in zip(resumed.network.named_parameters(), fitted.network.parameters(), strict=True):
        assert torch.equal(left, right), name


def test_checkpoints_change_no_bit_and_a_finished_fit_is_not_fitted_again(fitted: TorchFitted, tmp_path: Path) -> None:
    first = fit(fitted.model, checkpoints=tmp_path)
    written = (tmp_path / UNFINISHED).read_bytes()
    again = fit(fitted.model, checkpoints=tmp_path)
    assert same_bits(first.forecast(VALID), fitted.forecast(VALID))
    assert same_bits(again.forecast(VALID), fitted.forecast(VALID))
    assert [e.seconds for e in again.history] == [e.seconds for e in first.history]
    assert (tmp_path / UNFINISHED).read_bytes() == written


@pytest.mark.parametrize("change", [{"seed": 1}, {"learning_rate": 0.01}, {"epochs": 5}])
def test_the_checkpoint_of_another_fit_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    fit("gru", checkpoints=tmp_path)
    with pytest.raises(PluginError, match="is of a fit with other options, data, seed or start"):
        fit("gru", checkpoints=tmp_path, **change)


def cut_short(content: bytes) -> bytes:
    return content[:-100]


def with_one_bit_changed(content: bytes) -> bytes:
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


def with_another_best_epoch(content: bytes) -> bytes:
    assert content.count(b'best_epoch\\": ') == 1
    return re.sub(rb'(best_epoch\\": )\d', rb"\g<1>9", content)


@pytest.mark.parametrize("damage", [cut_short, with_one_bit_changed, with_another_best_epoch])
def test_a_damaged_checkpoint_is_refused_and_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    fit("gru", checkpoints=tmp_path)
    path = tmp_path / UNFINISHED
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PluginError, match=r"unfinished.safetensors is damaged .*remove it"):
        fit("gru", checkpoints=tmp_path)


def test_a_folder_that_another_run_removes_is_made_again(fitted: TorchFitted, tmp_path: Path) -> None:
    folder = tmp_path / "fit"
    again = fit(fitted.model, checkpoints=folder, progress=lambda *_: shutil.rmtree(folder))
    assert same_bits(again.forecast(VALID), fitted.forecast(VALID))


def test_a_fit_with_a_warm_start_goes_on_to_the_same_bits_too(fitted: TorchFitted, tmp_path: Path) -> None:
    def stop(epoch: Epoch, n_planned: int) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    model = registry.build(fitted.model, {**SHORT, **SIZES[fitted.model]})
    whole = model.fit(TRAIN, VALID, seed=9, warm_start=fitted, progress=silent)
    with pytest.raises(KeyboardInterrupt):
        model.fit(TRAIN, VALID, seed=9, warm_start=fitted, checkpoints=tmp_path, progress=stop)
    resumed = model.fit(TRAIN, VALID, seed=9, warm_start=fitted, checkpoints=tmp_path, progress=silent)
    assert same_bits(resumed.forecast(VALID), whole.forecast(VALID))
    with pytest.raises(PluginError, match="other options, data, seed or start"):
        model.fit(TRAIN, VALID, seed=9, checkpoints=tmp_path, progress=silent)


def test_loading_a_model_moves_no_random_number(fitted: TorchFitted, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    registry.build(fitted.model, {}).load(tmp_path)
    assert torch.equal(torch.rand(3), expected)


LONG = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
import torch
torch.set_num_threads(1)
from plugin_samples import fit
fitted = fit({name!r}, checkpoints=Path(sys.argv[1]), epochs=40, patience=40)
fitted.save(Path(sys.argv[2]))
"""


@pytest.mark.parametrize("name", PLUGINS)
def test_a_fit_killed_in_the_middle_goes_on_to_the_bits_of_one_never_killed(name: str, tmp_path: Path) -> None:
    script = LONG.format(path=[str(Path(__file__).parent), *sys.path], name=name)

    def start(folder: str) -> subprocess.Popen[bytes]:
        arguments = [str(tmp_path / f"{folder}_fits"), str(tmp_path / folder)]
        return subprocess.Popen([sys.executable, "-c", script, *arguments])

    assert start("whole").wait(timeout=300) == 0
    for n_epochs in (3, 11):
        killed = start("killed")
        path = tmp_path / "killed_fits" / UNFINISHED
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (path.exists() and _epochs(path) >= n_epochs):
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        assert not (tmp_path / "killed").exists()
    assert start("killed").wait(timeout=300) == 0
    whole, killed_and_continued = (
        (tmp_path / folder / "checkpoint.safetensors").read_bytes() for folder in ("whole", "killed")
    )
    assert killed_and_continued == whole


def _epochs(path: Path) -> int:
    with safe_open(path, framework="pt") as file:
        return len(json.loads(file.metadata()["foxflow"])["history"]) - 1
