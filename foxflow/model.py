"""THE PLUGIN CONTRACT: what a model author writes, and all that foxflow asks of a model.

A plugin is a class with a `name`, a frozen dataclass of `Parameters` and the methods of `Model`; an entry point in the
group `foxflow.models` makes it known. Data arrive scaled: features are zeros on bars that are not valid, labels
have mean 0 and standard deviation 1 over the training rows. A model may keep a state from bar to bar; it starts at
zero at the first bar of a series and never sees a later bar.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from foxflow.dataset import Dataset, Floats, Segments, Series, Table

__all__ = ["Dataset", "Epoch", "Fitted", "Floats", "Graphs", "Model", "Progress", "Segments", "Series", "Table"]

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Epoch:
    """Losses after one round of training: mean squared error of scaled labels, weighted as the rows are.

    Number 0 is the model before this fit has taught it anything, so a fit whose best validation loss is number 0's has
    learned nothing (after a warm start: nothing new). `detail` holds whatever else a plugin measures, by name;
    `seconds` is not part of what is equal.
    """

    number: int
    train_loss: float
    valid_loss: float
    detail: Mapping[str, float] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)


Progress = Callable[[Epoch, int], None]
"""Called after each epoch with it and the number of epochs planned."""


@dataclass(frozen=True)
class Graphs:
    """The two ONNX graphs of a fitted model, serialised: opset 20, float32, domain "" only, batch symbolic.

    `step`: `features (batch, n_features)` and `past_*` to `forecast (batch, 1)` and `present_*`.
    `window`: `features (batch, bars, n_features)` and `past_*` to `forecast (batch, bars, 1)` and `present_*`.
    Each `past_X` has the shape of its `present_X`, batch first, and starts at zero; a stateless model has none.
    Features and forecasts are scaled as in training: `release` adds scaler, gate and label scale.
    """

    step: bytes
    window: bytes


@runtime_checkable
class Fitted(Protocol):
    """A fitted model."""

    @property
    def history(self) -> tuple[Epoch, ...]:
        """Epochs of the fit, from number 0 on; empty after `load`."""

    @property
    def best_epoch(self) -> int:
        """The number of the epoch whose parameters were kept."""

    def forecast(self, data: Dataset) -> tuple[Floats, ...]:
        """Return one `(n_bars,)` array of scaled forecasts per series, each bar from itself and earlier ones.

        One streaming pass: the state is zero before the first bar of each series.
        """

    def save(self, folder: Path) -> None:
        """Write `checkpoint.safetensors` (no pickle), from which `Model.load` restores an equal model."""

    def to_onnx(self) -> Graphs:
        """Return the graphs of this model, for data scaled as in training."""


class Model(Protocol):
    """A model plugin: built by the registry as `Plugin(parameters)`."""

    name: ClassVar[str]
    Parameters: ClassVar[type[Any]]

    def __init__(self, parameters: Any) -> None: ...  # noqa: ANN401  (an instance of the plugin's own Parameters)

    @property
    def warmup_bars(self) -> int:
        """Bars a symbol's state is run over before its first forecast counts; 0 for a model without state.

        A fit that remembers more is refused: its forecasts would change with the age of the state (`foxflow.state`).
        """

    def fit(
        self,
        train: Dataset,
        valid: Dataset,
        *,
        seed: int,
        warm_start: Fitted | None = None,
        checkpoints: Path | None = None,
        progress: Progress,
    ) -> Fitted:
        """Return the model fitted to the rows of `train` that count (weight above 0).

        `valid` is the later, purged tail for early stopping; the bars in front of its rows are context. Equal input
        and seed give bit-equal forecasts. `checkpoints` is a folder of this one fit, which may not exist yet: what a
        model keeps there lets the same fit go on, to the same bits, after its process was killed. A fit of seconds
        needs none.
        """

    def load(self, folder: Path) -> Fitted:
        """Return the fitted model that `Fitted.save` wrote to `folder`."""
