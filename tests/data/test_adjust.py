"""Splits and dividends of bars shorter than a session, and two vendors' own adjustment as oracles."""

import csv
import io
import zipfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from foxflow import adjustment, bars
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA, PRICES
from foxflow.errors import DataError
from foxflow.resample import resample

REAL = Path(__file__).parents[3] / "shared/data/real"
LEAN, WIKI = REAL / "us_equity_lean", REAL / "wiki_quandl_full"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def flat(*closes: tuple[str, float], symbol: str = "AAA") -> pl.DataFrame:
    rows = [(symbol, at(ts), price, price, price, price, 100.0) for ts, price in closes]
    return pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row")


def events(*rows: tuple[str, str, float], symbol: str = "AAA") -> pl.DataFrame:
    return pl.DataFrame([(symbol, at(ts), kind, v) for ts, kind, v in rows], schema=EVENT_SCHEMA, orient="row")


# Thursday after the close, Friday before the open and in the session: New York is four hours behind UTC.
TWO_DAYS = flat(
    ("2024-03-14 19:59", 100),
    ("2024-03-14 20:00", 102),
    ("2024-03-14 22:00", 104),
    ("2024-03-15 08:01", 52),
    ("2024-03-15 13:31", 53),
    ("2024-03-15 20:00", 54),
    ("2024-03-15 21:00", 55),
)


def test_a_split_applies_from_the_first_bar_of_its_date_before_the_open() -> None:
    adjusted = adjustment.adjust(TWO_DAYS, events(("2024-03-15 20:00", "split", 2.0)), calendar="XNYS")
    assert adjusted["close"].to_list() == [100, 102, 104, 104, 106, 108, 110]
    assert adjusted["volume"].to_list() == [100, 100, 100, 50, 50, 50, 50]


def test_a_dividend_is_reinvested_at_the_close_of_the_session_before_not_at_a_later_trade() -> None:
    adjusted = adjustment.adjust(TWO_DAYS, events(("2024-03-15 20:00", "dividend", 2.0)), calendar="XNYS")
    # 102, and not 104, is what the holder had: 1 / (1 - 2 / 102) = 1.02.
    assert adjusted["close"].to_list() == pytest.approx([100, 102, 104, 53.04, 54.06, 55.08, 56.1], rel=1e-12)


def test_a_dividend_takes_a_trade_after_the_close_where_the_session_had_none() -> None:
    adjusted = adjustment.adjust(TWO_DAYS[2:5], events(("2024-03-15 20:00", "dividend", 2.0)), calendar="XNYS")
    assert adjusted["close"].to_list() == pytest.approx([104, 52 * 104 / 102, 53 * 104 / 102], rel=1e-12)


def test_a_session_that_opens_the_evening_before_is_adjusted_from_that_evening() -> None:
    night = flat(("2024-03-14 22:00", 100), ("2024-03-14 22:01", 50), ("2024-03-15 22:00", 51))
    adjusted = adjustment.adjust(night, events(("2024-03-15 22:00", "split", 2.0)), calendar="CMES")
    assert adjusted["close"].to_list() == [100, 100, 102]


def test_events_before_the_first_bar_and_after_the_last_change_nothing() -> None:
    # Friday's split has not happened on Thursday night; Thursday's applied to every bar there is.
    thursday = TWO_DAYS[:3]
    assert adjustment.adjust(thursday, events(("2024-03-15 20:00", "split", 2.0)), calendar="XNYS").equals(thursday)
    assert adjustment.adjust(TWO_DAYS, events(("2024-03-13 20:00", "split", 9.0)), calendar="XNYS").equals(TWO_DAYS)
    first = adjustment.adjust(TWO_DAYS[3:], events(("2024-03-15 20:00", "dividend", 2.0)), calendar="XNYS")
    assert first.equals(TWO_DAYS[3:])
    nothing = BAR_SCHEMA.to_frame()
    assert adjustment.adjust(nothing, events(("2024-03-15 20:00", "split", 2.0)), calendar="XNYS").equals(nothing)


def test_a_split_in_the_running_session_is_seen_from_its_first_bar_on() -> None:
    # The date of the event is the session's close, hours after the newest bar.
    adjusted = adjustment.adjust(TWO_DAYS[:4], events(("2024-03-15 20:00", "split", 2.0)), calendar="XNYS")
    assert adjusted["close"].to_list() == [100, 102, 104, 104]


