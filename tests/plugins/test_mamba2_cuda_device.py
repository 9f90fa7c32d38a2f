"""What only a GPU can show: a fit there, streams, autograd's own thread, a compiled graph and more blocks than 65,535."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plugin_samples import VALID, fit, same_bits
from scan_checks import assert_right, assert_same_bits, gradients, inputs
from torch import Tensor
from torch_samples import one_thread  # noqa: F401

from foxflow import registry
from foxflow.model import Epoch
from foxflow_mamba2.ssd import ssd_scan
from foxflow_mamba2.ssd.cuda import operator, ssd_cuda
from foxflow_mamba2.ssd.cuda.geometry import Variant

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def device() -> Iterator[torch.device]:
    """Return the GPU, its settings for repeatable bits those of foxflow's fits."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")
    yield torch.device("cuda")
    # A fault of a kernel that has only been queued is one of the test that queued it.
    torch.cuda.synchronize()


def fit_on(place: str, **options: Any) -> Any:
    # Without dropout, whose numbers are another generator's on each device.
    return fit("mamba2", device=place, dropout=0.0, **options)


def test_a_fit_on_the_gpu_runs_the_kernels_and_comes_near_that_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: set[tuple[str, Variant]] = set()
    launch = operator._launch

    def spy(kernel: str, x: Tensor, B: Tensor, heads: int, tensors: Any) -> None:
        launched.add((kernel, Variant(x.dtype, x.shape[3], B.shape[3])))
        launch(kernel, x, B, heads, tensors)

    monkeypatch.setattr(operator, "_launch", spy)
    on_gpu, on_cpu = fit_on("cuda"), fit_on("cpu")
    # Heads and states of 4 are padded to 16.
    assert launched == {(kernel, Variant(torch.float64, 16, 16)) for kernel in ("ssd_forward", "ssd_backward")}
    for found, expected in zip(on_gpu.forecast(VALID), on_cpu.forecast(VALID), strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    for found, expected in zip(on_gpu.history, on_cpu.history, strict=True):
        assert found.valid_loss == pytest.approx(expected.valid_loss, abs=1e-6)


def test_two_fits_on_the_gpu_give_equal_bits_with_dropout_too() -> None:
    first, second = (fit("mamba2", device="cuda", dropout=0.1) for _ in range(2))
    assert same_bits(first.forecast(VALID), second.forecast(VALID))


def test_a_fit_on_the_gpu_interrupted_after_an_epoch_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def stop(epoch: Epoch, n_planned: int) -> None:
        if epoch.number == 1:
            raise KeyboardInterrupt

    whole = fit("mamba2", device="cuda")
    with pytest.raises(KeyboardInterrupt):
        fit("mamba2", device="cuda", checkpoints=tmp_path, progress=stop)
    resumed = fit("mamba2", device="cuda", checkpoints=tmp_path)
    assert resumed.history == whole.history
    for (name, left), right in zip(resumed.network.named_parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(left, right), name


def test_a_fit_on_the_gpu_is_saved_and_forecasts_on_the_cpu(tmp_path: Path) -> None:
    fitted = fit_on("cuda")
    fitted.save(tmp_path)
    loaded = registry.build("mamba2", {}).load(tmp_path)
    assert {p.device.type for p in loaded.network.parameters()} == {"cpu"}
    for found, expected in zip(loaded.forecast(VALID), fitted.forecast(VALID), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_a_scan_on_a_side_stream_waits_for_what_that_stream_writes(device: torch.device) -> None:
    def late(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        # Half a second before the inputs are written: a kernel on another stream would not wait for them.
        torch.cuda._sleep(10**9)
        return ssd_cuda(*(t.clone() for t in tensors))

    data = inputs(257, head_dim=32, d_state=32)
    expected = gradients(data, ssd_cuda, place=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = gradients(data, late, place=device)
    torch.cuda.current_stream().wait_stream(stream)
    assert_same_bits(found, expected)


FRESH = """
import sys
sys.path[:0] = {path!r}
import torch
from scan_checks import gradients, inputs
from foxflow_mamba2.ssd.cuda import operator, ssd_cuda
from foxflow_mamba2.ssd.naive import ssd_naive

def scan(*tensors):
    result = ssd_cuda(*tensors)
    # A driver that has loaded nothing and entered no context.
    operator._driver.cache_clear()
    return result

expected = gradients(inputs(70), ssd_naive)
for name, found in gradients(inputs(70), scan, place=torch.device({device!r})).items():
    assert float((found - expected[name]).abs().max() / expected[name].abs().max()) <= 1e-12, name
"""


def test_the_driver_may_meet_its_first_kernel_on_autograds_thread(device: torch.device) -> None:
    # In a process of its own, whose thread for the device's gradients is as fresh as the driver.
    script = FRESH.format(path=[str(Path(__file__).parent), *sys.path], device=str(device))
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_graph_break_the_door_chooses_the_kernels(
    dynamic: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    launched: list[str] = []
    launch = operator._launch

    def spy(kernel: str, *arguments: Any) -> None:
        launched.append(kernel)
        launch(kernel, *arguments)

    monkeypatch.setattr(operator, "_launch", spy)
    compiled = torch.compile(scan_by_the_door, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for n_bars in (70, 100):
        data = inputs(n_bars, n_groups=2)
        expected = gradients(data, scan_by_the_door, place=device)
        launched.clear()
        assert_same_bits(gradients(data, compiled, place=device), expected)
        assert launched == ["ssd_forward", "ssd_backward"]


def scan_by_the_door(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    *read, state = tensors
    return ssd_scan(*read, initial_state=state, return_final_state=True)


def test_a_batch_of_no_rows_gives_empty_outputs_and_gradients_of_zero(device: torch.device) -> None:
    found = gradients(inputs(9, n_batch=0), ssd_cuda, place=device)
    assert (found["y"].shape, found["final"].shape) == ((0, 9, 4, 8), (0, 4, 8, 8))
    assert torch.equal(found["A"], torch.zeros(4, dtype=torch.float64))
    assert found["B"].shape == (0, 9, 1, 8)


def test_more_than_65535_blocks_are_right(device: torch.device) -> None:
    assert_right(inputs(2, n_batch=70_000, n_heads=1, head_dim=4, d_state=4), place=device)
