"""What names a fit: any change of data, recipe or code gives another name."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foxflow.dataset import Dataset, Series
from foxflow.training import Recipe, fit_key


def series(symbol: str = "A") -> Series:
    n = 4
    ts = np.arange(n)
    return Series(symbol, ts, np.ones((n, 2)), np.ones(n, dtype=bool), np.zeros(n), ts + 1, np.ones(n))


DATA = Dataset(("a", "b"), "label", 1, 1, (series(),))
RECIPE = Recipe("ridge", {"penalty": 0.5}, 3, 5.0)


def with_series(**change: object) -> Dataset:
    return replace(DATA, series=(replace(DATA.series[0], **change),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        replace(DATA, feature_names=("a", "c")),
        replace(DATA, label_name="other"),
        replace(DATA, horizon=2),
        replace(DATA, lookback=2),
        replace(DATA, series=(series("B"),)),
        with_series(ts=np.arange(4) + 1),
        with_series(features=np.ones((4, 2)) * 2),
        with_series(valid=np.array([True, True, False, True])),
        with_series(label=np.ones(4)),
        with_series(label_end=np.arange(4) + 2),
        with_series(weight=np.zeros(4)),
    ],
)
def test_any_change_of_the_data_names_another_fit(other: Dataset) -> None:
    key = fit_key(DATA, DATA, RECIPE, seed=1)
    assert fit_key(DATA, DATA, RECIPE, seed=1) == key
    assert fit_key(other, DATA, RECIPE, seed=1) != key
    assert fit_key(DATA, other, RECIPE, seed=1) != key


def test_another_recipe_or_seed_names_another_fit() -> None:
    key = fit_key(DATA, DATA, RECIPE, seed=1)
    assert fit_key(DATA, DATA, RECIPE, seed=2) != key
    assert fit_key(DATA, DATA, replace(RECIPE, model="other"), seed=1) != key
    assert fit_key(DATA, DATA, replace(RECIPE, options={"penalty": 0.6}), seed=1) != key


CODE = "import loose, sys; from foxflow.provenance import code_sha256; print(code_sha256('loose'))"


def code(path: Path) -> str:
    script = f"import sys; sys.path[:0] = {[str(path), *sys.path]!r}; {CODE}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("file", ["loose.py", "loose/__init__.py", "loose/kernel.cuh"])
def test_a_change_in_a_loose_package_or_module_is_another_code(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    if path.parent != tmp_path:
        (path.parent / "__init__.py").write_text("")
    path.write_text("# one")
    before, again = code(tmp_path), code(tmp_path)
    path.write_text("# two")
    assert before == again
    assert code(tmp_path) != before


def test_what_is_compiled_of_a_package_while_it_runs_is_no_other_code(tmp_path: Path) -> None:
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "__init__.py").write_text("# one")
    before = code(tmp_path)
    for name in ("kernel.py311.nbi", "kernel.py311.1.nbc"):
        (tmp_path / "loose" / "__pycache__").mkdir(exist_ok=True)
        (tmp_path / "loose" / "__pycache__" / name).write_bytes(b"compiled")
    assert code(tmp_path) == before
