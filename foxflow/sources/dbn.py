"""DBN, databento's own format, in versions 1 to 3: the OHLCV schemas, whose records all have one size.

The vendor's library reads what is written once, metadata and symbol mapping; numpy reads the records, a block at a
time, since one Python object a record would cost a hundred times the memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import polars as pl

from foxflow.bars import PRICES, TS
from foxflow.errors import DataError, unknown

if TYPE_CHECKING:
    from databento_dbn import Metadata

SCHEMA = pl.Schema(
    {
        "number": pl.Int64(),
        "symbol": pl.String(),
        "time": TS,
        "open": pl.Float64(),
        "high": pl.Float64(),
        "low": pl.Float64(),
        "close": pl.Float64(),
        "volume": pl.Float64(),
    }
)
BLOCK = 1 << 16
_VERSIONS = (1, 2, 3)
# Schema to bar length and the `rtype` of its records. `ohlcv-eod` is absent: what its stamp means is not written down.
_BARS = {"ohlcv-1s": ("1s", 32), "ohlcv-1m": ("1m", 33), "ohlcv-1h": ("1h", 34), "ohlcv-1d": ("1d", 35)}
# What the first files of version 1 call the records of every OHLCV schema.
_ANY_OHLCV = 17
# https://databento.com/docs/standards-and-conventions/databento-binary-encoding; little endian, prices in 1e-9 units.
_RECORD = np.dtype(
    [("length", "u1"), ("rtype", "u1"), ("publisher", "<u2"), ("instrument", "<u4"), ("ts_event", "<u8")]
    + [(name, "<i8") for name in PRICES]
    + [("volume", "<u8")]
)
_TS_OUT = np.dtype([*_RECORD.descr, ("ts_out", "<u8")])
_UNDEFINED = np.iinfo(np.int64).max
# Whole numbers up to here have a float of their own.
_EXACT = 1 << 53
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Facts:
    """What a DBN file says of itself.

    Attributes
    ----------
    bar, stamp, tz
        Bar length, and that the time of a record is the bar's open in UTC; a day is one of UTC.
    symbols
        Symbols of the mapping; empty where the file has none.
    stype
        How they were asked for: `raw_symbol`, `continuous` (joined contracts, whose roll gaps are in it), `parent`.
    not_found
        Symbols that were asked for and do not exist.
    """

    bar: str
    symbols: tuple[str, ...]
    dataset: str
    schema: str
    version: int
    stype: str | None
    not_found: tuple[str, ...]
    stamp: str = "open"
    tz: str = "UTC"

    @property
    def notes(self) -> tuple[str, ...]:
        """What an import should say of the file."""
        notes = [f"DBN version {self.version}, {self.schema} of {self.dataset}"]
        if self.stype == "continuous":
            notes.append(
                "continuous symbols: the vendor joined their contracts without an adjustment, so that the gap of each "
                "roll looks like a return; import the contracts by their raw symbols, and join them on reading"
            )
        if self.not_found:
            notes.append(f"asked for and not found by the vendor: {', '.join(self.not_found)}")
        return tuple(notes)


def is_dbn(head: bytes) -> bool:
    """Return whether a file that starts so (11 bytes do) is DBN, or the old DBZ, which `read` refuses by name."""
    return head.startswith(b"DBN") or _is_dbz(head)


def read(
    stream: BinaryIO, *, name: str, symbol: str | None = None, block: int = BLOCK
) -> tuple[Facts, Iterator[pl.DataFrame]]:
    """Return what a DBN file says of itself, and its bars in blocks of at most `block` records.

    Parameters
    ----------
    stream
        The file without its compression.
    name
        What a message calls it.
    symbol
        The one to take; in a file without a symbol mapping, what to call its one instrument.

    Returns
    -------
    facts
    blocks
        Frames of `SCHEMA` in the file's order: `number` of the record from 1, `time` the bar's open, a price that
        is not defined null.

    Raises
    ------
    DataError
        On another format, version or schema, a file that is cut off or has no bar, an instrument without a symbol or
        of several publishers, a time between microseconds: here, or when the block that has it is asked for.
    """
    version, metadata = _head(stream, name)
    schema = _schema(metadata, name)
    bar, rtype = _BARS[schema]
    mapping = _mapping(metadata, name)
    symbols = tuple(mapping["symbol"].unique().sort())
    if symbol is not None and symbols and symbol not in symbols:
        raise DataError(f"{name}: {unknown('symbol', symbol, symbols)}")
    dtype = _TS_OUT if metadata.ts_out else _RECORD
    first = _fill(stream, block * dtype.itemsize, name)
    if not first:
        raise DataError(f"{name} has no bar: it is sound, and was asked for a span without a trade; leave it out")
    facts = Facts(
        bar=bar,
        symbols=symbols,
        dataset=metadata.dataset,
        schema=schema,
        version=version,
        stype=None if metadata.stype_in is None else str(metadata.stype_in),
        not_found=tuple(metadata.not_found),
    )
    records = _records(stream, first, dtype, rtype=rtype, block=block, name=name)
    return facts, _named(records, mapping, facts, symbol=symbol, name=name)


def _is_dbz(head: bytes) -> bool:
    return head[1:4] == b"*M\x18" and head[8:11] == b"DBZ"


def _head(stream: BinaryIO, name: str) -> tuple[int, "Metadata"]:
    """Return the version and the metadata."""
    from databento_dbn import DBNError, Metadata

    start = _fill(stream, 8, name)
    if start[1:4] == b"*M\x18":
        raise DataError(
            f"{name} is DBZ, the form that databento wrote before DBN; download the span again, or convert the "
            "file with databento's command `dbn` (crate dbn-cli)"
        )
    if not start.startswith(b"DBN"):
        raise DataError(f"{name} is not DBN: it starts with {start!r}; expected {b'DBN'!r}")
    _require_whole(start, 8, name)
    if start[3] not in _VERSIONS:
        raise DataError(
            f"{name} is DBN version {start[3]}; versions 1 to 3 can be read: download version 3, or update foxflow"
        )
    length = int.from_bytes(start[4:], "little")
    body = _fill(stream, length, name)
    _require_whole(body, length, name)
    try:
        return start[3], Metadata.decode(start + body)
    except (DBNError, ValueError) as e:
        raise DataError(f"{name} has damaged metadata: {e}; fetch the file again") from e


def _schema(metadata: "Metadata", name: str) -> str:
    schema = None if metadata.schema is None else str(metadata.schema)
    if schema not in _BARS:
        what = "records of several schemas (a live recording)" if schema is None else schema
        raise DataError(
            f"{name} holds {what}; only {', '.join(_BARS)} can be imported: ask databento for one of them, as in "
            "schema ohlcv-1m"
        )
    return schema


def _mapping(metadata: "Metadata", name: str) -> pl.DataFrame:
    """Return which instrument had which symbol on which days (of UTC, the last one left out)."""
    rows: list[tuple[int, str, object, object]] = []
    for asked, intervals in metadata.mappings.items():
        for interval in intervals:
            # Asked for by number, the symbol stands where else the number does.
            found = interval["symbol"]
            number, symbol = (asked, found) if str(metadata.stype_in) == "instrument_id" else (found, asked)
            if not found:
                # A symbol that did not exist on these days.
                continue
            if not number.isdecimal():
                raise DataError(
                    f"{name} maps {asked!r} to {found!r}; expected an instrument id: download the file with "
                    "stype_out = instrument_id"
                )
            rows.append((int(number), symbol, interval["start_date"], interval["end_date"]))
    schema = {"instrument": pl.UInt32, "symbol": pl.String, "start": pl.Date, "end": pl.Date}
    return pl.DataFrame(rows, schema=schema, orient="row").unique()


def _records(
    stream: BinaryIO, first: bytes, dtype: np.dtype[np.void], *, rtype: int, block: int, name: str
) -> Iterator[pl.DataFrame]:
    """Yield records as columns: number, publisher, instrument, time, prices and volume."""
    done, content = 0, first
    while content:
        whole = len(content) // dtype.itemsize
        records = np.frombuffer(content, dtype, count=whole)
        _require_bars(records, done, rtype=rtype, name=name)
        if len(content) % dtype.itemsize:
            raise DataError(
                f"{name} is cut off: record {done + whole + 1} has {len(content) % dtype.itemsize} of "
                f"{dtype.itemsize} bytes; fetch the file again"
            )
        yield _columns(records, done, name)
        done += whole
        content = _fill(stream, block * dtype.itemsize, name)


def _require_bars(records: np.ndarray, done: int, *, rtype: int, name: str) -> None:
    """Raise where a record is none of the schema: everything after it would be read at the wrong place."""
    size = records.dtype.itemsize // 4
    bad = (records["length"] != size) | ~np.isin(records["rtype"], (rtype, _ANY_OHLCV))
    if bad.any():
        at = int(bad.argmax())
        raise DataError(
            f"{name}, record {done + at + 1}: rtype {records['rtype'][at]} of {records['length'][at] * 4} bytes; "
            f"expected rtype {rtype} of {size * 4} bytes in a file of bars: fetch it again, or import it in parts"
        )


def _columns(records: np.ndarray, done: int, name: str) -> pl.DataFrame:
    times, volume = records["ts_event"], records["volume"]
    for bad, what in (
        (times > _UNDEFINED, "ts_event {} is not defined; expected the nanoseconds since 1970 at which the bar opens"),
        (times % 1000 != 0, "ts_event {} lies between two microseconds; expected the open of a bar"),
    ):
        _refuse_where(bad, times, done, name, what)
    _refuse_where(volume > _EXACT, volume, done, name, "volume {}; expected a count that anybody could trade")
    return pl.DataFrame(
        {
            "number": np.arange(done + 1, done + 1 + len(records), dtype=np.int64),
            "publisher": np.ascontiguousarray(records["publisher"]),
            "instrument": np.ascontiguousarray(records["instrument"]),
            "time": (times // 1000).astype(np.int64),
            **{price: _price(records[price]) for price in PRICES},
            "volume": volume.astype(np.float64),
        }
    ).with_columns(pl.col("time").cast(TS))


def _refuse_where(bad: np.ndarray, values: np.ndarray, done: int, name: str, what: str) -> None:
    if bad.any():
        at = int(bad.argmax())
        raise DataError(f"{name}, record {done + at + 1}: {what.replace('{}', str(values[at]))}; fetch the file again")


def _price(units: np.ndarray) -> pl.Series:
    """Return prices as the floats nearest to them, null where not defined."""
    values = units.astype(np.float64) / 1e9
    # Rounded twice above 9 million; whole numbers of Python divide to the nearest float.
    for at in np.flatnonzero(np.abs(units) > _EXACT):
        values[at] = int(units[at]) / 10**9
    return pl.Series(values).set(pl.Series(units == _UNDEFINED), None)


def _named(
    blocks: Iterator[pl.DataFrame], mapping: pl.DataFrame, facts: Facts, *, symbol: str | None, name: str
) -> Iterator[pl.DataFrame]:
    """Yield records with their symbol, those of `symbol` alone where it is given."""
    publishers: dict[int, int] = {}
    found = False
    for block in blocks:
        if facts.symbols:
            rows = _symbols(block, mapping, name)
            rows = rows if symbol is None else rows.filter(pl.col("symbol") == symbol)
        else:
            rows = block.with_columns(symbol=pl.lit(symbol, pl.String))
        _require_one_publisher(rows, publishers, facts, name)
        if not facts.symbols:
            _require_one_instrument(publishers, symbol, name)
        if len(rows):
            found = True
            yield rows.select(SCHEMA.names())
    if not found:
        raise DataError(f"{name} has no bar of {symbol}, though its metadata names it; leave that symbol out")


def _symbols(block: pl.DataFrame, mapping: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return each record under every symbol that its instrument had on its day."""
    day = pl.col("time").dt.date().alias("day")
    pairs = block.select("instrument", day).unique()
    known = pairs.join(mapping, on="instrument").filter(pl.col("day").is_between("start", "end", closed="left"))
    stray = block.with_columns(day).join(known, on=["instrument", "day"], how="anti").sort("number")
    if len(stray):
        ids = mapping["instrument"].unique().sort()
        raise DataError(
            f"{name}, record {stray['number'][0]} (and {len(stray) - 1} more in its block): instrument id "
            f"{stray['instrument'][0]} has no symbol on {stray['day'][0]}; the file maps {len(ids)} id(s), first "
            f"{ids[0]}: download the span again, with its symbols resolved"
        )
    return (
        block.with_columns(day)
        .join(known.select("instrument", "day", "symbol"), on=["instrument", "day"])
        .sort("number", "symbol")
    )


