"""The export, on the smallest network with a state."""

import importlib.util
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch_samples
from torch import Tensor
from torch_samples import CPU, LagNetwork, one_thread  # noqa: F401

from foxflow.errors import PluginError
from foxflow.model import Graphs
from foxflow_torch.export import to_onnx
from foxflow_torch.network import Network
from foxflow_torch.trainer import seeded


def network(kind: type[LagNetwork] = LagNetwork) -> LagNetwork:
    with seeded(0, CPU):
        return kind(3)


@pytest.fixture(scope="module")
def exported() -> tuple[LagNetwork, Graphs]:
    """Return a network as it is after its export, and the graphs."""
    made = network().train()
    return made, to_onnx(made, n_features=3)


@pytest.fixture(scope="module")
def graphs(exported: tuple[LagNetwork, Graphs]) -> Graphs:
    return exported[1]


def run(graph: bytes, *inputs: Tensor) -> Sequence[np.ndarray]:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return session.run(None, {n: t.float().numpy() for n, t in zip(names, inputs, strict=True)})


def test_inputs_and_outputs_are_named_and_shaped_as_the_contract_says(graphs: Graphs) -> None:
    def values(parts: Sequence[onnx.ValueInfoProto]) -> dict[str, list[str | int]]:
        shapes = {p.name: p.type.tensor_type.shape.dim for p in parts}
        return {name: [d.dim_param or d.dim_value for d in dims] for name, dims in shapes.items()}

    step, window = (onnx.load_from_string(g).graph for g in (graphs.step, graphs.window))
    assert values(step.input) == {"features": ["batch", 3], "past_bar": ["batch", 1, 3]}
    assert values(step.output) == {"forecast": ["batch", 1], "present_bar": ["batch", 1, 3]}
    assert values(window.input) == {"features": ["batch", "bars", 3], "past_bar": ["batch", 1, 3]}
    assert values(window.output) == {"forecast": ["batch", "bars", 1], "present_bar": ["batch", 1, 3]}


def test_graphs_are_opset_20_ir_10_of_the_standard_domain(graphs: Graphs) -> None:
    for graph in (graphs.step, graphs.window):
        model = onnx.load_from_string(graph)
        assert [(o.domain, o.version) for o in model.opset_import] == [("", 20)]
        assert model.ir_version == 10
        assert {i.data_type for i in model.graph.initializer} <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}


@pytest.mark.parametrize("n_batch", [1, 3])
@pytest.mark.parametrize("n_bars", [1, 2, 67])
def test_graphs_give_the_forecasts_of_the_network(graphs: Graphs, n_batch: int, n_bars: int) -> None:
    made = network().eval()
    bars_BTF = torch.randn(n_batch, n_bars, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    past = torch.full((n_batch, 1, 3), 0.5, dtype=torch.float64)
    with torch.no_grad():
        expected = [t.numpy() for t in made(bars_BTF, past)]
        expected_step = [t.numpy() for t in made.step(bars_BTF[:, 0], past)]
    for found, wanted in zip(run(graphs.window, bars_BTF, past), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    for found, wanted in zip(run(graphs.step, bars_BTF[:, 0], past), expected_step, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_source_in_another_folder_gives_the_same_bytes_and_leaves_no_path(graphs: Graphs, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "other_samples.py"
    copy.parent.mkdir()
    shutil.copy(torch_samples.__file__, copy)
    spec = importlib.util.spec_from_file_location("other_samples", copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert to_onnx(network(module.LagNetwork), n_features=3) == graphs
    for graph in (graphs.step, graphs.window):
        assert b".py" not in graph
        assert b"samples" not in graph


def test_exporting_leaves_network_and_logging_as_they_were(exported: tuple[LagNetwork, Graphs]) -> None:
    made, _ = exported
    assert made.dtype == torch.float64
    assert made.training
    assert logging.getLogger("torch.onnx").level == logging.NOTSET


def test_a_network_that_fixes_the_batch_is_refused() -> None:
    class Fixed(LagNetwork):
        def step(self, features_BF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            forecast_B1, *present = super().step(features_BF, *state)
            return forecast_B1 + torch.zeros(2, 1), *present

    # torch.onnx alone would have written a file for batches of two, in silence.
    with pytest.raises(PluginError, match=r"does not export.*batch"):
        to_onnx(network(Fixed), n_features=3)


def test_a_stateless_network_exports_without_past_or_present() -> None:
    class Flat(Network):
        def __init__(self) -> None:
            super().__init__()
            self.now = torch.nn.Linear(3, 1)

        def forward(self, features_BTF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            return (self.now(features_BTF),)

        def step(self, features_BF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            return (self.now(features_BF),)

    for graph in (exported := to_onnx(Flat(), n_features=3)).step, exported.window:
        model = onnx.load_from_string(graph)
        assert [v.name for v in (*model.graph.input, *model.graph.output)] == ["features", "forecast"]
