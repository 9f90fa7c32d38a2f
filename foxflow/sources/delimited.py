"""Text with a row a line, read in blocks: the regular ones as numbers at once, all others field by field as text."""

import codecs
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

import polars as pl

from foxflow.errors import DataError
from foxflow.sources import layout as layouts
from foxflow.sources.chunks import FAULT_SCHEMA, Chunk
from foxflow.sources.layout import Layout, fields

BLOCK = 1 << 24
_BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_COMMENTS = ("#", "//", "%")


def blocks(stream: BinaryIO, *, file: str, is_whole: bool = False) -> Iterator[str]:
    """Yield the text in blocks of whole lines, each ended by a newline alone.

    A last line that is not ended is left so, unless the file `is_whole`, as a checksum proves.

    Raises
    ------
    DataError
        When the bytes are no UTF-8, nor UTF-16 with a byte order mark.
    """
    start = stream.read(BLOCK)
    encoding = "utf-8"
    for bom, name in _BOMS.items():
        if start.startswith(bom):
            start, encoding = start[len(bom) :], name
    if encoding == "utf-8" and b"\0" in start[:4096]:
        raise DataError(f"{file} is no text: it holds zero bytes; save it as UTF-8")
    decoder = codecs.getincrementaldecoder(encoding)()
    rest, block = "", start
    while True:
        try:
            text = rest + decoder.decode(block, final=not block)
        except UnicodeDecodeError as e:
            raise DataError(f"{file} is no UTF-8 text ({e.reason} at byte {e.start}); save it as UTF-8") from e
        if "\r" in text:
            ends_open = text.endswith("\r") and bool(block)
            text, tail = (text[:-1], "\r") if ends_open else (text, "")
            text = text.replace("\r\n", "\n").replace("\r", "\n") + tail
        cut = text.rfind("\n") + 1
        if not block:
            if text:
                yield text if text.endswith("\n") or not is_whole else text + "\n"
            return
        if cut:
            yield text[:cut]
        rest, block = text[cut:], stream.read(BLOCK)


def layout_of(first: str, *, file: str, names: Sequence[str] | None) -> Layout:
    """Return the layout of the file whose first block this is; see `layout.find`."""
    lines = first[: 1 << 18].split("\n")
    return layouts.find(lines[:2000], file=file, names=names)


def sample(first: str, layout: Layout, *, file: str) -> Chunk:
    """Return the first rows, as text."""
    text = "\n".join(first[: 1 << 18].split("\n")[layout.first - 1 : layout.first + 2000]).rstrip("\n") + "\n"
    return _as_text(text, layout, layout.first, file=file, n_bytes=0)


def chunks(
    texts: Iterator[str],
    layout: Layout,
    numeric: Sequence[int],
    *,
    file: str,
    position: Callable[[], int],
    is_plain: Callable[[], bool],
) -> Iterator[Chunk]:
    """Yield the rows below the header.

    Parameters
    ----------
    numeric
        The columns that hold numbers: they come as Float64 in a chunk where all are written plainly, else as text.
    position
        Tells how far the file was read, in bytes.
    is_plain
        Tells whether a point in a number is its decimal mark, as far as is known.
    """
    number = 1
    skip = layout.first - 1
    for block in texts:
        notes: tuple[str, ...] = ()
        text = block
        if not block.endswith("\n"):
            text += "\n"
            last = number + block.count("\n")
            notes = (
                f"line {last}, the last, has no line end: if the file was cut off, its last number may be too short",
            )
        n_lines = text.count("\n")
        if skip:
            passed = min(skip, n_lines)
            text = _below(text, passed)
            number, skip, n_lines = number + passed, skip - passed, n_lines - passed
        if n_lines:
            fast = _as_numbers(text, layout, numeric, n_lines) if is_plain() else None
            if fast is not None:
                numbers = pl.int_range(number, number + n_lines, eager=True)
                yield Chunk(fast, numbers, n_bytes=position(), notes=notes)
            else:
                yield replace(_as_text(text, layout, number, file=file, n_bytes=position()), notes=notes)
            number += n_lines


def _below(text: str, n_lines: int) -> str:
    at = 0
    for _ in range(n_lines):
        at = text.index("\n", at) + 1
    return text[at:]


def _as_numbers(text: str, layout: Layout, numeric: Sequence[int], n_lines: int) -> pl.DataFrame | None:
    """Return the rows with numbers parsed, or None where any line is not entirely regular."""
    if layout.separator == " " or '"' in text or not numeric:
        return None
    schema = {str(p): pl.Float64 if p in numeric else pl.String for p in range(layout.n_fields)}
    try:
        frame = pl.read_csv(text.encode(), has_header=False, separator=layout.separator, schema=schema, quote_char=None)
    except pl.exceptions.PolarsError:
        return None
    # A line that ends early and an empty field are both null: whoever reads them as text can tell.
    if len(frame) != n_lines or frame[:, -1].null_count() or any(frame[:, p].null_count() for p in numeric):
        return None
    return frame


