"""A network as two ONNX graphs: float32, opset 20, standard operators only, the same bytes from any folder.

`torch.export` runs first because it raises where a symbolic axis was baked in; `torch.onnx.export` of a module does it
in silence. The bytes depend on the versions of torch and onnxscript.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import torch
from onnx import GraphProto, ModelProto
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from foxflow.errors import PluginError
from foxflow.model import Graphs
from foxflow_torch.network import Network

OPSET, IR_VERSION = 20, 10
LARGEST_BATCH = 8192
# Axes of 1 would be taken as constant, and equal axes as one; a window of other than whole chunks shows the padding.
EXAMPLE_BATCH, EXAMPLE_BARS = 2, 67


class _Step(nn.Module):
    """The network's `step` as a forward, which is all that exports."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return self.network.step(features, *state)


def to_onnx(network: Network, *, n_features: int) -> Graphs:
    """Return the step and window graphs of a network, as `foxflow.model.Graphs` describes them.

    The network itself is left as it is: a float32 copy is exported.
    """
    network = copy.deepcopy(network).to("cpu", torch.float32).eval()
    batch, bars = Dim("batch", min=1, max=LARGEST_BATCH), Dim("bars", min=1)
    step = torch.zeros(EXAMPLE_BATCH, n_features)
    window = torch.zeros(EXAMPLE_BATCH, EXAMPLE_BARS, n_features)
    return Graphs(
        step=_export(_Step(network).eval(), network, step, checked={0: batch}, named={0: batch}),
        # A Dim on the bars stumbles over padding to whole chunks; as DYNAMIC they are checked all the same.
        window=_export(network, network, window, checked={0: batch, 1: Dim.DYNAMIC}, named={0: batch, 1: bars}),
    )


def _export(
    module: nn.Module, network: Network, features: Tensor, *, checked: dict[int, Any], named: dict[int, Any]
) -> bytes:
    """Return the graph of a module with the network's state, its axes `checked` in tracing and `named` in the file."""
    names = list(network.state_shapes())
    state_axes = (tuple({0: checked[0]} for _ in names),) if names else ()
    with _quiet(), torch.no_grad():
        program = _trace(module, (features, *network.zero_state(len(features))), (checked, *state_axes))
        exported = torch.onnx.export(
            program,
            dynamic_shapes=(named, *state_axes),
            input_names=["features", *(f"past_{name}" for name in names)],
            output_names=["forecast", *(f"present_{name}" for name in names)],
            opset_version=OPSET,
            verbose=False,
        )
    assert exported is not None
    model = exported.model_proto
    _strip(model)
    _check(model, axes=[named[axis].__name__ for axis in sorted(named)])
    serialised: bytes = model.SerializeToString(deterministic=True)
    return serialised


def _trace(module: nn.Module, example: tuple[Tensor, ...], axes: tuple[Any, ...]) -> ExportedProgram:
    # Part of torch's compiler, which an export imports anyway and a fit need not.
    from torch._dynamo.exc import UserError

    try:
        return torch.export.export(module, example, dynamic_shapes=axes, strict=False)
    except UserError as e:
        raise PluginError(
            f"the network does not export: {e}; expected operations that keep batch and bars free: mend forward or step"
        ) from e


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes from the user: absent packages, unused axis names, a constraint it cannot print.

    What they could mean is checked in the file itself, by `_check`.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx.experimental.symbolic_shapes")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", message="# The axis name")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _strip(model: ModelProto) -> None:
    """Remove what names this machine's folders (source paths sit in node metadata) and intermediate shapes."""
    model.graph.name, model.producer_name, model.producer_version = "forecast", "foxflow", ""
    model.domain = model.doc_string = ""
    del model.metadata_props[:]
    _strip_graph(model.graph)


def _strip_graph(graph: GraphProto) -> None:
    del graph.metadata_props[:], graph.value_info[:]
    graph.doc_string = ""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip_graph(attribute.g)
    for part in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""


def _check(model: ModelProto, *, axes: Sequence[str]) -> None:
    """Raise PluginError unless the graph is portable and its axes are as symbolic as asked."""
    onnx.checker.check_model(model, full_check=True)
    opsets = {each.domain: each.version for each in model.opset_import}
    if opsets != {"": OPSET} or model.ir_version != IR_VERSION:
        raise PluginError(
            f"opset {opsets}, IR {model.ir_version}; expected opset {OPSET}, IR {IR_VERSION} of domain '' alone"
        )
    if model.functions:
        raise PluginError(f"{len(model.functions)} function(s) in the graph; expected standard operators only")
    for value in (*model.graph.input, *model.graph.output):
        expected = axes if value.name in ("features", "forecast") else axes[:1]
        dims = value.type.tensor_type.shape.dim
        found = [dim.dim_param for dim in dims[: len(expected)]]
        if found != list(expected) or any(dim.dim_param for dim in dims[len(expected) :]):
            raise PluginError(f"{value.name} has axes {found}; expected {list(expected)} symbolic, the others fixed")
        if value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            raise PluginError(f"{value.name} has element type {value.type.tensor_type.elem_type}; expected float32")
