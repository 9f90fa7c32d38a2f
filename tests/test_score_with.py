"""`[backtest] score_with = "onnx"`: the walk-forward traded by exported graphs is that of the fitted models."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from foxflow import config, dataset, experiment, release, splits, training
from foxflow.config import WalkForward
from foxflow.errors import PluginError, ReleaseError
from foxflow.experiment import Result
from foxflow.training import Recipe

TINY = Path(__file__).parent / "tiny.toml"
RIDGE = Recipe("ridge", {}, 3, 5.0)


def run(model: str, score_with: str, folder: Path) -> Result:
    settings = config.load(TINY, model=model, overrides=[f"backtest.score_with={score_with}"])
    if model == "mamba2":
        settings = config.load(TINY, overrides=[f"backtest.score_with={score_with}"])
    return experiment.run(settings, folder)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ridge", "mamba2"])
def test_exported_graphs_hold_the_positions_of_the_fitted_models_and_earn_the_same(model: str, tmp_path: Path) -> None:
    fitted, exported = (run(model, how, tmp_path) for how in ("model", "onnx"))
    held = [pl.read_parquet(r.folder / "held.parquet") for r in (fitted, exported)]
    assert held[0].select("symbol", "ts").equals(held[1].select("symbol", "ts"))
    one, other = (h["position"].fill_null(0).to_numpy() for h in held)
    assert np.isclose(one, other, rtol=0, atol=1e-9).mean() >= 0.999
    assert abs(fitted.summary["total_return"] - exported.summary["total_return"]) < 1e-4
    # The fits are kept for both; what forecasts is another.
    assert {fold["source"] for fold in exported.summary["folds"]} == {"cached fit"}
    assert fitted.summary["forecasts_sha256"] != exported.summary["forecasts_sha256"]
    again = run(model, "onnx", tmp_path)
    assert {fold["source"] for fold in again.summary["folds"]} == {"cached"}
    assert again.summary["forecasts_sha256"] == exported.summary["forecasts_sha256"]


def test_a_graph_forecasts_in_blocks_what_it_forecasts_at_once_and_sees_bad_bars(
    stocks: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    ibm = stocks.filter(pl.col("symbol") == "IBM")
    data = dataset.build(ibm, feature_names=["return_1", "volume_ratio"], label_name="forward_return", horizon=5)
    features = data.series[0].features.copy()
    features[1200, 1] = np.nan
    bad = replace(data.series[0], features=features, valid=np.isfinite(features).all(axis=1))
    data = replace(data, series=(bad,))
    fold = splits.walk_forward(dataset.bar_times(data), WalkForward(train=1000, every=757, embargo=5))[0]

    def forecasts(how: training.Forecaster | None) -> pl.DataFrame:
        return training.fit_fold(data, fold, RIDGE, folder=None, forecaster=how, progress=lambda *_: None).forecasts

    plain, whole = forecasts(None), forecasts(release.forecast_by_graph)
    monkeypatch.setattr(release.forecaster, "BLOCK_BARS", 100)
    blocks = forecasts(release.forecast_by_graph)
    assert plain["ts"].equals(whole["ts"])
    assert len(plain) == 757 - 1
    assert plain["forecast"].to_numpy() == pytest.approx(whole["forecast"].to_numpy(), rel=1e-4, abs=1e-9)
    assert not plain["forecast"].equals(whole["forecast"])
    assert blocks["forecast"].to_numpy() == pytest.approx(whole["forecast"].to_numpy(), rel=1e-6, abs=1e-12)
    # 1e39 is a number in float64 and none in float32.
    features = features.copy()
    features[1300, 0] = 1e39
    data = replace(data, series=(replace(bad, features=features),))
    with pytest.raises(ReleaseError, match=r"IBM at 2005-.*calls the bar not valid, its features are \[1e\+39"):
        forecasts(release.forecast_by_graph)


def test_without_onnx_runtime_the_run_says_so_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "onnxruntime" else find(n, *a))
    with pytest.raises(ReleaseError, match=r"ONNX Runtime is not installed; install the extra foxflow\[onnx\]"):
        run("ridge", "onnx", tmp_path)
    assert not list(tmp_path.iterdir())


class NoGraphs:
    """A fitted model that cannot be exported."""

    def to_onnx(self) -> None:
        raise NotImplementedError("no such operator")


def test_a_model_that_cannot_be_exported_is_named(stocks: pl.DataFrame) -> None:
    with pytest.raises(PluginError, match=r"model 'x' failed in to_onnx: NotImplementedError: no such operator"):
        release.forecast_by_graph("x", NoGraphs(), None, None)  # type: ignore[arg-type]
