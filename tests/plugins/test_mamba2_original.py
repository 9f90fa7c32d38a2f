"""What the system that foxflow descends from got wrong, row by row, and what else it meant to do.

Rows 7 and 8, validation and accuracy, are in `test_torch_losses.py`. Asked of every Torch plugin: row 9, one dtype
throughout, a batch of one, the loss of the last bar and warm start in `test_torch_plugins.py`; row 10, resuming to the
bit, in `test_torch_resume.py`.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn
from torch_samples import CPU, LagNetwork, dataset, loss, memory, noise, one_thread, series  # noqa: F401

from foxflow.model import Epoch
from foxflow_mamba2.model import Mamba2, Mamba2Parameters
from foxflow_mamba2.network import Mamba2Network
from foxflow_mamba2.projection import nominal_radius, nominal_step, scale_gradient, spectral_radius
from foxflow_mamba2.ssd import ssd_scan, ssd_step
from foxflow_torch import trainer
from foxflow_torch.adam import Adam
from foxflow_torch.trainer import seeded, train

SMALL = Mamba2Parameters(
    n_layers=2,
    d_model=6,
    head_dim=4,
    d_state=3,
    dropout=0.2,
    learning_rate=0.02,
    clip_norm=0.05,
    batch_size=8,
    segment_length=32,
    burn_in=8,
    warmup_bars=32,
    epochs=2,
    steps_per_epoch=3,
    patience=2,
)
TRAIN, VALID = memory({"A": 200}, seed=1), memory({"A": 80}, seed=2, context=16)


def silent(epoch: Epoch, n_planned: int) -> None:
    """Ignore progress."""


def network(seed: int = 0) -> Mamba2Network:
    """Return a network away from its start, whose head of zeros would hide every gradient behind it."""
    with seeded(seed, CPU):
        made = Mamba2(SMALL).network(3)
        nn.init.normal_(made.head.weight)
    return made.eval()


def fit(parameters: Mamba2Parameters = SMALL) -> tuple[Mamba2Network, tuple[Epoch, ...]]:
    with seeded(0, CPU):
        made = Mamba2(parameters).network(3)
        history, _ = train(made, TRAIN, VALID, parameters, progress=silent)
    return made, history


# Row 1: gradients were zeros, so nothing was ever learned.


def test_the_gradient_of_every_parameter_is_that_of_finite_differences_and_not_zero() -> None:
    net = network()
    bars = torch.randn(2, 20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    label = torch.randn(2, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def objective() -> Tensor:
        return (net(bars, *net.zero_state(2))[0].squeeze(-1) - label).square().mean()

    objective().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        assert float(parameter.grad.norm()) > 0, name
        direction = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            values = []
            for sign in (1.0, -1.0):
                parameter.add_(sign * 1e-5 * direction)
                values.append(float(objective()))
                parameter.sub_(sign * 1e-5 * direction)
        slope = (values[0] - values[1]) / 2e-5
        assert slope == pytest.approx(float((parameter.grad * direction).sum()), rel=1e-5, abs=1e-9), name


# Row 2: clipping looked up "A", never "A_0", and its result was dropped.


def test_gradients_are_logged_by_their_layers_name_and_adam_sees_the_clipped_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []
    step = Adam.step

    def spy(self: Adam, learning_rate: float) -> None:
        seen.append(math.sqrt(sum(float(p.grad.square().sum()) for p, *_ in self.moments if p.grad is not None)))
        step(self, learning_rate)

    monkeypatch.setattr(Adam, "step", spy)
    _, history = fit()
    assert len(seen) == 6
    assert max(seen) <= 0.05 + 1e-12
    for layer in ("blocks.0", "blocks.1"):
        for name in ("A_log_H", "dt_bias_H", "D_H", "in_proj.weight", "out_proj.weight", "conv_weight_KC"):
            assert history[-1].detail[f"grad_norm.{layer}.{name}"] > 0
    detail = history[-1].detail
    assert detail["grad_norm"] > detail["grad_norm_clipped"]
    assert detail["clipped_share"] == 1.0


def test_a_step_goes_backward_clip_scale_adam_project(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def spy(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            order.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, called)

    for owner, name in (
        (Tensor, "backward"),
        (trainer, "clip_grad_norm_"),
        (Mamba2Network, "scale_gradients"),
        (Adam, "step"),
        (Mamba2Network, "after_step"),
    ):
        spy(owner, name)
    fit(dataclasses.replace(SMALL, epochs=1, steps_per_epoch=2))
    one = ["backward", "clip_grad_norm_", "scale_gradients", "step", "after_step"]
    assert order == ["after_step", *one, *one]


def test_the_gradient_of_a_is_scaled_to_a_spectral_radius_of_one_and_a_smaller_one_is_left() -> None:
    # A = -exp(A_log) = (-2, -1); gradients of A_log (6, 0.5) are those of A over A: (3, 0.5) in size.
    A_log = nn.Parameter(torch.tensor([math.log(2.0), 0.0], dtype=torch.float64))
    A_log.grad = torch.tensor([6.0, 0.5], dtype=torch.float64)
    scale_gradient(A_log)
    torch.testing.assert_close(A_log.grad, torch.tensor([2.0, 0.5 / 3], dtype=torch.float64), rtol=1e-15, atol=0)
    A_log.grad = torch.tensor([1.9, -0.5], dtype=torch.float64)
    scale_gradient(A_log)
    assert A_log.grad.tolist() == [1.9, -0.5]


# Row 3: the optimiser moved A, B, C and the step only.


def test_three_steps_of_adam_equal_values_computed_by_hand() -> None:
    gradients = [[0.1, -0.2], [0.3, 0.1], [-0.2, 0.4]]
    # Kingma and Ba 2015 in decimals of 60 digits, learning rate 0.1, from (1, -2).
    by_hand = [
        [0.900000009999999, -1.90000000499999975],
        [0.80822190220558925578, -1.87336630271867557945],
        [0.78243152288979227766, -1.91909947999134982557],
    ]
    parameter = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    adam = Adam([([parameter], 0.0)])
    for gradient, expected in zip(gradients, by_hand, strict=True):
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        adam.step(0.1)
        torch.testing.assert_close(parameter.detach(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)


def test_every_parameter_moves_and_decay_shrinks_no_a_step_skip_norm_or_bias() -> None:
    before = {name: p.detach().clone() for name, p in network().named_parameters()}
    net = network()
    adam = Adam(net.parameter_groups(weight_decay=0.5))
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    adam.step(0.1)
    for name, parameter in net.named_parameters():
        spared = any(part in name for part in ("A_log_H", "dt_bias_H", "D_H", "norm", "bias"))
        expected = before[name] if spared else before[name] * 0.95
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-15, atol=0)
        parameter.grad = torch.full_like(parameter, 0.3)
    adam.step(0.1)
    for name, parameter in net.named_parameters():
        assert bool((parameter != before[name]).all()), name


# Row 4: the spectral radius was the Frobenius norm over sqrt(n).


@pytest.mark.parametrize(
    ("matrix", "radius"),
    [
        ([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], 1.0),
        ([[0.0, -0.9], [0.9, 0.0]], 0.9),
        ([[0.5, 100.0], [0.0, -0.7]], 0.7),
        ([[0.0, 1.0], [0.0, 0.0]], 0.0),
    ],
)
def test_the_spectral_radius_is_that_of_the_eigenvalues(matrix: list[list[float]], radius: float) -> None:
    assert spectral_radius(torch.tensor(matrix, dtype=torch.float64)) == pytest.approx(radius, abs=1e-12)


def test_a_heads_nominal_radius_is_that_of_its_transition_matrix() -> None:
    block = network().blocks[0]
    A_log, dt_bias = block.A_log_H.detach(), block.dt_bias_H.detach()
    for radius, step, rate in zip(nominal_radius(A_log, dt_bias), nominal_step(dt_bias), A_log.exp(), strict=True):
        transition = torch.from_numpy(scipy.linalg.expm(-float(step * rate) * np.eye(3)))
        assert float(radius) == pytest.approx(spectral_radius(transition), abs=1e-12)


# Row 5: the projection scaled A only.


def test_after_every_step_radius_and_nominal_step_are_within_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[float, float, float]] = []
    after_step = Mamba2Network.after_step

    def spy(self: Mamba2Network) -> dict[str, float]:
        detail = after_step(self)
        for block in self.blocks:
            steps = nominal_step(block.dt_bias_H.detach())
            radius = nominal_radius(block.A_log_H.detach(), block.dt_bias_H.detach()).max()
            found.append((float(radius), float(steps.min()), float(steps.max())))
        return detail

    monkeypatch.setattr(Mamba2Network, "after_step", spy)
    # Steps of 3 throw the parameters about, far beyond every limit.
    _, history = fit(dataclasses.replace(SMALL, learning_rate=3.0, clip_norm=10.0, epochs=4, patience=4))
    radii, lowest, highest = (np.array(column) for column in zip(*found, strict=True))
    assert radii.max() <= 0.99 + 1e-12
    assert lowest.min() >= 1e-6 * (1 - 1e-9)
    assert highest.max() <= 1.0 + 1e-12
    assert highest.max() > 0.999 or lowest.min() < 2e-6
    assert max(e.detail["spectral_radius"] for e in history) <= 0.99 + 1e-12


# Row 6: step, B and C were static or averaged over everything.


def test_step_b_and_c_of_a_bar_come_from_that_bar_and_its_convolution() -> None:
    net = network()
    captured: list[tuple[Tensor, ...]] = []

    def record(module: Any, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        captured.append(tuple(part.detach() for part in torch.split(output, net.blocks[0].split_sizes, -1)))

    handle = net.blocks[0].in_proj.register_forward_hook(record)
    bars = torch.zeros(1, 10, 3, dtype=torch.float64)
    for change in (0.0, 1.0):
        bars[0, 4] = change
        net(bars, *net.zero_state(1))
    handle.remove()
    for before, after in zip(*captured, strict=True):
        assert bool((before[0, 4] != after[0, 4]).all())
        assert torch.equal(before[0, :4], after[0, :4])
        assert torch.equal(before[0, 5:], after[0, 5:])


def test_the_decay_of_a_bar_is_the_exponential_of_a_matrix_and_b_is_multiplied_by_the_step() -> None:
    g = torch.Generator().manual_seed(0)
    x, B, C, D, state = (
        torch.randn(*s, dtype=torch.float64, generator=g) for s in ((1, 2, 3), (1, 1, 4), (1, 1, 4), (2,), (1, 2, 3, 4))
    )
    dt, A = torch.tensor([[0.3, 0.7]], dtype=torch.float64), torch.tensor([-0.5, -2.0], dtype=torch.float64)
    _, decayed = ssd_step(torch.zeros_like(x), dt, A, B, C, D, state)
    _, written = ssd_step(x, dt, A, B, C, D, torch.zeros_like(state))
    for head in range(2):
        transition = scipy.linalg.expm(float(dt[0, head]) * np.diag([float(A[head])] * 4))
        np.testing.assert_allclose(decayed[0, head].numpy(), state[0, head].numpy() @ transition.T, rtol=0, atol=1e-12)
        expected = float(dt[0, head]) * np.outer(x[0, head].numpy(), B[0, 0].numpy())
        np.testing.assert_allclose(written[0, head].numpy(), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("impl", ["naive", "chunked"])
def test_a_constant_step_gives_the_originals_averaged_form(impl: str) -> None:
    """With step, B and C the same on every bar the scan is a convolution with `C exp(step A)^k step B`."""
    g = torch.Generator().manual_seed(0)
    n_bars, d_state, step, rate = 60, 4, 0.25, -0.8
    x = torch.randn(1, n_bars, 1, 1, dtype=torch.float64, generator=g)
    b, c = (torch.randn(d_state, dtype=torch.float64, generator=g) for _ in range(2))
    found = ssd_scan(
        x,
        torch.full((1, n_bars, 1), step, dtype=torch.float64),
        torch.tensor([rate], dtype=torch.float64),
        b.expand(1, n_bars, 1, d_state),
        c.expand(1, n_bars, 1, d_state),
        impl=impl,
    )
    transition = scipy.linalg.expm(step * rate * np.eye(d_state))
    kernel = [c.numpy() @ np.linalg.matrix_power(transition, k) @ (step * b.numpy()) for k in range(n_bars)]
    expected = np.convolve(x.flatten().numpy(), kernel)[:n_bars]
    np.testing.assert_allclose(found.flatten().numpy(), expected, rtol=0, atol=1e-12)


# Row 10: what a step leaves behind.


def test_a_step_starts_from_no_gradient_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of step 2 are those of a fresh copy of the network as it was after step 1, on the same batch."""
    steps: list[list[tuple[Tensor, Tensor]]] = []
    forward = Mamba2Network.forward
    step = Adam.step
    inputs: list[Tensor] = []

    def record_input(self: Mamba2Network, features_BTF: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        if self.training:
            inputs.append(features_BTF)
        return forward(self, features_BTF, *state)

    def record_step(self: Adam, learning_rate: float) -> None:
        steps.append([(p.detach().clone(), p.grad.clone()) for p, *_ in self.moments if p.grad is not None])
        step(self, learning_rate)

    monkeypatch.setattr(Mamba2Network, "forward", record_input)
    monkeypatch.setattr(Adam, "step", record_step)
    plain = dataclasses.replace(SMALL, dropout=0.0, clip_norm=1e9, epochs=1, steps_per_epoch=2, learning_rate=0.5)
    with seeded(0, CPU):
        trained = Mamba2(plain).network(3)
        nn.init.normal_(trained.head.weight)
        # Labels of one make a loss that needs no more than the recorded input to be computed again.
        flat = dataset([series("A", TRAIN.series[0].features, np.ones(200))])
        train(trained, flat, flat, plain, progress=silent)
    fresh = Mamba2(plain).network(3)
    order = [p for group, _ in fresh.parameter_groups(0.0) for p in group]
    with torch.no_grad():
        for parameter, (value, _) in zip(order, steps[1], strict=True):
            parameter.copy_(value)
    forecast = fresh(inputs[1], *fresh.zero_state(len(inputs[1])))[0].squeeze(-1)
    (forecast[:, 8:] - 1.0).square().mean().backward()
    fresh.scale_gradients()
    for parameter, (_, gradient) in zip(order, steps[1], strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-13)


def test_the_originals_own_end_to_end_test(tmp_path: Path) -> None:
    """100 training samples, 20 for validation, 5 epochs, the loss on the last bar: it fits, learns, saves and loads."""
    options = dataclasses.replace(
        SMALL, supervision="last", segment_length=16, burn_in=0, warmup_bars=15, epochs=5, patience=5, steps_per_epoch=13,
        clip_norm=1.0,
    )  # fmt: skip
    training, validation = memory({"A": 115}, seed=1), memory({"A": 35}, seed=2, context=15)
    model = Mamba2(options)
    fitted = model.fit(training, validation, seed=0, progress=silent)
    assert [e.number for e in fitted.history] == [0, 1, 2, 3, 4, 5]
    assert all(math.isfinite(e.train_loss) and math.isfinite(e.valid_loss) for e in fitted.history)
    assert fitted.history[-1].train_loss < 0.7 * fitted.history[0].train_loss
    assert fitted.history[fitted.best_epoch].valid_loss < fitted.history[0].valid_loss
    fitted.save(tmp_path)
    (forecast,) = model.load(tmp_path).forecast(validation)
    assert forecast.shape == (35,)
    assert np.array_equal(forecast, fitted.forecast(validation)[0])
