"""A plugin's scaled graphs to the released ones: gate, scaler and label scale inside, canonical bytes."""

import json
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, compose, helper, numpy_helper

from foxflow.dataset import Scaler
from foxflow.errors import PluginError

OPSET = 20
IR_VERSION = 10
AXES: dict[str, list[str | int | None]] = {"step": ["batch"], "window": ["batch", "bars"]}


def released(graph: bytes, kind: str, *, scaler: Scaler, metadata: Mapping[str, object], plugin: str) -> bytes:
    """Return the released graph of a plugin's `step` or `window` graph, serialised; equal input gives equal bytes.

    Inputs: raw `features (batch[, bars], n_features)` float32 and the plugin's `past_*`. Outputs: `forecast (batch[,
    bars], 1)` in label units, `valid (batch[, bars])`, and `present_*`. A bar with a feature that is not finite is not
    valid: it enters the network as the scaled zero vector and the state advances.

    Raises
    ------
    PluginError
        Where the plugin's graph breaks the contract of `model.Graphs`.
    """
    model = onnx.load_model_from_string(graph)
    _require_contract(model, kind, n_features=len(scaler.median), plugin=plugin)
    return _canonical(_merge(_front(kind, scaler), model, _back(kind, scaler)), kind, metadata)


def _require_contract(model: ModelProto, kind: str, *, n_features: int, plugin: str) -> None:
    where = f"model {plugin!r}, {kind} graph"
    opsets = {o.domain: o.version for o in model.opset_import}
    if opsets != {"": OPSET}:
        raise PluginError(f"{where}: operator sets {opsets}; expected opset {OPSET} of the standard domain only")
    inputs, outputs = _shapes(model.graph.input), _shapes(model.graph.output)
    expected = [*AXES[kind], n_features]
    if inputs.get("features") != expected:
        raise PluginError(f"{where}: input features has shape {inputs.get('features')}; expected {expected}")
    if outputs.get("forecast") != [*AXES[kind], 1]:
        raise PluginError(f"{where}: output forecast has shape {outputs.get('forecast')}; expected {[*AXES[kind], 1]}")
    past = {n.removeprefix("past_"): s for n, s in inputs.items() if n != "features"}
    present = {n.removeprefix("present_"): s for n, s in outputs.items() if n != "forecast"}
    if past != present or any(s[0] != "batch" for s in past.values()):
        raise PluginError(f"{where}: states in {past} and out {present}; expected equal shapes, the batch first")
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type != TensorProto.FLOAT:
            raise PluginError(f"{where}: {value.name} is not float32; export float32 graphs")


def _shapes(values: object) -> dict[str, list[str | int]]:
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in values  # type: ignore[attr-defined]
    }


def _front(kind: str, scaler: Scaler) -> ModelProto:
    shape = [*AXES[kind], len(scaler.median)]
    constants = {
        "median": scaler.median,
        "scale": scaler.scale,
        "lowest": np.array(-scaler.clip),
        "highest": np.array(scaler.clip),
    }
    nodes = [
        helper.make_node("IsNaN", ["features"], ["is_nan"]),
        helper.make_node("IsInf", ["features"], ["is_infinite"]),
        helper.make_node("Or", ["is_nan", "is_infinite"], ["is_bad"]),
        helper.make_node("Cast", ["is_bad"], ["bad"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["bad", "last_axis"], ["bar_is_bad"], keepdims=1),
        helper.make_node("Less", ["bar_is_bad", "half"], ["gate"]),
        helper.make_node("Squeeze", ["gate", "last_axis"], ["valid"]),
        helper.make_node("Where", ["gate", "features", "median"], ["gated"]),
        helper.make_node("Sub", ["gated", "median"], ["centred"]),
        helper.make_node("Div", ["centred", "scale"], ["divided"]),
        helper.make_node("Clip", ["divided", "lowest", "highest"], ["scaled"]),
    ]
    initializers = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in constants.items()]
    initializers.append(numpy_helper.from_array(np.array([-1], np.int64), "last_axis"))
    initializers.append(numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    return _model(
        nodes,
        "front",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info("valid", TensorProto.BOOL, AXES[kind]),
            helper.make_tensor_value_info("scaled", TensorProto.FLOAT, shape),
        ],
        initializers,
    )


def _back(kind: str, scaler: Scaler) -> ModelProto:
    shape = [*AXES[kind], 1]
    return _model(
        [
            helper.make_node("Mul", ["unit", "label_scale"], ["spread"]),
            helper.make_node("Add", ["spread", "label_mean"], ["forecast"]),
        ],
        "back",
        [helper.make_tensor_value_info("unit", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("forecast", TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(np.array(scaler.label_scale, np.float32), "label_scale"),
            numpy_helper.from_array(np.array(scaler.label_mean, np.float32), "label_mean"),
        ],
    )


def _model(nodes: list, name: str, inputs: list, outputs: list, initializers: list) -> ModelProto:  # type: ignore[type-arg]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _merge(front: ModelProto, model: ModelProto, back: ModelProto) -> ModelProto:
    """Return front, model and back as one graph, inputs and outputs under their own names."""
    parts = {"front_": front, "model_": model, "back_": back}
    for part in parts.values():
        part.ir_version = IR_VERSION
    named = [compose.add_prefix(part, prefix) for prefix, part in parts.items()]
    joined = compose.merge_models(named[0], named[1], io_map=[("front_scaled", "model_features")])
    joined = compose.merge_models(joined, named[2], io_map=[("model_forecast", "back_unit")])
    outside = [v.name for v in (*joined.graph.input, *joined.graph.output)]
    renamed = {name: name.split("_", 1)[1] for name in outside}
    for value in (*joined.graph.input, *joined.graph.output):
        value.name = renamed[value.name]
    for node in joined.graph.node:
        node.input[:] = [renamed.get(n, n) for n in node.input]
        node.output[:] = [renamed.get(n, n) for n in node.output]
    # forecast, valid, then the states in the plugin's order.
    first = [next(o for o in joined.graph.output if o.name == n) for n in ("forecast", "valid")]
    rest = [o for o in joined.graph.output if o.name not in ("forecast", "valid")]
    ordered = [*first, *rest]
    copies = [onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in ordered]
    del joined.graph.output[:]
    joined.graph.output.extend(copies)
    return joined


def _canonical(model: ModelProto, kind: str, metadata: Mapping[str, object]) -> bytes:
    """Return the model's bytes without anything of the machine that built it, checked as strictly as onnx can."""
    del model.graph.value_info[:], model.graph.metadata_props[:], model.metadata_props[:], model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", OPSET))
    model.ir_version, model.graph.name = IR_VERSION, kind
    model.producer_name, model.producer_version, model.domain, model.model_version = "foxflow", "", "foxflow", 1
    model.doc_string = model.graph.doc_string = ""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for key in sorted(metadata):
        value = metadata[key]
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
        model.metadata_props.add(key=f"foxflow.{key}", value=text)
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    return bytes(model.SerializeToString(deterministic=True))
