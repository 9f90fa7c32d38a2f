"""Files as platforms and people write them: each reads as the same bars and says what was done, or is refused by name."""

import gzip
import io
import json
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from read_files import read, understood

# Twelve sessions of New York: day of February 2024, open, high, low, close, volume.
ROWS = [
    (1, 99.93, 101.0, 99.8, 100.62, 65937),
    (2, 100.67, 100.9, 100.41, 100.5, 64944),
    (5, 100.52, 101.4, 100.2, 101.25, 1276),
    (6, 101.23, 101.63, 100.46, 100.76, 14399),
    (7, 100.84, 101.1, 99.63, 99.9, 50965),
    (8, 99.94, 101.2, 99.9, 101.02, 58394),
    (9, 100.97, 101.5, 100.9, 101.2, 61241),
    (12, 101.17, 102.2, 101.1, 101.91, 85186),
    (13, 101.94, 102.5, 101.8, 102.3, 44607),
    (14, 102.28, 103.4, 102.0, 103.27, 67547),
    (15, 103.3, 103.9, 103.1, 103.7, 66452),
    (16, 103.71, 104.2, 103.5, 104.15, 32816),
]
DAILY = {"symbol": "XYZ", "calendar": "XNYS"}
MINUTE = {"symbol": "XYZ", "stamp": "close", "tz": "UTC"}
NAMES = "Date,Open,High,Low,Close,Volume"
HEADER = f"{NAMES}\n"
LINES = [f"2024-02-{d:02d},{o},{h},{low},{c},{v}" for d, o, h, low, c, v in ROWS]
CSV = HEADER + "".join(f"{line}\n" for line in LINES)
# The same rows a minute apart, from 09:31.
MINUTES = [(datetime(2024, 2, 1, 9, 31, tzinfo=UTC) + timedelta(minutes=i), *row[1:]) for i, row in enumerate(ROWS)]


def days(form: str, line: str = "{d},{o},{h},{l},{c},{v}", *, header: str = NAMES, newest_first: bool = False) -> str:
    rows = [
        line.format(d=datetime(2024, 2, d, tzinfo=UTC).strftime(form), o=o, h=h, l=low, c=c, v=v)
        for d, o, h, low, c, v in ROWS
    ]
    return "\n".join([header, *(rows[::-1] if newest_first else rows)]).lstrip("\n") + "\n"


def minutes(form: str, line: str = "{d},{o},{h},{l},{c},{v}", *, header: str = f"time,{NAMES[5:]}") -> str:
    rows = [line.format(d=t.strftime(form), o=o, h=h, l=low, c=c, v=v) for t, o, h, low, c, v in MINUTES]
    return "\n".join([header, *rows]).lstrip("\n") + "\n"