def _as_text(text: str, layout: Layout, number: int, *, file: str, n_bytes: int) -> Chunk:
    lines = pl.Series("text", text[:-1].split("\n"), dtype=pl.String)
    if "\ufeff" in text:
        # Files with a byte order mark, one behind another.
        lines = lines.str.strip_prefix("\ufeff")
    numbers = pl.int_range(number, number + len(lines), eager=True)
    separator = layout.separator
    blank = lines.str.strip_chars(f"{separator}; \t") == ""
    comment = pl.select(pl.any_horizontal([pl.lit(lines).str.starts_with(c) for c in _COMMENTS])).to_series()
    again = lines.is_in(list(layout.header)) if layout.header else pl.repeat(value=False, n=len(lines), eager=True)
    if '"' in text or separator == " ":
        counts = pl.Series([len(fields(line, separator)) for line in lines], dtype=pl.Int64)
    else:
        counts = lines.str.count_matches(separator, literal=True).cast(pl.Int64) + 1
    # A symbol may start with #, as brokers name shares.
    comment &= counts != layout.n_fields
    # One separator more at the end of a line closes the last field.
    closed = (counts == layout.n_fields + 1) & lines.str.strip_chars_end(" ").str.ends_with(separator)
    lines = pl.select(
        pl.when(closed).then(lines.str.strip_chars_end(" ").str.strip_suffix(separator)).otherwise(lines)
    ).to_series()
    ragged = ~blank & ~comment & ~again & (counts != layout.n_fields) & ~closed
    keep = ~blank & ~comment & ~again & ~ragged
    # A line of separators alone is a row that says nothing; a line of nothing is none.
    empty = blank & (separator != " ") & lines.str.contains(separator, literal=True)
    kind = pl.select(
        pl.when(again).then(pl.lit("header")).when(comment).then(pl.lit("comment")).when(empty).then(pl.lit("blank"))
    ).to_series()
    faults = pl.DataFrame({"number": numbers, "text": lines, "n": counts, "ragged": ragged, "kind": kind}).filter(
        pl.col("ragged") | pl.col("kind").is_not_null()
    )
    described = faults.select(
        "number",
        pl.when(pl.col("kind").is_not_null())
        .then("kind")
        .when(pl.col("text").str.contains(r"^[\s\"*=_-]*[A-Za-z©]"))
        .then(pl.lit("words"))
        .otherwise(pl.lit("bad"))
        .alias("kind"),
        pl.lit(None, dtype=pl.String).alias("when"),
        pl.col("text").str.slice(0, 200),
        pl.when(pl.col("kind") == "header")
        .then(pl.lit("the header line again"))
        .when(pl.col("kind") == "comment")
        .then(pl.lit("a comment"))
        .when(pl.col("kind") == "blank")
        .then(pl.lit("no prices"))
        .otherwise(
            pl.format(
                "{} field(s) where the header or the first row has {}, {}",
                "n",
                pl.lit(layout.n_fields),
                pl.format("'{}'", pl.col("text").str.slice(0, 60).str.replace_all(r"[[:cntrl:]]", "?")),
            )
        )
        .alias("reason"),
    ).cast(FAULT_SCHEMA)
    kept = lines.filter(keep)
    if separator == " ":
        kept, separator = kept.str.strip_chars().str.replace_all(r"\s+", "\t"), "\t"
    frame = _fields(kept, separator, layout.n_fields, file=file)
    return Chunk(frame, numbers.filter(keep), described, n_bytes)


def _fields(lines: pl.Series, separator: str, n_fields: int, *, file: str) -> pl.DataFrame:
    schema = {str(p): pl.String for p in range(n_fields)}
    if not len(lines):
        return pl.DataFrame(schema=schema)
    body = io.BytesIO("\n".join(lines).encode())
    try:
        frame = pl.read_csv(body, has_header=False, separator=separator, schema=schema, infer_schema=False)
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"{file} is no regular CSV: {str(e).splitlines()[0]}; mend the line or save the file again"
        ) from e
    if len(frame) != len(lines):
        raise DataError(
            f"{file}: {len(lines)} lines but {len(frame)} rows; remove line breaks inside quotes and unbalanced quotes"
        )
    return frame.with_columns(pl.all().str.strip_chars())
