"""Forecasts of a walk-forward by the graphs that a release is made of, in the fitted model's place."""

import numpy as np

from foxflow.bars import instant
from foxflow.dataset import Dataset, Floats, Scaler, Series
from foxflow.errors import ReleaseError, plugin_call
from foxflow.model import Fitted
from foxflow.release import graphs
from foxflow.release.parity import Graph

# A graph holds all bars that it is given at a time; it goes on from the state after them.
BLOCK_BARS = 4096


def forecast_by_graph(name: str, fitted: Fitted, scaler: Scaler, data: Dataset) -> tuple[Floats, ...]:
    """Return one `(n_bars,)` array of forecasts per series, label units, by the exported window graph in float32.

    Each series from a zero state at its first bar, as `training.Forecaster`. Scaler, gate and label scale are the
    graph's own, as in a release.

    Raises
    ------
    PluginError
        Where the model has no graph, or one that breaks the contract.
    ReleaseError
        Where the graph calls a bar valid that is not, or the other way.
    """
    with plugin_call(name, "to_onnx"):
        unscaled = fitted.to_onnx()
    content = graphs.released(unscaled.window, "window", scaler=scaler, metadata={}, plugin=name)
    window = Graph.load(content)
    return tuple(_stream(window, series) for series in data.series)


def _stream(window: Graph, series: Series) -> Floats:
    forecast, state = np.empty(len(series)), window.zero_state()
    # A number beyond float32 becomes infinite, and its bar is then not valid to the graph.
    with np.errstate(over="ignore"):
        features = series.features.astype(np.float32)
    for start in range(0, len(series), BLOCK_BARS):
        block = slice(start, start + BLOCK_BARS)
        found, valid, state = window.run(features[None, block], state)
        differs = valid[0] != series.valid[block]
        if differs.any():
            at = start + int(differs.argmax())
            raise ReleaseError(
                f"{series.symbol} at {instant(series.ts[at]):%Y-%m-%d %H:%M}Z: the graph calls the bar "
                f"{'valid' if valid[0][at - start] else 'not valid'}, its features are {series.features[at].tolist()}; "
                "expected the same of both: leave out the feature that float32 cannot hold, or score with the model"
            )
        forecast[block] = found[0]
    return forecast
