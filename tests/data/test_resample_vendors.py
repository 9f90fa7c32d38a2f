"""Bars resampled from two vendors' files against what the vendors made of them."""

import io
import zipfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import databento_dbn
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from foxflow import sources
from foxflow.bars import BAR_SCHEMA, PRICES, sessions
from foxflow.resample import outside_sessions, resample

LEAN = Path(__file__).parents[3] / "shared/data/real/us_equity_lean"
DBN = LEAN.parent / "dbn_nautilus"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.skipif(not LEAN.exists(), reason=f"{LEAN} is not here")
def test_hours_of_spy_make_the_days_that_their_vendor_made() -> None:
    hours, days = (_lean(f"{name}_spy.zip") for name in ("hour", "daily"))
    hours = hours.with_columns(pl.col("ts") + timedelta(hours=1))
    assert (len(hours), len(days)) == (40_832, 5_849)
    # On 23 half days up to 2008 trades of the hours after the close are in both files.
    late = outside_sessions(hours, bar="1h", calendar="XNYS")
    assert (len(late), late["ts"].dt.date().n_unique(), late["ts"].max()) == (47, 23, at("2008-12-24 21:00"))
    made = resample(hours, bar="1h", to="1d", calendar="XNYS", outside="join", until=at("2021-04-01 04:00"))
    assert_frame_equal(made.drop("ts"), days.drop("ts"), check_exact=True)
    # Midnight to midnight in New York.
    assert made["ts"].equals(
        days["ts"].dt.convert_time_zone("America/New_York").dt.offset_by("1d").dt.convert_time_zone("UTC")
    )
    # Without those hours, every other day is the same and known at the exchange's close.
    regular = resample(hours, bar="1h", to="1d", calendar="XNYS", outside="drop")
    closes = sessions("XNYS", date(1998, 1, 1), date(2021, 4, 1))
    whole = days.with_columns(session=pl.col("ts").dt.convert_time_zone("America/New_York").dt.date())
    whole = whole.join(closes.select("session", "close"), on="session", suffix="_ts")
    whole = whole.with_columns(ts="close_ts").select(BAR_SCHEMA.names())
    equal = pl.all_horizontal(pl.col(c) == pl.col(f"{c}_of_days") for c in BAR_SCHEMA.names()[2:])
    same = regular.join(whole, on="ts", suffix="_of_days").filter(equal)
    assert (len(regular), len(same)) == (5_849, 5_826)


@pytest.mark.skipif(not DBN.exists(), reason=f"{DBN} is not here")
def test_120_trades_by_the_second_make_the_four_minutes_that_their_vendor_made() -> None:
    decoder = databento_dbn.DBNDecoder()
    with pa.input_stream(str(DBN / "ESU4_trades_20240701.dbn.zst"), compression="zstd") as file:
        decoder.write(file.read())
    trades = [m for m in decoder.decode() if isinstance(m, databento_dbn.TradeMsg)]
    assert len(trades) == 120
    found: dict[int, list[tuple[float, int]]] = {}
    for trade in trades:
        found.setdefault(trade.ts_recv // 1_000_000_000, []).append((trade.pretty_price, trade.size))
    seconds = [
        (
            "ESU4",
            datetime.fromtimestamp(second + 1, UTC),
            p[0],
            max(p),
            min(p),
            p[-1],
            float(sum(size for _, size in of)),
        )
        for second, of in found.items()
        if (p := [price for price, _ in of])
    ]
    made = resample(
        pl.DataFrame(seconds, schema=BAR_SCHEMA, orient="row"),
        bar="1s",
        to="1m",
        calendar="CMES",
        until=at("2024-07-02 00:02"),
    )
    bars_of_both = sources.read(DBN / "ESU4_NQU4_ohlcv-1m_20240701.dbn.zst")
    theirs = bars_of_both.filter((pl.col("symbol") == "ESU4") & pl.col("ts").is_in(made["ts"].implode()))
    assert made["ts"].to_list() == [at(f"2024-07-0{t}") for t in ("1 23:59", "2 00:00", "2 00:01", "2 00:02")]
    assert_frame_equal(made, theirs, check_exact=True)


def _lean(name: str) -> pl.DataFrame:
    """Return the bars of a zip as they are stamped: at their open, in New York."""
    with zipfile.ZipFile(LEAN / name) as file:
        raw = pl.read_csv(io.BytesIO(file.read("spy.csv")), has_header=False, new_columns=["ts", *PRICES, "volume"])
    ts = pl.col("ts").str.to_datetime("%Y%m%d %H:%M", time_unit="us").dt.replace_time_zone("America/New_York")
    # Polars divides a column by a number as a product with its reciprocal, whose last bit depends on the row's place.
    prices = (pl.Series(c, raw[c].to_numpy() / 10_000) for c in PRICES)
    return raw.select(pl.lit("SPY").alias("symbol"), ts.dt.convert_time_zone("UTC"), *prices, "volume").cast(BAR_SCHEMA)
