import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from read_files import read

from foxflow import sources
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA
from foxflow.errors import DataError

DAILY = """Date,Open,High,Low,Close,Volume
2012-11-21,10,12,9,11,100
2012-11-23,11,13,10,12,200.5
2012-11-26,12,12.5,11.5,12.25,0
"""
MINUTES = """time,open,high,low,close,volume
2024-03-08 15:30,10,12,9,11,100
2024-03-08 15:31,11,13,10,12,200
"""


def file(folder: Path, content: str | bytes, name: str = "prices.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def minutes(*stamps: str) -> str:
    return "ts,open,high,low,close,volume\n" + "".join(f"{stamp},1,1,1,1,1\n" for stamp in stamps)


def test_a_date_means_the_close_of_its_session(tmp_path: Path) -> None:
    bars = read(file(tmp_path, DAILY), bar="1d", symbol="XYZ", calendar="XNYS")
    assert bars.schema == BAR_SCHEMA
    assert bars.rows() == [
        ("XYZ", datetime(2012, 11, 21, 21, tzinfo=UTC), 10.0, 12.0, 9.0, 11.0, 100.0),
        ("XYZ", datetime(2012, 11, 23, 18, tzinfo=UTC), 11.0, 13.0, 10.0, 12.0, 200.5),
        ("XYZ", datetime(2012, 11, 26, 21, tzinfo=UTC), 12.0, 12.5, 11.5, 12.25, 0.0),
    ]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(DAILY.replace(",", ";"), id="semicolons"),
        pytest.param(DAILY.replace(",", "\t"), id="tabs"),
        pytest.param(DAILY.replace(",", ", "), id="spaces after commas"),
        pytest.param(DAILY.replace("\n", "\r\n"), id="Windows line ends"),
        pytest.param("\ufeff" + DAILY, id="byte order mark"),
        pytest.param(DAILY.rstrip("\n"), id="no line end at the end"),
        pytest.param(DAILY + "\n\n", id="blank lines at the end"),
        pytest.param(DAILY.upper(), id="upper-case names"),
        pytest.param(DAILY.replace("2012-11-21", '"2012-11-21"'), id="quotes"),
        pytest.param("\n".join([DAILY.split("\n")[n] for n in (0, 3, 1, 2)]), id="any row order"),
        pytest.param(gzip.compress(DAILY.encode()), id="gz by content, not by name"),
        pytest.param(
            DAILY.replace("-21,", "-21 00:00:00,").replace("-23,", "-23 00:00:00,").replace("-26,", "-26 00:00:00,"),
            id="dates at midnight",
        ),
        pytest.param(
            DAILY.replace("-21,", "-21T00:00-05:00,")
            .replace("-23,", "-23T00:00-05:00,")
            .replace("-26,", "-26T00:00-05:00,"),
            id="dates at midnight with an offset",
        ),
    ],
)
def test_ways_to_write_the_same_bars_read_the_same(tmp_path: Path, content: str | bytes) -> None:
    plain = read(file(tmp_path, DAILY), bar="1d", symbol="XYZ", calendar="XNYS")
    other = read(file(tmp_path, content, "other"), bar="1d", symbol="XYZ", calendar="XNYS")
    assert other.equals(plain)


def test_columns_are_taken_by_whole_name_so_adjusted_prices_are_never_mixed_in(tmp_path: Path) -> None:
    content = "Adj Close,Adj. Open,Volume,Low,Open,Date,High,Close,Adj. Volume\n1,2,300,9,10,2024-03-14,12,11,4\n"
    bars = read(file(tmp_path, content), bar="1d", symbol="XYZ", calendar="XNYS")
    assert bars.row(0)[2:] == (10.0, 12.0, 9.0, 11.0, 300.0)
    options = sources.Options(bar="1d", symbol="XYZ", calendar="XNYS")
    notes = sources.stage(file(tmp_path, content), options, tmp_path).notes
    assert "the close is 'Close', taken as traded; 'Adj Close' is left out" in notes
    only_adjusted = content.replace(",Close", ",Settle")
    with pytest.raises(DataError, match="no column close among 'Adj Close'"):
        read(file(tmp_path, only_adjusted), bar="1d", symbol="XYZ", calendar="XNYS")


