"""The exported graphs in ONNX Runtime against the float64 network."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch_samples import CPU, memory, noise, one_thread  # noqa: F401

from foxflow.dataset import Floats
from foxflow.model import Graphs
from foxflow_mamba2.model import Mamba2, Mamba2Parameters
from foxflow_torch.fitted import TorchFitted
from foxflow_torch.trainer import seeded

TOLERANCE = 1e-5
Arrays = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def fitted() -> TorchFitted:
    """Return a network whose every parameter is away from its start, as after a fit."""
    parameters = Mamba2Parameters(n_layers=2, d_model=8, head_dim=8, d_state=4)
    with seeded(0, CPU):
        network = Mamba2(parameters).network(3)
        nn.init.normal_(network.head.weight)
        with torch.no_grad():
            for p in network.parameters():
                p.add_(0.05 * torch.randn_like(p))
    return TorchFitted("mamba2", {}, noise({"A": 1}).feature_names, network, 1)


@pytest.fixture(scope="module")
def graphs(fitted: TorchFitted) -> Graphs:
    return fitted.to_onnx()


@pytest.fixture(scope="module")
def step(graphs: Graphs) -> onnxruntime.InferenceSession:
    return session(graphs.step)


@pytest.fixture(scope="module")
def window(graphs: Graphs) -> onnxruntime.InferenceSession:
    return session(graphs.window)


def session(graph: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def zeros(graph: onnxruntime.InferenceSession, n_batch: int) -> dict[str, np.ndarray]:
    return {i.name: np.zeros((n_batch, *i.shape[1:]), np.float32) for i in graph.get_inputs()[1:]}


def run(
    graph: onnxruntime.InferenceSession, features: Floats, past: Arrays
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the forecast and the state under the names of the next call's inputs."""
    names = [o.name for o in graph.get_outputs()]
    values = graph.run(names, {"features": features.astype(np.float32), **past})
    outputs = dict(zip(names, values, strict=True))
    return outputs.pop("forecast"), {name.replace("present_", "past_"): v for name, v in outputs.items()}


def expected(fitted: TorchFitted, bars_BTF: Floats, past: Arrays) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return forecast and state of the float64 network."""
    with torch.inference_mode():
        network = fitted.network.eval()
        forecast, *state = network(torch.from_numpy(bars_BTF), *(torch.from_numpy(p).double() for p in past.values()))
    return forecast.numpy(), [s.numpy() for s in state]


def test_states_are_named_by_layer_and_hold_what_the_layers_need(step: onnxruntime.InferenceSession) -> None:
    # 8 * 2 inner channels and 2 * 4 for B and C; 2 heads of 8 by 4.
    assert {i.name: i.shape for i in step.get_inputs()} == {
        "features": ["batch", 3],
        "past_conv_0": ["batch", 3, 24],
        "past_ssm_0": ["batch", 2, 8, 4],
        "past_conv_1": ["batch", 3, 24],
        "past_ssm_1": ["batch", 2, 8, 4],
    }
    assert [o.name for o in step.get_outputs()] == [
        *("forecast", "present_conv_0", "present_ssm_0", "present_conv_1", "present_ssm_1")
    ]


def test_graphs_hold_no_operator_that_is_slow_or_breaks_elsewhere(graphs: Graphs) -> None:
    for graph in (graphs.step, graphs.window):
        operators = Counter(node.op_type for node in onnx.load_from_string(graph).graph.node)
        banned = {"Einsum", "Loop", "Scan", "If", "Conv", "Dropout", "Cast"}
        assert not {name for name in operators if name in banned or name.startswith("Scatter")}, operators
        assert b".py" not in graph
        assert len(graph) < 200_000


def test_every_eps_and_limit_is_kept_by_the_exporter(graphs: Graphs) -> None:
    model = onnx.load_from_string(graphs.step)
    values = [onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT]
    small = {float(v.flatten()[0]) for v in values if v.size == 1}
    assert {float(np.float32(1e-5)), float(np.float32(1e-6))} <= small


def test_streaming_bar_by_bar_gives_the_forecasts_of_the_fitted_model(
    fitted: TorchFitted, step: onnxruntime.InferenceSession
) -> None:
    data = memory({"A": 300, "B": 300, "C": 300}, seed=4)
    bars_BTF = np.stack([s.features for s in data.series])
    past, forecasts = zeros(step, 3), []
    for t in range(300):
        forecast_B1, past = run(step, bars_BTF[:, t], past)
        forecasts.append(forecast_B1[:, 0])
    np.testing.assert_allclose(np.stack(forecasts, 1), np.stack(fitted.forecast(data)), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("n_batch", [1, 3])
@pytest.mark.parametrize("n_bars", [1, 2, 15, 16, 17, 31, 32, 33, 257])
def test_a_window_of_any_length_from_any_state_gives_forecast_and_state_of_the_network(
    fitted: TorchFitted, window: onnxruntime.InferenceSession, n_bars: int, n_batch: int
) -> None:
    rng = np.random.default_rng(n_bars)
    bars_BTF = rng.standard_normal((n_batch, n_bars, 3))
    past = {name: rng.standard_normal(p.shape).astype(np.float32) for name, p in zeros(window, n_batch).items()}
    forecast, state = expected(fitted, bars_BTF, past)
    found, present = run(window, bars_BTF, past)
    np.testing.assert_allclose(found, forecast, rtol=0, atol=TOLERANCE)
    for a, b in zip(present.values(), state, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE)


def test_the_state_of_a_window_continues_in_steps(
    fitted: TorchFitted, step: onnxruntime.InferenceSession, window: onnxruntime.InferenceSession
) -> None:
    (series,) = memory({"A": 120}, seed=5).series
    _, past = run(window, series.features[None, :100], zeros(window, 1))
    forecasts = []
    for t in range(100, 120):
        forecast, past = run(step, series.features[None, t], past)
        forecasts.append(forecast[0, 0])
    (whole,) = fitted.forecast(memory({"A": 120}, seed=5))
    np.testing.assert_allclose(forecasts, whole[100:], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0])
def test_constant_features_at_the_clip_give_the_forecasts_of_the_network(
    fitted: TorchFitted, window: onnxruntime.InferenceSession, value: float
) -> None:
    bars_BTF = np.full((1, 200, 3), value)
    past = zeros(window, 1)
    forecast, _ = expected(fitted, bars_BTF, past)
    np.testing.assert_allclose(run(window, bars_BTF, past)[0], forecast, rtol=0, atol=TOLERANCE)
