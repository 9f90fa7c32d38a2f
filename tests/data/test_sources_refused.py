"""Files with a fault: each is refused with its name, the place, the fault and the option that would help."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from read_files import read, understood
from test_sources_varieties import CSV, DAILY, HEADER, LINES, MINUTE, MINUTES, NAMES, RECORDS, ROWS, days, file, minutes

from foxflow.errors import DataError
from foxflow.sources import delimited

BY_MINUTE = minutes("%Y-%m-%d %H:%M")
MINUTE_LINES = BY_MINUTE.strip().split("\n")
WEEKS = [datetime(2023, 1, 2, tzinfo=UTC) + timedelta(days=7 * i) for i in range(30)]


def with_line(at: int, line: str, *, instead: bool = False) -> str:
    """Return the daily file with one more line (or another one) as line `at`."""
    lines = [NAMES, *LINES]
    return "\n".join([*lines[: at - 1], line, *lines[at - 1 + instead :]]) + "\n"


def weekly(*more: datetime) -> str:
    return HEADER + "".join(f"{day:%Y-%m-%d},1,1,1,1,1\n" for day in (*WEEKS, *more))


# Days up to the twelfth with day and month in each other's place, as where a spreadsheet took them for dates.
SWAPPED = HEADER + "".join(
    f"{f'02/{d:02d}' if d <= 12 else f'{d}/02'}/2024,{o},{h},{low},{c},{v}\n" for d, o, h, low, c, v in ROWS
)
OTHER_ORDER = "\n".join([NAMES, *LINES[:6], "Date,Close,High,Low,Open,Volume", *LINES[6:]]) + "\n"
JOINED = "\n".join([NAMES, *LINES[:6], *(line.replace(",", ";") for line in [NAMES, *LINES[6:]])]) + "\n"
DAILY_FAULTS: list[tuple[str, str | bytes, dict[str, Any], str]] = [
    ("header in another order", OTHER_ORDER, {}, r"line 8 \(Date\): time Date is none"),
    ("another separator", JOINED, {}, r"line 8: 1 field\(s\) where the header .* 6, 'Date;Open.*7 of 13 rows"),
    ("cut in a date", CSV[: CSV.rindex("\n", 0, -1) + 6], {}, r"line 13: 1 field\(s\).*'2024-'"),
    ("cut in a price", CSV[: CSV.rindex("\n", 0, -1) + 16], {}, r"line 13: 2 field\(s\)"),
    ("cut gz", gzip.compress(CSV.encode())[:-20], {}, "is damaged gz"),
    ("zero bytes", CSV.encode()[:100] + b"\0\0" + CSV.encode()[100:], {}, "holds zero bytes"),
    ("a row of zeros", with_line(5, "2024-02-06,0,0,0,0,0", instead=True), {}, r"line 5 \(2024-02-06\): a price of zero; 1 of"),
    ("a low of zero", with_line(5, "2024-02-06,101.23,101.63,0,100.76,14399", instead=True), {}, "line 5 .*: a price of zero"),
    ("the future", with_line(14, "2091-02-05,1,1,1,1,1"), {"calendar": None, "tz": "UTC"}, r"line 14 .*: 2091-02-06 00:00Z lies in the future"),
    ("a year before the first", CSV.replace("2024-02-16", "-2024-02-16"), {}, "line 13 .*: time -2024-02-16 is none"),
    ("a weekend", with_line(5, "2024-02-03,100,101,99,100,5"), {}, r"line 5 \(2024-02-03\): 2024-02-03 is no session of XNYS"),
    ("no such day", CSV.replace("2024-02", "2023-02").replace("2023-02-16", "2023-02-29"), {"calendar": None, "tz": "UTC"}, "line 13 .2023-02-29.: time"),
    ("a dividend", with_line(5, "2024-02-05,0.24 Dividend,,,,"), {}, "line 5 .*: open 0.24 Dividend is no number; 1 of 13"),
    ("a dividend that is short", days("%Y-%m-%d").replace("2024-02-06,", "2024-02-05,0.24 Dividend\n2024-02-06,"), {}, r"line 5: 2 field\(s\)"),
    ("a halt", CSV.replace("14399", "halted"), {}, "line 5 .*: volume halted is no number"),
    ("32nds", days("%Y-%m-%d", "{d},99'16,101'00,99'16,100'16,{v}"), {}, "line 2 .*: open 99'16 is no number; 12 of 12"),
    ("32nds and eighths", days("%Y-%m-%d", "{d},99'160,101'000,99'160,100'160,{v}"), {}, "32nds.*--decimal"),
    ("grouped points", days("%Y-%m-%d", "{d};38112;38200;38100;38150;10.012", header=NAMES.replace(",", ";")), {}, "'10.012' .*--decimal"),
    ("grouped commas", days("%Y-%m-%d", "{d};38112;38200;38100;38150;10,012", header=NAMES.replace(",", ";")), {}, "line 2: '10,012' .*--decimal"),
    ("both marks", with_line(5, '2024-02-06,"101,5",101.63,100.46,100.76,1', instead=True), {}, "line 5: '101,5' has a decimal comma, and .*, line 2: '99.93'"),
    ("high and low in each other's place", days("%Y-%m-%d", "{d},{o},{l},{h},{c},{v}"), {}, "12 of 12 rows are bad"),
    ("either order of day and month", "\n".join(days("%d/%m/%Y").split("\n")[:8]) + "\n", {}, "can be read as dmy or mdy .*--date-format"),
    ("both orders", days("%d/%m/%Y").replace("16/02", "02/16"), {}, r"line 10 \('13/02/2024'\) can only be day first, line 13 .* only month first"),
    ("a spreadsheet's days", SWAPPED, {}, r"line 2 .* day and month changed places"),
    ("days after others written otherwise", CSV.replace("2024-02-16", "16/02/2024"), {}, "line 13 .*: time 16/02/2024 is none"),
    ("a day twice", with_line(13, LINES[10].replace("66452", "1")), {}, r"lines 12 and 13 .* are duplicates .*--keep first\|last"),
    ("two columns of one name", CSV.replace("\n", ",1\n").replace("Volume,1", "Volume,close"), {}, "columns 'Close', 'close' .* --columns close=NAME"),
    ("ticks and lots", CSV.replace("\n", ",1\n").replace("Volume,1", "TickVol,Vol"), {}, "may each be the volume"),
    ("no volume", "\n".join(line.rsplit(",", 1)[0] for line in CSV.strip().split("\n")) + "\n", {}, "no column volume .*--columns volume=none"),
    ("two left without a header", CSV.removeprefix(HEADER).replace("\n", ",7\n"), {}, "line 1: no header .*--columns ts,open,high,low,close,volume,-: 2 columns are left"),
    ("open and close that nothing tells", "".join(f"2024-02-{d:02d},1,2,1,1,5\n" for d, *_ in ROWS), {}, "nothing tells the open from the close"),
    ("close before open, without a header", days("%Y-%m-%d", "{d},{c},{h},{l},{o},{v}", header=""), {}, "nothing tells the open from the close"),
    ("rows of other widths above", "2024-01-31,1,1,1,1\n" + CSV.removeprefix(HEADER), {}, "line 1: 5 fields, and most rows below have 6"),
    ("an unknown column", CSV.replace("Close", "Settle"), {}, "no column close among .*'Settle'.*--columns close=NAME"),
    ("symbols side by side", f"Price,{NAMES[5:]},Close\nTicker,A,A,A,A,A,B\nDate,,,,,,\n" + "".join(f"{line},1\n" for line in LINES), {"symbol": None}, r"several symbols side by side \(A, B\)"),
    ("weeks", weekly(), {"calendar": None, "tz": "UTC"}, "7 days apart; .*--bar 7d"),
    ("weeks and a part of one", weekly(WEEKS[-1] + timedelta(days=3)), {"calendar": None, "tz": "UTC"}, "7 days apart; .*--bar 7d"),
    ("a part of a week", weekly(WEEKS[-1] + timedelta(days=3)), {"calendar": None, "tz": "UTC", "bar": "7d", "stamp": "open"}, "line 32, .* less than a bar of 7d"),
    ("weeks taken for days", weekly(), {"calendar": None, "tz": "UTC", "bar": "1d"}, "more than a bar of 1d"),
    ("an answer of an error", json.dumps({"Note": "25 requests a day"}), {}, "no column ts"),
    ("a web page", "<!DOCTYPE html><html></html>", {}, "is a web page"),
]  # fmt: skip
MINUTE_FAULTS: list[tuple[str, str | bytes, dict[str, Any], str]] = [
    ("a bar off the minute", BY_MINUTE + "2024-02-01 09:43:01,1,1,1,1,1\n2024-02-01 09:44,1,1,1,1,1\n", {}, "line 14 .*: time|line 1[45], .* a bar of 1m"),
    ("a day among minutes", "\n".join([*MINUTE_LINES[:5], "2024-02-01,1,1,1,1,1", *MINUTE_LINES[5:]]) + "\n", {}, r"line 6 \(2024-02-01\): time"),
    ("epoch zero", minutes("%s") + "0,1,1,1,1,1\n", {"tz": None}, "line 14: time '0' is no date"),
    ("rounded nanoseconds", minutes("1.7e+18"), {"tz": None}, r"line 2 .and 11 more.: '1.7e\+18' is no date"),
    ("an abbreviated zone", minutes("%Y-%m-%d %H:%M:%S EST"), {}, "EST' is no date or time .*--date-format"),
    ("hours or minutes", minutes("%Y-%m-%d,%-M", header=f"Date,Time,{NAMES[5:]}").replace(",3", ",1").replace(",4", ",1"), {}, "may be hours or minutes|is no number|no date"),
    ("spring", minutes("%Y-%m-%d %H:%M").replace("2024-02-01 09", "2024-03-10 02"), {"tz": "America/New_York"}, "line 2 .*2024-03-10 02:31:00 does not exist in America/New_York.*12 of 12"),
    ("one hour of two", minutes("%Y-%m-%d %H:%M").replace("2024-02-01 09", "2024-11-03 01"), {"tz": "America/New_York"}, "line 2: '2024-11-03 01:31:00' comes twice"),
    ("a zone beside offsets", minutes("%Y-%m-%dT%H:%MZ"), {"tz": "Asia/Tokyo"}, "--tz Asia/Tokyo has no effect"),
    ("a stamp against a name", minutes("%Y-%m-%dT%H:%MZ", header=f"open_time,{NAMES[5:]}"), {"tz": None}, "a bar's open, against --stamp close"),
    ("a record without a low", "\n".join(json.dumps({k: v for k, v in r.items() if k != "low" or i != 5}) for i, r in enumerate(RECORDS)), {"tz": None}, r"record 6 .*: low is empty"),
    ("NaN in JSON", "\n".join(json.dumps(r).replace("101.63", "NaN") for r in RECORDS), {"tz": None}, r"record 4 .*: high is empty \(NaN\)"),
    ("a line cut off", "\n".join(map(json.dumps, RECORDS))[:-30], {"tz": None}, "line 12: .* is no JSON"),
    ("an array cut off", json.dumps(RECORDS)[:-30], {"tz": None}, "is no JSON .*perhaps cut off"),
    ("one row", "\n".join(MINUTE_LINES[:2]) + "\n", {}, "does not tell how long a bar is; .*--bar"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "options", "says"), [x[1:] for x in DAILY_FAULTS], ids=[x[0] for x in DAILY_FAULTS]
)
def test_a_file_of_days_with_a_fault_is_refused_by_name(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], says: str
) -> None:
    path = file(tmp_path, content)
    with pytest.raises(DataError, match=says) as refusal:
        read(path, **{**DAILY, **options})
    assert str(refusal.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "options", "says"), [x[1:] for x in MINUTE_FAULTS], ids=[x[0] for x in MINUTE_FAULTS]
)
def test_a_file_of_minutes_with_a_fault_is_refused_by_name(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], says: str
) -> None:
    path = file(tmp_path, content)
    with pytest.raises(DataError, match=says) as refusal:
        read(path, **{**MINUTE, **options})
    assert str(refusal.value).startswith(str(path))


def test_bad_rows_are_put_aside_when_asked_and_stay_countable(tmp_path: Path) -> None:
    path = file(tmp_path, with_line(5, "2024-02-05,0.24 Dividend,,,,") + "2091-02-05,1,1,1,1,1\n2024-02-20,0,0,0,0,0\n")
    found = understood(path, symbol="XYZ", tz="UTC", quarantine=True)
    assert found["rows"] == 12
    assert [(row["number"], row["kind"]) for row in found["dropped"]] == [(5, "bad"), (15, "bad"), (16, "bad")]
    assert "3 line(s) that are no bars put aside: 5 (2024-02-05), 15 (2091-02-05), 16 (2024-02-20)" in found["warnings"]


def test_what_is_in_doubt_is_said(tmp_path: Path) -> None:
    content = f"symbol,{HEADER}" + "".join(
        f"{'XYZ' if i % 2 else 'xyz'},{line.rsplit(',', 1)[0]},{2**53 + 1}\n" for i, line in enumerate(LINES)
    )
    said = understood(file(tmp_path, content), calendar="XNYS")["warnings"]
    assert "12 volume(s) of 2^53 or more are not exact to the last digit" in said
    assert "symbols XYZ and xyz differ only in case, and are taken for two" in said


@pytest.mark.parametrize("newest_first", [False, True])
def test_quarters_of_a_repeated_hour_are_told_apart_by_their_order(tmp_path: Path, newest_first: bool) -> None:
    instants = pl.datetime_range(
        datetime(2024, 11, 3, 4, tzinfo=UTC), datetime(2024, 11, 3, 8, tzinfo=UTC), "15m", eager=True
    )
    written = instants.dt.convert_time_zone("America/New_York").dt.to_string("%Y-%m-%d %H:%M").to_list()
    rows = [f"{when},1,1,1,1,{i}" for i, when in enumerate(written)]
    path = file(tmp_path, "\n".join([f"time,{NAMES[5:]}", *(rows[::-1] if newest_first else rows)]) + "\n")
    bars = read(path, symbol="XYZ", stamp="close", tz="America/New_York")
    assert bars["ts"].to_list() == instants.to_list()
    assert bars["volume"].to_list() == list(range(17))


def test_hours_of_a_day_end_at_twenty_four(tmp_path: Path) -> None:
    rows = [f"2024-02-{1 + i // 24:02d},{i % 24 + 1},1,1,1,1,{i}" for i in range(48)]
    bars = read(file(tmp_path, "\n".join([f"Date,Hour,{NAMES[5:]}", *rows]) + "\n"), **MINUTE)
    assert bars["ts"][0] == datetime(2024, 2, 1, 1, tzinfo=UTC)
    assert bars["ts"].diff().drop_nulls().unique().to_list() == [timedelta(hours=1)]


def test_minutes_of_the_fixture_are_twelve() -> None:
    assert [t.minute for t, *_ in MINUTES] == list(range(31, 43))


def test_what_a_point_means_holds_for_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "BLOCK", 256)
    start = datetime(2024, 2, 1, tzinfo=UTC)
    prices = ["38112,5;38200;38100;38150"] * 8 + ["38112;38200;38100;38150"] * 40
    rows = [f"{start + timedelta(days=i):%Y-%m-%d};{p};10.012" for i, p in enumerate(prices)]
    bars = read(file(tmp_path, "\n".join([NAMES.replace(",", ";"), *rows]) + "\n"), symbol="XYZ", tz="UTC")
    assert bars["open"].to_list() == [38112.5] * 8 + [38112.0] * 40
    assert bars["volume"].unique().to_list() == [10012.0]
