"""The training loop, on the smallest network."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_samples import CPU, LagNetwork, dataset, loss, noise, one_thread, series  # noqa: F401

from foxflow.dataset import Dataset
from foxflow.errors import DataError, PluginError
from foxflow.model import Epoch
from foxflow_torch.adam import Adam
from foxflow_torch.options import Training
from foxflow_torch.segments import Batches
from foxflow_torch.trainer import seeded, train

SMALL = Training(
    learning_rate=0.05,
    batch_size=4,
    segment_length=32,
    burn_in=4,
    warmup_bars=4,
    epochs=3,
    steps_per_epoch=5,
    patience=3,
)


def silent(epoch: Epoch, n_planned: int) -> None:
    """Ignore progress."""


def linear(n_bars: int, *, seed: int, context: int = 0) -> Dataset:
    """Return two series whose label is a bar's first feature plus half of the last bar's second."""
    rng = np.random.default_rng(seed)
    parts = []
    for symbol in "AB":
        x = rng.standard_normal((n_bars, 2))
        label = x[:, 0] + 0.5 * np.concatenate([[0.0], x[:-1, 1]])
        parts.append(series(symbol, x, label, context=context))
    return dataset(parts)


def fit(
    training: Training = SMALL, *, seed: int = 0, data: Dataset | None = None, valid: Dataset | None = None
) -> tuple[LagNetwork, tuple[Epoch, ...], int]:
    with seeded(seed, CPU):
        network = LagNetwork(2)
        data = linear(100, seed=1) if data is None else data
        valid = linear(60, seed=2, context=4) if valid is None else valid
        history, best_epoch = train(network, data, valid, training, progress=silent)
    return network, history, best_epoch


def parameters(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def test_a_linear_relation_with_memory_is_learned() -> None:
    network, history, best_epoch = fit(replace(SMALL, epochs=20, patience=20, steps_per_epoch=10))
    assert history[0].valid_loss > 0.5
    assert history[best_epoch].valid_loss < 0.01
    torch.testing.assert_close(network.now.weight.detach(), torch.tensor([[1.0, 0.0]]).double(), rtol=0, atol=0.1)
    torch.testing.assert_close(network.before.weight.detach(), torch.tensor([[0.0, 0.5]]).double(), rtol=0, atol=0.1)


def test_equal_seeds_give_equal_bits_and_another_seed_does_not() -> None:
    (first, history, _), (second, again, _) = fit(seed=5), fit(seed=5)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert history == again
    assert history != fit(seed=6)[1]


def test_a_fit_neither_reads_nor_moves_the_generator_of_torch() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, *_ = fit(seed=5)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(99)
    second, *_ = fit(seed=5)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_epoch_0_is_the_network_before_any_step() -> None:
    valid = linear(60, seed=2, context=4)
    with seeded(0, CPU):
        untrained = LagNetwork(2)
    _, history, _ = fit(valid=valid)
    assert history[0].valid_loss == loss(untrained, valid)
    assert [e.number for e in history] == [0, 1, 2, 3]
    assert history[0].detail["learning_rate"] == 0.0
    assert not any(name.startswith("grad_norm") for name in history[0].detail)


def test_progress_hears_every_epoch_and_the_number_planned() -> None:
    heard: list[tuple[int, int]] = []
    with seeded(0, CPU):
        train(
            LagNetwork(2),
            linear(100, seed=1),
            linear(60, seed=2),
            SMALL,
            progress=lambda epoch, n: heard.append((epoch.number, n)),
        )
    assert heard == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_adam_moves_every_parameter() -> None:
    with seeded(0, CPU):
        before = parameters(LagNetwork(2))
    after = parameters(fit()[0])
    for name, value in before.items():
        assert bool((value != after[name]).all()), name


def test_clipping_scales_the_gradient_of_every_parameter_by_one_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Tensor]] = []
    step = Adam.step

    def spy(self: Adam, learning_rate: float) -> None:
        seen.append([p.grad.clone() for p, *_ in self.moments])
        step(self, learning_rate)

    monkeypatch.setattr(Adam, "step", spy)
    once = replace(SMALL, epochs=1, steps_per_epoch=1)
    free = fit(replace(once, clip_norm=1e9))[1][1].detail
    tight = fit(replace(once, clip_norm=0.01))[1][1].detail
    norm = float(torch.cat([g.flatten() for g in seen[0]]).norm())
    assert free["grad_norm"] == free["grad_norm_clipped"] == pytest.approx(norm, rel=1e-12)
    assert tight["grad_norm"] == pytest.approx(norm, rel=1e-12)
    assert tight["grad_norm_clipped"] == pytest.approx(0.01, rel=1e-5)
    assert len(seen[0]) == 3
    for unclipped, clipped in zip(*seen, strict=True):
        torch.testing.assert_close(clipped, unclipped * (0.01 / (norm + 1e-6)), rtol=1e-12, atol=0)


def test_the_learning_rate_rises_over_the_warmup_and_falls_as_half_a_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = Adam.step

    def spy(self: Adam, learning_rate: float) -> None:
        rates.append(learning_rate)
        step(self, learning_rate)

    monkeypatch.setattr(Adam, "step", spy)
    _, history, _ = fit(replace(SMALL, learning_rate=2.0, epochs=2, steps_per_epoch=2, patience=2))
    assert rates == pytest.approx([2.0, 1.0 + 0.5**0.5, 1.0, 1.0 - 0.5**0.5])
    assert [e.detail["learning_rate"] for e in history] == [0.0, rates[1], rates[3]]
    rates.clear()
    fit(replace(SMALL, learning_rate=2.0, warmup_steps=3, epochs=2, steps_per_epoch=3, patience=2))
    # A fourth, two and three fourths of it, then half a cosine over the three steps left.
    assert rates == pytest.approx([0.5, 1.0, 1.5, 2.0, 1.5, 0.5])


def test_the_parameters_of_the_best_epoch_are_kept_and_patience_ends_the_fit() -> None:
    valid = noise({"A": 80}, n_features=2, seed=9)
    wild = replace(SMALL, learning_rate=0.3, epochs=30, patience=2)
    network, history, best_epoch = fit(wild, data=noise({"A": 80}, n_features=2), valid=valid)
    losses = [e.valid_loss for e in history]
    assert best_epoch == losses.index(min(losses))
    assert loss(network, valid) == losses[best_epoch]
    assert len(history) == best_epoch + wild.patience + 1 < 31


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_weight_decay_shrinks_matrices_and_spares_vectors(rate: float) -> None:
    # Features of zero leave the matrices without a gradient; labels of one move the bias.
    flat = dataset([series("A", np.zeros((60, 2)), np.ones(60))])
    with seeded(0, CPU):
        before = parameters(LagNetwork(2))
    network, history, best_epoch = fit(replace(SMALL, weight_decay=rate), data=flat, valid=flat)
    assert best_epoch == len(history) - 1
    rates = [0.05 * 0.5 * (1.0 + np.cos(np.pi * step / 15)) for step in range(15)]
    kept = float(np.prod([1.0 - each * rate for each in rates]))
    torch.testing.assert_close(network.now.weight.detach(), before["now.weight"] * kept)
    torch.testing.assert_close(network.before.weight.detach(), before["before.weight"] * kept)
    undecayed, *_ = fit(data=flat, valid=flat)
    assert torch.equal(network.now.bias, undecayed.now.bias)


def test_every_pass_over_the_segments_draws_each_once_in_a_new_order() -> None:
    with seeded(0, CPU):
        batches = Batches(5, 2)
        drawn = torch.cat([batches.draw() for _ in range(10)]).reshape(4, 5)
    assert all(sorted(row) == [0, 1, 2, 3, 4] for row in drawn.tolist())
    assert len({tuple(row) for row in drawn.tolist()}) > 1


def test_a_batch_is_never_larger_than_the_segments_there_are() -> None:
    assert sorted(Batches(3, 16).draw().tolist()) == [0, 1, 2]


def test_burn_in_rows_and_rows_without_weight_carry_no_loss() -> None:
    data = linear(32, seed=1)
    spoilt = []
    for s in data.series:
        label, weight = s.label.copy(), s.weight.copy()
        label[:4], weight[10] = 1e6, 0.0
        label[10] = np.nan
        spoilt.append(replace(s, label=label, weight=weight))
    _, history, _ = fit(data=replace(data, series=tuple(spoilt)))
    assert history[0].train_loss < 10.0


@pytest.mark.parametrize("where", ["features", "label"])
@pytest.mark.parametrize("which", ["training", "validation"])
def test_a_number_that_is_not_finite_is_refused_before_the_fit(which: str, where: str) -> None:
    data, valid = linear(60, seed=1), linear(60, seed=2)
    spoilt = data if which == "training" else valid
    getattr(spoilt.series[1], where)[20] = np.nan
    with pytest.raises(DataError, match=f"{which} {where}.* not finite"):
        fit(data=data, valid=valid)


def test_a_fit_that_diverges_names_epoch_and_step() -> None:
    with pytest.raises(PluginError, match=r"the loss in epoch 1, step 2 is .*lower learning_rate"):
        fit(replace(SMALL, learning_rate=1e300))


def test_a_fit_that_diverges_in_the_last_step_of_an_epoch_is_found_after_it() -> None:
    with pytest.raises(PluginError, match="the loss of training after epoch 1 is"):
        fit(replace(SMALL, learning_rate=1e300, steps_per_epoch=1))


def test_an_empty_training_set_is_refused() -> None:
    with pytest.raises(DataError, match=r"0 training rows .* burn-in of 4 bars"):
        fit(data=linear(4, seed=1))


def test_a_parameter_without_gradient_is_named() -> None:
    class Idle(LagNetwork):
        def __init__(self, n_features: int) -> None:
            super().__init__(n_features)
            self.idle = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    with seeded(0, CPU), pytest.raises(PluginError, match="parameter idle gets no gradient"):
        train(Idle(2), linear(60, seed=1), linear(60, seed=2), SMALL, progress=silent)


def test_a_network_that_keeps_more_than_parameters_is_refused() -> None:
    class Normed(LagNetwork):
        def __init__(self, n_features: int) -> None:
            super().__init__(n_features)
            self.register_buffer("mean", torch.zeros(1, dtype=torch.float64))

    with seeded(0, CPU), pytest.raises(PluginError, match="the network keeps mean beside its parameters"):
        train(Normed(2), linear(60, seed=1), linear(60, seed=2), SMALL, progress=silent)


def test_after_step_runs_before_the_first_step_and_after_each_and_is_recorded() -> None:
    class Counting(LagNetwork):
        calls = 0

        def after_step(self) -> dict[str, float]:
            self.calls += 1
            return {"calls": float(self.calls)}

    with seeded(0, CPU):
        history, _ = train(Counting(2), linear(60, seed=1), linear(60, seed=2), SMALL, progress=silent)
    assert [e.detail["calls"] for e in history] == [1.0, 6.0, 11.0, 16.0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate = 0.0; expected a positive number"),
        ({"clip_norm": -1.0}, "clip_norm = -1.0; expected a positive number"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1; expected 0 or more"),
        ({"batch_size": 0}, "batch_size = 0; expected at least 1"),
        ({"epochs": 0}, "epochs = 0; expected at least 1"),
        ({"steps_per_epoch": 0}, "steps_per_epoch = 0; expected at least 1"),
        ({"patience": 0}, "patience = 0; expected at least 1"),
        ({"burn_in": -1}, "burn_in = -1; expected 0 or more"),
        ({"segment_length": 32}, "segment_length = 32; expected more bars than burn_in = 32"),
        ({"burn_in": 65}, "burn_in = 65; expected at most warmup_bars = 64 bars without loss"),
        ({"supervision": "last"}, "burn_in = 32 with supervision = 'last'"),
        (
            {"supervision": "last", "burn_in": 0},
            "segment_length = 128, its last alone; expected at most warmup_bars = 64 bars",
        ),
        ({"supervision": "first"}, "supervision = 'first'; expected 'dense' or 'last'"),
        ({"device": "tpu"}, "device = 'tpu'; expected 'cpu' or 'cuda'"),
        ({"warmup_steps": 80}, "warmup_steps = 80; expected 0 or more and less than the 80 planned"),
        ({"warmup_bars": -1}, "warmup_bars = -1; expected 0 or more"),
        ({"dtype": "float16"}, "dtype = 'float16'; expected 'float64' or 'float32'"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Training(**option)
