"""The training loop every Torch plugin shares: clipped Adam on mixed segments, the best epoch kept."""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from foxflow.errors import PluginError
from foxflow.model import Dataset, Epoch, Progress
from foxflow_torch import losses, resume
from foxflow_torch.adam import Adam
from foxflow_torch.network import Network
from foxflow_torch.options import Training
from foxflow_torch.resume import Fit
from foxflow_torch.segments import Batches, Segments, require_finite
from foxflow_torch.stream import evaluating, exact, judged

# A loss this many times that of forecasting the mean has exploded, whatever number comes out.
EXPLODED = 1_000.0


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch draw from `seed` inside the block, and from where it was after it; a GPU is `exact`."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), exact():
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


def train(
    network: Network,
    data: Dataset,
    valid: Dataset,
    training: Training,
    *,
    checkpoints: Path | None = None,
    progress: Progress,
) -> tuple[tuple[Epoch, ...], int]:
    """Fit the network in place; return the epochs and the number of the one whose parameters it now has.

    Draws from torch's generator: run it inside `seeded`. With a folder for `checkpoints`, the fit is written there
    after each epoch, and one that was interrupted goes on from there to the same bits.

    An epoch's `train_loss` is that of a sample of at most `batch_size` segments, drawn once and evaluated like `valid`:
    after the epoch and without dropout. Its `detail` holds both `accuracy` and `directional_accuracy` of `losses` over
    both, the last step's learning rate, the mean gradient norm over the steps before and after clipping, also before it
    of each parameter by its name, the share of steps clipped, and what `Network.after_step` last returned.

    Raises
    ------
    DataError
        No row of `data` or of `valid` counts, or a feature or a label that counts is not finite.
    PluginError
        A loss or gradient stops being finite or explodes, a parameter gets no gradient, or `checkpoints` holds another
        fit.
    """
    _require_no_buffers(network)
    segments = Segments.of(data, training)
    require_finite("validation", [s.features for s in valid.series], [s.label[s.weight > 0] for s in valid.series])
    fit = Fit(
        network,
        Adam(network.parameter_groups(training.weight_decay)),
        Batches(len(segments), training.batch_size),
        sample=torch.randperm(len(segments))[: training.batch_size],
    )
    key = "" if checkpoints is None else resume.key(fit, segments, valid, training)
    if checkpoints is not None:
        resume.restore(fit, checkpoints, of=key)
        for epoch in fit.history:
            progress(epoch, training.epochs)
    largest = EXPLODED * float(
        losses.mean_squared_error(torch.zeros_like(segments.label), segments.label, segments.weight)
    )
    segments = segments.to(network.device)
    while not _has_ended(fit, training):
        epoch = _epoch(fit, segments, valid, training, largest=largest)
        fit.history.append(epoch)
        if epoch.number == 0 or epoch.valid_loss < fit.history[fit.best_epoch].valid_loss:
            fit.best_epoch = epoch.number
            fit.best = {name: p.detach().clone() for name, p in network.named_parameters()}
        if checkpoints is not None:
            resume.save(fit, checkpoints, of=key)
        progress(epoch, training.epochs)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(fit.best[name])
    return tuple(fit.history), fit.best_epoch


def _has_ended(fit: Fit, training: Training) -> bool:
    if not fit.history:
        return False
    number = fit.history[-1].number
    return number == training.epochs or number - fit.best_epoch >= training.patience


def _epoch(fit: Fit, segments: Segments, valid: Dataset, training: Training, *, largest: float) -> Epoch:
    """Return the next epoch: its steps, or none for number 0, and what the network is worth after them."""
    started = time.monotonic()
    number = len(fit.history)
    if number == 0:
        detail = {"learning_rate": 0.0, **fit.network.after_step()}
    else:
        detail = _steps(fit, segments, training, number=number, largest=largest)
    sample = segments.draw(fit.sample)
    with evaluating(fit.network):
        train_rows = (_forecast(fit.network, sample), sample.label, sample.weight)
    valid_rows = judged(fit.network, valid)
    train_loss, valid_loss = (float(losses.mean_squared_error(*rows)) for rows in (train_rows, valid_rows))
    for name, loss in (("training", train_loss), ("validation", valid_loss)):
        _require_sound(loss, largest, where=f"of {name} after epoch {number}")
    for name, rows in (("train", train_rows), ("valid", valid_rows)):
        detail[f"{name}_accuracy"] = float(losses.accuracy(*rows))
        detail[f"{name}_directional_accuracy"] = float(losses.directional_accuracy(*rows))
    return Epoch(number, train_loss, valid_loss, detail, seconds=time.monotonic() - started)


def _steps(fit: Fit, segments: Segments, training: Training, *, number: int, largest: float) -> dict[str, float]:
    """Take one epoch's steps; return what to record of them."""
    network = fit.network
    network.train()
    totals: dict[str, float] = defaultdict(float)
    bound: Mapping[str, float] = {}
    for step in range(training.steps_per_epoch):
        where = f"in epoch {number}, step {step + 1}"
        network.zero_grad(set_to_none=True)
        batch = segments.draw(fit.batches.draw())
        loss = losses.mean_squared_error(_forecast(network, batch), batch.label, batch.weight)
        _require_sound(float(loss.detach()), largest, where=where)
        loss.backward()  # type: ignore[no-untyped-call]
        for name, value in _clip(network, training.clip_norm, where=where).items():
            totals[name] += value
        network.scale_gradients()
        fit.optimiser.step(training.rate(fit.optimiser.n_steps))
        bound = network.after_step()
    means = {name: total / training.steps_per_epoch for name, total in totals.items()}
    return {"learning_rate": training.rate(fit.optimiser.n_steps - 1), **means, **bound}


def _forecast(network: Network, batch: Segments) -> Tensor:
    """Return the forecasts of segments, `(S, T)`, each from a zero state."""
    forecast_ST1: Tensor = network(batch.features, *network.zero_state(len(batch)))[0]
    return forecast_ST1.squeeze(-1)


def _clip(network: Network, clip_norm: float, *, where: str) -> dict[str, float]:
    """Scale all gradients by one factor to a global norm of at most `clip_norm`; return what to record of it."""
    gradients: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        if parameter.grad is None:
            raise PluginError(
                f"parameter {name} gets no gradient {where}; expected the loss to depend on it: remove it"
            )
        gradients[name] = parameter.grad
    norms = torch.stack([gradient.norm() for gradient in gradients.values()]).tolist()
    before = float(clip_grad_norm_(network.parameters(), clip_norm, foreach=False))
    if not math.isfinite(before):
        raise PluginError(
            f"the gradient norm {where} is {before}; expected a finite number: lower learning_rate or clip_norm"
        )
    return {
        "grad_norm": before,
        "grad_norm_clipped": float(get_total_norm(gradients.values(), foreach=False)),
        "clipped_share": float(before > clip_norm),
        **{f"grad_norm.{name}": norm for name, norm in zip(gradients, norms, strict=True)},
    }


def _require_no_buffers(network: Network) -> None:
    kept = network.state_dict().keys() - dict(network.named_parameters()).keys()
    if kept:
        raise PluginError(
            f"the network keeps {', '.join(sorted(kept))} beside its parameters; expected none, because a checkpoint "
            "and the best epoch hold parameters alone: register it with persistent=False if it never changes"
        )


def _require_sound(loss: float, largest: float, *, where: str) -> None:
    if not loss <= largest:
        raise PluginError(
            f"the loss {where} is {loss:g}; expected at most {largest:g}, {EXPLODED:g} times that of forecasting 0: "
            "lower learning_rate or clip_norm"
        )
