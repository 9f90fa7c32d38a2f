"""The plugin: fits, forecasts, saves, loads and starts warm as the contract asks."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_samples import dataset, memory, noise, one_thread  # noqa: F401

from foxflow.config import from_mapping
from foxflow.dataset import Floats
from foxflow.errors import ConfigError, DataError, PluginError, ReleaseError
from foxflow.model import Epoch, Fitted, Graphs, Model
from foxflow_mamba2.model import Mamba2, Mamba2Parameters
from foxflow_mamba2.network import Mamba2Network
from foxflow_mamba2.projection import nominal_radius
from foxflow_torch import checkpoint
from foxflow_torch.fitted import TorchFitted

SMALL = Mamba2Parameters(
    n_layers=2,
    d_model=8,
    head_dim=8,
    d_state=4,
    learning_rate=0.02,
    batch_size=8,
    segment_length=64,
    burn_in=8,
    warmup_bars=16,
    epochs=2,
    steps_per_epoch=3,
    patience=2,
)
TRAIN = memory({"A": 300, "B": 150}, seed=1)
VALID = memory({"A": 100, "B": 100}, seed=2, context=16)


def silent(epoch: Epoch, n_planned: int) -> None:
    """Ignore progress."""


def fit(parameters: Mamba2Parameters = SMALL, *, seed: int = 0, warm_start: Fitted | None = None) -> TorchFitted:
    return Mamba2(parameters).fit(TRAIN, VALID, seed=seed, warm_start=warm_start, progress=silent)


@pytest.fixture(scope="module")
def fitted() -> TorchFitted:
    return fit()


def same_bits(left: tuple[Floats, ...], right: tuple[Floats, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_plugin_keeps_the_contract(fitted: TorchFitted) -> None:
    model: Model = Mamba2(SMALL)
    assert Mamba2.name == "mamba2"
    assert Mamba2.Parameters is Mamba2Parameters
    assert model.warmup_bars == 16
    assert isinstance(fitted, Fitted)
    assert [f.shape for f in fitted.forecast(VALID)] == [(100,), (100,)]


def test_a_label_that_is_a_memory_of_a_feature_is_learned() -> None:
    parameters = dataclasses.replace(SMALL, epochs=6, steps_per_epoch=10)
    fitted = Mamba2(parameters).fit(TRAIN, VALID, seed=0, progress=silent)
    assert fitted.history[0].valid_loss > 0.7
    assert fitted.history[fitted.best_epoch].valid_loss < 0.2


def test_epoch_0_forecasts_the_mean_label_so_its_loss_is_the_mean_square(fitted: TorchFitted) -> None:
    labels = np.concatenate([s.label[16:] for s in VALID.series])
    assert fitted.history[0].number == 0
    assert fitted.history[0].valid_loss == pytest.approx(float(np.mean(labels**2)), rel=1e-12)


def test_after_every_step_no_head_is_beyond_the_spectral_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    radii: list[float] = []
    after_step = Mamba2Network.after_step

    def spy(self: Mamba2Network) -> dict[str, float]:
        detail = after_step(self)
        radii.extend(float(nominal_radius(b.A_log_H, b.dt_bias_H).max().detach()) for b in self.blocks)
        return detail

    monkeypatch.setattr(Mamba2Network, "after_step", spy)
    # Steps of 3 throw the heads about; from a memory of 64 bars it is a short way to the limit of 100.
    history = fit(dataclasses.replace(SMALL, learning_rate=3.0)).history
    assert len(radii) == 2 * (1 + 2 * 3)
    assert max(radii) == pytest.approx(0.99, abs=1e-12)
    assert max(e.detail["heads_at_limit"] for e in history) > 0


@pytest.mark.parametrize(
    "change",
    [
        *({"d_model": 16}, {"n_layers": 1}, {"expand": 1}, {"head_dim": 4}, {"d_state": 5}, {"d_conv": 3}),
        *({"dropout": 0.3}, {"learning_rate": 0.01}, {"weight_decay": 0.1}, {"clip_norm": 0.01}, {"batch_size": 4}),
        *({"segment_length": 32}, {"burn_in": 4}, {"epochs": 1}, {"steps_per_epoch": 4}, {"dtype": "float32"}),
        *({"spectral_limit": 0.9}, {"n_groups": 2}, {"dt_min": 0.3}, {"dt_max": 0.1}, {"chunk": 8}),
        *({"warmup_steps": 2}, {"supervision": "last", "segment_length": 17, "burn_in": 0}),
    ],
)
def test_every_option_of_a_fit_has_an_effect(fitted: TorchFitted, change: dict[str, Any]) -> None:
    changed = fit(dataclasses.replace(SMALL, **change))
    assert not same_bits(changed.forecast(VALID), fitted.forecast(VALID))


def test_a_saved_model_forecasts_the_same_bits_when_loaded(fitted: TorchFitted, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    # The parameters it was fitted with come from the file, not from the plugin that loads it.
    loaded = Mamba2(Mamba2Parameters()).load(tmp_path)
    assert same_bits(loaded.forecast(VALID), fitted.forecast(VALID))
    assert loaded.history == ()
    assert loaded.best_epoch == fitted.best_epoch
    assert loaded.parameters == fitted.parameters
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_a_float32_model_is_saved_and_loaded_as_such(tmp_path: Path) -> None:
    fitted = fit(dataclasses.replace(SMALL, dtype="float32", epochs=1))
    fitted.save(tmp_path)
    loaded = Mamba2(SMALL).load(tmp_path)
    assert loaded.network.dtype == torch.float32
    assert same_bits(loaded.forecast(VALID), fitted.forecast(VALID))


def test_a_checkpoint_of_another_model_is_refused(fitted: TorchFitted, tmp_path: Path) -> None:
    dataclasses.replace(fitted, model="lag").save(tmp_path)
    with pytest.raises(ReleaseError, match="is of model 'lag'; expected 'mamba2'"):
        Mamba2(SMALL).load(tmp_path)


@pytest.mark.parametrize("parameters", [{"d_modle": 8}, {"d_model": -1}, {"d_model": "8"}, None])
def test_a_checkpoint_with_unfit_parameters_is_refused(fitted: TorchFitted, tmp_path: Path, parameters: Any) -> None:
    metadata = {"model": "mamba2", "parameters": parameters, "feature_names": ["x"], "best_epoch": 1}
    checkpoint.save(fitted.network, tmp_path, metadata=metadata)
    with pytest.raises(ReleaseError, match="unfit metadata"):
        Mamba2(SMALL).load(tmp_path)


def test_features_other_than_the_fitted_are_refused(fitted: TorchFitted) -> None:
    swapped = dataclasses.replace(VALID, feature_names=tuple(reversed(VALID.feature_names)))
    with pytest.raises(DataError, match="in this order"):
        fitted.forecast(swapped)


def test_a_warm_start_leaves_the_earlier_fit_as_it_was(fitted: TorchFitted) -> None:
    before = fitted.forecast(VALID)
    fit(warm_start=fitted)
    assert same_bits(fitted.forecast(VALID), before)


def test_a_warm_start_that_does_not_fit_is_refused(fitted: TorchFitted) -> None:
    class Other:
        history = ()
        best_epoch = 0

        def forecast(self, data: Any) -> tuple[Floats, ...]:
            return ()

        def save(self, folder: Path) -> None: ...

        def to_onnx(self) -> Graphs:
            return Graphs(b"", b"")

    with pytest.raises(PluginError, match=r"warm start from a fit with d_state = 4; expected 5"):
        fit(dataclasses.replace(SMALL, d_state=5), warm_start=fitted)
    with pytest.raises(PluginError, match="warm start from 'Other'"):
        fit(warm_start=Other())
    narrow = noise({"A": 200}, n_features=2)
    with pytest.raises(PluginError, match="warm start from features"):
        Mamba2(SMALL).fit(narrow, narrow, seed=0, warm_start=fitted, progress=silent)


def test_a_symbol_shorter_than_a_segment_is_trained_on() -> None:
    short = memory({"A": 40}, seed=3)
    fitted = Mamba2(SMALL).fit(short, VALID, seed=0, progress=silent)
    assert len(fitted.history) == 3


def test_options_come_from_a_section_with_types_checked() -> None:
    assert from_mapping(Mamba2Parameters, {"d_model": 64, "dropout": 0}, section="model").d_model == 64
    with pytest.raises(ConfigError, match=re.escape("[model] unknown key 'd_modle'")):
        from_mapping(Mamba2Parameters, {"d_modle": 64}, section="model")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"n_layers": 0}, "n_layers = 0; expected at least 1"),
        ({"head_dim": 24}, "head_dim = 24; expected a divisor of expand * d_model = 64"),
        ({"d_conv": 1}, "d_conv = 1; expected at least 2 bars"),
        ({"dropout": 1.0}, "dropout = 1.0; expected a share in [0, 1)"),
        ({"spectral_limit": 1.0}, "spectral_limit = 1.0; expected a share in (0, 1)"),
        ({"n_groups": 3}, "n_groups = 3; expected a divisor of the 4 heads"),
        ({"dt_min": 2.0}, "dt_min = 2.0, dt_max = 1.0; expected two positive numbers, the smaller first"),
        ({"chunk": -1}, "chunk = -1; expected at least 1 bar, or 0"),
        ({"burn_in": 100}, "burn_in = 100; expected at most warmup_bars = 64 bars without loss"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Mamba2Parameters(**option)
