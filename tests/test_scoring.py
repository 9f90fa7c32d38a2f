"""What sits between forecasts and the summary: sessions, overlap, and the way from the store to adjusted bars."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import daily_bars, free

from foxflow import config, experiment, market, metrics, scoring, volatility
from foxflow.portfolio import EQUITY_SCHEMA

TINY = Path(__file__).parent / "tiny.toml"


def equity(times: list[datetime], values: list[float]) -> pl.DataFrame:
    return pl.DataFrame({"ts": times, "equity": values, "benchmark": values}, schema=EQUITY_SCHEMA)


def test_bars_of_a_session_are_compounded_and_a_session_without_bars_has_no_return() -> None:
    # Thursday 2024-03-14, nothing on Friday, Monday; XNYS closes at 20:00 UTC in March.
    times = [
        datetime(2024, 3, 14, 15, tzinfo=UTC),
        datetime(2024, 3, 14, 20, tzinfo=UTC),
        datetime(2024, 3, 18, 20, tzinfo=UTC),
    ]
    sessions = scoring.per_session(equity(times, [101.0, 102.0, 104.0]), "XNYS")
    assert [str(s) for s in sessions["session"]] == ["2024-03-14", "2024-03-15", "2024-03-18"]
    assert sessions["equity"].to_list() == [102.0, 102.0, 104.0]


def test_bars_after_the_last_close_of_a_week_belong_to_the_next_session() -> None:
    times = [datetime(2024, 3, 15, 20, tzinfo=UTC), datetime(2024, 3, 16, 12, tzinfo=UTC)]
    sessions = scoring.per_session(equity(times, [100.0, 110.0]), "XNYS")
    assert [str(s) for s in sessions["session"]] == ["2024-03-15", "2024-03-18"]


def test_weekly_bars_do_not_make_the_sharpe_ratio_larger() -> None:
    generator = np.random.default_rng(2)
    weekly = np.exp(np.cumsum(generator.normal(0.002, 0.02, 400)))
    first = datetime(2010, 1, 8, 21, tzinfo=UTC)
    frame = equity([first + timedelta(weeks=i) for i in range(400)], weekly.tolist())
    found = metrics.sharpe(
        metrics.returns_of(scoring.per_session(frame, "XNYS")["equity"].to_numpy(), initial=1.0), periods_per_year=252
    )
    returns = metrics.returns_of(weekly, initial=1.0)
    assert found.value == pytest.approx(returns.mean() / returns.std() * math.sqrt(52.0), rel=0.05)


def test_outcomes_overlap_by_the_dates_that_their_span_holds() -> None:
    hours = np.arange(24 * 10, dtype=np.int64)
    assert scoring.overlap(hours, hours + 5) == 5
    # Six symbols, each with a bar every sixth hour: five bars ahead are thirty dates ahead.
    assert scoring.overlap(hours, hours + 30) == 30


def test_persistent_unrelated_series_are_seldom_called_related() -> None:
    generator = np.random.default_rng(9)
    t_values = []
    for _ in range(200):
        x, y = np.zeros((2, 1500))
        noise = generator.normal(size=(2, 1500))
        for i in range(1, 1500):
            x[i], y[i] = 0.95 * x[i - 1] + noise[0, i], 0.95 * y[i - 1] + noise[1, i]
        t_values.append(metrics.information_coefficient(x, y, np.arange(1500), overlap=5).t_statistic)
    # With lags of the overlap alone this is above 40 %.
    assert np.mean(np.abs(t_values) > 1.96) < 0.15


def test_the_experiments_bars_are_adjusted(tmp_path: Path) -> None:
    settings = config.load(TINY)
    aapl = experiment.pull_market(settings, tmp_path).first.filter(pl.col("symbol") == "AAPL").sort("ts")
    change = aapl.with_columns(change=pl.col("close") / pl.col("close").shift(1) - 1)

    def on(day: str) -> float:
        return float(change.filter(pl.col("ts").dt.date().cast(pl.String) == day)["change"][0])

    # A 2:1 split is no loss; the real fall stays.
    assert on("2005-02-28") > 0
    assert on("2000-09-29") == pytest.approx(-0.519, abs=0.001)


def test_har_is_fitted_on_training_rows_and_never_on_the_test(stocks: pl.DataFrame) -> None:
    settings = config.load("volatility", model="ridge", overrides=['data.symbols=["IBM"]'])
    ibm = stocks.filter(pl.col("symbol") == "IBM")
    data = experiment.build_dataset(settings, ibm)
    results = experiment.retrain(settings, data)[:1]
    scores = volatility.score(market.of(ibm), {"ridge": results}, horizon=5)
    har = scores.filter(pl.col("forecaster") == "HAR")
    # The same regression by hand on the same rows.
    fold = results[0].fold
    rows = volatility.references(ibm, horizon=5).drop_nulls()
    ts, end = pl.col("ts").dt.timestamp("us"), pl.col("label_end").dt.timestamp("us")
    train = rows.filter((ts < fold.valid_start) & (end <= fold.train_limit))
    test = rows.join(results[0].forecasts.select("symbol", "ts"), on=["symbol", "ts"], how="semi")

    def design(frame: pl.DataFrame) -> np.ndarray:
        return np.column_stack([np.ones(len(frame)), frame.select("day", "week", "month").to_numpy()])

    coefficients = np.linalg.solve(design(train).T @ design(train), design(train).T @ train["label"].to_numpy())
    error = ((test["label"].to_numpy() - design(test) @ coefficients) ** 2).sum()
    base = ((test["label"] - test["mean"]) ** 2).sum()
    assert har["r_squared"][0] == pytest.approx(1 - error / base, abs=1e-9)


def test_residual_variance_is_in_squared_label_units(stocks: pl.DataFrame) -> None:
    settings = config.load("volatility", model="ridge", overrides=['data.symbols=["IBM"]'])
    data = experiment.build_dataset(settings, stocks.filter(pl.col("symbol") == "IBM"))
    once = experiment.retrain(settings, data)[0].residual_variance
    doubled = replace(data, series=tuple(replace(s, label=2 * s.label) for s in data.series))
    assert experiment.retrain(settings, doubled)[0].residual_variance == pytest.approx(4 * once, rel=1e-9)


def test_the_benchmark_pays_costs() -> None:
    from foxflow import portfolio
    from foxflow.signals import POSITION_SCHEMA

    bars = daily_bars([100.0] * 4)
    idle = bars.select("symbol", "ts", signal=pl.lit(0.0), position=pl.lit(0.0)).cast(POSITION_SCHEMA)
    book = portfolio.run(idle, bars, band=0.0, costs=free(fee_bps=10, half_spread_bps=10, initial_cash=10_000.0))
    assert book.equity["benchmark"][-1] == pytest.approx(10_000 / (1.001 * 1.001), rel=1e-9)


def test_buy_and_hold_buys_a_newcomer_though_another_symbol_has_no_bar_that_day() -> None:
    from foxflow import portfolio
    from foxflow.signals import POSITION_SCHEMA

    a = daily_bars([100.0] * 8, symbol="A")
    z = daily_bars([10.0] * 5 + [20.0], symbol="Z", start=2)
    bars = pl.concat([a.filter(pl.col("ts") != z["ts"][0]), z])
    idle = bars.select("symbol", "ts", signal=pl.lit(0.0), position=pl.lit(0.0)).cast(POSITION_SCHEMA)
    book = portfolio.run(idle, bars, band=0.0, costs=free(initial_cash=10_000.0))
    # Z's buy waits until A is sold: half the money is in Z when it doubles.
    assert book.equity["benchmark"][-1] == pytest.approx(15_000.0)