def test_an_open_stamp_gains_the_length_of_the_bar_and_a_close_stamp_is_kept(tmp_path: Path) -> None:
    path = file(tmp_path, MINUTES)
    half_past = datetime(2024, 3, 8, 20, 30, tzinfo=UTC)
    of_open = read(path, bar="1m", symbol="XYZ", stamp="open", tz="America/New_York")
    of_close = read(path, bar="1m", symbol="XYZ", stamp="close", tz="America/New_York")
    assert of_close["ts"].to_list() == [half_past, half_past + timedelta(minutes=1)]
    assert of_open["ts"].to_list() == [half_past + timedelta(minutes=1), half_past + timedelta(minutes=2)]


@pytest.mark.parametrize(
    "written",
    ["2024-03-08T15:30:00Z", "2024-03-08 16:30:00.000+01:00", "2024-03-08T10:30-0500", "2024-03-08 21:00+0530"],
)
def test_an_offset_is_honoured(tmp_path: Path, written: str) -> None:
    bars = read(file(tmp_path, minutes(written)), bar="1m", symbol="XYZ", stamp="close")
    assert bars["ts"].to_list() == [datetime(2024, 3, 8, 15, 30, tzinfo=UTC)]


def test_local_times_follow_the_clock_change_of_their_zone(tmp_path: Path) -> None:
    content = minutes("2024-03-08 16:00", "2024-03-11 16:00")
    bars = read(file(tmp_path, content), bar="1h", symbol="XYZ", stamp="close", tz="America/New_York")
    assert bars["ts"].dt.hour().to_list() == [21, 20]


def test_local_hours_that_come_twice_or_never_are_refused(tmp_path: Path) -> None:
    for stamp, fault in (
        ("2024-11-03 01:30", "'? comes twice in the zone"),
        ("2024-03-10 02:30", " does not exist in"),
    ):
        path = file(tmp_path, minutes("2024-02-01 10:00", stamp))
        with pytest.raises(DataError, match=f"prices.csv, line 3.*: '?{stamp}:00{fault} America/New_York"):
            read(path, bar="1h", symbol="XYZ", stamp="open", tz="America/New_York")
        assert len(read(path, bar="1h", symbol="XYZ", stamp="open", tz="UTC")) == 2


