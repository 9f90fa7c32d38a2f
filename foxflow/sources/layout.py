"""How a text file is laid out: separator, titles above the rows, header lines, names of the columns."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foxflow.errors import DataError
from foxflow.sources import roles

SEPARATORS = (",", ";", "\t", "|", " ")
# So many lines are looked at; titles end long before.
_TITLES, _LOOKED_AT = 60, 400
_NUMBER = re.compile(r"^[+-]?[$€£]?[\d.,' ]*\d[\d.,' ]*([eE][+-]?\d+)?[kKmMbBtT%]?$")
_WRITTEN = {"\t": "tab", " ": "blank", ",": "comma", ";": "semicolon", "|": "bar"}


@dataclass(frozen=True)
class Layout:
    """Where the rows of a text file are and what their fields are called.

    Attributes
    ----------
    separator
        One character, or a blank for any run of blanks.
    names
        The columns; several header lines of one column are joined by a newline; empty where there is no header.
    n_fields
        Fields a row.
    first
        Number of the first line that is a row, from 1.
    header
        The header lines as written: where one comes again, files were joined.
    symbol
        The one symbol that a header line names.
    foreign
        What a line above the rows may call the columns, in words that are not known here.
    """

    separator: str
    names: tuple[str, ...]
    n_fields: int
    first: int
    header: tuple[str, ...] = ()
    symbol: str | None = None
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def where(self) -> str:
        """Return where the columns got their names, for a message."""
        return f"line {self.first - 1}" if self.header or self.foreign else f"line {self.first}"


def fields(line: str, separator: str) -> list[str]:
    """Return the fields of a line, quotes removed."""
    if separator == " ":
        return line.split()
    try:
        return [field.strip() for field in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def find(lines: Sequence[str], *, file: str, names: Sequence[str] | None = None) -> Layout:
    """Return the layout of a text whose first lines these are.

    `names`: the columns as the user names them, by position; a header line is then passed over.

    Raises
    ------
    DataError
        When no separator gives a header or rows of a time and prices, when the header has not as many names as the rows
        have fields, or when it names several symbols side by side.
    """
    hint = re.fullmatch(r"sep=(.)", lines[0].strip().lower()) if lines else None
    candidates = (hint[1],) if hint else SEPARATORS
    headers = [(s, _header_line(lines, s)) for s in candidates]
    found = [(s, at) for s, at in headers if at is not None]
    if found:
        separator, at = max(found, key=lambda x: _fit(lines, *x))
        return _with_header(lines, separator, at, file=file, names=names)
    if names is None:
        _refuse_other_header(lines, candidates, file=file)
    layout = _without_header(lines, candidates, file=file)
    if names is None:
        return layout
    if len(names) != layout.n_fields:
        raise DataError(
            f"{file}, line {layout.first}: {layout.n_fields} fields, but --columns names {len(names)}; name each by "
            "its position, with - for one to leave out"
        )
    return replace(layout, names=tuple(names))


def _fit(lines: Sequence[str], separator: str, at: int) -> tuple[bool, int, bool, int, int]:
    """Return how well a header fits: whether rows below are as wide, how early, by no blank, how many, how wide."""
    n = len(fields(lines[at], separator))
    n_rows = sum(len(fields(line, separator)) == n for line in lines[at + 1 : at + 30])
    return n_rows > 0, -at, separator != " ", n_rows, n


def _header_line(lines: Sequence[str], separator: str) -> int | None:
    for at, line in enumerate(lines[:_TITLES]):
        names = fields(line, separator)
        if len(names) >= 4 and roles.is_header(names):
            return at
    return None


def _with_header(lines: Sequence[str], separator: str, at: int, *, file: str, names: Sequence[str] | None) -> Layout:
    header = [at]
    if at and roles.plain(fields(lines[at - 1], separator)[0] if lines[at - 1].strip() else "") in _symbol_words():
        header.insert(0, at - 1)
    end = at + 1
    while end < len(lines) and _is_more_header(fields(lines[end], separator)):
        header.append(end)
        end += 1
    while end < len(lines) and not lines[end].strip(f"{separator} \r"):
        end += 1
    rows = [fields(lines[i], separator) for i in header]
    symbol = _symbol_of(rows, file=file, line=header[0] + 1)
    width = max(len(row) for row in rows)
    joined = tuple("\n".join(row[p] for row in rows if p < len(row) and row[p]) for p in range(width))
    if end >= len(lines):
        raise DataError(f"{file} has a header and no rows; expected at least one bar")
    layout = Layout(
        separator=separator,
        names=joined,
        n_fields=width,
        first=end + 1,
        header=tuple(lines[i] for i in header),
        symbol=symbol,
        notes=_notes(separator, titles=header[0]),
    )
    return _matched(
        layout, _usual([fields(line, separator) for line in lines[end : end + 30]], width), file=file, names=names
    )


def _usual(rows: Sequence[list[str]], width: int) -> list[str]:
    """Return the first row as wide as the header, else as most rows are, so that one odd line decides nothing."""
    counts = [len(row) for row in rows if any(row)]
    n = width if width in counts else max(counts, key=counts.count)
    return next(row for row in rows if len(row) == n)


def _matched(layout: Layout, row: Sequence[str], *, file: str, names: Sequence[str] | None) -> Layout:
    """Return the layout with as many names as the rows have fields; a separator too many at the end is no field."""
    n = len(row)
    if names is not None:
        if len(names) != n:
            raise DataError(
                f"{file}, line {layout.first}: {n} fields, but --columns names {len(names)}; name each by its "
                "position, with - for one to leave out"
            )
        return replace(layout, names=tuple(names), n_fields=n)
    written = layout.names
    while len(written) > n and not written[-1]:
        written = written[:-1]
    if n == len(written) + 1 and not row[-1]:
        written = (*written, "")
    if n != len(written):
        first = layout.first
        raise DataError(
            f"{file}: the header (line {first - 1}) names {len(layout.names)} columns and line {first} has {n} "
            f"fields, so the names belong to other columns; name each field by its position, as in --columns "
            f"{','.join(['ts', 'open', 'high', 'low', 'close', 'volume', *['-'] * (n - 6)][:n])}"
        )
    return replace(layout, names=written, n_fields=n)


def _is_more_header(row: Sequence[str]) -> bool:
    """Return whether a line below the header names columns too: symbols, units, or the time's name alone."""
    filled = [field for field in row if field]
    if not filled:
        return False
    first = roles.plain(filled[0])
    if first in _symbol_words() and len(filled) > 1:
        return True
    # DAY is also the symbol of a company, and its bars have numbers beside it.
    named = any(first in tier for tier in roles.NAMES["ts"]) and row[0] != "" and not any(map(_NUMBER.match, row))
    return named or not any(any(c.isdigit() for c in field) for field in filled)


