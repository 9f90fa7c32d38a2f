"""Gaps, strays, holes, bar lengths and clocks, against calendars that are known and habits that are learnt."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from real_bars import (
    MINUTE,
    PRICES,
    btcperp,
    fesx,
    fut6e,
    gbpusd,
    lean,
    lean_daily,
    lean_quotes,
    needs_real,
    ninjatrader,
    stamped,
    wiki,
)

from foxflow import check
from foxflow.bars import BAR_SCHEMA, session_closes

ABOUT_TIME = ["missing sessions", "long gap", "stray session", "outside hours", "hole", "small holes", "bar length", "off the grid", "clock break"]  # fmt: skip
NEW_YORK = ZoneInfo("America/New_York")


def bars_at(ts: list[datetime], *, activity: np.ndarray | None = None, seed: int = 1) -> pl.DataFrame:
    """Return a random walk with bars that end at `ts`; `activity` scales each bar's range."""
    random = np.random.default_rng(seed)
    n = len(ts)
    close = 100 * np.exp(np.cumsum(random.normal(0, 1e-3, n)))
    open_ = np.append(close[0], close[:-1]) * np.exp(random.normal(0, 1e-4, n))
    wide = 1 + (np.full(n, 1e-3) if activity is None else activity) * random.uniform(0.5, 1.5, n)
    values = (open_, np.maximum(open_, close) * wide, np.minimum(open_, close) / wide, close)
    columns = dict(zip(PRICES, values, strict=True))
    return pl.DataFrame(
        {"symbol": ["AAA"] * n, "ts": ts, **columns, "volume": random.uniform(1, 2, n)}, schema=BAR_SCHEMA
    )


def found(bars: pl.DataFrame, bar: str, calendar: str | None) -> list[tuple[str, str, str, int]]:
    """Return (check, severity, first day, count) of what concerns time."""
    table = check.findings(bars, bar=bar, calendar=calendar).filter(pl.col("check").is_in(ABOUT_TIME))
    return [(r["check"], r["severity"], f"{r['ts']:%Y-%m-%d}", r["count"]) for r in table.iter_rows(named=True)]


def sessions(first: date, last: date, calendar: str = "XNYS") -> list[datetime]:
    return session_closes(calendar, first, last)["ts"].to_list()


def minutes(first: date, last: date, *, hole: tuple[int, int] | None = None, keep: float = 1.0) -> list[datetime]:
    """Return the ends of the minutes of New York's sessions; `hole` names minutes of the third session left out."""
    random = np.random.default_rng(5)
    out = []
    for n, close in enumerate(sessions(first, last)):
        begins = close.astimezone(NEW_YORK).replace(hour=9, minute=30).astimezone(UTC)
        for minute in range(int((close - begins) / MINUTE)):
            is_left_out = n == 2 and hole is not None and hole[0] <= minute < hole[1]
            out += [begins + (minute + 1) * MINUTE] if random.random() < keep and not is_left_out else []
    return out


def test_days_that_fill_their_sessions_have_no_finding_through_half_days_and_daylight_saving() -> None:
    assert found(bars_at(sessions(date(2012, 1, 3), date(2013, 12, 31))), "1d", "XNYS") == []


def test_missing_and_stray_days_are_named() -> None:
    days = sessions(date(2012, 1, 3), date(2012, 12, 31))
    kept = [d for d in days if d.date() not in {date(2012, 3, 5), date(2012, 3, 6), date(2012, 7, 2)}]
    saturday = datetime(2012, 5, 5, 20, tzinfo=UTC)
    assert found(bars_at(sorted([*kept, saturday])), "1d", "XNYS") == [
        ("missing sessions", "warning", "2012-03-05", 2),
        ("stray session", "warning", "2012-05-05", 1),
        ("missing sessions", "warning", "2012-07-02", 1),
    ]
    assert found(bars_at(days[:40] + days[60:]), "1d", "XNYS") == [("long gap", "severe", "2012-03-01", 20)]


