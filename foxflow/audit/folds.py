"""Proofs of splits and scaler: what a fit reads ends before what it is tested on begins."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from foxflow import dataset, splits
from foxflow.audit.checks import Check, accuse
from foxflow.audit.corruption import Times, at, first_difference, noise, shown, times_1000, with_later_features
from foxflow.audit.outcomes import ends
from foxflow.config import Config
from foxflow.dataset import UNKNOWN_END, Dataset, Scaler, Series
from foxflow.errors import LeakageError
from foxflow.splits import Fold
from foxflow.training import FoldResult


def walk(config: Config, data: Dataset) -> list[Fold]:
    """Return the folds of the experiment, that of the final fit among them."""
    times, known = dataset.bar_times(data), dataset.known_times(data)
    folds = splits.walk_forward(times, config.walk_forward, schedule=config.schedule, known=known)
    return [*folds, splits.final(times, config.walk_forward, number=len(folds))]


def attack_splits(config: Config, data: Dataset, *, warmup_bars: int, most_folds: int) -> list[Check]:
    """Return the checks that so many folds withstood, evenly chosen; where labels end is the bars' own times'.

    Raises
    ------
    LeakageError
        Naming the fold and the row.
    """
    folds = walk(config, data)
    chosen = sorted(set(np.linspace(0, len(folds) - 1, most_folds).round().astype(int).tolist()))
    for fold in (folds[i] for i in chosen):
        pieces = dataset.parts(data, fold, warmup_bars=warmup_bars)
        _prove_rows(data, pieces.train, fold, "training", before=fold.valid_start)
        _prove_rows(data, pieces.valid, fold, "validation", before=fold.test_start)
        embargo = config.walk_forward.embargo
        _prove_embargo(data, pieces.train, fold, embargo=embargo, name="training", start=fold.valid_start)
        _prove_embargo(data, pieces.valid, fold, embargo=embargo, name="validation", start=fold.test_start)
    for fold in folds:
        if fold.cut >= fold.test_start:
            raise _wrong(fold, f"has its cut at {shown(fold.cut)}", f"it before its test, {shown(fold.test_start)}")
    spans = [(f.test_start, f.test_end) for f in folds if not f.is_final]
    for one, other in pairwise(spans):
        if one[1] >= other[0]:
            raise _wrong(folds[spans.index(other)], f"tests from {shown(other[0])}", f"after {shown(one[1])}")
    what = f"{len(folds)} folds, embargo {config.walk_forward.embargo}"
    return [Check("label ends, embargo and cut of each fold", what, len(chosen))]


def _counted(data: Dataset, part: Dataset) -> list[tuple[Series, Times, Times]]:
    """Return the series whose rows count in a part of the data, their ts, and their label ends by the bars' times."""
    whole = {s.symbol: s.ts for s in data.series}
    found = []
    for s in part.series:
        ts = s.ts[s.weight > 0]
        if len(ts):
            own = whole[s.symbol]
            found.append((s, ts, ends(own, data.horizon)[np.searchsorted(own, ts)]))
    return found


def _prove_rows(data: Dataset, part: Dataset, fold: Fold, name: str, *, before: int) -> None:
    for series, ts, end in _counted(data, part):
        late = np.flatnonzero(end >= before)
        if len(late):
            i = int(late[0])
            known = "is not known yet" if end[i] == UNKNOWN_END else f"ends at {shown(int(end[i]))}"
            raise _wrong(
                fold,
                f"has a {name} row of {series.symbol} at {shown(int(ts[i]))} whose label {known}",
                f"it to end before {shown(before)}, where the next span starts",
            )
        # A row that no label protects, as one of validation that belongs to the training span.
        early = name == "validation" and bool((ts < fold.valid_start).any())
        if early or (ts >= before).any():
            raise _wrong(fold, f"has a {name} row of {series.symbol} at {shown(int(ts[0]))}", "it inside its own span")


def _prove_embargo(data: Dataset, part: Dataset, fold: Fold, *, embargo: int, name: str, start: int) -> None:
    counted, times = _counted(data, part), dataset.bar_times(data)
    series, ts, end = max(counted, key=lambda each: int(each[2].max()))
    newest = int(end.max())
    between = int(np.searchsorted(times, start) - np.searchsorted(times, newest)) - 1
    if between < embargo:
        raise _wrong(
            fold,
            f"has {between} bar time(s) between the newest {name} label's end, {shown(newest)} (row of {series.symbol} "
            f"at {shown(int(ts[end.argmax()]))}), and {shown(start)}",
            f"at least [walk_forward] embargo = {embargo}",
        )


