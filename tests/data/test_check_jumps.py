"""Splits, units and real moves told apart: on invented bars, and on real files with known faults."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from conftest import daily_bars
from real_bars import csv_daily, lean, lean_daily, needs_real, wiki, yahoo

from foxflow import check, sample
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA

DAY = timedelta(days=1)
FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)


def walk(
    *, at: int = 60, factor: float = 1.0, money: float = 1.0, n: int = 120, seed: int = 3, symbol: str = "AAA"
) -> pl.DataFrame:
    """Return a random walk whose prices are multiplied by `factor` from bar `at` on, shares traded divided by it.

    `money` multiplies the value traded on bar `at` itself.
    """
    random = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(random.normal(0, 0.01, n)))
    open_ = np.append(close[0], close[:-1]) * np.exp(random.normal(0, 0.003, n))
    high, low = np.maximum(open_, close) * 1.004, np.minimum(open_, close) * 0.996
    scale = np.where(np.arange(n) >= at, factor, 1.0)
    volume = 1e6 * np.exp(random.normal(0, 0.3, n)) / scale * np.where(np.arange(n) == at, money, 1.0)
    return pl.DataFrame(
        {
            "symbol": [symbol] * n,
            "ts": [FIRST + i * DAY for i in range(n)],
            **{c: v * scale for c, v in zip(("open", "high", "low", "close"), (open_, high, low, close), strict=True)},
            "volume": volume,
        },
        schema=BAR_SCHEMA,
    )  # fmt: skip


def found(bars: pl.DataFrame, *, events: pl.DataFrame | None = None, bar: str = "1d") -> list[tuple[str, str, str]]:
    """Return (check, severity, date) of what concerns jumps."""
    table = check.findings(bars, bar=bar, events=events)
    about = table.filter(
        pl.col("check").is_in(["possible split", "unit jump", "split block", "split not in prices", "jump"])
    )
    return [(r["check"], r["severity"], f"{r['ts']:%Y-%m-%d}") for r in about.iter_rows(named=True)]


def split(at: int, value: float) -> pl.DataFrame:
    return pl.DataFrame([("AAA", FIRST + at * DAY, "split", value)], schema=EVENT_SCHEMA, orient="row")


def test_a_calm_fall_to_a_simple_ratio_may_be_a_split_and_one_with_news_is_a_move() -> None:
    assert found(walk()) == []
    assert found(walk(factor=1 / 2)) == [("possible split", "severe", "2024-03-01")]
    assert found(walk(factor=1 / 2, money=8)) == [("jump", "warning", "2024-03-01")]
    assert found(walk(factor=1 / 1.78)) == [("jump", "warning", "2024-03-01")]
    assert found(walk(factor=10)) == [("possible split", "severe", "2024-03-01")]


def test_a_recorded_split_explains_the_jump_and_one_of_another_ratio_does_not() -> None:
    assert found(walk(factor=1 / 2), events=split(60, 2.0)) == []
    assert found(walk(factor=1 / 4), events=split(60, 2.0)) == [("possible split", "severe", "2024-03-01")]


def test_a_split_that_the_prices_do_not_show_is_severe() -> None:
    assert found(walk(), events=split(60, 2.0)) == [("split not in prices", "severe", "2024-03-01")]
    # Recorded a day late: the jump has no event, the event no jump.
    assert found(walk(factor=1 / 3), events=split(61, 3.0)) == [
        ("possible split", "severe", "2024-03-01"),
        ("split not in prices", "severe", "2024-03-02"),
    ]


def test_a_factor_of_100_is_a_unit_for_good_or_for_a_while() -> None:
    assert found(walk(factor=0.01, money=50)) == [("unit jump", "severe", "2024-03-01")]
    back = walk(factor=100).with_columns(
        pl.when(pl.col("ts") >= FIRST + 70 * DAY).then(pl.col(c) / 100).otherwise(c).alias(c)
        for c in ("open", "high", "low", "close")
    )
    table = check.findings(back, bar="1d").filter(pl.col("check") == "unit jump")
    assert table.select(pl.col("ts").dt.date().cast(str), pl.col("until").dt.date().cast(str), "count").rows() == [
        ("2024-03-01", "2024-03-10", 10)
    ]


def test_one_price_in_another_unit_is_found_inside_its_bar() -> None:
    torn = walk().with_columns(
        low=pl.when(pl.col("ts") == FIRST + 50 * DAY).then(pl.col("close") / 100).otherwise("low"),
        close=pl.when(pl.col("ts") == FIRST + 50 * DAY).then(pl.col("close") / 100).otherwise("close"),
    )
    assert found(torn) == [("unit jump", "severe", "2024-02-20")]


def test_a_fall_that_the_market_shares_is_no_split() -> None:
    alone = pl.concat([walk(factor=1 / 2), *(walk(seed=i, symbol=f"B{i}") for i in range(4))])
    shared = pl.concat([walk(factor=1 / 2, seed=i, symbol=f"B{i}") for i in range(4)])
    assert found(alone) == [("possible split", "severe", "2024-03-01")]
    assert found(shared) == [("jump", "warning", "2024-03-01")] * 4


def test_a_few_coarse_ticks_are_no_jump() -> None:
    assert found(daily_bars([3, 3, 2, 3, 2, 2, 1, 2, 1, 1, 2, 3] * 3)) == []


def test_a_jump_at_the_very_ends_and_two_bars_alone_do_not_fail() -> None:
    for n in (1, 2, 3):
        assert found(daily_bars([10.0] * n)) == []
    assert found(daily_bars([10, 25])) == [("jump", "warning", "2024-01-02")]
    assert found(walk(at=119, factor=1 / 2)) == [("possible split", "severe", "2024-04-29")]


def test_prices_no_market_has_end_in_findings_and_not_in_overflow() -> None:
    for low in (5e-324, 1e-300):
        bars = daily_bars([1e300] * 30 + [low] * 3 + [1e300] * 30)
        assert ("split block", "severe", "2024-01-31") in found(bars)


def test_the_sample_has_no_severe_finding() -> None:
    table = check.findings(sample.load_bars(), bar="1d", events=sample.load_events(), calendar=sample.CALENDAR)
    assert table.filter(pl.col("severity") == "severe").rows() == []
    jumps = table.filter(pl.col("check") == "jump").select("symbol", pl.col("ts").dt.date().cast(str))
    assert jumps.rows() == [("AAPL", "2000-09-29"), ("FB", "2012-10-24")]


@needs_real
def test_wiki_splits_are_told_from_the_real_fall_of_apple() -> None:
    assert found(wiki()) == [
        ("possible split", "severe", "2000-06-21"),
        ("possible split", "severe", "2005-02-28"),
        ("possible split", "severe", "2003-02-18"),
        ("jump", "warning", "2000-09-29"),
        ("jump", "warning", "2012-10-24"),
    ]


@needs_real
def test_splits_are_found_in_hours_as_in_days() -> None:
    (hours,) = lean("us_equity_lean/hour_aapl.zip", bar="1h", tz="America/New_York", scale=1e-4).values()
    days = lean_daily("us_equity_lean/daily_aapl.zip", symbol="AAPL")
    expected = [
        ("possible split", "severe", "2000-06-21"),
        ("possible split", "severe", "2005-02-28"),
        ("possible split", "severe", "2014-06-09"),
        ("possible split", "severe", "2020-08-31"),
        ("jump", "warning", "2000-09-29"),
    ]
    assert found(days) == expected
    assert found(hours, bar="1h") == expected


@needs_real
@pytest.mark.parametrize(
    ("file", "dates"),
    [("ORCL-2000", ["2000-01-19", "2000-10-13"]), ("AIG-2009", ["2009-07-01"]), ("IBM-2009", []), ("AAPL-2011", []), ("AAPL-2012", [])],
)  # fmt: skip
def test_quandl_splits_are_found_by_date(file: str, dates: list[str]) -> None:
    bars = csv_daily(f"wiki_quandl_full/WIKI-{file}-quandl.csv", symbol=file[:4])
    assert [d for c, s, d in found(bars) if s == "severe"] == dates


@needs_real
@pytest.mark.parametrize(
    ("file", "expected", "says"),
    [
        ("4063-T-1d-bad-stock-split", ("possible split", "severe", "2023-03-29"), "divided by 4.995"),
        ("AET-L-1d-100x-error", ("unit jump", "severe", "2022-05-09"), "times 100"),
        ("ALPHA-PA-1d-bad-stock-split", ("split block", "severe", "2023-05-08"), "divided by 2e+04"),
        ("ASAI-L-1h-bad-unit", ("unit jump", "severe", "2024-10-24"), "times 102.5"),
        # Divided by 0.76, which is no simple ratio and looks like a bad week.
        ("AV-L-1wk-bad-stock-split", ("jump", "warning", "2022-05-16"), "divided by 1.399"),
        ("CNE-L-1d-bad-stock-split", ("split block", "severe", "2023-05-09"), "divided by 2.125"),
        ("DEX-AX-1d-bad-stock-split", ("possible split", "severe", "2023-05-22"), "times 2.27"),
        ("LA-V-1d-bad-stock-split", ("split block", "severe", "2020-08-26"), "divided by 10"),
        ("MOB-ST-1d-bad-stock-split", ("split block", "severe", "2023-05-22"), "divided by 10.14"),
        ("SPM-MI-1d-bad-stock-split", ("possible split", "severe", "2022-06-20"), "divided by 19.59"),
        ("SSW-JO-1d-100x-error", ("unit jump", "severe", "2023-06-01"), "divided by 99.38"),
    ],
)
def test_a_file_of_yahoo_is_reported_with_date_and_factor_and_its_repaired_twin_is_not_severe(
    file: str, expected: tuple[str, str, str], says: str
) -> None:
    bar, hours = ("1h", 1.0) if "-1h-" in file else ("7d" if "-1wk-" in file else "1d", None)
    bad = yahoo(file, hours=hours)
    assert expected in found(bad, bar=bar)
    details = check.findings(bad, bar=bar).filter(pl.col("check") == expected[0])["detail"]
    assert any(says in d for d in details)
    # Four bars of SSW-JO have their open outside high and low, in both files.
    twin = check.findings(yahoo(f"{file}-fixed", hours=hours), bar=bar)
    assert twin.filter((pl.col("severity") == "severe") & (pl.col("check") != "high or low")).rows() == []