def test_a_file_of_many_symbols_gives_all_or_the_one_asked_for(tmp_path: Path) -> None:
    content = "Ticker,date,open,high,low,close,volume\n" + "".join(
        f"{symbol},2024-03-1{day},{day},{day},{day},{day},1\n" for symbol in ("IBM", "AAPL") for day in (4, 5)
    )
    path = file(tmp_path, content)
    both = read(path, bar="1d", calendar="XNYS")
    assert both.select("symbol", "open").rows() == [("AAPL", 4.0), ("AAPL", 5.0), ("IBM", 4.0), ("IBM", 5.0)]
    assert read(path, bar="1d", calendar="XNYS", symbol="IBM").equals(both.tail(2))
    with pytest.raises(DataError, match="unknown symbol 'APL'; known: AAPL, IBM; did you mean 'AAPL'"):
        read(path, bar="1d", calendar="XNYS", symbol="APL")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is empty", id="nothing"),
        pytest.param("Date,Open,High,Low,Close,Volume\n", "has a header and no rows", id="no rows"),
        pytest.param("hello\nworld\n", "line 1: 'hello' is no header of several columns", id="one column"),
        pytest.param(
            DAILY.partition("\n")[2],
            r"no header names the columns .*--columns ts,open,.*3 row\(s\) are too few to tell",
            id="no header",
        ),
        pytest.param(
            DAILY.replace("Date", "Größe").encode("latin1"), r"is no UTF-8 text \(.* at byte 2\)", id="another encoding"
        ),
        pytest.param(gzip.compress(DAILY.encode())[:-12], "is damaged gz", id="gz cut short"),
        pytest.param(b"PK\x03\x04....", "is damaged zip", id="zip"),
        pytest.param(b"\x80\x04\x95....", "is a pickle, which is never loaded", id="pickle"),
        pytest.param(DAILY.replace("Volume", "Shares"), "no column volume among", id="a column short"),
        pytest.param(
            DAILY.replace("Volume", "open"),
            "columns 'Open', 'open' .2, 6. may each be the open; choose one with --columns open=NAME",
            id="a name in two cases",
        ),
        pytest.param(
            DAILY.replace("Volume", "Open"), "columns 'Open', 'Open' .2, 6. may each be the open", id="a name twice"
        ),
        pytest.param(
            DAILY.replace("Volume", "Datetime"),
            "columns 'Date', 'Datetime' .* may each be the ts",
            id="two time columns",
        ),
        pytest.param(
            DAILY.replace("11,100", "11"),
            r"line 2: 5 field\(s\) where the header .* 6.*1 of 3 rows",
            id="a field short",
        ),
        pytest.param(
            DAILY.replace("11,100", "11,100,7"),
            r"line 2: 7 field\(s\) where the header .* 6.*1 of 3 rows",
            id="a field more",
        ),
        pytest.param(DAILY.replace("10,12,9", '"10,12,9'), r"line 2: 2 field\(s\) where", id="a quote left open"),
        pytest.param(
            DAILY.replace("10,12,9", '"1\n0",12,9'),
            r"line 2: 2 field\(s\) where.*2 of 4 rows",
            id="a line break in a field",
        ),
        pytest.param(DAILY.replace(",9,", ",,"), r"line 2 \(2012-11-21\): low is empty; 1 of 3", id="an empty price"),
        pytest.param(DAILY.replace(",9,", ",null,"), r"line 2 .*: low is empty \(null\); 1 of 3 rows", id="a word"),
        pytest.param(
            DAILY.replace(",9,", ",nan,"), r"line 2 .*: low is empty \(nan|NaN\); 1 of 3 rows", id="not a number"
        ),
        pytest.param(DAILY.replace(",9,", ",1e999,"), "line 2 .*: low .* is no number; 1 of 3 rows", id="infinite"),
        pytest.param(
            DAILY.replace(",", ";").replace(".5", ",5"),
            "line 4: '12,5' has a decimal comma, and .*, line 4: '12.25' a decimal point; .*--decimal",
            id="decimal comma",
        ),
        pytest.param(
            DAILY.replace("2012-11-23", "23.11.2012"),
            "line 3 .*: time 23.11.2012 is none, or not written as",
            id="another date",
        ),
        pytest.param(
            DAILY.replace("2012-11-23", "2012-11-23 16:00"),
            "line 2 .*: time 2012-11-21 is none, or not written as .*2 of 3 rows",
            id="mixed stamps",
        ),
        pytest.param(DAILY.replace("2012-11-23", "2012-11-31"), "line 3 .*: time 2012-11-31 is none", id="no such day"),
        pytest.param(
            DAILY.replace("2012-11-23", "2012-11-22"), "line 3 .*: 2012-11-22 is no session of XNYS", id="a holiday"
        ),
        pytest.param(
            DAILY.replace("2012-11-23", "0001-01-01"), "calendar XNYS from 0001-01-01", id="a year no calendar has"
        ),
        pytest.param(DAILY.replace("2012-11-23", ""), r"line 3: time \(empty\) is none", id="no date"),
        pytest.param(
            DAILY.replace("2012-11-23", "2012-11-21"),
            r"lines 2 and 3 \(XYZ at 2012-11-21 21:00Z\) are duplicates with different values.*--keep first\|last",
            id="a day twice",
        ),
        pytest.param(
            DAILY.replace("11,13,10", "11,11.5,10"),
            "line 3 .2012-11-23.: close above the high: open 11.0 high 11.5 low 10.0 close 12.0; 1 of 3 rows",
            id="close above high",
        ),
        pytest.param(
            DAILY.replace("200.5", "-1"), "line 3 .2012-11-23.: negative volume -1.0; 1 of 3 rows", id="negative volume"
        ),
    ],
)
def test_what_is_not_understood_is_refused_with_file_and_place(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = file(tmp_path, content)
    with pytest.raises(DataError, match=message) as refusal:
        read(path, bar="1d", symbol="XYZ", calendar="XNYS")
    assert str(refusal.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        pytest.param(
            DAILY,
            {"calendar": None},
            "dates do not say when a bar was complete: name the exchange .* --calendar XNYS, or the zone",
            id="no calendar",
        ),
        pytest.param(DAILY, {"calendar": "NYSE!"}, "unknown calendar 'NYSE!'", id="unknown calendar"),
        pytest.param(
            DAILY,
            {"tz": "UTC"},
            "--tz UTC beside --calendar XNYS of America/New_York; leave --tz out",
            id="a zone for dates",
        ),
        pytest.param(DAILY, {"date": "2024-03-14"}, "--date 2024-03-14 has no effect on times", id="a day for dates"),
        pytest.param(DAILY, {"bar": "5m"}, "cannot place bars of 5m; use --bar 1d", id="dates for minutes"),
        pytest.param(DAILY, {"symbol": None}, "whose bars these are; name it with --symbol", id="no symbol"),
        pytest.param(DAILY, {"symbol": "X\tY"}, r"--symbol 'X\\tY'; expected a letter", id="no possible symbol"),
        pytest.param(DAILY, {"bar": "daily"}, "bar = 'daily'; expected", id="no bar length"),
        pytest.param(MINUTES, {}, r"--stamp open\|close; times such as .* --tz", id="neither stamp nor zone"),
        pytest.param(MINUTES, {"calendar": None, "bar": "1m", "tz": "UTC"}, r"--stamp open\|close", id="no stamp"),
        pytest.param(
            MINUTES,
            {"calendar": None, "bar": "1m", "stamp": "end"},
            "--stamp 'end'; expected open or close",
            id="no such stamp",
        ),
        pytest.param(
            MINUTES,
            {"calendar": None, "bar": "1m", "stamp": "open"},
            "times such as '2024-03-08 15:30' have no offset and name no zone; .*--tz",
            id="no zone",
        ),
        pytest.param(
            MINUTES,
            {"calendar": None, "bar": "1m", "stamp": "open", "tz": "New York"},
            "--tz 'New York'; expected a zone name",
            id="no such zone",
        ),
        pytest.param(
            MINUTES,
            {"calendar": None, "bar": "5m", "stamp": "open", "tz": "UTC"},
            "line 3, XYZ at 2024-03-08 15:31:00Z is 0:01:00 after .* less than a bar of 5m",
            id="bars closer than their length",
        ),
        pytest.param(
            minutes("2024-03-08T15:30Z"),
            {"calendar": None, "bar": "1m", "stamp": "open", "tz": "Asia/Tokyo"},
            "--tz Asia/Tokyo has no effect on times with an offset",
            id="a zone beside an offset",
        ),
        pytest.param(
            minutes("2024-03-08T25:30Z"),
            {"calendar": None, "bar": "1m", "stamp": "open"},
            "line 2 .*: time 2024-03-08T25:30Z is none",
            id="hour 25",
        ),
        pytest.param(
            minutes("17099118"),
            {"calendar": None, "bar": "1m", "stamp": "open"},
            "'17099118', are milliseconds since midnight .*--date-format",
            id="numbers that are no epoch",
        ),
    ],
)
def test_an_option_that_is_missing_wrong_or_without_effect_is_refused(
    tmp_path: Path, content: str, options: dict[str, str], message: str
) -> None:
    path = file(tmp_path, content)
    with pytest.raises(DataError, match=message):
        read(path, **{"bar": "1d", "symbol": "XYZ", "calendar": "XNYS", **options})


