"""What a file is by its content, never by its name: unpacked while it is read, so a large one needs no memory."""

import errno
import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from foxflow.errors import DataError
from foxflow.sources import dbn

HEAD = 4096
_GZIP, _ZSTD, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_KINDS = {b"PAR1": "parquet", b"ARROW1": "feather", b"\xff\xff\xff\xff": "arrow"}
# What else people hand over, by its first bytes.
_REFUSED = {
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"7z\xbc\xaf": "a 7z archive; unpack it first",
    b"Rar!": "a rar archive; unpack it first",
    b"\x89HDF": "an HDF5 file; save it as Parquet",
    b"\x80\x04": "a pickle, which is never loaded because it can run code; save it as Parquet",
    b"\x80\x05": "a pickle, which is never loaded because it can run code; save it as Parquet",
    b"\x80\x03": "a pickle, which is never loaded because it can run code; save it as Parquet",
    b"\x80\x02": "a pickle, which is never loaded because it can run code; save it as Parquet",
    b"SQLite format 3": "an SQLite database; export the bars as CSV or Parquet",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV",
    b"%PDF": "a PDF",
}


@dataclass(frozen=True)
class Content:
    """A file as it lies on disk: its path, and what its bytes say it is.

    Attributes
    ----------
    kind
        `csv`, `jsonl` (also a JSON array), `parquet`, `feather`, `arrow` (a stream) or `dbn`.
    packing
        Outermost first: `gz`, `zst`, `zip`.
    """

    path: Path
    kind: str
    packing: tuple[str, ...]

    @contextmanager
    def open(self, raw: BinaryIO) -> Iterator[BinaryIO]:
        """Give the unpacked bytes of the file opened as `raw`, whose position then tells how much of it was read.

        Raises
        ------
        DataError
            Where the packing is damaged, also in the middle of the reading.
        """
        stream = raw
        try:
            for packing in self.packing:
                stream = _unpacked(stream, packing, self.path)
            yield stream
        except (EOFError, zlib.error, zipfile.BadZipFile, gzip.BadGzipFile, NotImplementedError) as e:
            raise self._damaged(e) from e
        except OSError as e:
            # What the machine refuses has a number; what an unpacker finds has none, or seeks before the file.
            if not self.packing or e.errno not in (None, errno.EINVAL):
                raise
            raise self._damaged(e) from e

    def _damaged(self, e: Exception) -> DataError:
        return DataError(f"{self.path} is damaged {self.packing[0]}: {e}; fetch the file again")


def identify(path: str | Path, *, declared: str | None = None) -> Content:
    """Return what the file holds.

    Parameters
    ----------
    declared
        The format that the user named; another one in the file is refused.

    Raises
    ------
    DataError
        When the file cannot be read, is empty, or is a kind that is not read, saying which.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as e:
        raise DataError(f"{path} cannot be read: {e.strerror}; give the path of a file that is there") from e
    if not head:
        raise DataError(f"{path} is empty (0 bytes); expected bars")
    packing: tuple[str, ...] = ()
    while (found := _packing(head)) is not None and len(packing) < 3:
        packing = (*packing, found)
        with path.open("rb") as raw, Content(path, "csv", packing).open(raw) as stream:
            head = stream.read(HEAD)
        if not head:
            raise DataError(f"{path} is empty inside its {found}; expected bars")
    kind = _kind(path, head)
    if declared is not None:
        asked = "jsonl" if declared == "json" else declared
        if asked != ("feather" if kind == "arrow" else kind):
            raise DataError(f"{path} holds {kind}, not the {declared} of --format; leave --format out or correct it")
    elif not packing and path.suffix in (".parquet", ".pq") and kind != "parquet":
        raise DataError(
            f"{path} is not Parquet, though its name says so: it starts with {head[:8]!r}; expected b'PAR1'"
        )
    return Content(path, kind, packing)


def _packing(head: bytes) -> str | None:
    if head.startswith(_GZIP):
        return "gz"
    if head.startswith(_ZSTD):
        return "zst"
    return "zip" if head.startswith(_ZIP) else None


def _kind(path: Path, head: bytes) -> str:
    if dbn.is_dbn(head):
        return "dbn"
    for magic, what in _REFUSED.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {what}")
    if head[257:262] == b"ustar":
        raise DataError(f"{path} is a tar archive; unpack it first and import the files in it")
    if head[8:12] == b"DUCK":
        raise DataError(f"{path} is a DuckDB database; export its bars as Parquet")
    for magic, kind in _KINDS.items():
        if head.startswith(magic):
            return kind
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:5].lower() in (b"<html", b"<!doc", b"<?xml"):
        raise DataError(f"{path} is a web page or XML, perhaps an answer that tells of an error; fetch the data again")
    return "jsonl" if start[:1] in (b"{", b"[") else "csv"


def _unpacked(stream: BinaryIO, packing: str, path: Path) -> BinaryIO:
    if packing == "gz":
        return cast("BinaryIO", gzip.open(stream))
    if packing == "zst":
        import pyarrow as pa

        return io.BufferedReader(_Raw(pa.CompressedInputStream(pa.PythonFile(stream), "zstd")), HEAD * 16)
    archive = zipfile.ZipFile(stream)
    # What macOS adds of its own is none of the user's files.
    names = [
        entry.filename
        for entry in archive.infolist()
        if not entry.is_dir()
        and not entry.filename.startswith("__MACOSX/")
        and not entry.filename.endswith(".DS_Store")
    ]
    if "[Content_Types].xml" in names:
        raise DataError(f"{path} is an Excel workbook; save the sheet as CSV")
    if len(names) != 1:
        raise DataError(
            f"{path} is a zip archive of {len(names)} files ({', '.join(names[:4])}{', …' if len(names) > 4 else ''}); "
            "unpack it, and import each with the --symbol it belongs to"
        )
    if archive.getinfo(names[0]).flag_bits & 1:
        raise DataError(f"{path} is an encrypted zip archive; unpack it first")
    return cast("BinaryIO", archive.open(names[0]))


class _Raw(io.RawIOBase):
    """pyarrow's unpacker as Python's own kind of stream."""

    def __init__(self, inner: "io.IOBase") -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        block = self._inner.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)