def _wrong(fold: Fold, seen: str, expected: str) -> LeakageError:
    return accuse(f"fold {fold.number} {seen}", expected, "mend splits: the purge comes from label_end")


def attack_scaler(
    config: Config,
    bars: pl.DataFrame,
    data: Dataset,
    build: Callable[[pl.DataFrame], Dataset],
    *,
    warmup_bars: int,
    full: bool,
) -> list[Check]:
    """Return the checks that scaler and training data of the first and the last fold withstood, and of a middle one.

    Everything after the last bar that a training row or its label reads is corrupted.

    Parameters
    ----------
    bars
        Adjusted bars that `data` is made of by `build`.

    Raises
    ------
    LeakageError
        Naming the fold and what moved.
    """
    folds = walk(config, data)
    chosen = sorted({0, len(folds) // 2 if full else 0, len(folds) - 1})
    attacks = (("noise", noise), ("times 1000", times_1000))[: 2 if full else 1]
    for fold in (folds[i] for i in chosen):
        train, scaler = _fitted(config, data, fold, warmup_bars)
        counted = _counted(data, train)
        last_row = max(int(ts.max()) for _, ts, _ in counted)
        last_end = max(int(end.max()) for _, _, end in counted)
        for how, corruption in attacks:
            other_train, other = _fitted(config, build(corruption(bars, last_end)), fold, warmup_bars)
            _require_same(fold, scaler, other, f"bars after {shown(last_end)} ({how})", data.feature_names)
            _require_same_rows(fold, scaler.apply(train), other.apply(other_train), last_end)
        # Bars between the last row and its label's end, which no bar may lie beyond: context, not to be fitted on.
        _, other = _fitted(config, _with_other_features(data, last_row), fold, warmup_bars)
        what = f"features after its last training row, {shown(last_row)}"
        _require_same(fold, scaler, other, what, data.feature_names)
    return [
        Check(
            "bars and features after the last training row",
            "scaler and training data",
            (1 + len(attacks)) * len(chosen),
        )
    ]


def _fitted(config: Config, data: Dataset, fold: Fold, warmup_bars: int) -> tuple[Dataset, Scaler]:
    train = dataset.parts(data, fold, warmup_bars=warmup_bars).train
    return train, Scaler.fit(train, clip=config.features.clip)


def _with_other_features(data: Dataset, after: int) -> Dataset:
    return with_later_features(data, after, lambda features: features * 1000.0 + 1.0)


def _require_same(fold: Fold, one: Scaler, other: Scaler, what: str, names: Sequence[str]) -> None:
    for field in ("median", "scale", "label_mean", "label_scale"):
        before, after = np.atleast_1d(getattr(one, field)), np.atleast_1d(getattr(other, field))
        moved = np.flatnonzero(before != after)
        if len(moved):
            i = int(moved[0])
            of = f" of feature {names[i]!r}" if field in ("median", "scale") else ""
            raise accuse(
                f"fold {fold.number}: the scaler's {field}{of} is {before[i]:.9g}, and {after[i]:.9g} once {what} are "
                "corrupted: it was fitted on more than the training rows",
                "the same number to the bit",
                "mend Scaler.fit, or what dataset.parts gives it",
            )


def _require_same_rows(fold: Fold, one: Dataset, other: Dataset, until: int) -> None:
    others = {s.symbol: s for s in other.series}
    for array in ("features", "label"):
        pairs = []
        for s in one.series:
            same, counts = others[s.symbol], s.weight > 0
            if not np.array_equal(s.weight, same.weight):
                raise accuse(
                    f"fold {fold.number}: other rows of {s.symbol} count once bars after {shown(until)} are corrupted",
                    "the same training rows with the same weights",
                    "mend dataset.parts",
                )
            pairs.append((s.symbol, s.ts[counts], getattr(s, array)[counts], getattr(same, array)[counts]))
        found = first_difference(pairs)
        if found is not None:
            raise accuse(
                f"fold {fold.number}: the training {array} of {found.when} is {found.before:.9g}, and "
                f"{found.after:.9g} once bars after {shown(until)} are corrupted",
                "the same training data to the bit",
                "mend dataset.parts or Scaler.apply",
            )


def require_after_cut(results: Sequence[FoldResult], *, model: str) -> None:
    """Raise LeakageError where a model is to be scored on a forecast at or before its own cut, naming the first."""
    for result in results:
        early = result.forecasts.filter(pl.Series(at(result.forecasts) <= result.cut))
        if len(early):
            row = early.sort("ts").row(0, named=True)
            raise accuse(
                f"model {model!r}, fold {result.fold.number}: a forecast of {row['symbol']} at "
                f"{row['ts']:%Y-%m-%dT%H:%M:%SZ} is scored, and the model has seen bars up to its cut, "
                f"{shown(result.cut)}",
                "forecasts after the cut only",
                "score a model on nothing it may have been fitted to",
            )


def prove(
    config: Config, data: Dataset, results: Sequence[FoldResult], *, model: str | None = None
) -> list[dict[str, Any]]:
    """Return the proof of each fold that was tested, in their order: times in UTC as ISO 8601.

    Keys: `train_label_end`, `valid_label_end`, `valid_start`, `embargo_bars` (bar times between the newest label's end
    and the test), `scaler_first_ts`, `scaler_last_ts`, `first_forecast_ts` (null where nothing was forecast).

    Parameters
    ----------
    model
        Whose results they are, where they are not those of the config's own.

    Raises
    ------
    LeakageError
        Where a forecast is not after its model's cut, or a fold's own facts or the bars' times contradict its split.
    """
    require_after_cut(results, model=model or config.model.name)
    times = dataset.bar_times(data)
    rows = []
    for result in results:
        fold = result.fold
        train_end = max(result.train_end, _newest_end(data, until=result.scaler_span[1]))
        valid_end = max(result.valid_end, _ends_of(data, result.validation))
        for name, end, start in (("training", train_end, fold.valid_start), ("validation", valid_end, fold.test_start)):
            if end >= start:
                raise _wrong(fold, f"has a {name} label that ends at {shown(end)}", f"it before {shown(start)}")
        if max(train_end, valid_end) > result.cut or result.cut >= fold.test_start:
            raise _wrong(fold, f"has its cut at {shown(result.cut)}", "it between the newest label's end and the test")
        if result.scaler_span[1] >= fold.valid_start:
            raise _wrong(fold, f"has its scaler fitted up to {shown(result.scaler_span[1])}", "training rows only")
        between = [
            int(np.searchsorted(times, start) - np.searchsorted(times, end)) - 1
            for end, start in ((train_end, fold.valid_start), (valid_end, fold.test_start))
        ]
        if min(between) < config.walk_forward.embargo:
            raise _wrong(
                fold, f"has an embargo of {min(between)} bar time(s)", f"at least {config.walk_forward.embargo}"
            )
        if fold.is_final:
            continue
        first = result.forecasts["ts"].min()
        rows.append(
            {
                "train_label_end": shown(train_end),
                "valid_label_end": shown(valid_end),
                "valid_start": shown(fold.valid_start),
                "embargo_bars": between[1],
                "scaler_first_ts": shown(result.scaler_span[0]),
                "scaler_last_ts": shown(result.scaler_span[1]),
                "first_forecast_ts": None if first is None else shown(int(at(result.forecasts).min())),
            }
        )
    return rows


def _newest_end(data: Dataset, *, until: int) -> int:
    """Return where the label of the newest row at exactly that time ends, by the bars' own times."""
    found = [
        int(ends(s.ts, data.horizon)[i])
        for s in data.series
        if (i := int(np.searchsorted(s.ts, until))) < len(s) and s.ts[i] == until
    ]
    # A symbol whose label never ended has no row that counts.
    known = [end for end in found if end != UNKNOWN_END]
    return min(known, default=until)


def _ends_of(data: Dataset, rows: pl.DataFrame) -> int:
    """Return the newest label end of rows (`symbol`, `ts`), by the bars' own times."""
    newest = 0
    own = {s.symbol: s.ts for s in data.series}
    for (symbol,), part in rows.partition_by("symbol", as_dict=True).items():
        ts = own[str(symbol)]
        newest = max(newest, int(ends(ts, data.horizon)[np.searchsorted(ts, at(part))].max()))
    return newest
