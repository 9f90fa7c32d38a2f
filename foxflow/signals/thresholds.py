"""Thresholds chosen for each fold on its own validation tail: nothing after its cut is read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl

from foxflow.bars import instant, iso
from foxflow.config import Config, Costs, Strategy
from foxflow.dataset import Floats
from foxflow.errors import LeakageError
from foxflow.signals.limits import carried, limited, to_wide
from foxflow.signals.strength import in_tranches, with_signals, with_size
from foxflow.splits import Fold

# Of |forecast| on the tail. The first stands for a threshold of 0: every forecast is followed.
QUANTILES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
# Shorter tails hold too few outcomes that do not overlap to tell one threshold from another.
LEAST_SPANS = 20
# Scores that differ by less are the same but for the order of sums.
TIE = 1e-9
ROUNDING = 1e-12


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of one fold and how they were chosen.

    `enter_bps`, `exit_bps`: as `[strategy] threshold_bps` and `exit_threshold_bps`. `enter_quantile`, `exit_quantile`:
    of |forecast| on the tail, 0 for a threshold of 0. `score`: mean over standard deviation of the net return per date
    of the tail; `score_at_zero`: of thresholds of 0. `n_rows`, `n_dates`: of the tail. `note`: why they are 0, where
    nothing was chosen.
    """

    enter_bps: float
    exit_bps: float
    enter_quantile: float
    exit_quantile: float
    score: float
    score_at_zero: float
    n_rows: int
    n_dates: int
    note: str | None


class Validated(Protocol):
    """What the choice reads of a fold's result (`training.FoldResult`), all of it known at the fold's cut."""

    @property
    def fold(self) -> Fold: ...  # noqa: D102

    @property
    def validation(self) -> pl.DataFrame: ...  # noqa: D102

    @property
    def valid_end(self) -> int: ...  # noqa: D102


def choose(results: Sequence[Validated], config: Config, *, bars: pl.DataFrame | None = None) -> dict[int, Thresholds]:
    """Return the thresholds of each fold by its number; empty where `[strategy]` has none chosen.

    The fold's model has forecast its validation tail without learning from it (but for when to stop). Each pair of
    `QUANTILES` of |forecast| there, the one that leaves at most the one that enters, is traded on the tail, and the
    pair of the highest score is taken; of equal scores the simplest: lower thresholds, and leaving where it enters.
    0 is taken where the tail holds fewer than `LEAST_SPANS` horizons.

    Parameters
    ----------
    bars
        As for `positions`; needed with `[strategy] size = "volatility"`.

    Raises
    ------
    LeakageError
        A row of the tail, or its label, lies after the fold's cut, or before its validation starts, where the model
        has learned.

    Notes
    -----
    The score is mean over standard deviation, over the dates of the tail, of the net return per date: of each symbol
    position times label over horizon, less costs on the change of its position. That is what a tranche earns a bar,
    and of a refreshed position what it earns where a forecast is worth the same in each bar of its horizon. Costs are
    fees and half-spread in basis points; what depends on shares, volume or time held is left out.
    """
    strategy = config.strategy
    if strategy.threshold_bps != "chosen":
        return {}
    return {
        result.fold.number: _chosen(
            result, strategy=strategy, horizon=config.label.horizon, cost=_cost(config.costs), bars=bars
        )
        for result in results
    }


def _cost(costs: Costs) -> float:
    return (costs.fee_bps + costs.half_spread_bps) / 1e4


