"""The structure is executable: layers, file sizes, the README's tree, and nothing that the project forbids itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRACKED = [
    Path(p)
    for p in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if (ROOT / p).exists()
]  # fmt: skip
PYTHON = [p for p in TRACKED if p.suffix == ".py"]
SOURCES = [p for p in PYTHON if p.parts[0] in ("foxflow", "flows", "plugins")]


def test_imports_point_down_and_heavy_libraries_stay_behind_their_doors() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_no_file_passes_400_lines(path: Path) -> None:
    assert len((ROOT / path).read_text("utf-8").splitlines()) <= 400


def test_the_readmes_tree_is_what_is_on_disk() -> None:
    block = re.search(r"```\n(pyproject\.toml .*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert block is not None
    listed: set[str] = set()
    folders: list[str] = []
    for line in block[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = line.strip().split("  ")[0].split()
        listed |= {"".join(folders[:depth]) + n for n in names}
        if names[-1].endswith("/"):
            folders = [*folders[:depth], names[-1]]
    assert listed == _shown()


def _shown() -> set[str]:
    """Return what the tree has to show: the top level, and the modules of the core and of each package."""
    shown: set[str] = set()
    hidden = {"__init__.py", "py.typed", "pyproject.toml"}
    for path in TRACKED:
        parts = path.parts
        deep = {"foxflow": 2, "flows": 3, "plugins": 4, "docs": 2}.get(parts[0], 1)
        for depth in range(1, min(deep, len(parts)) + 1):
            name = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
            if depth == 1 or parts[depth - 1] not in hidden:
                shown.add(name)
    return shown - {".gitignore"}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_source_pickles_or_evaluates(path: Path) -> None:
    text = (ROOT / path).read_text("utf-8")
    assert not re.search(
        r"(?<![.\w])(import pickle|from pickle|eval\(|exec\(|torch\.load\(|import dill|import joblib)", text
    )


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_module_has_a_name_that_says_nothing(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "common", "core", "base", "manager", "misc"}
