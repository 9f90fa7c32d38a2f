"""One TOML section to a frozen dataclass: every key and type checked, unknown keys refused by name."""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from foxflow.errors import ConfigError, unknown

Section = TypeVar("Section")


def from_mapping(kind: type[Section], values: Mapping[str, object], *, section: str) -> Section:
    """Return `kind` (a dataclass) filled from one TOML section, every key and type checked.

    Raises
    ------
    ConfigError
        On an unknown key (naming the nearest, or what it is called now), a missing required key, a value of another
        type, or a ValueError from the dataclass's own `__post_init__`.
    """
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    renamed: Mapping[str, str] = getattr(kind, "RENAMED", {})
    for key in values:
        if key in renamed:
            new = renamed[key]
            raise ConfigError(f"[{section}] {key} is called {new} now; rename it; did you mean {new!r}?")
        if key not in fields:
            raise ConfigError(f"[{section}] {unknown('key', key, fields)}")
    for name, each in fields.items():
        required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(
                f"[{section}] {name} is required and missing; add `{name} = ...` to the section, or --set"
            )
    checked = {key: _checked(value, hints[key], where=f"[{section}] {key}") for key, value in values.items()}
    try:
        return kind(**checked)
    except ValueError as e:
        raise ConfigError(f"[{section}] {e}") from e


def _checked(value: object, hint: Any, *, where: str) -> object:  # noqa: ANN401  (any annotation)
    """Return `value` as the type `hint` asks for: exact types, whole numbers allowed for floats, lists for tuples."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return _checked_union(value, arguments, where=where)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{where} = {value!r}; expected one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r}; expected a list")
        return tuple(_checked(v, arguments[0], where=f"{where}[{i}]") for i, v in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ConfigError(f"{where} = {value!r} is {type(value).__name__}; expected {hint.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} = {value!r}; expected a finite number")
    return value


def _checked_union(value: object, arguments: tuple[Any, ...], *, where: str) -> object:
    """Return `value` as `X | None` asks for, or as a word that may stand beside it: TOML has no null."""
    kind, *more = (a for a in arguments if a is not type(None))
    words = [w for a in more for w in get_args(a)]
    if not words or not isinstance(value, str):
        return _checked(value, kind, where=where)
    if value not in words:
        raise ConfigError(f"{where} = {value!r}; expected a {kind.__name__} or {', '.join(map(repr, words))}")
    return value


def require(condition: bool, message: str) -> None:  # noqa: FBT001  (reads as assert does)
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)
