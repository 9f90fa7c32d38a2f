import gzip
import io
import shutil
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path

import polars as pl
import pytest

from foxflow import adjustment, bars, sample
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA
from foxflow.errors import DataError

QUANDL = Path(__file__).parents[3] / "shared/data/real/wiki_quandl_full"


@pytest.fixture(scope="module")
def raw() -> pl.DataFrame:
    return sample.load_bars()


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    return sample.load_events()


@pytest.fixture(scope="module")
def file() -> pl.DataFrame:
    """Return the rows of the file itself, with each session's jump of the adjustment factor."""
    content = gzip.decompress((resources.files("foxflow.sample") / "stocks.csv.gz").read_bytes())
    factor = pl.col("Adj Close") / pl.col("Close")
    return (
        pl.read_csv(io.BytesIO(content), try_parse_dates=True)
        .sort("Ticker", "Date")
        .with_columns(jump=factor / factor.shift(1).over("Ticker", order_by="Date"))
    )


def returns(frame: pl.DataFrame, *, close: str, symbol: str, ts: str) -> pl.DataFrame:
    change = pl.col(close) / pl.col(close).shift(1).over(symbol, order_by=ts) - 1
    return frame.select(symbol=symbol, session=pl.col(ts).cast(pl.Date), change=change).drop_nulls()


def test_sample_holds_every_row_of_the_five_stocks(raw: pl.DataFrame) -> None:
    counts = dict(raw.group_by("symbol").len().iter_rows())
    assert counts == {"AAPL": 3270, "IBM": 3270, "MSFT": 3270, "GOOG": 2148, "FB": 196}
    assert raw.schema == BAR_SCHEMA
    assert raw.equals(raw.sort("symbol", "ts"))


def test_sample_prices_are_as_traded(raw: pl.DataFrame) -> None:
    # The line as the file writes it: AAPL,2000-03-01,118.56,132.06,118.5,130.31,9616100,4.186662803811
    first = raw.row(0)
    assert first == ("AAPL", datetime(2000, 3, 1, 21, tzinfo=UTC), 118.56, 132.06, 118.5, 130.31, 9616100.0)


@pytest.mark.parametrize(
    ("session", "close"),
    [
        pytest.param(date(2012, 11, 23), datetime(2012, 11, 23, 18, tzinfo=UTC), id="half day, 13:00 in winter"),
        pytest.param(date(2012, 7, 3), datetime(2012, 7, 3, 17, tzinfo=UTC), id="half day, 13:00 in summer"),
        pytest.param(date(2012, 3, 9), datetime(2012, 3, 9, 21, tzinfo=UTC), id="last session of winter time"),
        pytest.param(date(2012, 3, 12), datetime(2012, 3, 12, 20, tzinfo=UTC), id="first session of summer time"),
        pytest.param(date(2006, 3, 31), datetime(2006, 3, 31, 21, tzinfo=UTC), id="winter time before the 2007 rule"),
        pytest.param(date(2006, 4, 3), datetime(2006, 4, 3, 20, tzinfo=UTC), id="summer time before the 2007 rule"),
    ],
)
def test_ts_is_the_close_of_the_session_in_utc(raw: pl.DataFrame, session: date, close: datetime) -> None:
    assert raw.filter(pl.col("ts").dt.date() == session)["ts"].unique().to_list() == [close]


def test_sample_has_each_session_from_first_to_last_of_a_symbol(raw: pl.DataFrame) -> None:
    for symbol, of_symbol in raw.group_by("symbol"):
        first, last = of_symbol["ts"].min(), of_symbol["ts"].max()
        assert isinstance(first, datetime)
        assert isinstance(last, datetime)
        closes = bars.session_closes("XNYS", first.date(), last.date())
        assert of_symbol["ts"].to_list() == closes["ts"].to_list(), symbol


@pytest.mark.parametrize("name", ["stocks.csv.gz", "events.csv"])
def test_a_changed_byte_of_a_sample_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sample"
    shutil.copytree(str(resources.files("foxflow.sample")), folder)
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    monkeypatch.setattr("importlib.resources.files", lambda _package: folder)
    with pytest.raises(DataError, match=f"{name} of the sample has sha256 .* install foxflow again"):
        sample.load_bars() if name == "stocks.csv.gz" else sample.load_events()


def test_metadata_says_licence_clock_and_files() -> None:
    known = sample.metadata()
    assert known["licence"].startswith("public domain")
    assert (known["bar"], known["calendar"]) == (sample.BAR, sample.CALENDAR) == ("1d", "XNYS")
    assert known["files"]["stocks.csv.gz"]["sha256"].startswith("5abadf99b2d394f9")
    assert known["files"]["events.csv"]["rows"] == 95


