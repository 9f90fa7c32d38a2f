"""Plugins, models and sources of bars, found by entry point; one is imported only when it is asked for."""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from foxflow.errors import PluginError, plugin_call, unknown

if TYPE_CHECKING:
    # Listing plugins must not load numpy and polars.
    from foxflow.model import Model

GROUP = "foxflow.models"


@dataclass(frozen=True)
class Kind:
    """A kind of plugin: what messages call it, its entry-point group, and the module whose page is its contract."""

    word: str
    group: str
    contract: str
    members: tuple[str, ...]


MODELS = Kind("model", GROUP, "foxflow.model", ("name", "Parameters", "fit", "load", "warmup_bars"))
SOURCES = Kind("source", "foxflow.sources", "foxflow.feeds", ("name", "Parameters", "origin", "delay", "fetch"))


def installed(kind: Kind = MODELS) -> dict[str, EntryPoint]:
    """Return the entry points of the installed plugins by name, ascending; imports none of them.

    Raises
    ------
    PluginError
        Where two distributions claim one name, naming both.
    """
    # Listing reads a file of every distribution; what was installed since shows in a folder's time.
    folders = tuple((path, _path(path).stat().st_mtime_ns) for path in sys.path if _path(path).is_dir())
    return dict(_listed(kind, entry_points, folders))


# A path takes longer to make than to look at.
@lru_cache(maxsize=256)
def _path(path: str) -> Path:
    return Path(path)


@lru_cache(maxsize=8)
def _listed(
    kind: Kind, read: Callable[..., Iterable[EntryPoint]], _folders: tuple[tuple[str, int], ...]
) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in sorted(read(group=kind.group), key=lambda p: p.name):
        if point.name in found:
            names = sorted(p.dist.name if p.dist else "?" for p in (found[point.name], point))
            raise PluginError(
                f"{kind.word} {point.name!r} is claimed by two distributions, {names[0]} and {names[1]}; uninstall one"
            )
        found[point.name] = point
    return found


def distribution(name: str, kind: Kind = MODELS) -> tuple[str, ...]:
    """Return the name of the distribution that a plugin came in, in a tuple that is empty where that is not known."""
    found = installed(kind)[name].dist
    return (found.name,) if found else ()


def find(kind: Kind, name: str) -> Any:  # noqa: ANN401  (a class that keeps the kind's contract)
    """Return the plugin class of that name.

    Raises
    ------
    PluginError
        Where no such plugin is installed, it cannot be imported, or it breaks the contract.
    """
    points = installed(kind)
    if name not in points:
        raise PluginError(
            f"{unknown(kind.word, name, points)} (a {kind.word} is a package with an entry point in {kind.group})"
        )
    point = points[name]
    try:
        plugin = point.load()
    except Exception:
        # Here, because naming the distribution reads its metadata.
        origin = point.dist.name if point.dist else "?"
        with plugin_call(name, f"the import of {point.value} of {origin}", kind=kind.word):
            raise
    missing = [m for m in kind.members if not hasattr(plugin, m)]
    if missing:
        raise PluginError(f"{kind.word} {name!r} lacks {', '.join(missing)}; see {kind.contract} for the contract")
    if not (isinstance(plugin.Parameters, type) and dataclasses.is_dataclass(plugin.Parameters)):
        raise PluginError(f"{kind.word} {name!r} has Parameters = {plugin.Parameters!r}; expected a frozen dataclass")
    return plugin


def load(name: str) -> "type[Model]":
    """Return the model plugin of that name; raises as `find`."""
    return cast("type[Model]", find(MODELS, name))


def package(name: str) -> str:
    """Return the top-level package that holds the model plugin of that name, or the name where none is installed."""
    point = installed().get(name)
    return point.module.partition(".")[0] if point is not None else name


def build(name: str, options: Mapping[str, object]) -> "Model":
    """Return the model plugin of that name with its options checked against its own `Parameters`."""
    return cast("Model", build_plugin(MODELS, name, options, section="model"))


def build_plugin(kind: Kind, name: str, options: Mapping[str, object], *, section: str) -> Any:  # noqa: ANN401
    """Return the plugin of that name with its options checked against its own `Parameters`; messages say `section`."""
    # Here, because listing plugins has no use for configs.
    from foxflow.config import from_mapping

    plugin = find(kind, name)
    parameters = from_mapping(plugin.Parameters, options, section=section)
    with plugin_call(name, "its constructor", kind=kind.word):
        return plugin(parameters)
