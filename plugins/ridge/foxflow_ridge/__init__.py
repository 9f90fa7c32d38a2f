"""Ridge regression of the label on the bar's own features: the honest baseline, and the smallest whole plugin."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from safetensors import safe_open
from safetensors.numpy import save_file

from foxflow.errors import PluginError
from foxflow.model import CHECKPOINT, Dataset, Epoch, Fitted, Floats, Graphs, Progress, Table


@dataclass(frozen=True, kw_only=True)
class RidgeParameters:
    """`penalty`: weight of the squared coefficients, as a share of the summed row weights."""

    penalty: float = 0.01

    def __post_init__(self) -> None:
        if self.penalty < 0:
            raise ValueError(f"penalty = {self.penalty}; expected 0 or more")


@dataclass(frozen=True)
class FittedRidge:
    """`forecast = features @ coefficients + intercept`, features and forecast scaled."""

    coefficients: Floats
    intercept: float
    history: tuple[Epoch, ...] = ()
    best_epoch: int = 1

    def forecast(self, data: Dataset) -> tuple[Floats, ...]:
        """Return one `(n_bars,)` array of scaled forecasts per series."""
        # Row by row: a matrix product's last bits depend on how many rows there are.
        return tuple((s.features * self.coefficients).sum(axis=1) + self.intercept for s in data.series)

    def save(self, folder: Path) -> None:
        """Write the coefficients to `checkpoint.safetensors`."""
        tensors = {"coefficients": self.coefficients, "intercept": np.array([self.intercept])}
        save_file(tensors, folder / CHECKPOINT, metadata={"plugin": "ridge"})

    def to_onnx(self) -> Graphs:
        """Return `features @ coefficients + intercept` for one bar and for a window of bars."""
        return Graphs(step=self._graph("step", ["batch"]), window=self._graph("window", ["batch", "bars"]))

    def _graph(self, name: str, axes: list[str]) -> bytes:
        weights = {"coefficients": self.coefficients[:, None], "intercept": np.array([self.intercept])}
        graph = helper.make_graph(
            [
                helper.make_node("MatMul", ["features", "coefficients"], ["product"]),
                helper.make_node("Add", ["product", "intercept"], ["forecast"]),
            ],
            name,
            [helper.make_tensor_value_info("features", TensorProto.FLOAT, [*axes, len(self.coefficients)])],
            [helper.make_tensor_value_info("forecast", TensorProto.FLOAT, [*axes, 1])],
            [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return bytes(model.SerializeToString(deterministic=True))


class Ridge:
    """Ridge regression, solved exactly; the intercept is not penalised."""

    name: ClassVar[str] = "ridge"
    Parameters: ClassVar[type[RidgeParameters]] = RidgeParameters

    def __init__(self, parameters: RidgeParameters) -> None:
        self.parameters = parameters

    @property
    def warmup_bars(self) -> int:
        """0: a forecast reads its own bar's features alone."""
        return 0

    def fit(
        self,
        train: Dataset,
        valid: Dataset,
        *,
        seed: int,  # noqa: ARG002
        warm_start: Fitted | None = None,  # noqa: ARG002
        checkpoints: Path | None = None,  # noqa: ARG002
        progress: Progress,
    ) -> FittedRidge:
        """Return the coefficients that minimise the weighted squared error plus the penalty.

        The solution is exact, so `seed` and `warm_start` change nothing and there is nothing to go on from; `valid` is
        scored for the report.
        """
        rows = train.table()
        total = rows.weight.sum()
        if not total > 0:
            raise PluginError("ridge: 0 training rows that count; expected at least 1: import more bars")
        mean, level = rows.weight @ rows.features / total, rows.weight @ rows.label / total
        centred = rows.features - mean
        weighted = (centred * rows.weight[:, None]).T
        gram = weighted @ centred / total + self.parameters.penalty * np.eye(len(mean))
        moment = weighted @ (rows.label - level) / total
        # lstsq, because penalty = 0 with a constant feature leaves the system singular.
        coefficients = np.linalg.lstsq(gram, moment, rcond=None)[0]
        constant = FittedRidge(np.zeros(len(mean)), float(level))
        fitted = FittedRidge(coefficients, float(level - mean @ coefficients))
        judged = valid.table()
        history = tuple(
            Epoch(number, _loss(each, rows), _loss(each, judged)) for number, each in enumerate((constant, fitted))
        )
        for epoch in history:
            progress(epoch, 1)
        return FittedRidge(fitted.coefficients, fitted.intercept, history)

    def load(self, folder: Path) -> FittedRidge:
        """Return the model written by `FittedRidge.save`."""
        with safe_open(folder / CHECKPOINT, framework="numpy") as f:
            return FittedRidge(f.get_tensor("coefficients"), float(f.get_tensor("intercept")[0]))


def _loss(model: FittedRidge, rows: Table) -> float:
    forecast = rows.features @ model.coefficients + model.intercept
    return float(np.average((rows.label - forecast) ** 2, weights=rows.weight))
