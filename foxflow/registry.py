"""Model plugins, found by entry point; one is imported only when it is asked for."""

import dataclasses
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, cast

from foxflow.errors import PluginError, plugin_call, unknown

if TYPE_CHECKING:
    # Listing models must not load numpy and polars.
    from foxflow.model import Model

GROUP = "foxflow.models"


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the installed model plugins by name, ascending; imports none of them.

    Raises
    ------
    PluginError
        Where two distributions claim one name, naming both.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        if point.name in found:
            names = sorted(p.dist.name if p.dist else "?" for p in (found[point.name], point))
            raise PluginError(
                f"model {point.name!r} is claimed by two distributions, {names[0]} and {names[1]}; uninstall one"
            )
        found[point.name] = point
    return found


def load(name: str) -> "type[Model]":
    """Return the plugin class of that name.

    Raises
    ------
    PluginError
        Where no such plugin is installed, it cannot be imported, or it breaks the contract.
    """
    points = installed()
    if name not in points:
        raise PluginError(f"{unknown('model', name, points)} (a model is a package with an entry point in {GROUP})")
    point = points[name]
    with plugin_call(name, f"the import of {point.value} of {point.dist.name if point.dist else '?'}"):
        plugin = point.load()
    missing = [m for m in ("name", "Parameters", "fit", "load", "warmup_bars") if not hasattr(plugin, m)]
    if missing:
        raise PluginError(f"model {name!r} lacks {', '.join(missing)}; see foxflow.model for the contract")
    if not (isinstance(plugin.Parameters, type) and dataclasses.is_dataclass(plugin.Parameters)):
        raise PluginError(f"model {name!r} has Parameters = {plugin.Parameters!r}; expected a frozen dataclass")
    return cast("type[Model]", plugin)


def build(name: str, options: Mapping[str, object]) -> "Model":
    """Return the plugin of that name with its options checked against its own `Parameters`."""
    # Here, because listing models has no use for configs.
    from foxflow.config import from_mapping

    plugin = load(name)
    parameters = from_mapping(plugin.Parameters, options, section="model")
    with plugin_call(name, "its constructor"):
        return plugin(parameters)
