"""Rows as a table or as JSON."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any


def print_json(value: object) -> None:
    """Print a value as indented JSON, what JSON has no form for as text."""
    print(json.dumps(value, indent=2, default=str))


def print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool, title: str) -> None:
    """Print rows as a table, or as a JSON array of objects."""
    if as_json:
        print_json([{k: _plain(v) for k, v in row.items()} for row in rows])
        return
    if not rows:
        # A table of nothing would fold its title to the width of nothing.
        print(f"{title}: nothing")
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for n, column in enumerate(rows[0]):
        table.add_column(column, overflow="fold", no_wrap=n == 0)
    for row in rows:
        table.add_row(*(escape(_text(v)) for v in row.values()))
    # A file or a pipe has no width that lines would have to be folded for.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _plain(value: object) -> object:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(_plain(value))
