"""Folds that were computed before: what names one, and how it lies in the cache.

Two entries a fold. A fit is named by all that decides it: what it reads, recipe, seed, code, versions and processor;
not by the fold's number, nor by where its test ends. A result is named by its fit, by what its test span reads and by
what forecasts it. So a bar that is new makes the last fold forecast again, by the fit it has, and the final fit anew.
"""

import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foxflow import cache, dataset
from foxflow.dataset import Dataset, Scaler
from foxflow.model import Epoch, Model
from foxflow.provenance import Code, processor
from foxflow.splits import Fold
from foxflow.training.results import Fit, FoldResult, Recipe, fit_seed

MODEL = "model/"
# Of a fit, what is no plain value.
_FRAMES = ("forecasts", "validation")


@dataclass(frozen=True)
class Keys:
    """Where a fold is kept: the cache's folder, and the entries of its fit and of its result, made by that code."""

    folder: Path
    fit: str
    result: str
    code: Code


def keys(data: Dataset, fold: Fold, recipe: Recipe, *, model: Model, folder: Path, code: Code, forecaster: str) -> Keys:
    """Return what names a fold: all that decides what `fit_fold` makes of it."""
    limits = [fold.train_start, fold.train_limit, fold.valid_start, fold.valid_limit]
    seed = fit_seed(recipe.seed, fold.cut)
    decided = [recipe.model, recipe.options, seed, recipe.clip, code.sha256, processor(), limits]
    pieces = dataset.parts(data, fold, warmup_bars=model.warmup_bars)
    seen = dataset.seen(data, cut=fold.cut)
    fit = hashlib.sha256(json.dumps(decided, sort_keys=True).encode())
    for part in (pieces.train, pieces.valid, seen):
        fit.update(dataset.sha256(part))
    result = hashlib.sha256(f"{fit.hexdigest()} {forecaster} {[s.symbol for s in data.series]}".encode())
    if fold.is_final:
        result.update(b"final")
    else:
        result.update(f"{fold.test_start} {fold.test_end} {data.universe.is_recorded}".encode())
        stream = dataset.test_data(data, fold, warmup_bars=model.warmup_bars)
        result.update(dataset.sha256(stream))
        whole = {s.symbol: s.ts for s in data.series}
        for s in stream.series:
            result.update(data.universe.decides_on(s.symbol, s.ts).tobytes())
            result.update(str(int(np.searchsorted(whole[s.symbol], s.ts[0]))).encode())
    return Keys(folder, fit.hexdigest(), result.hexdigest(), code)


def write_fit(kept: Keys, fit: Fit, model_files: Mapping[str, bytes]) -> None:
    """Keep a fit and the files of its fitted model, unless the code has changed since it was named."""
    if kept.code.is_as_it_was():
        cache.write(kept.folder, kept.fit, {**_files(_fit_of(fit)), **_beneath(model_files)})


def read_fit(kept: Keys) -> tuple[Fit, dict[str, bytes]] | None:
    """Return a kept fit and the files of its fitted model; None where there is none.

    Raises
    ------
    DataError
        Where it was damaged.
    """
    files = cache.read(kept.folder, kept.fit)
    if files is None:
        return None
    return Fit(**_values(files)), _model_files(files)


def write_result(kept: Keys, result: FoldResult, model_files: Mapping[str, bytes]) -> None:
    """Keep a result and, of the final fit, the files of its model, unless the code has changed since it was named."""
    if kept.code.is_as_it_was():
        cache.write(kept.folder, kept.result, {**_files(result), **_beneath(model_files)})


def read_result(kept: Keys, fold: Fold) -> tuple[FoldResult, dict[str, bytes]] | None:
    """Return a kept result as that fold's, and the files of its model; raises as `read_fit` does."""
    files = cache.read(kept.folder, kept.result)
    if files is None:
        return None
    values = _values(files)
    values["forecasts"] = values["forecasts"].with_columns(fold=pl.lit(fold.number, pl.Int32))
    members = values.pop("members")
    members = members if members is None else tuple(members)
    result = FoldResult(
        **values, fold=fold, members=members, checkpoints=None, source="cached", key=kept.result, note=""
    )
    return result, _model_files(files)


def _fit_of(fit: Fit) -> Fit:
    return Fit(**{f.name: getattr(fit, f.name) for f in dataclasses.fields(Fit)})


def _files(fit: Fit) -> dict[str, bytes]:
    """Return a fit or a result as files: tables as Parquet, all else as JSON, whose numbers are read back exactly."""
    files, plain = {}, dict[str, Any]()
    for field in dataclasses.fields(fit):
        value = getattr(fit, field.name)
        if field.name in _FRAMES:
            buffer = io.BytesIO()
            value.write_parquet(buffer)
            files[f"{field.name}.parquet"] = buffer.getvalue()
        elif field.name == "scaler":
            plain["scaler"] = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(value).items()}
        elif field.name == "history":
            plain["history"] = [dataclasses.asdict(epoch) for epoch in value]
        elif field.name in ("rows", "entered"):
            plain[field.name] = dict(value)
        elif field.name not in ("fold", "checkpoints", "source", "key", "note"):
            plain[field.name] = value
    files["facts.json"] = json.dumps(plain, indent=1).encode()
    return files


def _values(files: Mapping[str, bytes]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(files["facts.json"])
    values["history"] = tuple(Epoch(**epoch) for epoch in values["history"])
    scaler = values["scaler"]
    values["scaler"] = Scaler(**{**scaler, **{k: np.array(scaler[k]) for k in ("median", "scale")}})
    values["scaler_span"] = tuple(values["scaler_span"])
    for name in _FRAMES:
        if f"{name}.parquet" in files:
            values[name] = pl.read_parquet(io.BytesIO(files[f"{name}.parquet"]))
    return values


def _beneath(model_files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {MODEL + name: content for name, content in model_files.items()}


def _model_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name.removeprefix(MODEL): content for name, content in files.items() if name.startswith(MODEL)}