def test_an_event_of_no_session_or_without_a_bar_in_it_is_refused() -> None:
    with pytest.raises(
        DataError, match="dated by no session of XNYS, first AAA at 2024-03-15 19:00Z, when none closes"
    ):
        adjustment.adjust(TWO_DAYS, events(("2024-03-15 19:00", "split", 2.0)), calendar="XNYS")
    gap = pl.concat([TWO_DAYS, flat(("2024-03-19 14:00", 60))])
    with pytest.raises(DataError, match=r"without a bar, first AAA at 2024-03-18 20:00Z; import that bar"):
        adjustment.adjust(gap, events(("2024-03-18 20:00", "split", 2.0)), calendar="XNYS")
    with pytest.raises(DataError, match=r"dividend 102.0 of AAA at 2024-03-15 is not below the previous close 102"):
        adjustment.adjust(TWO_DAYS, events(("2024-03-15 20:00", "dividend", 102.0)), calendar="XNYS")


def test_another_symbol_is_left_alone() -> None:
    both = pl.concat([TWO_DAYS, TWO_DAYS.with_columns(symbol=pl.lit("BBB"))])
    adjusted = adjustment.adjust(both, events(("2024-03-15 20:00", "split", 2.0), symbol="BBB"), calendar="XNYS")
    assert adjusted.filter(pl.col("symbol") == "AAA").equals(TWO_DAYS)
    assert adjusted.filter(pl.col("symbol") == "BBB")["close"].to_list() == [100, 102, 104, 104, 106, 108, 110]
    # Rows stay where they were.
    mixed = both.sort("ts", "symbol")
    mixed_too = adjustment.adjust(mixed, events(("2024-03-15 20:00", "split", 2.0), symbol="BBB"), calendar="XNYS")
    assert mixed_too.equals(adjusted.sort("ts", "symbol"))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.lists(st.sampled_from(["none", "split", "dividend"]), min_size=5, max_size=5),
    cut=st.floats(0, 7),
)
def test_adjusted_bars_up_to_any_time_read_nothing_after_it(seed: int, kinds: list[str], cut: float) -> None:
    # A week with extended hours, 05:00 to 21:00 in UTC, some hours missing; each session keeps one.
    random = np.random.default_rng(seed)
    ts = [
        at("2024-03-11 00:00") + timedelta(days=d, hours=h)
        for d in range(5)
        for h in range(9, 24)
        if h == 15 or random.random() < 0.5
    ]
    raw = flat(*((f"{t:%F %T}", float(p)) for t, p in zip(ts, random.uniform(5, 9, len(ts)), strict=True)))
    closes = bars.session_closes("XNYS", date(2024, 3, 11), date(2024, 3, 15))["ts"]
    rows = [(f"{c:%F %T}", k, 2.0 if k == "split" else 1.0) for c, k in zip(closes, kinds, strict=True) if k != "none"]
    if not rows:
        return
    whole = adjustment.adjust(raw, events(*rows), calendar="XNYS")
    seen = pl.col("ts") <= at("2024-03-11 00:00") + timedelta(days=cut)
    assert adjustment.adjust(raw.filter(seen), events(*rows), calendar="XNYS").equals(whole.filter(seen))
    # Adjusted hours make the days that adjusted days are.
    regular = {"bar": "1h", "to": "1d", "calendar": "XNYS", "outside": "drop", "until": at("2024-04-01 00:00")}
    days = resample(raw, **regular)
    assert_frame_equal(resample(whole, **regular), adjustment.adjust(days, events(*rows)), rel_tol=1e-12)


@pytest.mark.skipif(not LEAN.exists(), reason=f"{LEAN} is not here")
def test_minutes_of_apple_have_no_return_of_minus_85_percent_over_the_split_of_seven_for_one() -> None:
    raw = pl.concat([_lean_minutes(day) for day in (date(2014, 6, 6), date(2014, 6, 9))])
    split = events(("2014-06-09 20:00", "split", 7.0), symbol="AAPL")
    close = adjustment.adjust(raw, split, calendar="XNYS")["close"]
    moves = {name: (c / c.shift(1) - 1) for name, c in (("raw", raw["close"]), ("adjusted", close))}
    # From 645.70 after hours on Friday to 92.42 before the open on Monday.
    assert moves["raw"].min() == pytest.approx(92.42 / 645.70 - 1) == pytest.approx(-0.8569, abs=1e-4)
    assert moves["adjusted"].abs().max() < 0.005
    assert close[len(_lean_minutes(date(2014, 6, 6)))] == pytest.approx(7 * 92.42)
    # Friday is as it was, whatever comes after it.
    friday = pl.col("ts") < at("2014-06-07 00:00")
    assert adjustment.adjust(raw, split, calendar="XNYS").filter(friday).equals(raw.filter(friday))


