"""The blocks a page is built of: sections, tables, figures, and how they are put together. All text in them is HTML."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from foxflow.report.figures import Figure
from foxflow.report.text import day, escape


@dataclass(frozen=True)
class Part:
    """A piece of a page: HTML, and the figures that are drawn into its elements of their names."""

    html: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)


def joined(*parts: Part | str, inside: tuple[str, str] = ("", "")) -> Part:
    """Return parts one after the other, `inside` of what opens and closes them; nothing where all are empty."""
    pieces = [p if isinstance(p, Part) else Part(p) for p in parts]
    html = "".join(p.html for p in pieces)
    drawn = {name: figure for p in pieces for name, figure in p.figures.items()}
    return Part(inside[0] + html + inside[1] if html else "", drawn)


def section(name: str, title: str, *parts: Part | str, note: str = "") -> Part:
    """Return a section with its title and, below it, a note in plain text; nothing where it has no content."""
    said = f"<p>{escape(note)}</p>" if note else ""
    return joined(*parts, inside=(f'<section id="at-{name}"><h2>{escape(title)}</h2>{said}', "</section>"))


def said(*sentences: str) -> str:
    """Return sentences of plain text as one paragraph."""
    return f"<p>{_kept(escape(' '.join(s for s in sentences if s)))}</p>"


def _kept(text: str) -> str:
    """Return text in which a number and its percent sign stay on one line."""
    return text.replace(" %", "\u00a0%")


def plot(name: str, figure: Figure | None, caption: str = "", *, look: str = "") -> Part:
    """Return a figure with its caption in plain text above it; nothing where there is none."""
    if figure is None:
        return Part()
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    empty = "<noscript>Figures need JavaScript.</noscript>"
    return Part(f'<figure>{words}<div class="plot {look}" id="{name}">{empty}</div></figure>', {name: figure})


def beside(*parts: Part | str) -> Part:
    """Return parts in columns of equal width, one below the other on a narrow screen."""
    columns = [column for p in parts if (column := joined(p, inside=("<div>", "</div>"))).html]
    return joined(*columns, inside=(f'<div class="beside of{len(columns)}">', "</div>"))


def folded(title: str, *parts: Part | str) -> Part:
    """Return what a reader may open."""
    return joined(*parts, inside=(f"<details><summary>{escape(title)}</summary>", "</details>"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, look: str = "") -> str:
    """Return a table that scrolls inside its own box; cells are HTML, the first of each row names it."""
    top = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    body = "".join(_row(row) for row in rows)
    inner = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll {look}" tabindex="0">{inner}</div>'


def _row(cells: Sequence[str]) -> str:
    first, *rest = cells
    return f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"


def meanings(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose last column says what the row means, below the row on a narrow screen; all in plain text."""
    top = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    body = "".join(
        f'<tr><th scope="row">{_kept(escape(name))}</th>'
        + "".join(f"<td>{_stacked(value)}</td>" for value in values)
        + f'<td class="meaning">{_kept(escape(meaning))}</td></tr>'
        for name, *values, meaning in rows
    )
    return f'<table class="key of{len(head) - 2}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def _stacked(value: str) -> str:
    """Return a value whose interval or t-statistic may go to a line of its own."""
    cut = min((at for mark in (" [", " (") if (at := value.find(mark)) > 0), default=-1)
    value = _kept(value)
    return escape(value) if cut < 0 else f"{escape(value[:cut])} <small>{escape(value[cut + 1 :])}</small>"


def facts(found: Mapping[str, str]) -> str:
    """Return names with what is said of each, both in plain text."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in found.items()) + "</dl>"


def dated(instant: object) -> str:
    """Return the date of a time, which shows in full under the pointer."""
    if not instant:
        return escape(day(instant))
    return f'<time datetime="{escape(instant)}" title="{escape(instant)}">{escape(day(instant))}</time>'


def no(text: str) -> str:
    """Return text, in HTML, that a reader should not miss."""
    return f'<b class="no">{text}</b>'
