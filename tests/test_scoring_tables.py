"""The tables of a score: months, drawdowns, exposure, rolling IC and calibration, against hand-made numbers."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm

from foxflow import config, metrics
from foxflow.portfolio import EQUITY_SCHEMA, FILL_SCHEMA, GROSS_SCHEMA, HELD_SCHEMA, Book
from foxflow.scoring.forecasts import calibration, rolling_ic
from foxflow.scoring.returns import cost_share, earned, exposure, monthly, worst_drawdowns


def sessions(values: dict[str, float]) -> pl.DataFrame:
    return pl.DataFrame({"session": [date.fromisoformat(d) for d in values], "equity": list(values.values())})


def test_a_months_return_runs_from_the_last_session_of_the_month_before() -> None:
    days = {"2023-12-28": 101.0, "2023-12-29": 110.0, "2024-01-02": 99.0, "2024-01-31": 121.0, "2024-03-01": 60.5}
    assert monthly(sessions(days), initial=100.0) == [
        {"year": 2023, "month": 12, "return": pytest.approx(0.1)},
        {"year": 2024, "month": 1, "return": pytest.approx(0.1)},
        {"year": 2024, "month": 3, "return": pytest.approx(-0.5)},
    ]


def test_drawdowns_are_listed_deepest_first_with_their_start_trough_and_end() -> None:
    days = {
        "2024-01-01": 110.0,
        "2024-01-02": 99.0,
        "2024-01-03": 104.5,
        "2024-01-04": 110.0,
        "2024-01-05": 120.0,
        "2024-01-08": 90.0,
        "2024-01-09": 60.0,
        "2024-01-10": 66.0,
    }
    deepest, other = worst_drawdowns(sessions(days), initial=100.0)
    assert deepest == {
        "start": date(2024, 1, 5),
        "trough": date(2024, 1, 9),
        "end": None,
        "depth": pytest.approx(-0.5),
        "sessions": 3,
        "recovery_sessions": None,
    }
    assert other == {
        "start": date(2024, 1, 1),
        "trough": date(2024, 1, 2),
        "end": date(2024, 1, 4),
        "depth": pytest.approx(-0.1),
        "sessions": 3,
        "recovery_sessions": 2,
    }


def test_a_fall_from_the_initial_cash_on_is_a_drawdown_too_and_a_rise_is_none() -> None:
    falling = worst_drawdowns(sessions({"2024-01-01": 90.0, "2024-01-02": 100.0}), initial=100.0)
    assert [(d["start"], d["trough"], d["end"]) for d in falling] == [
        (date(2024, 1, 1), date(2024, 1, 1), date(2024, 1, 2))
    ]
    assert worst_drawdowns(sessions({"2024-01-01": 100.0, "2024-01-02": 101.0}), initial=100.0) == []


def test_the_maximum_drawdown_is_that_of_the_bars_not_of_the_sessions_closes() -> None:
    first = datetime(2024, 1, 1, 12, tzinfo=UTC)
    # Noon and midnight of three days: it falls by a fifth, and buy-and-hold by a tenth, between two closes.
    equity, benchmark = [1e6, 1e6, 0.8e6, 1e6, 1.1e6, 1.2e6], [1e6, 1e6, 0.9e6, 1e6, 1e6, 1e6]
    ts = [first + timedelta(hours=12 * i) for i in range(6)]
    frame = pl.DataFrame({"ts": ts, "equity": equity, "benchmark": benchmark}, schema=EQUITY_SCHEMA)
    gross = pl.DataFrame({"ts": ts, "gross": [1e6, 1e6, 0.9e6, 1.1e6, 1.2e6, 1.4e6]}, schema=GROSS_SCHEMA)
    book = Book(frame, FILL_SCHEMA.to_frame(), HELD_SCHEMA.to_frame(), FILL_SCHEMA.to_frame(), gross=gross)
    found = earned(config.load("returns", overrides=["data.calendar=24/7"]), book)
    assert found["max_drawdown"] == pytest.approx(-0.2, rel=1e-12)
    assert found["benchmark_max_drawdown"] == pytest.approx(-0.1, rel=1e-12)
    assert found["gross_return"] == pytest.approx(0.4, rel=1e-12)


def test_the_share_of_costs_is_what_the_waterfall_loses() -> None:
    assert cost_share(0.4, net=0.2) == pytest.approx(0.5)
    # Costs made a loss of a profit; without a profit there is nothing to share.
    assert cost_share(0.1, net=-0.1) == pytest.approx(2.0)
    assert np.isnan(cost_share(-0.1, net=-0.2))


def test_exposure_counts_gross_and_net_of_each_bar() -> None:
    first, second = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)
    held = pl.DataFrame(
        {"symbol": ["A", "B"] * 2, "ts": [first, first, second, second], "weight": [0.5, -0.3, 0.0, 0.0]}
    )
    assert exposure(held, turnover=7.0) == {
        "mean_gross": pytest.approx(0.4),
        "mean_net": pytest.approx(0.1),
        "most_gross": pytest.approx(0.8),
        "share_of_bars_invested": 0.5,
        "turnover_a_year": 7.0,
    }


def test_exposure_counts_what_is_held_without_a_bar() -> None:
    days = [datetime(2024, 1, i, tzinfo=UTC) for i in (1, 2, 3, 4)]
    rows = [("A", 0, 0.5), ("A", 1, 0.5), ("A", 2, 0.6), ("B", 1, -0.3), ("B", 3, 0.0)]
    held = pl.DataFrame([(s, days[i], w) for s, i, w in rows], schema=["symbol", "ts", "weight"], orient="row")
    # Day 2: B has no bar and is still short; day 3: A is still long.
    found = exposure(held, turnover=0.0)
    assert found["mean_gross"] == pytest.approx((0.5 + 0.8 + 0.9 + 0.6) / 4)
    assert found["mean_net"] == pytest.approx((0.5 + 0.2 + 0.3 + 0.6) / 4)
    assert (found["most_gross"], found["share_of_bars_invested"]) == (pytest.approx(0.9), 1.0)


def outcomes(forecast: np.ndarray, label: np.ndarray, *, horizon: int = 0) -> pl.DataFrame:
    first = datetime(2020, 1, 1, tzinfo=UTC)
    ts = [first + timedelta(days=i) for i in range(len(forecast))]
    ends = [t + timedelta(days=horizon) for t in ts]
    frame = {"symbol": ["A"] * len(ts), "ts": ts, "forecast": forecast, "label": label, "label_end": ends}
    return pl.DataFrame(frame).with_columns(pl.col("label").fill_nan(None))


def test_rolling_ic_is_the_correlation_of_the_last_years_dates() -> None:
    random = np.random.default_rng(5)
    forecast, label = random.normal(size=300), random.normal(size=300)
    label[-3:] = np.nan
    found = rolling_ic(outcomes(forecast, label), dates_a_year=250)
    assert len(found) == 297 - 250 + 1
    assert found[0]["ic"] == pytest.approx(np.corrcoef(forecast[:250], label[:250])[0, 1], abs=1e-12)
    assert found[-1]["ic"] == pytest.approx(np.corrcoef(forecast[47:297], label[47:297])[0, 1], abs=1e-12)
    assert found[-1]["ts"] == datetime(2020, 1, 1, tzinfo=UTC) + timedelta(days=296)
    assert rolling_ic(outcomes(forecast, label), dates_a_year=298) == []


def test_rolling_ic_leaves_out_what_was_not_known_at_a_windows_end() -> None:
    random = np.random.default_rng(5)
    forecast, label = random.normal(size=300), random.normal(size=300)
    found = rolling_ic(outcomes(forecast, label, horizon=20), dates_a_year=250)
    assert len(found) == 51
    assert found[0]["ts"] == datetime(2020, 1, 1, tzinfo=UTC) + timedelta(days=249)
    assert found[0]["ic"] == pytest.approx(np.corrcoef(forecast[:230], label[:230])[0, 1], abs=1e-12)
    assert found[-1]["ic"] == pytest.approx(np.corrcoef(forecast[50:280], label[50:280])[0, 1], abs=1e-12)


@pytest.mark.parametrize("horizon", [0, 5])
def test_calibration_is_the_regression_that_statsmodels_fits(horizon: int) -> None:
    random = np.random.default_rng(6)
    forecast = random.normal(size=500)
    noise = np.convolve(random.normal(size=520), np.ones(horizon + 1), mode="valid")[:500]
    label = 0.3 + 0.5 * forecast + noise
    found = calibration(outcomes(forecast, label, horizon=horizon))
    design = sm.add_constant(forecast)
    error = (forecast - forecast.mean()) * sm.OLS(label, design).fit().resid
    lags = max(horizon, metrics.persistence_lags(error))
    fitted = sm.OLS(label, design).fit(cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False})
    assert found["intercept"] == pytest.approx(fitted.params[0], rel=1e-9)
    assert found["slope"] == pytest.approx(fitted.params[1], rel=1e-9)
    assert found["slope_t"] == pytest.approx(fitted.tvalues[1], rel=1e-9)


def test_forecasts_that_do_not_vary_have_no_calibration() -> None:
    assert np.isnan(list(calibration(outcomes(np.ones(10), np.arange(10.0))).values())).all()