def _lean_minutes(day: date) -> pl.DataFrame:
    with zipfile.ZipFile(LEAN / f"minute_aapl_{day:%Y%m%d}_trade.zip") as file:
        text = file.read(f"{day:%Y%m%d}_aapl_minute_trade.csv")
    raw = pl.read_csv(io.BytesIO(text), has_header=False, new_columns=["ms", *PRICES, "volume"])
    # Milliseconds since midnight in New York, at the open of the minute; prices in ten-thousandths of a dollar.
    ts = pl.lit(day).cast(pl.Datetime("us")) + pl.duration(milliseconds="ms")
    ts = ts.dt.replace_time_zone("America/New_York").dt.convert_time_zone("UTC") + timedelta(minutes=1)
    prices = (pl.Series(c, raw[c].to_numpy() / 10_000) for c in PRICES)
    return raw.select(pl.lit("AAPL").alias("symbol"), ts.alias("ts"), *prices, "volume").cast(BAR_SCHEMA)


@pytest.mark.skipif(not WIKI.exists(), reason=f"{WIKI} is not here")
@pytest.mark.parametrize(
    ("name", "rows", "n_events"),
    [("AAPL-2011", 252, 0), ("AAPL-2012", 250, 2), ("AIG-2009", 252, 1), ("IBM-2009", 252, 4), ("ORCL-2000", 252, 2)],
)
def test_adjusted_returns_are_those_of_wiki_s_own_adjustment(name: str, rows: int, n_events: int) -> None:
    with (WIKI / f"WIKI-{name}-quandl.csv").open() as file:
        table = sorted(csv.DictReader(file), key=lambda row: row["Date"])
    closes = bars.session_closes("XNYS", date(2000, 1, 1), date(2012, 12, 31))
    close_of = dict(closes.iter_rows())
    ts = [close_of[date.fromisoformat(row["Date"])] for row in table]
    raw = pl.DataFrame(
        {"symbol": name, "ts": ts, **{c: [float(row[c.title()]) for row in table] for c in (*PRICES, "volume")}},
        schema=BAR_SCHEMA,
    )
    found = [
        (name, t, kind, float(row[column]))
        for t, row in zip(ts, table, strict=True)
        for kind, column, nothing in (("split", "Split Ratio", 1.0), ("dividend", "Ex-Dividend", 0.0))
        if float(row[column]) != nothing
    ]
    assert (len(raw), len(found)) == (rows, n_events)
    adjusted = adjustment.adjust(raw, pl.DataFrame(found, schema=EVENT_SCHEMA, orient="row"))
    ours = _growth(adjusted["close"].to_numpy())
    theirs = _growth(np.array([float(row["Adj. Close"]) for row in table]))
    # WIKI buys more shares with a dividend at the close of the day it is paid on, which nobody knows at the open: a
    # holder's growth is (P + d) / P0 there and P / (P0 - d) here. The one follows from the other with y = d / P0.
    paid = np.array([float(row["Ex-Dividend"]) for row in table[1:]])
    y = paid / raw["close"].to_numpy()[:-1]
    np.testing.assert_allclose(ours * (1 - y) + y, theirs, rtol=2e-13)
    # So the two agree to their last digits (12 decimals are printed) but for the days of a dividend, and there to 3 bps.
    np.testing.assert_allclose(ours[paid == 0], theirs[paid == 0], rtol=2e-13)
    np.testing.assert_allclose(ours, theirs, rtol=3e-4)
    # The factors themselves: splits alone, of the volume.
    volume = np.array([float(row["Adj. Volume"]) for row in table])
    np.testing.assert_allclose(_growth(adjusted["volume"].to_numpy()), _growth(volume), rtol=1e-12)


def _growth(prices: np.ndarray) -> np.ndarray:
    return prices[1:] / prices[:-1]
