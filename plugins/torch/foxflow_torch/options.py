"""How a network is trained: the options that every Torch plugin shares."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a network is trained; a plugin's `Parameters` inherit it.

    `segment_length` bars make a training segment, whose first `burn_in` carry no loss; `warmup_bars` run before a
    symbol's first forecast counts. `supervision = "last"` puts the loss on a segment's last bar alone, one segment a
    bar, as the original system did. An epoch is `steps_per_epoch` steps on `batch_size` segments; `patience` epochs
    without a better validation loss end the fit. The learning rate rises over the first `warmup_steps` steps and falls
    to 0 over the rest of the planned ones as half a cosine; `weight_decay` (decoupled, Loshchilov and Hutter 2019)
    shrinks matrices only; all gradients are scaled by one factor to a global norm of at most `clip_norm`.
    """

    learning_rate: float = 0.003
    warmup_steps: int = 0
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    batch_size: int = 16
    segment_length: int = 128
    burn_in: int = 32
    supervision: Literal["dense", "last"] = "dense"
    warmup_bars: int = 64
    epochs: int = 20
    steps_per_epoch: int = 4
    patience: int = 6
    dtype: Literal["float64", "float32"] = "float64"
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip_norm"):
            require(getattr(self, name) > 0, f"{name} = {getattr(self, name)}; expected a positive number")
        for name in ("batch_size", "epochs", "steps_per_epoch", "patience"):
            require(getattr(self, name) >= 1, f"{name} = {getattr(self, name)}; expected at least 1")
        for name in ("weight_decay", "burn_in", "warmup_bars"):
            require(getattr(self, name) >= 0, f"{name} = {getattr(self, name)}; expected 0 or more")
        require(
            0 <= self.warmup_steps < self.n_steps,
            f"warmup_steps = {self.warmup_steps}; expected 0 or more and less than the {self.n_steps} planned",
        )
        for name, choices in (
            ("supervision", ("dense", "last")),
            ("dtype", ("float64", "float32")),
            ("device", ("cpu", "cuda")),
        ):
            value = getattr(self, name)
            require(value in choices, f"{name} = {value!r}; expected {choices[0]!r} or {choices[1]!r}")
        require(
            self.supervision == "dense" or self.burn_in == 0,
            f"burn_in = {self.burn_in} with supervision = 'last', which puts the loss on a segment's last bar alone; "
            "expected 0",
        )
        require(
            self.segment_length > self.burn_in,
            f"segment_length = {self.segment_length}; expected more bars than burn_in = {self.burn_in}",
        )
        without = {
            "dense": f"burn_in = {self.burn_in}",
            "last": f"segment_length = {self.segment_length}, its last alone",
        }
        require(
            self.without_loss <= self.warmup_bars,
            f"{without[self.supervision]}; expected at most warmup_bars = {self.warmup_bars} bars without loss, "
            "or forecasts count that are colder than any the training saw",
        )

    @property
    def n_steps(self) -> int:
        """Steps planned over all epochs."""
        return self.epochs * self.steps_per_epoch

    @property
    def without_loss(self) -> int:
        """Bars at the start of a segment that carry no loss."""
        return self.burn_in if self.supervision == "dense" else self.segment_length - 1

    @property
    def torch_dtype(self) -> "torch.dtype":
        """`dtype` as torch knows it."""
        import torch

        return torch.float64 if self.dtype == "float64" else torch.float32

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0.

        Examples
        --------
        >>> options = Training(learning_rate=1.0, warmup_steps=4, epochs=2, steps_per_epoch=4)
        >>> [round(options.rate(step), 3) for step in range(8)]
        [0.2, 0.4, 0.6, 0.8, 1.0, 0.854, 0.5, 0.146]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / (self.warmup_steps + 1)
        share = (step - self.warmup_steps) / (self.n_steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * share))


def require(condition: bool, message: str) -> None:  # noqa: FBT001  (reads as assert does)
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)
