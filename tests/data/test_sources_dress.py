"""Any table of bars in any dress reads back equal, or is asked about; cut off anywhere it never gives other values unsaid."""

import gzip
import random
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from read_files import read, understood

from foxflow.errors import DataError

NAMES = (
    ("Date", "Open", "High", "Low", "Close", "Volume"),
    ("<DATE>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<VOL>"),
    ("timestamp", "1. open", "2. high", "3. low", "4. close", "5. volume"),
    ("t", "o", "h", "l", "c", "v"),
)
DAY_FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d-%b-%Y", "%b %d, %Y", "%Y%m%d", "%Y-%m-%d 00:00:00", "excel")
MINUTE_FORMS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%MZ", "%d/%m/%Y %I:%M %p", "%Y%m%d%H%M%S", "s", "ms", "us", "ns")
EPOCHS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
Bar = tuple[datetime, float, float, float, float, float]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Bar], str, int]:
    """Draw bars in order, the form of their times, and the decimals of their prices."""
    form = draw(st.sampled_from(DAY_FORMS + MINUTE_FORMS))
    step = timedelta(days=1) if form in DAY_FORMS else timedelta(minutes=draw(st.sampled_from((1, 5, 60))))
    start = datetime(2001, 1, 1, tzinfo=UTC) + timedelta(days=draw(st.integers(0, 8000)))
    # Off midnight, so that no file of minutes is one of days.
    start += timedelta(0) if form in DAY_FORMS else timedelta(hours=9, minutes=30)
    decimals = draw(st.integers(0, 4))
    number, scale = random.Random(draw(st.integers(0, 10**6))), draw(st.sampled_from((5, 150, 40_000)))
    bars, close = [], scale * 10**decimals
    for i in range(draw(st.integers(12, 40))):
        opened = close
        close = max(1, opened + number.randint(-opened // 50 - 1, opened // 50 + 1))
        high, low = max(opened, close) + number.randint(0, 9), max(1, min(opened, close) - number.randint(0, 9))
        prices = (p / 10**decimals for p in (opened, high, low, close))
        bars.append(
            (start + i * step, *prices, float(number.choice((number.randint(0, 999), number.randint(0, 10**7)))))
        )
    return bars, form, decimals


@st.composite
def dresses(draw: st.DrawFn) -> dict[str, Any]:
    separator = draw(st.sampled_from((",", ";", "\t", "|")))
    decimal = draw(st.sampled_from((".", ",")))
    marks = ("", "'", "\u00a0", {".": ",", ",": "."}[decimal])
    return {
        "separator": separator,
        "decimal": decimal,
        "thousands": draw(st.sampled_from(marks)),
        "names": draw(st.sampled_from(NAMES)),
        "places": draw(st.permutations(range(6))),
        "order": draw(st.sampled_from(("oldest first", "newest first", "any"))),
        "quoted": draw(st.booleans()),
        "title": draw(st.sampled_from(("", "Prices of XYZ\n\n"))),
        "line_end": draw(st.sampled_from(("\n", "\r\n", "\r"))),
        "encoding": draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16"))),
        "packing": draw(st.sampled_from(("", "gz", "zst"))),
    }


def written(when: datetime, form: str) -> str:
    if form == "excel":
        return str((when - datetime(1899, 12, 30, tzinfo=UTC)).days)
    return f"{int(when.timestamp())}{'0' * EPOCHS[form]}" if form in EPOCHS else when.strftime(form)


def number(value: float, decimals: int, dress: dict[str, Any]) -> str:
    text = f"{value:,.{decimals}f}"
    marks: dict[str, str] = {",": dress["thousands"], ".": dress["decimal"]}
    return "".join(marks.get(c, c) for c in text)


def dressed(bars: list[Bar], form: str, decimals: int, dress: dict[str, Any]) -> bytes:
    """Return the file; columns in their places, rows in their order."""
    separator = str(dress["separator"])

    def row(fields: list[str]) -> str:
        placed = [fields[p] for p in dress["places"]]
        quoted = [f'"{f}"' if dress["quoted"] or separator in f else f for f in placed]
        return separator.join(quoted)

    rows = [
        row([written(b[0], form), *(number(p, decimals, dress) for p in b[1:5]), number(b[5], 0, dress)]) for b in bars
    ]
    if dress["order"] == "newest first":
        rows.reverse()
    elif dress["order"] == "any":
        random.Random(len(rows)).shuffle(rows)
    text = str(dress["title"]) + "\n".join([row(list(dress["names"])), *rows]) + "\n"
    line_end, encoding = str(dress["line_end"]), str(dress["encoding"])
    return text.replace("\n", line_end).encode(encoding)


def packed(content: bytes, packing: str) -> bytes:
    if packing == "zst":
        return bytes(pa.compress(content, codec="zstd", asbytes=True))
    return gzip.compress(content) if packing == "gz" else content


def options_of(form: str) -> dict[str, Any]:
    if form in DAY_FORMS:
        return {"symbol": "XYZ", "tz": "UTC"}
    is_utc = form in EPOCHS or form.endswith("Z")
    return {"symbol": "XYZ", "stamp": "close", "tz": None if is_utc else "UTC"}


def answered(e: DataError, form: str, dress: dict[str, Any]) -> dict[str, str]:
    """Return the answer to what was asked; anything else that is refused is a failure."""
    if "--decimal" in str(e):
        return {"decimal": dress["decimal"]}
    if "--date-format" in str(e) and form[:2] in ("%d", "%m"):
        return {"date_format": "dmy" if form.startswith("%d") else "mdy"}
    raise e


@given(table=tables(), dress=dresses())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_table_of_bars_in_any_dress_reads_back_equal(
    table: tuple[list[Bar], str, int], dress: dict[str, Any]
) -> None:
    bars, form, decimals = table
    # Whole prices with points between thousands are read as decimals where fields are not separated by semicolons.
    assume(not (dress["thousands"] == "." and decimals == 0 and dress["separator"] != ";"))
    options = options_of(form)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bars"
        path.write_bytes(packed(dressed(bars, form, decimals, dress), dress["packing"]))
        for _ in range(3):
            try:
                found = read(path, **options)
                break
            except DataError as e:
                options |= answered(e, form, dress)
    later = timedelta(days=1) if form in DAY_FORMS else timedelta(0)
    assert found.rows() == [("XYZ", when + later, *values) for when, *values in bars]


@given(table=tables(), dress=dresses(), at=st.floats(0, 1))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_file_cut_off_anywhere_is_refused_or_has_its_own_bars_but_for_a_last_one_that_is_named(
    table: tuple[list[Bar], str, int], dress: dict[str, Any], at: float
) -> None:
    bars, form, decimals = table
    assume(not (dress["thousands"] == "." and decimals == 0))
    options = {**options_of(form), "decimal": dress["decimal"]}
    if form[:2] in ("%d", "%m") and form[3] in ("/", ".", "m"):
        options["date_format"] = "dmy" if form.startswith("%d") else "mdy"
    whole = packed(dressed(bars, form, decimals, dress), dress["packing"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bars"
        path.write_bytes(whole[: int(at * len(whole))])
        try:
            found, said = read(path, **options), understood(path, **options)["warnings"]
        except DataError as e:
            assert str(path) in str(e)  # noqa: PT017
            return
    later = timedelta(days=1) if form in DAY_FORMS else timedelta(0)
    others = set(found.rows()) - {("XYZ", when + later, *values) for when, *values in bars}
    # The last row alone may have lost the end of its last field, and that is said.
    assert len(others) <= any("has no line end" in words for words in said)


@given(table=tables(), dress=dresses(), seed=st.integers(0, 10**9))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_file_with_any_damage_gives_bars_or_is_refused_by_name(
    table: tuple[list[Bar], str, int], dress: dict[str, Any], seed: int
) -> None:
    bars, form, decimals = table
    chance, content = random.Random(seed), bytearray(dressed(bars, form, decimals, {**dress, "encoding": "utf-8"}))
    for _ in range(chance.randint(1, 5)):
        at, other = chance.randrange(len(content)), chance.randrange(len(content))
        piece = content[at : at + chance.randint(1, 60)]
        damage = chance.choice((piece, b"", b"\n", b",", b'"', b"-", b"NaN", b"1e400", b"0001-01-01", b"\xff", b"\0"))
        content[other : other + chance.choice((0, 1, len(damage)))] = damage
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bars"
        path.write_bytes(packed(bytes(content), dress["packing"]))
        try:
            understood(path, **options_of(form))
        except DataError as e:
            assert str(path) in str(e)  # noqa: PT017