@pytest.mark.parametrize("stamp", ["open", "close"])
def test_bars_longer_than_declared_are_refused_and_bars_with_gaps_are_not(tmp_path: Path, stamp: str) -> None:
    """Taken for a bar of 1m, one of 5m stamped at its open would be known four minutes before it closes."""
    options = {"bar": "1m", "symbol": "XYZ", "stamp": stamp, "tz": "UTC"}

    def at(starts: list[int]) -> Path:
        return file(tmp_path, minutes(*(f"2024-03-08 {15 + m // 60}:{m % 60:02d}" for m in starts)))

    with pytest.raises(DataError, match=r"all 24 gaps between bars are multiples of 0:05:00, more than a bar of 1m"):
        read(at([5 * i for i in range(20)] + [5 * i for i in range(30, 35)]), **options)
    assert len(read(at([5 * i for i in range(24)] + [118]), **options)) == 25
    assert len(read(at([0, 5, 10]), **options)) == 3


def test_symbols_that_are_missing_or_impossible_are_refused(tmp_path: Path) -> None:
    for symbol in ("", "A'B", "../x", "A" * 65):
        content = f"symbol,date,open,high,low,close,volume\nIBM,2024-03-14,1,1,1,1,1\n{symbol},2024-03-15,1,1,1,1,1\n"
        with pytest.raises(DataError, match=r"line 3 .*: symbol .*; expected a letter, a digit"):
            read(file(tmp_path, content), bar="1d", calendar="XNYS")


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.csv cannot be read: No such file"):
        read(tmp_path / "nowhere.csv", bar="1d")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read(tmp_path, bar="1d")


