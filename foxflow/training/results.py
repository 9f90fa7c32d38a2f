"""What a fold's fit gives: its forecasts, and every fact that proves or judges them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from foxflow.bars import TS, instant
from foxflow.dataset import Scaler
from foxflow.errors import LeakageError
from foxflow.model import Epoch
from foxflow.splits import Fold

# Of every model; a model's own follow them.
HISTORY_COLUMNS = ("fold", "epoch", "is_best", "train_loss", "valid_loss", "seconds")
VALIDATION_SCHEMA = pl.Schema({"symbol": pl.String(), "ts": TS, "forecast": pl.Float64(), "label": pl.Float64()})
FORECAST_SCHEMA = pl.Schema({"symbol": pl.String(), "ts": TS, "fold": pl.Int32(), "forecast": pl.Float64()})


@dataclass(frozen=True)
class Recipe:
    """What is fitted: a plugin, its options, the config seed and the clip of scaled features."""

    model: str
    options: Mapping[str, object]
    seed: int
    clip: float


def fit_seed(seed: int, cut: int) -> int:
    """Return the seed of the fit with that cut: 63 bits of sha256 over both."""
    digest = hashlib.sha256(f"foxflow {seed} {cut}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a fit gives beside its model.

    `rows`: training rows per symbol.
    `residual_variance`: mean squared forecast error over the validation tail, in squared label units.
    `validation`: forecasts and outcomes of the validation tail (`VALIDATION_SCHEMA`), known at the cut.
    `train_end`, `valid_end`: the newest label_end of a training and of a validation row; `scaler_span`: the first and
    last ts of the rows that the scaler was fitted on; all int64 us.
    `state_gap`: how far a re-warmed state's forecasts lie from a carried one's (`state.gap`).
    """

    rows: Mapping[str, int]
    history: tuple[Epoch, ...]
    best_epoch: int
    residual_variance: float
    validation: pl.DataFrame
    train_end: int
    valid_end: int
    scaler: Scaler
    scaler_span: tuple[int, int]
    warmup_bars: int
    state_gap: float


@dataclass(frozen=True, kw_only=True)
class FoldResult(Fit):
    """A fit and its out-of-sample forecasts.

    `entered`: test bars forecast per symbol, 0 for one that is not warm yet.
    `members`: the symbols that are members at a bar of the test span, as known then; None without a universe table.
    `seconds`: what it took when it was computed.
    `checkpoints`: where the fit would have gone on after an interruption; no longer needed once the run is written.
    `source`: whether it was computed now, forecast now by a fit that was kept, or kept whole; `key`: what names it in
    the cache, None where none is used; `note`: what was wrong with what was kept, empty where nothing was.
    """

    fold: Fold
    forecasts: pl.DataFrame
    entered: Mapping[str, int]
    members: tuple[str, ...] | None
    seconds: float
    checkpoints: Path | None
    source: Literal["computed", "cached fit", "cached"] = "computed"
    key: str | None = None
    note: str = ""

    @property
    def cut(self) -> int:
        """The newest bar that may touch the fit (int64 us)."""
        return self.fold.cut

    @property
    def untrained_loss(self) -> float:
        """The validation loss before anything was learned."""
        return self._valid_loss(0)

    @property
    def best_loss(self) -> float:
        """The validation loss of the kept parameters."""
        return self._valid_loss(self.best_epoch)

    @property
    def has_learned(self) -> bool:
        """Whether the kept parameters beat the untrained model on the validation tail."""
        return self.best_loss < self.untrained_loss

    def _valid_loss(self, number: int) -> float:
        return next(e.valid_loss for e in self.history if e.number == number)


@dataclass(frozen=True)
class Fits:
    """The walk-forward's fold results of each seed, and of the baselines by name.

    Only the first seed has a final fit, its last: that is the one released.
    """

    seeds: tuple[list[FoldResult], ...]
    baselines: dict[str, list[FoldResult]]

    @property
    def released(self) -> list[FoldResult]:
        """The first seed's."""
        return self.seeds[0]


def history_of(results: Sequence[FoldResult]) -> pl.DataFrame:
    """Return one row an epoch: fold, epoch, losses, seconds and all that the model recorded; `is_best` was kept."""
    rows = [
        {
            **epoch.detail,
            "fold": result.fold.number,
            "epoch": epoch.number,
            "is_best": epoch.number == result.best_epoch,
            "train_loss": epoch.train_loss,
            "valid_loss": epoch.valid_loss,
            "seconds": epoch.seconds,
        }
        for result in results
        for epoch in result.history
    ]
    return pl.DataFrame(rows, infer_schema_length=None).select(*HISTORY_COLUMNS, pl.exclude(HISTORY_COLUMNS))


def forecasts_of(results: Sequence[FoldResult]) -> pl.DataFrame:
    """Return the forecasts of all folds, sorted by (symbol, ts): the one door through which they are scored.

    Raises
    ------
    LeakageError
        Where a forecast is of a bar at or before its model's cut: the fit has seen that bar.
    """
    for result in results:
        if len(result.forecasts) and result.forecasts["ts"].min() <= instant(result.cut):  # type: ignore[operator]
            early = result.forecasts.filter(pl.col("ts") <= instant(result.cut)).sort("ts", "symbol")
            first = early.row(0, named=True)
            raise LeakageError(
                f"fold {result.fold.number}: {len(early)} forecast(s) at or before the model's cut, "
                f"{instant(result.cut):%Y-%m-%d %H:%M}Z, the first of {first['symbol']} at "
                f"{first['ts']:%Y-%m-%d %H:%M}Z; a model is scored on bars after its cut only: take these out"
            )
    return pl.concat([r.forecasts for r in results]).sort("symbol", "ts")


def forecasts_sha256(forecasts: pl.DataFrame) -> str:
    """Return the sha256 over rows by (symbol, ts): symbol, NUL, ts as int64 us, forecast as float64; little-endian."""
    digest = hashlib.sha256()
    rows = forecasts.sort("symbol", "ts").select("symbol", pl.col("ts").dt.timestamp("us"), "forecast")
    for symbol, ts, forecast in rows.iter_rows():
        digest.update(symbol.encode() + b"\0")
        digest.update(np.array([ts], "<i8").tobytes() + np.array([forecast], "<f8").tobytes())
    return digest.hexdigest()