def test_events_are_the_jumps_of_the_adjustment_factor(file: pl.DataFrame, events: pl.DataFrame) -> None:
    jumps = file.filter((pl.col("jump") - 1).abs() > 2e-4)
    split = (pl.col("jump") - 2).abs() < 1e-9
    money = pl.col("Close") * (pl.col("jump") - 1)
    # Every dividend comes out at whole cents, so none of them is a rounding artefact.
    assert jumps.filter(~split & ((money - money.round(2)).abs() > 1e-6)).is_empty()
    derived = jumps.select(
        symbol="Ticker",
        session="Date",
        kind=pl.when(split).then(pl.lit("split")).otherwise(pl.lit("dividend")),
        value=pl.when(split).then(2.0).otherwise(money.round(2)),
    )
    assert events.schema == EVENT_SCHEMA
    assert derived.equals(events.select("symbol", pl.col("ts").dt.date().alias("session"), "kind", "value"))


def test_events_hold_the_known_splits_and_dividends(events: pl.DataFrame) -> None:
    splits = events.filter(pl.col("kind") == "split").select("symbol", pl.col("ts").dt.date(), "value")
    assert splits.rows() == [
        ("AAPL", date(2000, 6, 21), 2.0),
        ("AAPL", date(2005, 2, 28), 2.0),
        ("MSFT", date(2003, 2, 18), 2.0),
    ]
    dividends = {(symbol, ts.date()): value for symbol, ts, kind, value in events.iter_rows() if kind == "dividend"}
    assert dividends["IBM", date(2000, 5, 8)] == 0.13
    assert dividends["MSFT", date(2004, 11, 15)] == 3.08
    assert {symbol for symbol, _ in dividends} == {"AAPL", "IBM", "MSFT"}


def test_dividends_agree_with_those_another_file_states(events: pl.DataFrame) -> None:
    if not QUANDL.exists():
        pytest.skip(f"{QUANDL} is not there: the data folder beside the repository is not part of it")
    stated = (
        pl.read_csv(QUANDL / "WIKI-AAPL-2012-quandl.csv", try_parse_dates=True)
        .filter(pl.col("Ex-Dividend") > 0)
        .sort("Date")
    )
    ours = events.filter((pl.col("symbol") == "AAPL") & (pl.col("ts").dt.year() == 2012))
    assert ours["ts"].dt.date().to_list() == stated["Date"].to_list() == [date(2012, 8, 9), date(2012, 11, 7)]
    assert ours["value"].to_list() == stated["Ex-Dividend"].to_list() == [2.65, 2.65]


def test_adjusted_returns_have_no_split_in_them_but_keep_the_real_fall(raw: pl.DataFrame, events: pl.DataFrame) -> None:
    adjusted = returns(adjustment.adjust(raw, events), close="close", symbol="symbol", ts="ts")
    of_apple = dict(adjusted.filter(pl.col("symbol") == "AAPL").select("session", "change").iter_rows())
    # 101.25 to 2 x 55.63, and 88.99 to 2 x 44.86.
    assert of_apple[date(2000, 6, 21)] == pytest.approx(2 * 55.63 / 101.25 - 1, abs=1e-12)
    assert of_apple[date(2005, 2, 28)] == pytest.approx(2 * 44.86 / 88.99 - 1, abs=1e-12)
    assert of_apple[date(2000, 9, 29)] == pytest.approx(-0.519, abs=5e-4)


def test_adjusted_returns_are_the_total_returns_of_the_adj_close_column(
    file: pl.DataFrame, raw: pl.DataFrame, events: pl.DataFrame
) -> None:
    ours = returns(adjustment.adjust(raw, events), close="close", symbol="symbol", ts="ts")
    theirs = returns(file, close="Adj Close", symbol="Ticker", ts="Date")
    joined = ours.join(theirs, on=["symbol", "session"], how="inner").join(
        events.select("symbol", "kind", session=pl.col("ts").dt.date()), on=["symbol", "session"], how="left"
    )
    assert len(joined) == 12154 - 5
    apart = (pl.col("change") - pl.col("change_right")).abs().alias("apart")
    ordinary = joined.filter(pl.col("kind").is_null() | (pl.col("kind") == "split")).select(apart)["apart"]
    assert ordinary.max() < 1e-9  # type: ignore[operator]
    # A dividend is reinvested at the previous close less the dividend here, at the day's close there.
    on_dividends = joined.filter(pl.col("kind") == "dividend").select(apart)["apart"]
    assert len(on_dividends) == 92
    assert on_dividends.max() < 2e-3  # type: ignore[operator]
    assert on_dividends.sort()[-2] < 6e-4


def test_no_later_event_changes_an_earlier_adjusted_bar(raw: pl.DataFrame, events: pl.DataFrame) -> None:
    whole = adjustment.adjust(raw, events)
    for cut in (datetime(2000, 6, 20, 20, tzinfo=UTC), datetime(2004, 11, 12, 21, tzinfo=UTC), raw["ts"].median()):
        seen = pl.col("ts") <= cut
        assert adjustment.adjust(raw.filter(seen), events.filter(seen)).equals(whole.filter(seen))