def zipped(members: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def file(folder: Path, content: str | bytes) -> Path:
    (folder / "bars").write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / "bars"


GERMAN = days("%d.%m.%Y", "{d};{o};{h};{l};{c};{v}", header="").replace(".", ",").replace(",02,2024", ".02.2024")
EPOCH = [int(t.timestamp()) for t, *_ in MINUTES]
RECORDS = [
    {"ts": t.isoformat(), "open": o, "high": h, "low": low, "close": c, "volume": v} for t, o, h, low, c, v in MINUTES
]
NASDAQ = days(
    "%m/%d/%Y", "{d},${c},{v},${o},${h},${l}", header="Date,Close/Last,Volume,Open,High,Low", newest_first=True
)
ALPHA: dict[str, dict[str, Any]] = {"Meta Data": {"2. Symbol": "XYZ"}, "Time Series (Daily)": {}}
for _d, _o, _h, _l, _c, _v in ROWS:
    _names = ("1. open", "2. high", "3. low", "4. close", "5. volume")
    ALPHA["Time Series (Daily)"][f"2024-02-{_d:02d}"] = dict(zip(_names, map(str, (_o, _h, _l, _c, _v)), strict=True))

# Name, content, options beside the usual ones, what is said of it.
SAME_DAYS: list[tuple[str, str | bytes, dict[str, Any], tuple[str, ...]]] = [
    ("day first", days("%d/%m/%Y"), {}, ("day first", "line 10")),
    ("month first, two digits", days("%m/%d/%y"), {}, ("month first",)),
    ("month named", days("%d-%b-%Y"), {}, ()),
    ("month named first", days("%b %d, %Y", '"{d}",{o},{h},{l},{c},{v}'), {}, ()),
    ("weekday", days("%a %d %b %Y"), {}, ()),
    ("Nasdaq", NASDAQ, {}, ("newest first", "month first")),
    (
        "MetaTrader",
        days("%Y.%m.%d", "{d}\t{o}\t{h}\t{l}\t{c}\t{v}", header="<DATE>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<VOL>"),
        {},
        ("tab",),
    ),
    ("Excel's days", HEADER + "".join(f"{45322 + r[0]},{','.join(map(str, r[1:]))}\n" for r in ROWS), {}, ("Excel",)),
    ("Excel's separator", f"sep=;\n{CSV.replace(',', ';')}", {}, ("semicolon",)),
    ("decimal comma", HEADER.replace(",", ";") + GERMAN, {}, ("day first", "semicolon")),
    ("grouped volume", days("%Y-%m-%d", '{d},{o},{h},{l},{c},"{v:,}"'), {}, ()),
    ("volume in thousands", days("%Y-%m-%d", "{d},{o},{h},{l},{c},{v}e0"), {}, ()),
    ("signs", days("%Y-%m-%d", "{d},+{o},+{h},+{l},+{c},{v}"), {}, ()),
    ("bars and blanks", CSV.replace(",", " | "), {}, ("bar",)),
    (
        "columns in another order",
        days("%Y-%m-%d", "{v},{l},{c},{d},{h},{o}", header="Volume,Low,Close,Date,High,Open"),
        {},
        (),
    ),
    ("all quoted", "\n".join(f'"{x}"' for x in CSV.strip().replace(",", '","').split("\n")) + "\n", {}, ()),
    ("an unnamed index", CSV.replace("Date,", ","), {}, ()),
    ("numbered rows", "\n".join([f",{NAMES}", *(f"{i},{line}" for i, line in enumerate(LINES))]) + "\n", {}, ()),
    (
        "foreign words",
        CSV.replace(NAMES, "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen"),
        {},
        ("Otwarcie", "has no word that is known"),
    ),
    (
        "foreign words, named",
        CSV.replace(NAMES, "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen"),
        {
            "columns": {
                "ts": "Data",
                "open": "Otwarcie",
                "high": 3,
                "low": 4,
                "close": "Zamkniecie",
                "volume": "Wolumen",
            }
        },
        (),
    ),
    ("no header", CSV.removeprefix(HEADER), {}, ("no header: columns taken as ts, open, high, low, close, volume",)),
    (
        "titles and a footer",
        f"Security,XYZ\nCurrency,USD\n\n{CSV}Downloaded from somewhere as of 2024\n",
        {},
        ("lines 1 to 3", "line(s) below the last bar are a footer: 17"),
    ),
    (
        "the header again",
        "\n".join([NAMES, *LINES[:5], NAMES, *LINES[5:]]) + "\n",
        {},
        ("1 line(s) repeat the header: 7",),
    ),
    (
        "files joined",
        f"\ufeff{HEADER}" + "\n".join(LINES[:5]) + f"\n\ufeff{HEADER}" + "\n".join(LINES[5:]) + "\n",
        {},
        ("repeat the header: 7",),
    ),
    (
        "a comment among rows",
        "\n".join([NAMES, *LINES[:5], "# gap", *LINES[5:]]) + "\n",
        {},
        ("1 line(s) are comments: 7",),
    ),
    (
        "a row of separators",
        "\n".join([NAMES, *LINES[:5], ",,,,,", *LINES[5:]]) + "\n",
        {},
        ("without any price dropped: 7",),
    ),
    ("separators at the end", CSV.replace("\n", ",\n"), {}, ()),
    (
        "the same row twice",
        "\n".join([NAMES, *LINES[:6], *LINES[5:]]) + "\n",
        {},
        ("1 identical duplicate(s) dropped, first line 8 (as line 7)",),
    ),
    ("no line end", CSV.rstrip("\n"), {}, ("line 13, the last, has no line end",)),
    ("carriage returns alone", CSV.replace("\n", "\r"), {}, ()),
    ("UTF-16", CSV.encode("utf-16"), {}, ()),
    ("gz of gz", gzip.compress(gzip.compress(CSV.encode())), {}, ()),
    ("zst", pa.compress(CSV.encode(), codec="zstd", asbytes=True), {}, ()),
    ("zip of macOS", zipped({"__MACOSX/._bars": "\0", "bars.csv": CSV}), {}, ()),
    ("midnights of the exchange in UTC", days("%Y-%m-%dT05:00:00Z"), {}, ("midnights of America/New_York",)),
    ("JSON of Alpha Vantage", json.dumps(ALPHA, indent=1), {}, ("'Time Series (Daily)'",)),
]
SAME_MINUTES: list[tuple[str, str | bytes, dict[str, Any], tuple[str, ...]]] = [
    ("date and time", minutes("%Y.%m.%d,%H:%M", header=""), {}, ("no header: columns taken as date, time, open",)),
    ("NinjaTrader", minutes("%Y%m%d %H%M%S", header="").replace(",", ";"), {}, ("semicolon",)),
    ("digits", minutes("%Y%m%d%H%M"), {}, ()),
    ("noon and after", minutes("%m/%d/%Y %I:%M:%S %p"), {"date_format": "mdy"}, ()),
    ("a time without its zero", minutes("%Y%m%d,%-H%M", header=f"Date,Time,{NAMES[5:]}"), {}, ()),
    ("Stooq", minutes("X,1,%Y%m%d,%H%M%S", header="<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>").replace("X,1", "XYZ,1"), {}, ()),
    ("seconds", minutes("%s"), {"tz": None}, ()),
    ("milliseconds with decimals", minutes("%s000.0"), {"tz": None}, ()),
    ("nanoseconds", minutes("%s000000000"), {"tz": None}, ()),
    ("seconds, then milliseconds", "\n".join(x if i < 6 else x.replace(",", "000,", 1) for i, x in enumerate(minutes("%s").split("\n"))), {"tz": None}, ("line 7: epoch changes from s to ms",)),
    ("offsets", minutes("%Y-%m-%dT%H:%M:%S+00:00"), {"tz": None}, ()),
    ("closing and opening times", minutes("%Y-%m-%dT%H:%MZ", "{d},{o},{h},{l},{c},{v},0", header=f"close_time,{NAMES[5:]},x"), {"tz": None, "stamp": None}, ()),
    ("Dukascopy", minutes("%d.%m.%Y %H:%M:%S.000 GMT+0000", header=f"Local time,{NAMES[5:]}"), {"tz": None, "date_format": "dmy"}, ()),
    ("an hour east", "\n".join(x.replace(" 09", " 10") for x in minutes("%Y-%m-%d %H:%M GMT+0100").split("\n")), {"tz": None}, ()),
    ("dates and times with blanks", minutes("%Y/%m/%d, %H:%M:%S.000000", header=f"Date, Time, {NAMES[5:]}"), {}, ()),
    ("JSON lines", "\n".join(map(json.dumps, RECORDS)) + "\n", {"tz": None}, ()),
    ("a JSON array", json.dumps(RECORDS, indent=2), {"tz": None}, ()),
    ("a JSON object", json.dumps({"symbol": "XYZ", "bars": RECORDS}), {"tz": None}, ("'bars'",)),
    ("JSON of columns", json.dumps({"s": "ok", "t": EPOCH, **{k: [r[k] for r in RECORDS] for k in NAMES.lower().split(",")[1:]}}), {"tz": None}, ("lists",)),
    ("a symbol with blanks", minutes(" XYZ ,%Y-%m-%d %H:%M", header=f"symbol,time,{NAMES[5:]}"), {"symbol": None}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("content", "options", "says"), [x[1:] for x in SAME_DAYS], ids=[x[0] for x in SAME_DAYS])
def test_daily_bars_in_any_dress_are_the_same_and_what_was_done_is_said(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], says: tuple[str, ...]
) -> None:
    path = file(tmp_path, content)
    bars = read(path, **{**DAILY, **options})
    assert bars.rows() == [("XYZ", datetime(2024, 2, r[0], 21, tzinfo=UTC), *r[1:]) for r in ROWS]
    said = " | ".join(understood(path, **{**DAILY, **options})["warnings"])
    assert [words for words in says if words not in said] == [], said


@pytest.mark.parametrize(
    ("content", "options", "says"), [x[1:] for x in SAME_MINUTES], ids=[x[0] for x in SAME_MINUTES]
)
def test_minute_bars_in_any_dress_are_the_same_and_what_was_done_is_said(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], says: tuple[str, ...]
) -> None:
    path = file(tmp_path, content)
    bars = read(path, **{**MINUTE, **options})
    assert bars.rows() == [("XYZ", *row) for row in MINUTES]
    said = " | ".join(understood(path, **{**MINUTE, **options})["warnings"])
    assert [words for words in says if words not in said] == [], said
