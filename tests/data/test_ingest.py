import time
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path

import polars as pl
import pytest
from conftest import daily_bars

from foxflow import ingest, sample, store
from foxflow.errors import DataError
from foxflow.ingest import Imported
from foxflow.sources import Options

HEADER = "symbol,date,open,high,low,close,volume\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "bars.duckdb"


def file(folder: Path, name: str, *rows: str) -> Path:
    (folder / name).write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return folder / name


def test_the_sample_is_imported_once_with_its_bars_and_events(path: Path) -> None:
    assert ingest.import_sample(path) == [Imported("stocks.csv.gz", 12154, 0), Imported("events.csv", 95, 0)]
    assert ingest.import_sample(path) == [Imported("stocks.csv.gz", 0, 12154), Imported("events.csv", 0, 95)]
    assert store.read_bars(path, bar="1d").equals(sample.load_bars())
    assert store.read_events(path).equals(sample.load_events())


def test_a_sample_already_there_is_found_without_waiting_for_readers(path: Path) -> None:
    ingest.import_sample(path)
    with store.connect(path, read_only=True):
        began = time.monotonic()
        assert [each.added for each in ingest.import_sample(path)] == [0, 0]
        assert time.monotonic() - began < 5


def test_the_sample_completes_a_store_that_holds_other_bars(path: Path) -> None:
    store.write_bars(path, daily_bars([1, 2]), bar="1d")
    assert [each.added for each in ingest.import_sample(path)] == [12154, 95]
    assert set(store.list_bars(path)["symbol"]) == {"AAA", "AAPL", "FB", "GOOG", "IBM", "MSFT"}


def test_the_sample_never_mixes_with_other_bars_of_its_symbols(path: Path) -> None:
    store.write_bars(path, sample.load_bars().with_columns(volume=pl.col("volume") + 1), bar="1d")
    with pytest.raises(DataError, match=r"stocks.csv.gz against .*: 12154 of the bars differ"):
        ingest.import_sample(path)
    assert store.read_events(path).is_empty()


def test_the_sample_files_read_as_any_file_give_the_sample(path: Path) -> None:
    folder = Path(str(resources.files("foxflow.sample")))
    ingest.import_files(
        path, [folder / "stocks.csv.gz"], Options(bar="1d", calendar="XNYS"), events=folder / "events.csv"
    )
    assert store.read_bars(path, bar="1d").equals(sample.load_bars())
    assert store.read_events(path).equals(sample.load_events())


def test_files_are_counted_one_by_one(path: Path, tmp_path: Path) -> None:
    first = file(tmp_path, "first.csv", "IBM,2024-03-14,1,1,1,1,1", "IBM,2024-03-15,2,2,2,2,2")
    second = file(tmp_path, "second.csv", "IBM,2024-03-15,2,2,2,2,2", "IBM,2024-03-18,3,3,3,3,3")
    assert ingest.import_files(path, [first, second], Options(bar="1d", calendar="XNYS")) == [
        Imported(str(first), 2, 0),
        Imported(str(second), 1, 1),
    ]
    assert store.read_bars(path, bar="1d")["open"].to_list() == [1.0, 2.0, 3.0]
    assert [each.added for each in ingest.import_files(path, [first, second], Options(bar="1d", calendar="XNYS"))] == [
        0,
        0,
    ]


def test_a_file_that_is_refused_keeps_out_the_files_beside_it(path: Path, tmp_path: Path) -> None:
    good = file(tmp_path, "good.csv", "IBM,2024-03-14,1,1,1,1,1")
    bad = file(tmp_path, "bad.csv", "IBM,2024-03-15,2,1,2,2,2")
    with pytest.raises(DataError, match=r"bad.csv, line 2 .*close above the high.*1 of 1 rows are bad bar\(s\)"):
        ingest.import_files(path, [good, bad], Options(bar="1d", calendar="XNYS"))
    assert not path.exists()


def test_files_that_contradict_each_other_are_refused_together(path: Path, tmp_path: Path) -> None:
    good = file(tmp_path, "good.csv", "IBM,2024-03-14,1,1,1,1,1")
    other = file(tmp_path, "other.csv", "IBM,2024-03-14,2,2,2,2,1")
    with pytest.raises(DataError, match=r"other.csv against .*first IBM 1d at 2024-03-14 20:00Z: stored open 1.0"):
        ingest.import_files(path, [good, other], Options(bar="1d", calendar="XNYS"))
    with pytest.raises(DataError, match="holds no bars"):
        store.read_bars(path, bar="1d")