def test_days_stamped_at_another_hour_are_matched_by_their_date() -> None:
    days = [d.replace(hour=12, minute=0) for d in sessions(date(2012, 1, 3), date(2012, 12, 31))]
    assert found(bars_at(days[:100] + days[102:]), "1d", "XNYS") == [("missing sessions", "warning", "2012-05-25", 2)]


def test_many_gaps_are_bounded_and_counted() -> None:
    days = sessions(date(2012, 1, 3), date(2013, 12, 31))
    table = found(bars_at([d for n, d in enumerate(days) if n % 10]), "1d", "XNYS")
    assert len(table) == 11
    assert sum(count for *_, count in table) == len(days) - len([n for n in range(len(days)) if n % 10]) - 1


def test_without_a_calendar_only_gaps_that_no_holiday_explains_are_said() -> None:
    weekdays = [
        d for n in range(400) if (d := datetime(2023, 1, 2, 21, tzinfo=UTC) + n * timedelta(days=1)).weekday() < 5
    ]
    assert found(bars_at(weekdays[:50] + weekdays[55:]), "1d", None) == []
    assert found(bars_at(weekdays[:50] + weekdays[56:]), "1d", None) == [
        ("missing sessions", "warning", "2023-03-11", 6)
    ]
    assert found(bars_at(weekdays[:50] + weekdays[70:]), "1d", None) == [("long gap", "severe", "2023-03-11", 20)]


def test_minutes_of_every_session_have_no_finding_through_half_days_and_daylight_saving() -> None:
    # Thanksgiving's half day and the change of clocks lie inside.
    assert found(bars_at(minutes(date(2012, 10, 31), date(2012, 11, 28))), "1m", "XNYS") == []


def test_a_hole_is_judged_by_how_often_the_symbol_has_bars() -> None:
    first, last = date(2012, 11, 5), date(2012, 12, 7)
    assert found(bars_at(minutes(first, last, hole=(100, 200))), "1m", "XNYS") == [
        ("hole", "warning", "2012-11-07", 100)
    ]
    assert found(bars_at(minutes(first, last, hole=(100, 104))), "1m", "XNYS") == [
        ("small holes", "note", "2012-11-07", 1)
    ]
    # Where every third minute has no trade, four without are nothing.
    assert found(bars_at(minutes(first, last, hole=(100, 104), keep=0.67)), "1m", "XNYS") == []
    ((check_, severity, day, n_bars),) = found(bars_at(minutes(first, last, hole=(100, 200), keep=0.67)), "1m", "XNYS")
    assert (check_, severity, day) == ("hole", "warning", "2012-11-07")
    # Minutes without a trade on both sides of the hole belong to it.
    assert 100 <= n_bars <= 110


def test_a_whole_session_that_is_missing_is_no_hole() -> None:
    kept = [t for t in minutes(date(2012, 11, 5), date(2012, 11, 30)) if t.date() != date(2012, 11, 13)]
    assert found(bars_at(kept), "1m", "XNYS") == [("missing sessions", "warning", "2012-11-13", 1)]


def test_bars_before_and_after_the_hours_are_a_habit_or_a_fault_and_a_sunday_is_no_session() -> None:
    regular = minutes(date(2012, 11, 5), date(2012, 11, 16))
    closes = sessions(date(2012, 11, 5), date(2012, 11, 16))
    late = [c + n * MINUTE for c in closes for n in range(1, 30)]
    sunday = datetime(2012, 11, 11, 15, tzinfo=UTC)
    assert found(bars_at(sorted(regular + late)), "1m", "XNYS") == [("outside hours", "note", "2012-11-05", 290)]
    assert found(bars_at(sorted([*regular, *late[:29]])), "1m", "XNYS") == [
        ("outside hours", "warning", "2012-11-05", 29)
    ]
    assert found(bars_at(sorted([*regular, sunday])), "1m", "XNYS") == [("stray session", "warning", "2012-11-11", 1)]


