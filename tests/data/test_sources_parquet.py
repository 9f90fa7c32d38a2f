from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from conftest import daily_bars
from read_files import read

from foxflow.errors import DataError

DAY = pl.DataFrame(
    {"Date": [date(2012, 11, 23)], "Open": [1.0], "High": [2.0], "Low": [0.5], "Close": [1.5], "Volume": [100]}
)


def file(folder: Path, frame: pl.DataFrame, name: str = "prices.parquet") -> Path:
    frame.write_parquet(folder / name)
    return folder / name


def test_bars_written_as_parquet_read_back_the_same(tmp_path: Path) -> None:
    both = pl.concat([daily_bars([1.25, 2], symbol="AAA"), daily_bars([3, 4.1], symbol="BBB")])
    path = file(tmp_path, both.reverse())
    assert read(path, bar="1d", stamp="close").equals(both)
    assert read(path, bar="1d", stamp="close", symbol="BBB").equals(both.tail(2))
    path.rename(tmp_path / "no name says parquet")
    assert read(tmp_path / "no name says parquet", bar="1d", stamp="close").equals(both)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(DAY, id="dates"),
        pytest.param(DAY.with_columns(pl.col("Date").cast(pl.Datetime("ns"))), id="naive nanoseconds at midnight"),
        pytest.param(DAY.with_columns(pl.col("Date").cast(pl.String)), id="text"),
        pytest.param(
            DAY.with_columns(pl.col("Date").cast(pl.Datetime("ms")).dt.replace_time_zone("America/New_York")),
            id="midnight of the exchange",
        ),
        pytest.param(DAY.with_columns(Close=pl.lit(Decimal("1.5"))), id="decimal prices"),
        pytest.param(DAY.with_columns(symbol=pl.lit("XYZ").cast(pl.Categorical)), id="categorical symbol"),
    ],
)
def test_typed_columns_mean_what_their_text_would(tmp_path: Path, frame: pl.DataFrame) -> None:
    bars = read(file(tmp_path, frame), bar="1d", symbol="XYZ", calendar="XNYS")
    assert bars.rows() == [("XYZ", datetime(2012, 11, 23, 18, tzinfo=UTC), 1.0, 2.0, 0.5, 1.5, 100.0)]


def test_typed_times_need_stamp_and_zone_like_written_ones(tmp_path: Path) -> None:
    naive = DAY.rename({"Date": "ts"}).with_columns(
        ts=pl.lit(datetime(2024, 3, 8, 15, 30, tzinfo=UTC).replace(tzinfo=None))
    )
    aware = naive.with_columns(pl.col("ts").dt.replace_time_zone("America/New_York"))
    expected = [datetime(2024, 3, 8, 20, 31, tzinfo=UTC)]
    path = file(tmp_path, naive)
    assert read(path, bar="1m", symbol="X", stamp="open", tz="America/New_York")["ts"].to_list() == expected
    with pytest.raises(DataError, match="times such as '2024-03-08 15:30:00' have no offset and name no zone"):
        read(path, bar="1m", symbol="X", stamp="open")
    path = file(tmp_path, aware)
    assert read(path, bar="1m", symbol="X", stamp="open")["ts"].to_list() == expected
    with pytest.raises(DataError, match=r"--stamp open|close"):
        read(path, bar="1m", symbol="X")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        pytest.param(DAY.head(0), "has no rows", id="no rows"),
        pytest.param(DAY.with_columns(High=pl.lit("x")), "row 1 .2012-11-23.: high x is no number", id="text"),
        pytest.param(DAY.with_columns(Close=pl.lit(True)), "column close is Boolean; expected numbers", id="booleans"),
        pytest.param(DAY.with_columns(Close=pl.lit(None, pl.Float64)), "row 1 .2012-11-23.: close is empty", id="null"),
        pytest.param(DAY.with_columns(Date=pl.lit(1709911800)), r"--stamp open\|close", id="epoch"),
        pytest.param(DAY.with_columns(Date=pl.lit(True)), "column of times is Boolean; expected dates", id="no time"),
        pytest.param(DAY.with_columns(Date=pl.lit(None, pl.Date)), r"row 1: time \(empty\) is none", id="no date"),
        pytest.param(DAY.with_columns(symbol=pl.lit(5)), "column symbol is Int32; expected text", id="no text"),
        pytest.param(
            pl.concat([DAY, DAY.with_columns(Close=1.25)]), "rows 1 and 2 .* are duplicates", id="a day twice"
        ),
        pytest.param(DAY.drop("Volume"), "no column volume among", id="a column short"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_with_file_and_row(tmp_path: Path, frame: pl.DataFrame, message: str) -> None:
    path = file(tmp_path, frame)
    with pytest.raises(DataError, match=message) as refusal:
        read(path, bar="1d", symbol="XYZ", calendar="XNYS")
    assert str(refusal.value).startswith(str(path))


def test_a_time_finer_than_a_microsecond_is_refused(tmp_path: Path) -> None:
    exact = DAY.with_columns(Date=pl.lit(1_709_911_800_000_000_000).cast(pl.Datetime("ns", "UTC")))
    path = file(tmp_path, exact)
    assert len(read(path, bar="1m", symbol="X", stamp="open")) == 1
    path = file(tmp_path, exact.with_columns(pl.col("Date") + pl.duration(nanoseconds=1)))
    with pytest.raises(DataError, match=r"row 1: time .* is finer than a microsecond"):
        read(path, bar="1m", symbol="X", stamp="open")


@pytest.mark.parametrize("kept", [4, 50, 0.5, 0.99])
def test_a_parquet_file_cut_short_is_refused(tmp_path: Path, kept: float) -> None:
    path = file(tmp_path, daily_bars([float(n) for n in range(1, 500)]))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept if kept > 1 else len(content) * kept)])
    with pytest.raises(DataError, match=r"prices.parquet is damaged Parquet"):
        read(path, bar="1d", stamp="close")


def test_a_name_that_promises_parquet_is_held_to_it(tmp_path: Path) -> None:
    (tmp_path / "prices.parquet").write_text("date,open\n")
    with pytest.raises(DataError, match=r"prices.parquet is not Parquet, though its name says so"):
        read(tmp_path / "prices.parquet", bar="1d")


def test_an_hour_apart_in_file_order_or_not_gives_sorted_bars(tmp_path: Path) -> None:
    hours = [datetime(2024, 3, 8, 10, tzinfo=UTC) + timedelta(hours=n) for n in (2, 0, 1)]
    frame = pl.concat([DAY] * 3).with_columns(pl.Series("Date", hours))
    bars = read(file(tmp_path, frame), bar="1h", symbol="X", stamp="close")
    assert bars["ts"].to_list() == sorted(hours)
