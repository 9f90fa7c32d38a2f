"""A leak is caught: each mutation is applied to a copy of the package, and the test that guards it must fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUARDS = {
    "label_shifted_by_a_bar": "test_labels.py::test_forward_return_runs_from_the_next_open_to_the_open_horizon_bars_later",
    "scaler_fitted_on_all_rows": "test_training.py::test_scaler_is_fitted_on_the_training_rows_alone",
    "fill_on_the_same_bar": "test_portfolio.py::test_fills_happen_at_the_next_open_never_on_the_bar_that_was_forecast_from",
    "purge_one_bar_short": "test_splits.py::test_no_training_label_ends_at_or_after_the_first_bar_of_the_next_span",
    "gate_looks_at_clipped_features": "test_training.py::test_a_bar_that_is_not_valid_becomes_the_scaled_zero_vector",
    "release_without_label_scale": "test_release.py::test_the_same_fit_gives_the_same_release_and_writes_nothing_twice",
}


def guard(copy: Path, test: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", f"tests/{test}"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("foxflow", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_mutation_has_a_guard() -> None:
    assert {p.stem for p in (ROOT / "tests" / "mutations").glob("*.patch")} == set(GUARDS)


@pytest.mark.parametrize("name", GUARDS)
def test_a_mutation_turns_its_guard_red(name: str, copy: Path) -> None:
    patch = ROOT / "tests" / "mutations" / f"{name}.patch"
    subprocess.run(["git", "apply", str(patch)], cwd=copy, check=True)
    done = guard(copy, GUARDS[name])
    # 1 is "tests failed"; a mutation that cannot even be imported or collected proves nothing.
    assert done.returncode == 1, done.stdout + done.stderr


def test_an_unchanged_copy_passes_every_guard(copy: Path) -> None:
    done = guard(copy, GUARDS["label_shifted_by_a_bar"])
    assert done.returncode == 0, done.stdout + done.stderr
    code = "import foxflow; print(foxflow.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(copy))
