"""JSON: a line an object or array, or one array of them, as exchanges answer."""

import io
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import polars as pl

from foxflow.errors import DataError
from foxflow.sources.chunks import FAULT_SCHEMA, Chunk

LINES = 200_000


def records(stream: BinaryIO, *, file: str) -> Iterator[tuple[int, Any]]:
    """Yield each record and its number: the line of JSON lines, the position in an array.

    Raises
    ------
    DataError
        When a line is no JSON, naming it.
    """
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    head = ""
    while not head.strip():
        head = text.readline()
        if not head:
            return
    if head.lstrip()[:1] == "[" and not _is_row(head):
        yield from _array(head + text.read(), file=file)
        return
    number = 1
    line = head
    while line:
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as e:
                raise DataError(
                    f"{file}, line {number}: {line.strip()[:80]!r} is no JSON ({e.msg} at column {e.colno}); mend or "
                    "remove "
                    "the line, perhaps the file was cut off"
                ) from e
        line, number = text.readline(), number + 1


def _is_row(line: str) -> bool:
    """Return whether a line that starts with [ is a row itself, as in `[1637110800000, 1.08, ...]`."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return False
    return isinstance(value, list) and bool(value) and not isinstance(value[0], list | dict)


def _array(text: str, *, file: str) -> Iterator[tuple[int, Any]]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as e:
        raise DataError(
            f"{file} is no JSON ({e.msg} at line {e.lineno}, column {e.colno}), perhaps cut off; fetch it again"
        ) from e
    if not values:
        raise DataError(f"{file} is an empty list; expected bars")
    yield from enumerate(values, 1)


def read(stream: BinaryIO, *, file: str) -> tuple[tuple[str, ...], Iterator[Chunk]]:
    """Return the names of the columns (none for arrays) and the rows in chunks.

    Raises
    ------
    DataError
        When a record is no object or array, or has not the columns of the first.
    """
    found = records(stream, file=file)
    first = next(found, None)
    if first is None:
        raise DataError(f"{file} has no record; expected bars")
    number, record = first
    if isinstance(record, dict):
        return tuple(record), _chunks(found, number, record, tuple(record), file=file)
    if isinstance(record, list):
        return (), _chunks(found, number, record, len(record), file=file)
    raise DataError(f"{file}, record {number}: {str(record)[:80]!r} is no object and no array; expected bars")


def _chunks(
    found: Iterator[tuple[int, Any]],
    number: int,
    record: object,
    shape: tuple[str, ...] | int,
    *,
    file: str,
) -> Iterator[Chunk]:
    rows: list[tuple[int, list[str | None]]] = []
    current: tuple[int, object] | None = (number, record)
    while current is not None:
        rows.append((current[0], _fields(current[1], shape, current[0], file=file)))
        if len(rows) == LINES:
            yield _chunk(rows)
            rows = []
        current = next(found, None)
    if rows:
        yield _chunk(rows)


def _fields(record: Any, shape: tuple[str, ...] | int, number: int, *, file: str) -> list[str | None]:  # noqa: ANN401
    if isinstance(shape, int):
        if not isinstance(record, list) or len(record) != shape:
            raise DataError(
                f"{file}, record {number}: {str(record)[:80]} is no array of {shape} values as the first is"
            )
        values = record
    else:
        if not isinstance(record, dict) or not set(shape) & set(record):
            raise DataError(f"{file}, record {number}: {str(record)[:80]} has none of the names {', '.join(shape)}")
        values = [record.get(name) for name in shape]
    # As text, numbers keep every digit that was written.
    return [None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values]


def _chunk(rows: list[tuple[int, list[str | None]]]) -> Chunk:
    width = len(rows[0][1])
    frame = pl.DataFrame([r for _, r in rows], schema={str(p): pl.String for p in range(width)}, orient="row")
    return Chunk(frame, pl.Series([n for n, _ in rows], dtype=pl.Int64), FAULT_SCHEMA.to_frame())