def test_events_of_a_file_carry_the_close_of_their_session(tmp_path: Path) -> None:
    content = "symbol,session,kind,value\nIBM,2012-11-23,dividend,0.85\nAAPL,2012-11-26,split,2\n"
    events = sources.read_events(file(tmp_path, content), calendar="XNYS")
    assert events.schema == EVENT_SCHEMA
    assert events.rows() == [
        ("AAPL", datetime(2012, 11, 26, 21, tzinfo=UTC), "split", 2.0),
        ("IBM", datetime(2012, 11, 23, 18, tzinfo=UTC), "dividend", 0.85),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("IBM,2012-11-26,merger,1", "line 3: kind 'merger'; expected split or dividend"),
        ("IBM,2012-11-26,split,0", "line 3: value '0.0'; expected new shares per old share"),
        ("IBM,2012-11-26,split,", r"line 3: value \(empty\); expected a number"),
        ("IBM,2012-11-22,split,2", "line 3: '2012-11-22' is no session"),
        ("IBM,2012-11-23,dividend,1", "lines 2 and 3 are duplicates"),
        ("IBM,2012-11-23T10:00Z,dividend,1", "line 3: .* written like the first"),
        (",2012-11-26,split,2", "line 3: symbol"),
    ],
)
def test_events_that_are_not_understood_are_refused(tmp_path: Path, row: str, message: str) -> None:
    path = file(tmp_path, f"symbol,session,kind,value\nIBM,2012-11-23,dividend,0.85\n{row}\n")
    with pytest.raises(DataError, match=message):
        sources.read_events(path, calendar="XNYS")


def test_event_stamps_with_a_time_of_day_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "symbol,ts,kind,value\nIBM,2012-11-23T18:00Z,dividend,0.85\n")
    with pytest.raises(DataError, match="ts holds times"):
        sources.read_events(path, calendar="XNYS")


def test_bars_do_not_depend_on_polars_reading_in_parallel(tmp_path: Path) -> None:
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    stamps = [begin + timedelta(minutes=n) for n in range(30_000)]
    content = minutes(*(stamp.isoformat() for stamp in reversed(stamps)))
    bars = read(file(tmp_path, content), bar="1m", symbol="XYZ", stamp="close")
    assert bars["ts"].equals(pl.Series("ts", stamps, dtype=BAR_SCHEMA["ts"]))
