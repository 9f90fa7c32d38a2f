"""JSON: a line an object or array, or one array of them, as exchanges answer."""

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import polars as pl

from foxflow.bars import PRICES
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
    try:
        yield from _records(text, file=file)
    except UnicodeDecodeError as e:
        raise DataError(f"{file} is no UTF-8 text ({e.reason}); save it as UTF-8") from e
    finally:
        # The file is its opener's to close.
        if not stream.closed:
            text.detach()


def _records(text: io.TextIOWrapper, *, file: str) -> Iterator[tuple[int, Any]]:
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
                if number == 1 and (whole := _whole(line + text.read())) is not None:
                    yield 1, whole
                    return
                raise DataError(
                    f"{file}, line {number}: {line.strip()[:80]!r} is no JSON ({e.msg} at column {e.colno}); mend or "
                    "remove the line, perhaps the file was cut off"
                ) from e
        line, number = text.readline(), number + 1


def _whole(text: str) -> object:
    """Return a text that is one JSON object over many lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


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


def read(stream: BinaryIO, *, file: str) -> tuple[tuple[str, ...], Iterator[Chunk], tuple[str, ...]]:
    """Return the names of the columns (none for arrays), the rows in chunks, and what to say of them.

    Raises
    ------
    DataError
        When a record is no object or array, or names a column that none of the first ones has.
    """
    found = records(stream, file=file)
    start = list(itertools.islice(found, LINES))
    if not start:
        raise DataError(f"{file} has no record; expected bars")
    notes: tuple[str, ...] = ()
    number, record = start[0]
    if len(start) == 1 and isinstance(record, dict) and (inner := _unwrapped(record)) is not None:
        where, values = inner
        start, notes = list(enumerate(values, 1)), (f"records taken from {where} of the one JSON object",)
        number, record = start[0]
    if isinstance(record, dict):
        names = tuple(dict.fromkeys(name for _, each in start if isinstance(each, dict) for name in each))
        return names, _chunks(start, found, names, file=file), notes
    if isinstance(record, list):
        return (), _chunks(start, found, len(record), file=file), notes
    raise DataError(f"{file}, record {number}: {str(record)[:80]!r} is no object and no array; expected bars")


def _unwrapped(record: dict[str, Any]) -> tuple[str, list[Any]] | None:
    """Return the records inside an object that holds nothing else of the kind, and where they are.

    One list of records; one object of records by time; or lists of equal length, one a column.
    """
    lists = {name: v for name, v in record.items() if isinstance(v, list) and v}
    rows = {name: v for name, v in lists.items() if all(isinstance(each, dict | list) for each in v)}
    if len(rows) == 1:
        return repr(next(iter(rows))), next(iter(rows.values()))
    if len(lists) > len(PRICES) and not rows and len({len(v) for v in lists.values()}) == 1:
        return "the lists", [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    series = [
        name for name, v in record.items() if isinstance(v, dict) and v and all(isinstance(e, dict) for e in v.values())
    ]
    if len(series) == 1:
        return repr(series[0]), [{"timestamp": time, **row} for time, row in record[series[0]].items()]
    return None


def _chunks(
    start: list[tuple[int, Any]], found: Iterator[tuple[int, Any]], shape: tuple[str, ...] | int, *, file: str
) -> Iterator[Chunk]:
    records = start
    while records:
        yield _chunk([(number, _fields(record, shape, number, file=file)) for number, record in records])
        records = list(itertools.islice(found, LINES))


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
        if not record.keys() <= set(shape):
            new = next(name for name in record if name not in shape)
            raise DataError(
                f"{file}, record {number}: a name {new!r} that none of the first {LINES} records has; write every "
                "record with the same names"
            )
        values = [record.get(name) for name in shape]
    # As text, numbers keep every digit that was written.
    return [None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values]


def _chunk(rows: list[tuple[int, list[str | None]]]) -> Chunk:
    width = len(rows[0][1])
    frame = pl.DataFrame([r for _, r in rows], schema={str(p): pl.String for p in range(width)}, orient="row")
    return Chunk(frame, pl.Series([n for n, _ in rows], dtype=pl.Int64), FAULT_SCHEMA.to_frame())