def test_a_lunch_break_is_no_hole() -> None:
    hours = [
        begins + timedelta(minutes=5 * n)
        for close in sessions(date(2019, 3, 1), date(2019, 3, 29), "XTKS")
        for begins, n_bars in ((close - timedelta(hours=6), 30), (close - timedelta(hours=2.5), 30))
        for n in range(1, n_bars + 1)
    ]
    assert found(bars_at(hours), "5m", "XTKS") == []
    # Trading in the break is outside the hours.
    assert [f[0] for f in found(bars_at(sorted([*hours, datetime(2019, 3, 5, 3, tzinfo=UTC)])), "5m", "XTKS")] == [
        "outside hours"
    ]


def test_foreign_exchange_trades_from_sunday_to_friday_evening_in_new_york() -> None:
    week = datetime(2019, 1, 6, 17, tzinfo=NEW_YORK).astimezone(UTC)
    hours = [
        (week.astimezone(NEW_YORK) + timedelta(weeks=w)).astimezone(UTC) + timedelta(hours=h)
        for w in range(20)
        for h in range(1, 121)
    ]
    assert found(bars_at(hours), "1h", "24/5") == []
    assert found(bars_at(sorted([*hours, datetime(2019, 2, 2, 12, tzinfo=UTC)])), "1h", "24/5") == [
        ("stray session", "warning", "2019-02-02", 1)
    ]


def test_a_length_that_changes_or_is_not_the_declared_one_is_severe() -> None:
    whole = minutes(date(2012, 11, 5), date(2012, 11, 30))
    fives = [t for t in whole if t.minute % 5 == 0]
    turn = datetime(2012, 11, 15, tzinfo=UTC)
    mixed = [t for t in whole if t < turn] + [t for t in fives if t >= turn]
    assert found(bars_at(fives), "1m", None) == [("bar length", "severe", "2012-11-05", len(fives))]
    assert found(bars_at(mixed), "1m", None) == [
        ("bar length", "severe", "2012-11-15", len([t for t in fives if t >= turn]))
    ]
    assert found(bars_at(fives), "5m", None) == []
    assert found(bars_at(whole), "5m", None)[0][:2] == ("bar length", "severe")
    weeks = [datetime(2020, 1, 3, 21, tzinfo=UTC) + n * timedelta(weeks=1) for n in range(60)]
    assert ("bar length", "severe") in [f[:2] for f in found(bars_at(weeks), "1d", None)]
    assert found(bars_at(weeks), "7d", None) == []


def test_a_bar_off_the_grid_is_named_and_bars_without_a_grid_have_no_length() -> None:
    whole = minutes(date(2012, 11, 5), date(2012, 11, 9))
    odd = sorted([*whole[:100], whole[100] + timedelta(seconds=4), *whole[101:]])
    assert ("off the grid", "warning", "2012-11-05", 1) in found(bars_at(odd), "1m", None)
    random = np.random.default_rng(0)
    steps = np.cumsum(random.integers(61, 900, 1000))
    dollars = [datetime(2012, 11, 5, tzinfo=UTC) + timedelta(seconds=int(s)) for s in steps]
    assert found(bars_at(dollars), "1m", None)[0] == ("bar length", "severe", "2012-11-05", 1000)


def clocked(shift: int, *, zone: ZoneInfo, n_days: int = 120, at: int = 60, width: float = 2) -> pl.DataFrame:
    """Return hours of days busiest at 10 in `zone`, within `width` hours, whose clock is `shift` hours off from day `at` on."""
    begins = datetime(2012, 7, 2, tzinfo=UTC)
    true = [begins + timedelta(hours=n) for n in range(24 * n_days)]
    hour = np.array([t.astimezone(zone).hour for t in true])
    activity = 1e-3 * np.exp(-(((hour - 10 + 12) % 24 - 12) ** 2) / (2 * width**2)) + 5e-5
    off = [timedelta(hours=shift if n >= 24 * at else 0) for n in range(24 * n_days)]
    stamps = [t + o + timedelta(hours=1) for t, o in zip(true, off, strict=True)]
    return bars_at(stamps, activity=activity).unique("ts", keep="first").sort("ts")


