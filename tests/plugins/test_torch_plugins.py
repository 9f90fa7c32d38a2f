"""What every Torch plugin must do, asked of each through the registry: Mamba-2 and the GRU pass the same checks."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_samples import CPU, memory, noise, one_thread  # noqa: F401

from foxflow import registry
from foxflow.dataset import Floats
from foxflow.errors import ConfigError, PluginError
from foxflow.model import Epoch
from foxflow_torch.fitted import TorchFitted
from foxflow_torch.network import Network
from foxflow_torch.resume import UNFINISHED
from foxflow_torch.trainer import seeded

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
RECORDED = {
    "learning_rate", "grad_norm", "grad_norm_clipped", "clipped_share", "train_accuracy", "train_directional_accuracy",
    "valid_accuracy", "valid_directional_accuracy",
}  # fmt: skip


def silent(epoch: Epoch, n_planned: int) -> None:
    """Ignore progress."""


def fit(name: str, *, seed: int = 0, checkpoints: Path | None = None, progress: Any = silent, **options: object) -> Any:
    model = registry.build(name, {**SHORT, **SIZES[name], **options})
    return model.fit(TRAIN, VALID, seed=seed, checkpoints=checkpoints, progress=progress)


def network(name: str, *, seed: int = 0) -> Network:
    """Return a network whose every parameter is away from its start, as after a fit."""
    with seeded(seed, CPU):
        made: Network = registry.build(name, {**SHORT, **SIZES[name]}).network(3)  # type: ignore[attr-defined]
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


def bars(n_batch: int, n_bars: int) -> Tensor:
    return torch.randn(n_batch, n_bars, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def same_bits(left: tuple[Floats, ...], right: tuple[Floats, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module", params=PLUGINS)
def fitted(request: pytest.FixtureRequest) -> TorchFitted:
    return fit(request.param)


def test_the_loss_falls_on_data_with_a_memory(fitted: TorchFitted) -> None:
    longer = fit(fitted.model, epochs=10, steps_per_epoch=10, patience=10, clip_norm=1.0)
    assert longer.history[longer.best_epoch].valid_loss < 0.6 * longer.history[0].valid_loss


def test_equal_seeds_give_equal_bits_and_another_seed_does_not(fitted: TorchFitted) -> None:
    again, other = fit(fitted.model), fit(fitted.model, seed=1)
    assert same_bits(again.forecast(VALID), fitted.forecast(VALID))
    assert again.history == fitted.history
    assert not same_bits(other.forecast(VALID), fitted.forecast(VALID))


def test_a_saved_model_is_loaded_to_the_same_bits(fitted: TorchFitted, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    loaded = registry.build(fitted.model, {}).load(tmp_path)
    assert same_bits(loaded.forecast(VALID), fitted.forecast(VALID))
    assert loaded.best_epoch == fitted.best_epoch


def test_every_epoch_records_the_same_columns(fitted: TorchFitted) -> None:
    names = {f"grad_norm.{name}" for name, _ in fitted.network.named_parameters()}
    own = {"spectral_radius", "heads_at_limit"} if fitted.model == "mamba2" else set()
    for epoch in fitted.history[1:]:
        assert set(epoch.detail) == RECORDED | names | own
        assert epoch.seconds > 0
    assert fitted.history[0].detail["learning_rate"] == 0.0


def test_every_parameter_gets_a_gradient_and_moves(fitted: TorchFitted) -> None:
    # A learning rate too small to matter shows where the parameters started.
    start = dict(fit(fitted.model, learning_rate=1e-300).network.named_parameters())
    for name, parameter in fitted.network.named_parameters():
        assert fitted.history[-1].detail[f"grad_norm.{name}"] > 0, name
        assert bool((parameter != start[name]).any()), name


def test_the_norm_after_clipping_is_at_most_the_limit(fitted: TorchFitted) -> None:
    for epoch in fitted.history[1:]:
        assert epoch.detail["grad_norm_clipped"] <= 0.1 + 1e-12
        assert epoch.detail["grad_norm_clipped"] <= epoch.detail["grad_norm"]
    assert max(epoch.detail["clipped_share"] for epoch in fitted.history[1:]) > 0


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
from test_torch_plugins import fit
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
    import json

    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return len(json.loads(file.metadata()["foxflow"])["history"]) - 1


class Dtypes(TorchDispatchMode):
    """Collects the floating dtypes that any dispatched operation reads or returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[torch.dtype, str] = {}
        self.n_operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.n_operations += 1
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
                self.seen.setdefault(leaf.dtype, str(func))
        return out


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PLUGINS)
def test_a_whole_fit_dispatches_no_operation_in_another_float_dtype(name: str, dtype: str) -> None:
    from foxflow_torch.trainer import train

    model: Any = registry.build(name, {**SHORT, **SIZES[name], "dtype": dtype, "epochs": 2})
    with seeded(0, CPU):
        net = model.network(3).to(model.parameters.torch_dtype)
        with Dtypes() as watch:
            train(net, TRAIN, VALID, model.parameters, progress=silent)
            TorchFitted(name, {}, TRAIN.feature_names, net, 1).forecast(VALID)
    assert watch.n_operations > 1000
    assert set(watch.seen) == {getattr(torch, dtype)}, watch.seen


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double", 64])
@pytest.mark.parametrize("name", PLUGINS)
def test_another_dtype_is_a_config_error(name: str, dtype: object) -> None:
    with pytest.raises(ConfigError, match="dtype"):
        registry.build(name, {"dtype": dtype})


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for the GPU that this machine has")
def test_a_gpu_that_is_not_there_is_asked_for_in_vain() -> None:
    with pytest.raises(PluginError, match="device = 'cuda'; expected a GPU"):
        fit("gru", device="cuda")


