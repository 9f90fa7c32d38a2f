"""Which code, which versions and which processor a result came from."""

import hashlib
import importlib.util
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, version
from pathlib import Path

_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+(\w[\w., \t]*))", re.MULTILINE)


@dataclass(frozen=True)
class Code:
    """What a plugin runs: `versions` of Python and of every installed distribution, and the `sources` of loose code.

    Loose is what lies outside the folders of installed distributions: foxflow and plugins under development, whose
    version says nothing of their content. `roots` are the folders and files that were read.
    """

    versions: str
    sources: str
    roots: tuple[tuple[str, Path], ...]

    @property
    def sha256(self) -> str:
        """The digest over both."""
        return hashlib.sha256(f"{self.versions} {self.sources}".encode()).hexdigest()

    def is_as_it_was(self) -> bool:
        """Whether the sources on disk are those that were read."""
        return _sources(self.roots) == self.sources


def code_of(package: str) -> Code:
    """Return the code that a top-level package or module runs, as it lies on disk now.

    Read are foxflow, the package, and whatever loose code they import, wherever in their files that is written.
    """
    roots = tuple(_reachable("foxflow", package))
    digest = hashlib.sha256(f"{package} {sys.version} {platform.machine()}".encode())
    for folder in _installed():
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            digest.update(record.parent.name.encode() + b"\0" + record.read_bytes())
    return Code(digest.hexdigest(), _sources(roots), roots)


@cache
def code_sha256(package: str) -> str:
    """Return the digest of `code_of`; the answer holds for this process, which runs what it has loaded.

    Ask once the package is loaded, whatever becomes of the files after.
    """
    return code_of(package).sha256


@cache
def processor() -> str:
    """Return the processor's name, and those of the NVIDIA GPUs: other ones round sums in another way."""
    cpu, gpus = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")
    text = cpu.read_text("utf-8", errors="replace") if cpu.is_file() else ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    found = sorted(p.read_text("utf-8").partition("\n")[0] for p in gpus.glob("*/information"))
    return "; ".join([name[1] if name else platform.processor(), *found])


def _installed() -> list[Path]:
    return sorted({Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")})


def _reachable(*packages: str, but: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """Yield name and root of packages and of all loose code that they import, each once and `but` for some."""
    outside = [*_installed(), Path(sysconfig.get_path("stdlib"))]
    waiting, seen = list(packages), set(but)
    while waiting:
        name = waiting.pop()
        if name in seen or name in sys.stdlib_module_names:
            continue
        seen.add(name)
        for root in _roots(name):
            if root.exists() and not any(root.is_relative_to(folder) for folder in outside):
                yield name, root
                for file in _files(root):
                    if file.suffix == ".py":
                        waiting += _imported(file.read_bytes())


def _imported(source: bytes) -> Iterator[str]:
    """Yield the top-level names that a module's text imports, in functions too."""
    for one, several in _IMPORT.findall(source):
        for name in (one or several).decode().split(","):
            yield name.strip().partition(".")[0].partition(" ")[0]


def _roots(name: str) -> list[Path]:
    """Return the folders of a top-level package, or the file of a module; nothing is imported."""
    module = sys.modules.get(name)
    if module is not None:
        folders, file = list(getattr(module, "__path__", ())), getattr(module, "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        folders, file = (list(spec.submodule_search_locations or ()), spec.origin) if spec else ([], None)
    return [Path(f) for f in folders or ([file] if file else [])]


def _files(root: Path) -> list[Path]:
    """Return a root's files, without what Python and Numba compile of them while they run."""
    found = [root] if root.is_file() else sorted(f for f in root.rglob("*") if f.is_file())
    return [f for f in found if "__pycache__" not in f.parts and f.suffix != ".pyc"]


def _sources(roots: tuple[tuple[str, Path], ...]) -> str:
    digest = hashlib.sha256()
    for name, root in sorted(roots):
        for file in _files(root):
            try:
                content = file.read_bytes()
            except FileNotFoundError:
                # Gone since it was listed, as an editor's temporary file: it changes the digest all the same.
                content = b"\0"
            digest.update(f"{name}/{file.relative_to(root.parent)}\0".encode() + content)
    return digest.hexdigest()


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python and of the distributions that decide a result, with those of `more`."""
    names = sorted({"foxflow", "numpy", "polars", "duckdb", "vectorbt", *more})
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


@cache
def plugin_source(point: EntryPoint) -> dict[str, str | None]:
    """Return a plugin's `distribution`, its `version` and, where it is under development, the `sha256` of its source.

    The source is that of its package and of the loose packages it imports, foxflow left out, whatever else the process
    has loaded: the same plugin has the same digest in a notebook, a flow and the command line. None where the package
    is installed, whose version says what it holds. Ask before the plugin is run; the answer holds for this process.
    """
    roots = tuple(_reachable(point.module.partition(".")[0], but=frozenset({"foxflow"})))
    return {
        "distribution": point.dist.name if point.dist else None,
        "version": point.dist.version if point.dist else None,
        "sha256": _sources(roots) if roots else None,
    }
