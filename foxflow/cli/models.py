"""`foxflow models`: list and show the installed model plugins."""

from typing import Any, Literal, get_args, get_origin

import click

from foxflow.cli.app import app, with_json
from foxflow.cli.printing import print_rows


@app.group("models")
def models_group() -> None:
    """List and show the installed model plugins."""


@models_group.command("list")
@with_json
def models_list(as_json: bool) -> None:
    """List the installed models; imports none of them."""
    from foxflow import registry

    rows = [
        {
            "name": name,
            "distribution": point.dist.name if point.dist else None,
            "version": point.dist.version if point.dist else None,
        }
        for name, point in registry.installed().items()
    ]
    print_rows(rows, as_json=as_json, title="models")


@models_group.command("show")
@click.argument("name")
@with_json
def models_show(name: str, as_json: bool) -> None:
    """Show a model's parameters and their defaults."""
    import inspect

    from foxflow import registry

    plugin = registry.load(name)
    if not as_json:
        print(inspect.cleandoc(plugin.__doc__ or name), end="\n\n")
        print(inspect.cleandoc(plugin.Parameters.__doc__ or ""), end="\n\n")
    print_rows(parameter_rows(plugin.Parameters), as_json=as_json, title=f"[model] name = {name!r}")


def parameter_rows(parameters: type[Any]) -> list[dict[str, object]]:
    """Return a row for each parameter of a plugin: its name, type and default."""
    import dataclasses

    return [
        {
            "parameter": f.name,
            "type": _type(f.type),
            "default": None if f.default is dataclasses.MISSING else f.default,
        }
        for f in dataclasses.fields(parameters)
    ]


def _type(annotation: object) -> str:
    """Return a parameter's type as a user writes it: the choices where there are few."""
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    return getattr(annotation, "__name__", str(annotation))