@pytest.mark.parametrize("shift", [-7, -2, 2, 5])
def test_a_clock_that_jumps_is_reported_with_its_month(shift: int) -> None:
    bars = clocked(shift, zone=ZoneInfo("UTC"))
    table = check.findings(bars, bar="1h").filter(pl.col("check") == "clock break")
    assert table["severity"].to_list() == ["severe"]
    assert "(August 2012)" in table["detail"][0]
    assert f"{abs(shift)} h {'later' if shift > 0 else 'earlier'}" in table["detail"][0]


def test_daylight_saving_is_no_break_and_an_hour_is_one_only_on_an_exchanges_own_clock() -> None:
    moves = clocked(0, zone=NEW_YORK, n_days=250, width=1)
    for calendar in (None, "24/7", "24/5"):
        assert [f for f in found(moves, "1h", calendar) if f[0] == "clock break"] == []
    fixed = clocked(0, zone=ZoneInfo("UTC"), n_days=250, width=1)
    breaks = [f[2][:7] for f in found(fixed, "1h", "24/5") if f[0] == "clock break"]
    # Hours that ignore New York's clock changes: the file was read in a zone it is not written in.
    assert breaks == ["2012-11"]


@needs_real
def test_the_clock_break_of_fxcm_is_reported_in_september_2009_and_oanda_has_none() -> None:
    fxcm = lean_quotes("eurusd_hour_fxcm_clock_break/eurusd_hour_fxcm.zip", tz="Etc/GMT+5")
    oanda = lean_quotes("eurusd_hour_lean/eurusd_hour_oanda.zip", tz="UTC")
    for calendar in (None, "24/5"):
        table = check.findings(fxcm, bar="1h", calendar=calendar).filter(pl.col("check") == "clock break")
        moved = table.filter(pl.col("detail").str.contains("4 h later"))
        assert moved["ts"].dt.strftime("%Y-%m").to_list() == ["2009-09"]
        assert "September 2009" in moved["detail"][0]
        assert [f for f in found(oanda, "1h", calendar) if f[1] == "severe"] == []


@needs_real
def test_the_fine_minute_files_have_no_severe_finding() -> None:
    dukascopy = stamped(
        "eurusd_hour_dukascopy/FOREX_EURUSD_1H_ASK.csv", symbol="EURUSD", names=["stamp", *PRICES, "volume"],
        fmt="%d.%m.%Y %H:%M:%S", tz="UTC", add=timedelta(hours=1),
    )  # fmt: skip
    (spy,) = lean("us_equity_lean/hour_spy.zip", bar="1h", tz="America/New_York", scale=1e-4).values()
    for bars, bar, calendar in (
        (ninjatrader(""), "1m", "XNYS"),
        (ninjatrader("-03"), "1m", "XNYS"),
        (fut6e(), "1m", "CMES"),
        (btcperp(), "1m", "24/7"),
        (gbpusd(), "1m", "24/5"),
        (fesx(), "1m", "XEUR"),
        (dukascopy, "1h", "24/5"),
        (spy, "1h", "XNYS"),
    ):
        for named in (calendar, None):
            table = check.findings(bars, bar=bar, calendar=named)
            assert table.filter(pl.col("severity") == "severe").rows() == [], bars["symbol"][0]


@needs_real
def test_wiki_and_spy_miss_no_session_and_qqq_misses_six_years() -> None:
    assert found(wiki(), "1d", "XNYS") == []
    assert found(lean_daily("us_equity_lean/daily_spy.zip", symbol="SPY"), "1d", "XNYS") == []
    qqq = found(lean_daily("us_equity_lean/daily_qqq.zip", symbol="QQQ"), "1d", "XNYS")
    assert [(f[0], f[1], f[2][:7]) for f in qqq] == [("long gap", "severe", "2004-12")]
