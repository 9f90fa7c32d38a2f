"""A page that loads nothing from outside: its style, its figures and Plotly itself are written into it."""

import json
from collections.abc import Mapping
from importlib import resources

from foxflow.report.figures import Figure

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, body: str, drawn: Mapping[str, Figure]) -> str:
    """Return an HTML page. `title` and `body` are HTML; a figure is drawn into the element that has its name as id."""
    scripts = (
        f'<script id="figures" type="application/json">{_json(drawn)}</script>\n'
        f"<script>{_plotly()}</script>\n<script>\n{_asset('page.js')}</script>\n"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark"><title>{title} · foxflow</title>\n'
        f"<style>\n{_asset('page.css')}</style></head>\n<body><main>\n"
        f"{body}\n</main>\n{scripts if drawn else ''}</body></html>\n"
    )


def _json(drawn: Mapping[str, Figure]) -> str:
    """Return the figures as JSON that no HTML parser can end early."""
    text = json.dumps(drawn, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