def test_the_declared_delay_decides_when_a_bar_was_known(path: Path, tmp_path: Path) -> None:
    one = file(tmp_path, "one.csv", "IBM,2024-03-14,1,1,1,1,1")
    ingest.import_files(path, [one], Options(bar="1d", calendar="XNYS"), delay=timedelta(hours=2))
    close = datetime(2024, 3, 14, 20, tzinfo=UTC)
    assert len(store.read_bars(path, bar="1d", as_of=close + timedelta(hours=2))) == 1
    with pytest.raises(DataError, match="that were known at"):
        store.read_bars(path, bar="1d", as_of=close + timedelta(hours=1))


def test_an_import_of_no_file_is_refused(path: Path) -> None:
    with pytest.raises(DataError, match="no file to import"):
        ingest.import_files(path, [], Options(bar="1d"))


def test_events_that_differ_from_the_stored_ones_keep_out_the_bars_beside_them(path: Path, tmp_path: Path) -> None:
    bars, events = file(tmp_path, "one.csv", "IBM,2024-03-14,1,1,1,1,1"), tmp_path / "events.csv"
    events.write_text("symbol,session,kind,value\nIBM,2024-03-14,split,2\n")

    def again() -> list[Imported]:
        return ingest.import_files(path, [bars], Options(bar="1d", calendar="XNYS"), events=events)

    assert again() == [Imported(str(bars), 1, 0), Imported(str(events), 1, 0)]
    assert again() == [Imported(str(bars), 0, 1), Imported(str(events), 0, 1)]
    events.write_text("symbol,session,kind,value\nIBM,2024-03-14,split,3\n")
    bars = file(tmp_path, "two.csv", "IBM,2024-03-15,1,1,1,1,1")
    with pytest.raises(DataError, match=r"events.csv against .*: 1 of the events differ .* IBM split at 2024-03-14"):
        again()
    assert len(store.read_bars(path, bar="1d")) == 1


def test_events_without_a_calendar_or_beside_bars_of_several_days_are_refused(path: Path, tmp_path: Path) -> None:
    bars = file(tmp_path, "one.csv", "IBM,2024-03-14 10:00,1,1,1,1,1")
    with pytest.raises(
        DataError, match="without a calendar; splits and dividends are dated by session: give --calendar"
    ):
        ingest.import_files(path, [bars], Options(bar="1m", stamp="close", tz="UTC"), events=tmp_path / "events.csv")
    days, two = file(tmp_path, "two.csv", "IBM,2024-03-14,1,1,1,1,1"), Options(bar="2d", stamp="close", calendar="XNYS")
    with pytest.raises(
        DataError, match="with bars of 2d; splits and dividends are dated by session: import them with b"
    ):
        ingest.import_files(path, [days], two, events=tmp_path / "events.csv")


def test_events_go_beside_intraday_bars_and_are_dated_by_the_close_of_their_session(path: Path, tmp_path: Path) -> None:
    bars, events = file(tmp_path, "one.csv", "IBM,2024-03-14 10:00,1,1,1,1,1"), tmp_path / "events.csv"
    events.write_text("symbol,session,kind,value\nIBM,2024-03-14,split,2\n")
    options = Options(bar="1m", stamp="close", tz="America/New_York", calendar="XNYS")
    ingest.import_files(path, [bars], options, events=events)
    assert store.read_bars(path, bar="1m")["ts"].to_list() == [datetime(2024, 3, 14, 14, tzinfo=UTC)]
    assert store.read_events(path)["ts"].to_list() == [datetime(2024, 3, 14, 20, tzinfo=UTC)]


@pytest.mark.parametrize("symbol", ["DAY", "TIME", "DATE"])
def test_a_symbol_that_reads_like_the_name_of_a_column_loses_no_row(symbol: str, path: Path, tmp_path: Path) -> None:
    rows = [f"{s},2024-03-{day},1,1,1,1,5" for s in (symbol, "IBM") for day in (13, 14, 15)]
    ingest.import_files(path, [file(tmp_path, "a.csv", *rows)], Options(bar="1d", calendar="XNYS"))
    assert store.list_bars(path).select("symbol", "rows").rows() == sorted([(symbol, 3), ("IBM", 3)])
