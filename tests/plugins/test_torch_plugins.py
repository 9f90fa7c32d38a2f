"""What every Torch plugin must do, asked of each through the registry: Mamba-2 and the GRU pass the same checks."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from plugin_samples import PLUGINS, SHORT, SIZES, TRAIN, VALID, fit, same_bits, silent
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_samples import CPU, noise, one_thread  # noqa: F401

from foxflow import registry
from foxflow.errors import ConfigError, PluginError
from foxflow_torch.fitted import TorchFitted
from foxflow_torch.network import Network
from foxflow_torch.trainer import seeded

RECORDED = {
    "learning_rate", "grad_norm", "grad_norm_clipped", "clipped_share", "train_accuracy", "train_directional_accuracy",
    "valid_accuracy", "valid_directional_accuracy",
}  # fmt: skip


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
