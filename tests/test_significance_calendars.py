"""Closed-form Sharpe ratios of known equity curves, from bars of any length to the annualised number."""

import math
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from foxflow import bars, metrics, scoring, significance
from foxflow.metrics import Floats
from foxflow.significance import Trials

FIRST, LAST = date(2015, 1, 1), date(2018, 12, 31)
UP, DOWN = 0.012, -0.008


def closes(calendar: str) -> pl.Series:
    return bars.session_closes(calendar, FIRST, LAST)["ts"]


def daily() -> tuple[pl.Series, Floats]:
    times = closes("XNYS")
    return times, np.tile([UP, DOWN], len(times))[: len(times)]


def quarter_hours() -> tuple[pl.Series, Floats]:
    """Four bars of 15 minutes before each close, the gain of the session in the third of them."""
    ends = closes("XNYS")
    times = pl.concat([ends - timedelta(minutes=15 * k) for k in range(4)]).sort()
    gains = np.zeros((len(ends), 4))
    gains[:, 2] = np.tile([UP, DOWN], len(ends))[: len(ends)]
    return times, gains.ravel()


def weekly() -> tuple[pl.Series, Floats]:
    """One bar each fifth session: the sessions between have a return of 0."""
    times = closes("XNYS").gather_every(5)
    return times, np.tile([UP, DOWN], len(times))[: len(times)]


def around_the_clock() -> tuple[pl.Series, Floats]:
    """Bars of six hours, the gain of the day in the first."""
    n_days = (LAST - FIRST).days + 1
    first = datetime(FIRST.year, FIRST.month, FIRST.day, 6, tzinfo=UTC)
    times = pl.datetime_range(first, interval="6h", end=first + timedelta(hours=6 * (4 * n_days - 1)), eager=True)
    gains = np.zeros((n_days, 4))
    gains[:, 0] = np.tile([UP, DOWN], n_days)[:n_days]
    return times.cast(bars.TS), gains.ravel()


@pytest.mark.parametrize(
    ("calendar", "made", "every", "year"),
    [
        ("XNYS", daily, 1, 252),
        ("XNYS", quarter_hours, 1, 252),
        ("XNYS", weekly, 5, 252),
        ("24/7", around_the_clock, 1, 365),
    ],
)
def test_the_sharpe_ratio_of_a_known_curve_is_its_closed_form(
    calendar: str, made: object, every: int, year: int
) -> None:
    """Of `k` sessions up, `l` down and the rest without a return among `n`: mean and spread follow by hand."""
    assert callable(made)
    times, gains = made()
    equity = 1e6 * np.cumprod(1 + gains)
    frame = pl.DataFrame({"ts": times, "equity": equity, "benchmark": equity})
    sessions = scoring.per_session(frame, calendar)
    returns = metrics.returns_of(sessions["equity"].to_numpy(), initial=1e6)
    moved = np.count_nonzero(gains)
    n, k = every * (moved - 1) + 1, (moved + 1) // 2
    down = moved - k
    assert len(returns) == n
    mean = (k * UP + down * DOWN) / n
    variance = (k * UP**2 + down * DOWN**2 - n * mean**2) / (n - 1)
    closed_form = mean / math.sqrt(variance) * math.sqrt(year)
    found = metrics.sharpe(returns, periods_per_year=bars.sessions_per_year(calendar))
    assert found.value == pytest.approx(closed_form, abs=1e-9)
    # The third and fourth moments of the same three values, for the probabilistic ratio.
    values, counts = np.array([UP, DOWN, 0.0]), np.array([k, down, n - k - down])
    second, third, fourth = (float(counts @ (values - mean) ** p) / n for p in (2, 3, 4))
    ratio, skewness, kurtosis = mean / math.sqrt(variance), third / second**1.5, fourth / second**2
    z = ratio * math.sqrt(n - 1) / math.sqrt(1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2)
    assessed = significance.assess(
        returns, returns, periods_per_year=year, trials=Trials(returns[:, None], is_known=True, note=""), seed=0
    )["significance"]
    assert assessed["psr"] == pytest.approx(0.5 * math.erfc(-z / math.sqrt(2)), abs=1e-9)
    assert assessed["deflated_sharpe"] == assessed["psr"]
    depth = metrics.drawdown(np.concatenate([[1e6], sessions["equity"].to_numpy()])).min()
    assert depth == pytest.approx(DOWN, abs=1e-9)