@torch.no_grad()
@pytest.mark.parametrize("name", PLUGINS)
def test_a_batch_of_one_equals_its_row_in_a_batch_of_many(name: str) -> None:
    net, many = network(name), bars(5, 70)
    whole, *whole_state = net(many, *net.zero_state(5))
    for row in range(5):
        alone, *state = net(many[row : row + 1], *net.zero_state(1))
        torch.testing.assert_close(alone[0], whole[row], rtol=0, atol=1e-13)
        for a, b in zip(state, whole_state, strict=True):
            torch.testing.assert_close(a[0], b[row], rtol=0, atol=1e-13)


@torch.no_grad()
@pytest.mark.parametrize("name", PLUGINS)
def test_steps_equal_the_window_in_forecasts_and_state(name: str) -> None:
    net, window = network(name), bars(3, 40)
    expected, *end = net(window, *net.zero_state(3))
    state = net.zero_state(3)
    for t, bar in enumerate(window.unbind(1)):
        forecast, *present = net.step(bar, *state)
        state = tuple(present)
        torch.testing.assert_close(forecast, expected[:, t], rtol=0, atol=1e-12)
    for a, b in zip(state, end, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PLUGINS)
def test_a_forecast_reads_no_later_bar_and_some_earlier_one(name: str) -> None:
    net, window = network(name), bars(1, 30).requires_grad_()
    net(window, *net.zero_state(1))[0][0, 20, 0].backward()
    assert window.grad is not None
    sizes = window.grad[0].abs().sum(-1)
    assert torch.equal(sizes[21:], torch.zeros(9, dtype=torch.float64))
    assert bool((sizes[15:21] > 0).all())


@torch.no_grad()
@pytest.mark.parametrize("name", PLUGINS)
def test_both_graphs_give_forecasts_and_states_of_the_network_at_any_batch_and_length(name: str) -> None:
    net = network(name)
    graphs = TorchFitted(name, {}, ("a", "b", "c"), net, 1).to_onnx()
    step, window = (
        onnxruntime.InferenceSession(g, providers=["CPUExecutionProvider"]) for g in (graphs.step, graphs.window)
    )
    for serialised in (graphs.step, graphs.window):
        model = onnx.load_from_string(serialised)
        assert [(o.domain, o.version) for o in model.opset_import] == [("", 20)]
        assert not model.functions
    for n_batch, n_bars in ((1, 1), (3, 50), (2, 131)):
        series, past = bars(n_batch, n_bars), tuple(torch.full_like(s, 0.3) for s in net.zero_state(n_batch))
        expected, *end = net(series, *past)
        feeds = {f"past_{n}": s.float().numpy() for n, s in zip(net.state_shapes(), past, strict=True)}
        found, *present = window.run(None, {"features": series.float().numpy(), **feeds})
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-5)
        for a, b in zip(present, end, strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=0, atol=2e-5)
        for t in range(n_bars):
            forecast, *present = step.run(None, {"features": series[:, t].float().numpy(), **feeds})
            feeds = dict(zip(feeds, present, strict=True))
            np.testing.assert_allclose(forecast, expected[:, t].numpy(), rtol=0, atol=2e-5)


def test_a_warm_start_begins_where_the_earlier_fit_ended(fitted: TorchFitted) -> None:
    model = registry.build(fitted.model, {**SHORT, **SIZES[fitted.model]})
    warm = model.fit(TRAIN, VALID, seed=9, warm_start=fitted, progress=silent)
    assert fitted.history[fitted.best_epoch].valid_loss < fitted.history[0].valid_loss
    assert warm.history[0].valid_loss == fitted.history[fitted.best_epoch].valid_loss


@pytest.mark.parametrize("name", PLUGINS)
def test_the_last_bars_loss_equals_the_dense_loss_masked_to_the_last_bar(name: str) -> None:
    """One segment a bar, the loss on its last: the same number as a dense loss whose other bars weigh nothing."""
    from foxflow_torch import losses
    from foxflow_torch.segments import Segments

    options = {**SHORT, **SIZES[name], "segment_length": 17, "supervision": "last", "burn_in": 0}
    training = registry.build(name, options).parameters  # type: ignore[attr-defined]
    data = noise({"A": 60})
    segments = Segments.of(data, training)
    assert len(segments) == 60 - 16
    net = network(name)
    forecast = net(segments.features, *net.zero_state(len(segments)))[0].squeeze(-1)
    last = (forecast[:, -1] - segments.label[:, -1]).square().mean()
    torch.testing.assert_close(losses.mean_squared_error(forecast, segments.label, segments.weight), last)
    labels = sorted(segments.label[:, -1].tolist())
    assert labels == sorted(data.series[0].label[16:].tolist())


def test_supervision_of_the_last_bar_trains_another_network(fitted: TorchFitted) -> None:
    other = fit(fitted.model, supervision="last", segment_length=17, burn_in=0)
    assert not same_bits(other.forecast(VALID), fitted.forecast(VALID))