def _require_one_publisher(rows: pl.DataFrame, publishers: dict[int, int], facts: Facts, name: str) -> None:
    """Raise where an instrument has the bars of several venues, each of which is a part of the market.

    Kept in one series they would be duplicates where their stamps meet, and a zigzag where they do not.
    """
    seen = rows.group_by("instrument", "publisher").agg(pl.col("number").min(), pl.col("symbol", "time").first())
    for row in seen.sort("number").iter_rows(named=True):
        other = publishers.setdefault(row["instrument"], row["publisher"])
        if other != row["publisher"]:
            raise DataError(
                f"{name}, record {row['number']}: {row['symbol']} at {row['time']:%Y-%m-%d %H:%M:%S}Z is the bar of "
                f"publisher {row['publisher']} of {facts.dataset}, and other bars of it are of publisher {other}: "
                "duplicates, one a venue; expected one publisher an instrument: take a consolidated data set, or "
                "write the records of one publisher_id to a file"
            )


def _require_one_instrument(publishers: dict[int, int], symbol: str | None, name: str) -> None:
    ids = sorted(publishers)
    if len(ids) > 1:
        raise DataError(
            f"{name} has no symbol mapping and {len(ids)} or more instruments ({', '.join(map(str, ids[:5]))}), which "
            "one --symbol cannot name; download it again with its symbols resolved"
        )
    if symbol is None:
        raise DataError(
            f"{name} has no symbol mapping, so that nothing says what instrument id {ids[0]} is; name it with --symbol"
        )


def _fill(stream: BinaryIO, size: int, name: str) -> bytes:
    """Return the next `size` bytes, fewer only at the end of the file.

    In parts, because a stream may give less than asked for, and a damaged length may ask for gigabytes.
    """
    parts: list[bytes] = []
    missing = size
    try:
        while missing and (part := stream.read(min(missing, _CHUNK))):
            parts.append(part)
            missing -= len(part)
    except (OSError, EOFError) as e:
        raise DataError(f"{name} is cut off or damaged: {e}; fetch the file again") from e
    return b"".join(parts)


def _require_whole(content: bytes, size: int, name: str) -> None:
    if len(content) < size:
        raise DataError(f"{name} is cut off: its metadata has {len(content)} of {size} bytes; fetch the file again")
