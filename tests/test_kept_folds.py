"""Folds that are kept: read back to the bit, and only where all that decides them is the same."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from foxflow import cache, dataset, processes, provenance, registry, splits, training
from foxflow.config import WalkForward
from foxflow.dataset import Dataset
from foxflow.splits import Fold
from foxflow.training import FoldResult, Recipe, kept

RULE = WalkForward(train=1000, every=757, embargo=5)
RIDGE = Recipe("ridge", {}, 3, 5.0)
MAMBA2 = Recipe("mamba2", {"d_model": 8, "epochs": 1, "steps_per_epoch": 2}, 3, 5.0)


@pytest.fixture(scope="module")
def bars(stocks: pl.DataFrame) -> pl.DataFrame:
    return stocks.filter(pl.col("symbol").is_in(["AAPL", "IBM"]))


def samples(bars: pl.DataFrame) -> Dataset:
    names = ["return_1", "volatility_20"]
    return dataset.build(bars, feature_names=names, label_name="forward_return", horizon=5)


def folds_of(data: Dataset) -> list[Fold]:
    times = dataset.bar_times(data)
    folds = splits.walk_forward(times, RULE)
    return [*folds, splits.final(times, RULE, number=len(folds))]


def walk(data: Dataset, home: Path | None, into: Path, recipe: Recipe = RIDGE, **more: object) -> list[FoldResult]:
    return training.run(data, folds_of(data), recipe, workers=1, folder=into, kept=home, **more)  # type: ignore[arg-type]


def sources(results: Sequence[FoldResult]) -> list[str]:
    return [r.source for r in results]


def assert_equal(found: Sequence[FoldResult], expected: Sequence[FoldResult]) -> None:
    """Every fact of every fold is the same to the bit, but for where it came from and how long it took."""
    for one, other in zip(found, expected, strict=True):
        for field in fields(FoldResult):
            a, b = getattr(one, field.name), getattr(other, field.name)
            if field.name in ("source", "note", "seconds", "key", "checkpoints"):
                continue
            if isinstance(a, pl.DataFrame):
                assert a.schema == b.schema
                assert a.write_ipc(None).getvalue() == b.write_ipc(None).getvalue(), field.name
            elif field.name == "scaler":
                assert {k: np.asarray(v).tobytes() for k, v in vars(a).items()} == {
                    k: np.asarray(v).tobytes() for k, v in vars(b).items()
                }
            elif field.name == "history":
                assert [(e.number, e.train_loss, e.valid_loss, dict(e.detail)) for e in a] == [
                    (e.number, e.train_loss, e.valid_loss, dict(e.detail)) for e in b
                ]
            else:
                np.testing.assert_equal(a, b, err_msg=field.name)


@pytest.mark.parametrize("recipe", [RIDGE, MAMBA2], ids=lambda r: r.model)
def test_a_kept_walk_is_read_back_to_the_bit_and_starts_no_process(
    bars: pl.DataFrame, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = samples(bars)
    plain = walk(data, None, tmp_path / "plain", recipe)
    first = walk(data, tmp_path / "kept", tmp_path / "first", recipe)
    assert {*sources(plain), *sources(first)} == {"computed"}
    assert_equal(first, plain)

    def refuse(_: int) -> None:
        raise AssertionError("a process was to be started")

    monkeypatch.setattr(processes, "workers", refuse)
    again = walk(data, tmp_path / "kept", tmp_path / "again", recipe)
    assert set(sources(again)) == {"cached"}
    assert_equal(again, plain)
    assert cache.take(tmp_path / "again") == cache.take(tmp_path / "plain")


def test_a_new_bar_computes_the_final_fit_alone_and_the_last_fold_forecasts_by_the_fit_it_has(
    bars: pl.DataFrame, tmp_path: Path
) -> None:
    times = bars["ts"].unique().sort()
    walk(samples(bars.filter(pl.col("ts") < times[-1])), tmp_path / "kept", tmp_path / "first")
    whole = samples(bars)
    again = walk(whole, tmp_path / "kept", tmp_path / "again")
    assert sources(again) == ["cached", "cached", "cached fit", "computed"]
    assert_equal(again, walk(whole, None, tmp_path / "plain"))


def test_a_correction_computes_the_folds_that_see_it(bars: pl.DataFrame, tmp_path: Path) -> None:
    first = samples(bars)
    folds = folds_of(first)
    walk(first, tmp_path / "kept", tmp_path / "first")
    # A bar that every fold trains on was corrected between the cuts of the second fold and the third.
    bent = (pl.col("symbol") == "IBM") & (pl.col("ts") == bars["ts"].unique().sort()[500])
    corrected = samples(bars.with_columns(pl.when(bent).then(pl.col("close") * 1.01).otherwise("close").alias("close")))

    def as_of(cut: int) -> Dataset:
        return first if cut < folds[2].cut else corrected

    again = walk(first, tmp_path / "kept", tmp_path / "again", as_of=as_of)
    assert sources(again) == ["cached", "cached", "computed", "computed"]


@pytest.mark.parametrize(
    "change",
    [{"seed": 4}, {"clip": 4.0}, {"options": {"penalty": 0.5}}],
    ids=["seed", "clip", "options"],
)
def test_another_recipe_computes_every_fold(bars: pl.DataFrame, change: dict[str, object], tmp_path: Path) -> None:
    data = samples(bars)
    walk(data, tmp_path / "kept", tmp_path / "first")
    again = walk(data, tmp_path / "kept", tmp_path / "again", replace(RIDGE, **change))  # type: ignore[arg-type]
    assert set(sources(again)) == {"computed"}


def test_a_fold_is_named_without_its_number(bars: pl.DataFrame, tmp_path: Path) -> None:
    data = samples(bars)
    folds = folds_of(data)
    training.run(data, folds[1:2], RIDGE, workers=1, kept=tmp_path)
    moved = [replace(folds[1], number=7)]
    found = training.run(data, moved, RIDGE, workers=1, kept=tmp_path)
    assert sources(found) == ["cached"]
    assert found[0].forecasts["fold"].unique().to_list() == [7]


def test_a_symbol_or_a_member_more_or_less_is_another_fold(bars: pl.DataFrame, tmp_path: Path) -> None:
    from foxflow.universe import FOREVER, Membership, Universe

    data = samples(bars)
    folds = folds_of(data)[2:3]
    training.run(data, folds, RIDGE, workers=1, kept=tmp_path)
    start, end = folds[0].test_start, folds[0].test_end

    def universe(until: int) -> Universe:
        ibm = Membership(0, until, 0, FOREVER, None)
        return Universe({"AAPL": (Membership(0, FOREVER, 0, FOREVER, None),), "IBM": (ibm,)})

    for other in (
        replace(data, universe=universe(FOREVER)),
        # The fit is the same: only who is forecast in the test span changes.
        replace(data, universe=universe((start + end) // 2)),
        replace(data, series=data.series[:1]),
    ):
        found = training.run(other, folds, RIDGE, workers=1, kept=tmp_path)
        assert sources(found) in (["computed"], ["cached fit"])
        assert_equal(found, training.run(other, folds, RIDGE, workers=1))


def test_a_damaged_fold_is_computed_again_and_said_so(bars: pl.DataFrame, tmp_path: Path) -> None:
    data = samples(bars)
    first = walk(data, tmp_path / "kept", tmp_path / "first")
    for path in (tmp_path / "kept").glob("*/forecasts.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    again = walk(data, tmp_path / "kept", tmp_path / "again")
    # Fits are whole, and so is the result of the final fit but for its empty table.
    assert sources(again) == ["cached fit"] * 4
    assert all("is damaged (forecasts.parquet is not what was written); it is not used" in r.note for r in again)
    assert_equal(again, first)
    healed = walk(data, tmp_path / "kept", tmp_path / "healed")
    assert [(r.source, r.note) for r in healed] == [("cached", "")] * 4
    for path in (tmp_path / "kept").glob("*/*.*"):
        path.write_bytes(b"")
    anew = walk(data, tmp_path / "kept", tmp_path / "anew")
    assert sources(anew) == ["computed"] * 4
    assert all(r.note.count("is damaged") == 2 for r in anew)
    assert_equal(anew, first)


class Rounding:
    """A ridge that saves less than it knows."""

    def __init__(self, model: object) -> None:
        self._model = model

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def load(self, folder: Path) -> object:
        fitted = self._model.load(folder)  # type: ignore[attr-defined]
        return replace(fitted, coefficients=fitted.coefficients.astype(np.float32).astype(np.float64))


def test_a_fit_whose_saved_model_forecasts_other_bits_is_not_gone_on_with(
    bars: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = samples(bars)
    build = registry.build
    monkeypatch.setattr(registry, "build", lambda *a: Rounding(build(*a)))
    fold = folds_of(data)[0]
    named = kept.keys(
        data, fold, RIDGE, model=registry.build("ridge", {}), folder=tmp_path, code=provenance.code_of("foxflow_ridge"),
        forecaster="model",
    )  # fmt: skip
    training.fit_fold(data, fold, RIDGE, folder=None, kept=named, progress=lambda *_: None)
    assert {p.name for p in tmp_path.iterdir()} == {named.result}


def test_forecasts_are_the_same_bits_in_processes_that_fitted_another_model_before(bars: pl.DataFrame) -> None:
    data = samples(bars)
    folds = folds_of(data)[:2]
    with processes.workers(1) as pool:
        training.run(data, folds, MAMBA2, workers=1, pool=pool)
        after = training.run(data, folds, RIDGE, workers=1, pool=pool)
    assert_equal(after, training.run(data, folds, RIDGE, workers=1))


CHANGED = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
import numpy as np
from foxflow import registry, training
from foxflow.splits import Fold
from foxflow.dataset import Dataset, Series
if __name__ == "__main__":
    n = 40
    random = np.random.default_rng(0)
    ts, ones = np.arange(n), np.ones(n, dtype=bool)
    series = Series("A", ts, random.normal(size=(n, 1)), ones, random.normal(size=n), ts + 1, np.zeros(n))
    data = Dataset(("a",), "l", 1, 1, (series,))
    fold = Fold(0, 0, 19, 20, 29, 30, 39)
    [result] = training.run(data, [fold], training.Recipe("ridge", {{}}, 3, 5.0), workers=1, kept=Path({kept!r}))
    print(result.source)
"""


def test_touching_a_loose_source_computes_every_fold_again(tmp_path: Path) -> None:
    import shutil

    import foxflow

    loose = tmp_path / "loose"
    shutil.copytree(Path(foxflow.__file__).parent, loose / "foxflow", ignore=shutil.ignore_patterns("__pycache__"))

    def source() -> str:
        script = tmp_path / "script.py"
        script.write_text(CHANGED.format(path=[str(loose), *sys.path], kept=str(tmp_path / "kept")))
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [source(), source()] == ["computed", "cached"]
    features = loose / "foxflow" / "features.py"
    features.write_text(features.read_text() + "# touched\n")
    assert [source(), source()] == ["computed", "cached"]
