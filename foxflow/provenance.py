"""Which code and which versions a result came from."""

import ast
import contextlib
import hashlib
import platform
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, version
from importlib.util import find_spec
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
                yield from _files(name, root)


def _roots(module: ModuleType | None) -> list[Path]:
    """Return the folders of a package, or the file of a module."""
    folders = [Path(path) for path in getattr(module, "__path__", ())]
    file = getattr(module, "__file__", None)
    return folders or ([Path(file)] if file else [])


@cache
def plugin_source(point: EntryPoint) -> dict[str, str | None]:
    """Return a plugin's `distribution`, its `version` and, where it is under development, the `sha256` of its source.

    The source is that of its package and of the loose packages it imports, foxflow left out, whatever else the process
    has loaded: the same plugin has the same digest in a notebook, a flow and the command line. None where the package
    is installed, whose version says what it holds. Ask before the plugin is run; the answer holds for this process.
    """
    found = _imported(point.module.partition(".")[0], frozenset())
    return {
        "distribution": point.dist.name if point.dist else None,
        "version": point.dist.version if point.dist else None,
        "sha256": _digest(sorted(found.items())) if found else None,
    }


def _imported(package: str, above: frozenset[str]) -> dict[str, Path]:
    """Return the source files of a loose package and of the loose packages it imports, by name beneath the package."""
    spec = None if package in above or package == "foxflow" else find_spec(package)
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    if spec and not roots and spec.has_location and spec.origin:
        roots = [Path(spec.origin)]
    settled = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
    found: dict[str, Path] = {}
    for root in roots:
        if any(root.is_relative_to(folder) for folder in settled):
            continue
        found |= dict(_files(package, root))
    names = {name for file in found.values() if file.suffix == ".py" for name in _imports(file)}
    above |= {package}
    for name in sorted(names - above):
        found |= _imported(name, above)
    return found


def _files(package: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a package's folder, or a module's own, with their names beneath the package."""
    files = [root] if root.is_file() else sorted(f for f in root.rglob("*") if f.is_file())
    yield from ((f"{package}/{f.relative_to(root.parent)}", f) for f in files if f.suffix != ".pyc")


def _imports(file: Path) -> Iterator[str]:
    """Yield the top-level packages that a source file imports anywhere."""
    # A template of source need not be source.
    with contextlib.suppress(SyntaxError):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def _digest(files: list[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        digest.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