def _symbol_words() -> set[str]:
    return {name for tier in roles.NAMES["symbol"] for name in tier}


def _symbol_of(rows: Sequence[Sequence[str]], *, file: str, line: int) -> str | None:
    for row in rows:
        # A column called symbol stands among prices; a line of symbols has no other name.
        if row and roles.plain(row[0]) in _symbol_words() and not roles.is_header(row):
            symbols = sorted({field for field in row[1:] if field})
            if len(symbols) > 1:
                raise DataError(
                    f"{file}, line {line}: columns of several symbols side by side ({', '.join(symbols[:5])}); save "
                    "one file a symbol, or one row a symbol and time"
                )
            return symbols[0] if symbols else None
    return None


def _without_header(lines: Sequence[str], candidates: Sequence[str], *, file: str) -> Layout:
    best: tuple[int, str, int, int] | None = None
    for separator in candidates:
        rows = [fields(line, separator) for line in lines[:_LOOKED_AT] if line.strip()]
        counts = [len(row) for row in rows if len(row) >= 5 and sum(bool(_NUMBER.match(f)) for f in row) >= 4]
        if not counts:
            continue
        n = max(set(counts), key=counts.count)
        if best is None or counts.count(n) > best[0]:
            first = next(
                i
                for i, line in enumerate(lines)
                if len(row := fields(line, separator)) == n and any(map(_NUMBER.match, row))
            )
            best = (counts.count(n), separator, n, first)
    if best is None:
        shown = next((line for line in lines if line.strip()), "")[:80]
        raise DataError(
            f"{file}, line 1: {shown!r} is no header of several columns and no row of a time and prices; expected "
            "names or numbers separated by a comma, a semicolon, a tab, a bar or blanks"
        )
    _, separator, n, first = best
    for i, line in enumerate(lines[:first]):
        row = fields(line, separator)
        if sum(bool(_NUMBER.match(field)) for field in row) >= 4:
            raise DataError(
                f"{file}, line {i + 1}: {len(row)} fields, and most rows below have {n}; write every row with the same "
                "fields"
            )
    above = fields(lines[first - 1], separator) if first else []
    foreign = tuple(above) if len(above) == n and not any(map(_NUMBER.match, above)) else ()
    return Layout(separator, (), n, first + 1, foreign=foreign, notes=_notes(separator, titles=first - bool(foreign)))


def _refuse_other_header(lines: Sequence[str], candidates: Sequence[str], *, file: str) -> None:
    """Refuse a header that names a time and no prices, saying what is missing."""
    line = next((line for line in lines if line.strip()), "")
    for separator in candidates:
        names = fields(line, separator)
        if len(names) > 1 and any(roles.plain(n) in tier for n in names for tier in roles.NAMES["ts"]):
            roles.settle(names, file=file, chosen=None, where="line 1")


def _notes(separator: str, *, titles: int) -> tuple[str, ...]:
    notes = [] if separator == "," else [f"fields are separated by {_WRITTEN.get(separator, separator)}"]
    if titles:
        notes.append(f"{'line 1' if titles == 1 else f'lines 1 to {titles}'} above the rows passed over")
    return tuple(notes)
