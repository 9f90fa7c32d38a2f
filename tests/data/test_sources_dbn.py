"""DBN against the vendor's own decoder, which makes an object of every record."""

import gzip
import io
from collections.abc import Iterator
from datetime import UTC, date, datetime
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import polars as pl
import pyarrow as pa
import pytest
from databento_dbn import (
    UNDEF_PRICE,
    DBNDecoder,
    Metadata,
    OHLCVMsg,
    RType,
    Schema,
    SType,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from foxflow.errors import DataError
from foxflow.sources import dbn

HERE = Path(__file__).parent / "dbn"
REAL = Path(__file__).parents[3] / "shared/data/real"
OPEN = 1_719_878_340_000_000_000  # 2024-07-01 23:59Z
DAY = date(2024, 7, 1)
real = pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data/real")


def plain(path: Path) -> bytes:
    content = path.read_bytes()
    return pa.CompressedInputStream(pa.py_buffer(content), "zstd").read() if path.suffix == ".zst" else content


def bars(content: bytes, *, symbol: str | None = None, block: int = dbn.BLOCK) -> pl.DataFrame:
    _, frames = dbn.read(io.BytesIO(content), name="x.dbn", symbol=symbol, block=block)
    return pl.concat(frames)


def objects(content: bytes) -> list[OHLCVMsg]:
    decoder = DBNDecoder()
    decoder.write(content)
    return [record for record in decoder.decode() if isinstance(record, OHLCVMsg)]


def oracle(content: bytes) -> pl.DataFrame:
    """Return the bars of the vendor's record objects, named by the mapping of its metadata."""
    mapping = Metadata.decode(content[: 8 + int.from_bytes(content[4:8], "little")]).mappings
    rows = []
    for number, record in enumerate(objects(content), start=1):
        moment = datetime.fromtimestamp(record.ts_event // 10**9, UTC)
        (symbol,) = [
            name
            for name, intervals in mapping.items()
            for i in intervals
            if i["symbol"] == str(record.instrument_id) and i["start_date"] <= moment.date() < i["end_date"]
        ]
        prices = [float(Fraction(p, 10**9)) for p in (record.open, record.high, record.low, record.close)]
        rows.append((number, symbol, moment, *prices, float(record.volume)))
    return pl.DataFrame(rows, schema=dbn.SCHEMA, orient="row")


def metadata(
    *mappings: tuple[str, str, date, date],
    version: int = 3,
    schema: Schema | None = Schema.OHLCV_1M,
    stype_in: SType | None = SType.RAW_SYMBOL,
    ts_out: bool = False,
) -> bytes:
    named = [
        SimpleNamespace(
            raw_symbol=raw,
            intervals=[SimpleNamespace(start_date=s, end_date=e, symbol=f) for r, f, s, e in mappings if r == raw],
        )
        for raw in dict.fromkeys(m[0] for m in mappings)
    ]
    return bytes(
        Metadata(
            dataset="GLBX.MDP3",
            start=OPEN,
            stype_in=stype_in,
            stype_out=SType.INSTRUMENT_ID,
            schema=schema,
            symbols=[m[0] for m in mappings],
            partial=[],
            not_found=[],
            mappings=named,
            ts_out=ts_out,
            version=version,
        )
    )


def record(
    *, publisher: int = 1, instrument: int = 118, ts: int = OPEN, rtype: RType = RType.OHLCV_1M, **other: int
) -> bytes:
    prices = {"open": 10, "high": 12, "low": 9, "close": 11} | other
    volume = prices.pop("volume", 5)
    return bytes(
        OHLCVMsg(
            rtype=rtype,
            publisher_id=publisher,
            instrument_id=instrument,
            ts_event=ts,
            volume=volume,
            **{name: value if value == UNDEF_PRICE else value * 10**9 for name, value in prices.items()},
        )
    )


ONE = metadata(("ESU4", "118", DAY, date(2024, 7, 3)))


def test_the_same_bars_in_versions_1_2_and_3_are_equal() -> None:
    first, second, third = (bars(plain(HERE / f"test_data.ohlcv-1m.v{v}.dbn.zst")) for v in (1, 2, 3))
    assert first.equals(second)
    assert first.equals(third)
    assert first.equals(bars(plain(HERE / "test_data.ohlcv-1m.dbn")))
    assert first.rows() == [
        (1, "ESH1", datetime(2020, 12, 28, 13, 0, tzinfo=UTC), 372025.0, 372150.0, 372025.0, 372100.0, 353.0),
        (2, "ESH1", datetime(2020, 12, 28, 13, 1, tzinfo=UTC), 372100.0, 372150.0, 372100.0, 372150.0, 152.0),
    ]
    versions = [
        dbn.read(io.BytesIO(plain(HERE / f"test_data.ohlcv-1m.v{v}.dbn.zst")), name="x")[0].version for v in (1, 2, 3)
    ]
    assert versions == [1, 2, 3]


def test_facts_are_the_metadata() -> None:
    facts, _ = dbn.read(io.BytesIO(plain(HERE / "ifeu.ohlcv-1m.dbn.zst")), name="x")
    assert facts == dbn.Facts(
        bar="1m",
        symbols=("BRN FMJ0024!",),
        dataset="IFEU.IMPACT",
        schema="ohlcv-1m",
        version=3,
        stype="raw_symbol",
        not_found=(),
        stamp="open",
        tz="UTC",
    )


@real
@pytest.mark.parametrize("path", sorted(REAL.glob("dbn_*/**/*ohlcv*.dbn*")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_real_file_equals_the_vendors_objects_or_is_refused_with_the_reason_of_its_source(path: Path) -> None:
    content = plain(path)
    if path.name.startswith("test_data.ohlcv-1d") and path.parent.name == "dbn":
        with pytest.raises(DataError, match="has no bar"):
            bars(content)
    elif path.parent.name == "OPRA.PILLAR":
        with pytest.raises(DataError, match="duplicates, one a venue"):
            bars(content)
    else:
        assert bars(content, block=7).equals(oracle(content))


@real
def test_two_symbols_of_one_file_are_kept_apart_over_midnight() -> None:
    content = plain(REAL / "dbn_nautilus/ESU4_NQU4_ohlcv-1m_20240701.dbn.zst")
    found = bars(content)
    per = found.group_by("symbol").agg(pl.len(), low=pl.col("close").min(), high=pl.col("close").max()).sort("symbol")
    assert per.select("symbol", "len").rows() == [("ESU4", 30), ("NQU4", 30)]
    assert per["high"][0] < 6_000
    assert per["low"][1] > 19_000
    assert found["time"].dt.date().unique().sort().to_list() == [date(2024, 7, 1), date(2024, 7, 2)]
    alone = bars(content, symbol="NQU4")
    assert alone.equals(found.filter(pl.col("symbol") == "NQU4"))
    assert alone["number"].to_list() != list(range(1, 31))


@real
def test_trades_by_the_minute_are_the_bars() -> None:
    decoder = DBNDecoder()
    decoder.write(plain(REAL / "dbn_nautilus/ESU4_trades_20240701.dbn.zst"))
    trades = pl.DataFrame(
        [(t.ts_recv, t.price / 1e9, float(t.size)) for t in decoder.decode() if hasattr(t, "side")],
        schema={"ts": pl.Int64, "price": pl.Float64, "size": pl.Float64},
        orient="row",
    )
    assert len(trades) == 120
    price = pl.col("price")
    by_minute = trades.group_by(
        time=(pl.col("ts") // 60_000_000_000 * 60_000_000).cast(dbn.TS), maintain_order=True
    ).agg(open=price.first(), high=price.max(), low=price.min(), close=price.last(), volume=pl.col("size").sum())
    found = bars(plain(REAL / "dbn_nautilus/ESU4_NQU4_ohlcv-1m_20240701.dbn.zst"), symbol="ESU4")
    assert len(by_minute) == 4
    assert by_minute.equals(found.join(by_minute.select("time"), on="time").select(by_minute.columns).sort("time"))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5000),
            st.sampled_from([118, 4358]),
            st.lists(st.integers(-(2**63) + 1, 2**63 - 2), min_size=4, max_size=4),
            st.integers(0, 2**53),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 17),
    st.sampled_from([1, 2, 3]),
)
def test_any_records_in_blocks_of_any_size_equal_the_vendors_objects(
    rows: list[tuple[int, int, list[int], int]], block: int, version: int
) -> None:
    last = date(2025, 1, 1)
    content = metadata(("ESU4", "118", DAY, last), ("NQU4", "4358", DAY, last), version=version) + b"".join(
        bytes(OHLCVMsg(RType.OHLCV_1M, 1, instrument, OPEN + minute * 60 * 10**9, *prices, volume))
        for minute, instrument, prices, volume in rows
    )
    assert bars(content, block=block).equals(oracle(content))


def test_a_price_above_9_million_is_the_nearest_float_too() -> None:
    # Rounded to a float before the division it would be 665254580.3405031.
    content = ONE + bytes(OHLCVMsg(RType.OHLCV_1M, 1, 118, OPEN, *[665254580340503029] * 4, 5))
    assert bars(content)["close"].to_list() == [665254580.340503029]


class Trickle(io.RawIOBase):
    """A stream that gives less than it is asked for, as pipes do."""

    def __init__(self, content: bytes) -> None:
        self._rest = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._rest.read(min(size, 5))


def test_a_stream_may_give_less_than_it_is_asked_for() -> None:
    content = plain(HERE / "test_data.ohlcv-1m.v3.dbn.zst")
    _, frames = dbn.read(Trickle(content), name="x")  # type: ignore[arg-type]
    assert pl.concat(frames).equals(bars(content))


def test_blocks_are_bounded_and_numbers_run_on() -> None:
    content = ONE + b"".join(record(ts=OPEN + i * 60 * 10**9) for i in range(10))
    _, frames = dbn.read(io.BytesIO(content), name="x", block=4)
    assert [f["number"].to_list() for f in frames] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


def test_an_undefined_price_is_null() -> None:
    found = bars(ONE + record(open=UNDEF_PRICE))
    assert found.select("open", "high", "low", "close").rows() == [(None, 12.0, 9.0, 11.0)]


def test_a_negative_price_is_a_price() -> None:
    assert bars(ONE + record(low=-37, close=-37))["close"].to_list() == [-37.0]


def test_a_symbol_that_changes_its_instrument_is_one_series() -> None:
    mapping = metadata(
        ("ES.c.0", "118", DAY, date(2024, 7, 2)),
        ("ES.c.0", "999", date(2024, 7, 2), date(2024, 7, 3)),
        stype_in=SType.CONTINUOUS,
    )
    content = mapping + record() + record(instrument=999, ts=OPEN + 60 * 10**9)
    assert bars(content)["symbol"].to_list() == ["ES.c.0", "ES.c.0"]
    facts, _ = dbn.read(io.BytesIO(content), name="x")
    assert facts.stype == "continuous"
    assert facts.notes[0] == "DBN version 3, ohlcv-1m of GLBX.MDP3"
    assert facts.notes[1].startswith("continuous symbols: ")


def test_a_symbol_that_the_vendor_did_not_find_is_told() -> None:
    facts = dbn.Facts("1m", ("ESU4",), "GLBX.MDP3", "ohlcv-1m", 3, "raw_symbol", ("ESU5",))
    assert facts.notes[1:] == ("asked for and not found by the vendor: ESU5",)


def test_an_instrument_id_reused_for_another_symbol_is_named_by_its_day() -> None:
    mapping = metadata(("OLD", "118", DAY, date(2024, 7, 2)), ("NEW", "118", date(2024, 7, 2), date(2024, 7, 3)))
    assert bars(mapping + record() + record(ts=OPEN + 60 * 10**9))["symbol"].to_list() == ["OLD", "NEW"]


def test_an_instrument_of_two_symbols_at_once_is_in_both_series() -> None:
    mapping = metadata(
        ("ES.c.0", "118", DAY, date(2024, 7, 2)), ("ES.v.0", "118", DAY, date(2024, 7, 2)), stype_in=SType.CONTINUOUS
    )
    assert bars(mapping + record()).select("number", "symbol").rows() == [(1, "ES.c.0"), (1, "ES.v.0")]


def test_a_file_asked_for_by_number_has_its_numbers_as_symbols() -> None:
    mapping = metadata(("118", "118", DAY, date(2024, 7, 2)), stype_in=SType.INSTRUMENT_ID)
    assert bars(mapping + record())["symbol"].to_list() == ["118"]


def test_records_with_the_time_of_sending_are_read_as_those_without() -> None:
    sent = record()
    sent = bytes([sent[0] + 2]) + sent[1:] + (OPEN + 1).to_bytes(8, "little")
    content = metadata(("ESU4", "118", DAY, date(2024, 7, 2)), ts_out=True) + sent * 3
    assert bars(content).drop("number").equals(bars(ONE + record() * 3).drop("number"))


def test_the_rtype_of_the_first_files_is_read() -> None:
    assert (
        len(bars(metadata(("ESU4", "118", DAY, date(2024, 7, 2)), version=1) + record(rtype=RType.OHLCV_DEPRECATED)))
        == 1
    )


def test_a_file_without_mapping_asks_for_the_symbol_of_its_one_instrument() -> None:
    content = metadata(version=1) + record() + record(ts=OPEN + 60 * 10**9)
    with pytest.raises(
        DataError, match=r"x.dbn has no symbol mapping, .* what instrument id 118 is; name it with --symbol"
    ):
        bars(content)
    assert bars(content, symbol="ESU4")["symbol"].to_list() == ["ESU4", "ESU4"]
    with pytest.raises(
        DataError, match=r"no symbol mapping and 2 or more instruments \(118, 999\), which one --symbol cannot"
    ):
        bars(content + record(instrument=999), symbol="ESU4", block=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (plain(HERE / "test_data.trades.v3.dbn.zst"), "x.dbn holds trades; only ohlcv-1s, ohlcv-1m, .* as in schema ohlcv-1m"),
        (plain(HERE / "test_data.mbo.v3.dbn.zst"), "x.dbn holds mbo; only ohlcv-1s"),
        (metadata(schema=Schema.OHLCV_EOD) + record(rtype=RType.OHLCV_EOD), "x.dbn holds ohlcv-eod; only"),
        (metadata(schema=None, stype_in=None) + record(), r"holds records of several schemas \(a live recording\)"),
        (plain(HERE / "test_data.ohlcv-1m.dbz"), "x.dbn is DBZ, .* download the span again, or convert"),
        (plain(HERE / "test_data.ohlcv-1d.v3.dbn.zst"), "x.dbn has no bar: it is sound"),
        (ONE, "x.dbn has no bar"),
        (ONE[:3] + b"\4" + ONE[4:] + record(), "x.dbn is DBN version 4; versions 1 to 3 can be read"),
        (ONE[:3] + b"\0" + ONE[4:] + record(), "x.dbn is DBN version 0; versions 1 to 3 can be read"),
        (b"PAR1rest", "x.dbn is not DBN: it starts with b'PAR1rest'"),
        (ONE[:5], "x.dbn is cut off: its metadata has 5 of 8 bytes"),
        (ONE[:-1], r"x.dbn is cut off: its metadata has \d+ of \d+ bytes"),
        (ONE[:4] + b"\xff\xff\xff\xff" + ONE[8:], r"x.dbn is cut off: its metadata has \d+ of 4294967295 bytes"),
        (ONE[:8] + b"\xff" * (len(ONE) - 8) + record(), "x.dbn has damaged metadata: .*; fetch the file again"),
        (ONE + record() + record()[:-1], "x.dbn is cut off: record 2 has 55 of 56 bytes"),
        (ONE + record() + record(rtype=RType.OHLCV_1H), "x.dbn, record 2: rtype 34 of 56 bytes; expected rtype 33 of 56"),
        (ONE + record() + b"\x05" + record()[1:], "x.dbn, record 2: rtype 33 of 20 bytes; expected rtype 33 of 56"),
        (ONE + record() + record(instrument=5), "x.dbn, record 2 .*instrument id 5 has no symbol on 2024-07-01"),
        (ONE + record(ts=OPEN + 86_400 * 10**9 * 2), "x.dbn, record 1 .*instrument id 118 has no symbol on 2024-07-03"),
        (ONE + record(ts=OPEN + 1), "x.dbn, record 1: ts_event 1719878340000000001 lies between two microseconds"),
        (ONE + record(ts=2**64 - 1), "x.dbn, record 1: ts_event 18446744073709551615 is not defined"),
        (ONE + record(volume=2**64 - 1), "x.dbn, record 1: volume 18446744073709551615; expected a count"),
        (plain(HERE / "opra.ohlcv-1m.dbn.zst"), "record 2: AAPL  250221C00250000 at .*publisher 33 of OPRA.PILLAR.* publisher 31: duplicates"),
        (ONE + record() + record(publisher=2, ts=OPEN + 60 * 10**9), "record 2: ESU4 .* publisher 2 of GLBX.MDP3"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_by_name(content: bytes, message: str) -> None:
    for block in (1, dbn.BLOCK):
        with pytest.raises(DataError, match=f"(?s)^.*{message}"):
            bars(content, block=block)


def test_an_unknown_symbol_lists_those_of_the_file() -> None:
    with pytest.raises(DataError, match=r"x.dbn: unknown symbol 'ESU5'; known: ESU4; did you mean 'ESU4'"):
        bars(ONE + record(), symbol="ESU5")


def test_a_symbol_that_is_mapped_and_never_traded_has_no_bar() -> None:
    content = metadata(("ESU4", "118", DAY, date(2024, 7, 2)), ("ESZ9", "5", DAY, date(2024, 7, 2))) + record()
    assert len(bars(content)) == 1
    with pytest.raises(DataError, match=r"x.dbn has no bar of ESZ9, though its metadata names it"):
        bars(content, symbol="ESZ9")


def broken(content: bytes) -> Iterator[BinaryIO]:
    packed = (HERE / "test_data.ohlcv-1m.v3.dbn.zst").read_bytes()
    yield pa.CompressedInputStream(pa.py_buffer(packed[:-9]), "zstd")
    yield gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(content)[:-9]))


def test_a_packed_file_that_is_cut_off_is_refused() -> None:
    for stream in broken(ONE + record()):
        with pytest.raises(DataError, match=r"x is cut off or damaged: .*; fetch the file again"):
            list(dbn.read(stream, name="x")[1])


@pytest.mark.parametrize(
    ("head", "expected"), [(ONE, True), (plain(HERE / "test_data.ohlcv-1m.dbz"), True), (b"PAR1", False), (b"", False)]
)
def test_dbn_is_told_by_its_first_bytes(head: bytes, expected: Any) -> None:
    assert dbn.is_dbn(head[:11]) is expected