def _chosen(
    result: Validated, *, strategy: Strategy, horizon: int, cost: float, bars: pl.DataFrame | None
) -> Thresholds:
    _require_known(result)
    tail = result.validation
    n_dates = tail["ts"].n_unique()
    quantiles = np.quantile(tail["forecast"].abs().to_numpy(), QUANTILES) * 1e4 if len(tail) else np.zeros(1)
    quantiles[0] = 0.0
    # The simplest first.
    pairs = [(k, k) for k in range(len(QUANTILES))] + [(k, j) for k in range(len(QUANTILES)) for j in range(k)]
    is_short = n_dates < LEAST_SPANS * horizon
    candidates = [(float(quantiles[k]), float(quantiles[j])) for k, j in (pairs[:1] if is_short else pairs)]
    scores = [0.0]
    if n_dates:
        scores = _scores(tail, candidates, strategy=strategy, horizon=horizon, cost=cost, bars=bars)
    best = 0
    for i, score in enumerate(scores):
        if score > scores[best] and not math.isclose(score, scores[best], rel_tol=TIE, abs_tol=TIE):
            best = i
    (enter, leave), (k, j) = candidates[best], pairs[best]
    note = None
    if is_short:
        note = f"{n_dates} dates of validation, fewer than {LEAST_SPANS} horizons of {horizon}: nothing is chosen"
    return Thresholds(
        enter_bps=enter,
        exit_bps=leave,
        enter_quantile=QUANTILES[k],
        exit_quantile=QUANTILES[j],
        score=scores[best],
        score_at_zero=scores[0],
        n_rows=len(tail),
        n_dates=n_dates,
        note=note,
    )


def _require_known(result: Validated) -> None:
    """Raise LeakageError unless the whole tail was known at the cut and lies after what was learned from."""
    fold, tail = result.fold, result.validation
    ts = tail["ts"].dt.timestamp("us")
    stray = tail.filter((ts > fold.cut) | (ts < fold.valid_start))
    if len(stray):
        symbol, at = stray.select("symbol", "ts").row(0)
        raise LeakageError(
            f"fold {fold.number}: thresholds would be chosen on {symbol} at {iso(at)}; expected rows of its validation "
            f"tail alone, from {iso(instant(fold.valid_start))} to its cut at {iso(instant(fold.cut))}: report this as "
            "a bug"
        )
    if result.valid_end > fold.cut:
        raise LeakageError(
            f"fold {fold.number}: thresholds would be chosen on labels that end at {iso(instant(result.valid_end))}; "
            f"expected none after its cut at {iso(instant(fold.cut))}: report this as a bug"
        )


def _scores(
    tail: pl.DataFrame,
    candidates: Sequence[tuple[float, float]],
    *,
    strategy: Strategy,
    horizon: int,
    cost: float,
    bars: pl.DataFrame | None,
) -> list[float]:
    """Return the score of each pair of thresholds (enter, leave; basis points) on the tail."""
    pairs = pl.DataFrame(
        [(i, enter / 1e4, leave / 1e4) for i, (enter, leave) in enumerate(candidates)],
        schema={"candidate": pl.Int32(), "enter": pl.Float64(), "leave": pl.Float64()},
        orient="row",
    )
    rows = pairs.join(with_size(tail, strategy=strategy, bars=bars), how="cross", maintain_order="left")
    of = ["candidate", "symbol"]
    opened = with_signals(rows, strategy=strategy, of=of)
    times, symbols = tail["ts"].unique().sort(), tail["symbol"].unique().sort()
    label = to_wide(tail, "label", times, symbols)
    earning = held = _positions(opened, times, symbols, strategy)
    if strategy.hold == "tranches":
        held = _positions(in_tranches(opened, horizon=horizon, of=of), times, symbols, strategy)
    return [
        _score(np.nansum(earns * label, axis=1) / horizon - cost * _turnover(holds))
        for earns, holds in zip(earning, held, strict=True)
    ]


def _positions(rows: pl.DataFrame, times: pl.Series, symbols: pl.Series, strategy: Strategy) -> list[Floats]:
    """Return each candidate's positions, `(n_times, n_symbols)`, NaN where a symbol has no row."""
    return [
        limited(
            to_wide(own, "signal", times, symbols) * strategy.position_limit,
            gross_limit=strategy.gross_limit,
            net_limit=strategy.net_limit,
        )
        for own in rows.partition_by("candidate", maintain_order=True)
    ]


def _turnover(positions: Floats) -> Floats:
    """Return the traded fraction of equity at each time, from no position on."""
    turnover: Floats = np.abs(np.diff(carried(positions), axis=0, prepend=0.0)).sum(axis=1)
    return turnover


def _score(net: Floats) -> float:
    """Return mean over standard deviation; without any variation 0, or infinite with the sign of the mean."""
    if not net.any():
        return 0.0
    mean, deviation = float(net.mean()), float(net.std())
    # Equal numbers deviate from their mean by its rounding.
    return mean / deviation if deviation > ROUNDING * np.abs(net).max() else math.copysign(math.inf, mean)
