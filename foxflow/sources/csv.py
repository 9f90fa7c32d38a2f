"""CSV with a header line, plain or gz by content; comma, semicolon or tab."""

import gzip
import zlib
from pathlib import Path

import polars as pl

from foxflow.errors import DataError
from foxflow.sources.table import Table

_GZIP = b"\x1f\x8b"
_SEPARATORS = ",;\t"


def read(path: Path) -> Table:
    """Return the file's fields, all as text, with the line each row stands in.

    Raises
    ------
    DataError
        When the file is no UTF-8 text, has no header of several columns, or a line with more or fewer fields.
    """
    text = _text(path).removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n")
    header, _, body = text.partition("\n")
    separator = max(_SEPARATORS, key=header.count)
    n_separators = header.count(separator)
    if not n_separators:
        raise DataError(
            f"{path}, line 1: {header[:80]!r} is no header of several columns; expected names separated by a comma, "
            "a semicolon or a tab"
        )
    if not body:
        raise DataError(f"{path} has a header and no rows; expected at least one bar")
    try:
        frame = pl.read_csv(text.encode(), separator=separator, infer_schema=False)
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"{path} is no regular CSV: {str(e).splitlines()[0]}; mend the line or save the file again"
        ) from e
    # Polars renames the second of two equal names, and the wrong column could be taken.
    if twice := [name for name in frame.columns if name.endswith("_duplicated_0")]:
        name = twice[0].removesuffix("_duplicated_0")
        raise DataError(f"{path}, line 1: {name!r} stands twice; expected a header line with each name once")
    lines = body.split("\n")
    if len(lines) != len(frame):
        raise DataError(
            f"{path}: {len(lines)} lines below the header but {len(frame)} rows; remove line breaks inside quotes and "
            "unbalanced quotes"
        )
    # Polars fills a line that ends early with nulls: a download that was cut off would pass unnoticed.
    for row in frame[:, -1].is_null().arg_true():
        if lines[row].count(separator) < n_separators:
            raise DataError(
                f"{path}, line {row + 2}: {lines[row][:80]!r} has fewer fields than the header ({n_separators + 1}); "
                "complete or remove the line"
            )
    numbers = pl.int_range(2, len(frame) + 2, eager=True)
    return Table(str(path), frame.with_columns(pl.all().str.strip_chars()), "line", numbers)


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8")
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise DataError(f"{path} is damaged gz: {e}; fetch the file again") from e
    except UnicodeDecodeError as e:
        raise DataError(f"{path} is no UTF-8 text ({e.reason} at byte {e.start}); save it as UTF-8") from e
