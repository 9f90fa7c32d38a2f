"""The README's plugin, as it stands there."""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_samples import memory, one_thread  # noqa: F401

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_plugin_fits_forecasts_saves_loads_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (source,) = (block for block in blocks if "TorchModel" in block)
    (tmp_path / "my_linear.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    my_linear: Any = importlib.import_module("my_linear")
    model = my_linear.Linear(my_linear.Training(learning_rate=0.05))
    data, valid = memory({"A": 300}, seed=1, decay=0.1), memory({"A": 100}, seed=2, decay=0.1, context=64)
    fitted = model.fit(data, valid, seed=0, progress=lambda *_: None)
    assert fitted.history[fitted.best_epoch].valid_loss < 0.2
    fitted.save(tmp_path)
    (saved,), (loaded,) = fitted.forecast(valid), model.load(tmp_path).forecast(valid)
    assert np.array_equal(saved, loaded)
    graphs = fitted.to_onnx()
    assert graphs.step
    assert graphs.window
