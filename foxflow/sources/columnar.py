"""Parquet, Feather and Arrow streams: typed columns, a batch at a time."""

import io
from collections.abc import Iterator
from typing import BinaryIO

import polars as pl

from foxflow.errors import DataError
from foxflow.sources.chunks import Chunk
from foxflow.sources.content import Content
from foxflow.sources.rows import as_chunk

_ROWS = 1 << 19


def read(content: Content, stream: BinaryIO) -> tuple[tuple[str, ...], Iterator[Chunk]]:
    """Return the names of the columns and the rows in chunks.

    Raises
    ------
    DataError
        When the file is damaged, has no rows, or columns of a type that no bar has.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import ipc

    # Their footers are read first, so what is packed has to be unpacked whole.
    seekable = io.BytesIO(stream.read()) if content.packing else stream
    try:
        if content.kind == "parquet":
            file = pq.ParquetFile(seekable)
            names, batches = tuple(file.schema_arrow.names), file.iter_batches(batch_size=_ROWS)
            n_rows = file.metadata.num_rows
        else:
            opened = ipc.open_file(seekable) if content.kind == "feather" else ipc.open_stream(seekable)
            names = tuple(opened.schema.names)
            batches = (
                (opened.get_batch(i) for i in range(opened.num_record_batches))
                if content.kind == "feather"
                else iter(opened)
            )
            n_rows = None
    except (pa.ArrowException, OSError, EOFError) as e:
        raise _damaged(content, e) from e
    if n_rows == 0:
        raise DataError(f"{content.path} has no rows; expected at least one bar")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{content.path}: column {twice!r} stands twice; expected each name once")
    return names, _chunks(content, batches)


def _chunks(content: Content, batches: "Iterator[object]") -> Iterator[Chunk]:
    import pyarrow as pa

    first = 1
    try:
        for batch in batches:
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            if len(frame):
                yield as_chunk(frame, first)
            first += len(frame)
    except (pa.ArrowException, OSError, EOFError) as e:
        raise _damaged(content, e) from e
    if first == 1:
        raise DataError(f"{content.path} has no rows; expected at least one bar")


def _damaged(content: Content, e: Exception) -> DataError:
    kind = {"parquet": "Parquet", "feather": "Feather", "arrow": "Arrow stream"}[content.kind]
    return DataError(f"{content.path} is damaged {kind}: {str(e).splitlines()[0]}; fetch or write the file again")
