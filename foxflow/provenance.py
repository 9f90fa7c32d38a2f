"""Which code and which versions a result came from."""

import hashlib
import platform
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType


@cache
def code_sha256(plugin: str) -> str:
    """Return the sha256 over Python, every installed distribution and the source of loose packages and modules.

    Loose is what is loaded from outside the folders of installed distributions: foxflow and plugins under development,
    whose version says nothing of their content. Ask once the plugin is loaded; the answer holds for this process, which
    runs what it has loaded, whatever becomes of the files.
    """
    digest = hashlib.sha256(f"{plugin} {sys.version} {platform.machine()}".encode())
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    for folder in sorted(installed):
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            digest.update(record.parent.name.encode() + b"\0" + record.read_bytes())
    for name, file in _loose_files([*installed, Path(sysconfig.get_path("stdlib"))]):
        digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python and of the distributions that decide a result, with those of `more`."""
    names = sorted({"foxflow", "numpy", "polars", "duckdb", "vectorbt", *more})
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _loose_files(installed: list[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the files of loose top-level packages and modules, with their names beneath the package."""
    for name in sorted({name.partition(".")[0] for name in sys.modules} - {"__main__", "__mp_main__"}):
        for root in _roots(sys.modules.get(name)):
            if root.exists() and not any(root.is_relative_to(folder) for folder in installed):
                files = [root] if root.is_file() else sorted(f for f in root.rglob("*") if f.is_file())
                yield from ((f"{name}/{f.relative_to(root.parent)}", f) for f in files if f.suffix != ".pyc")


def _roots(module: ModuleType | None) -> list[Path]:
    """Return the folders of a package, or the file of a module."""
    folders = [Path(path) for path in getattr(module, "__path__", ())]
    file = getattr(module, "__file__", None)
    return folders or ([Path(file)] if file else [])
