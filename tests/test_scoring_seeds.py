"""What several seeds come to together: one that never trades, or loses, changes what is said of the others in no way."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import daily_bars

from foxflow import config, experiment, market, report, scoring
from foxflow.config import Config
from foxflow.market import Market
from foxflow.scoring import Score
from foxflow.training import FoldResult

TINY = Path(__file__).parent / "tiny.toml"
OVERRIDES = ("data.calendar=24/7", "data.symbols=[]", "walk_forward.train=200", "walk_forward.every=80")


def settings(*overrides: str) -> Config:
    return config.load(TINY, model="ridge", overrides=[*OVERRIDES, *overrides])


@pytest.fixture(scope="module")
def pulled() -> Market:
    random = np.random.default_rng(4)
    closes = 100 * np.exp(np.cumsum(random.normal(0.001, 0.02, 400)))
    opens = np.concatenate([[100.0], closes[:-1]]) * np.exp(random.normal(0, 0.005, 400))
    return market.of(daily_bars(opens.tolist(), closes.tolist()))


@pytest.fixture(scope="module")
def results(pulled: Market) -> list[FoldResult]:
    chosen = settings()
    return experiment.retrain(chosen, experiment.build_dataset(chosen, pulled.first))


def foretold(results: list[FoldResult], pulled: Market, factor: float) -> list[FoldResult]:
    """Return the results with forecasts that are so many times the return to come: a seed that wins, loses or idles."""
    known = scoring.score(settings(), pulled, [results], {}).outcomes
    ahead = known.select("symbol", "ts", ahead=pl.col("label").fill_null(0.0) * factor)

    def forecasts(rows: pl.DataFrame) -> pl.DataFrame:
        joined = rows.join(ahead, on=["symbol", "ts"], how="left", maintain_order="left")
        return joined.with_columns(forecast="ahead").drop("ahead")

    return [replace(r, forecasts=forecasts(r.forecasts)) for r in results]


def of_seeds(results: list[FoldResult], pulled: Market, *factors: float) -> Score:
    seeds = [foretold(results, pulled, factor) for factor in factors]
    return scoring.score(settings(f"experiment.n_seeds={len(factors)}"), pulled, seeds, {})


@pytest.mark.parametrize("other", [0.0, -1.0], ids=["never trades", "loses"])
def test_costs_of_seeds_are_set_against_the_profit_of_all(
    results: list[FoldResult], pulled: Market, other: float
) -> None:
    found = of_seeds(results, pulled, 1.0, 1.0, other).metrics
    seeds = [foretold(results, pulled, factor) for factor in (1.0, 1.0, other)]
    free = settings("experiment.n_seeds=3", "costs.fee_bps=0", "costs.half_spread_bps=0")
    without = scoring.score(free, pulled, seeds, {}).metrics["seeds"]
    gross, net = (np.mean([s["total_return"] for s in rows]) for rows in (without, found["seeds"]))
    assert gross > 0
    assert found["cost_share"] == pytest.approx((gross - net) / gross, rel=1e-9)
    assert "Before costs there was no profit either." not in report.verdict(found | {"model": "ridge"})


def test_exposure_is_the_mean_over_seeds_as_turnover_is(results: list[FoldResult], pulled: Market) -> None:
    alone = of_seeds(results, pulled, 1.0).metrics["exposure"]
    found = of_seeds(results, pulled, 0.0, 1.0).metrics
    assert found["exposure"] == {name: pytest.approx(value / 2) for name, value in alone.items()}
    assert found["exposure"]["turnover_a_year"] == pytest.approx(found["turnover"])


def test_capacity_leaves_out_amounts_that_buy_nothing(results: list[FoldResult], pulled: Market) -> None:
    chosen = settings("costs.impact=0.1", "costs.initial_cash=5")
    found = scoring.score(chosen, pulled, [results], {}).metrics["sensitivity"]
    assert [row["initial_cash"] for row in found["capacity"]] == [5.0, 50.0, 500.0, 5000.0]


def test_a_baseline_that_is_ruined_is_said_to_be_and_the_strategy_is_scored(
    results: list[FoldResult], pulled: Market
) -> None:
    leaps = pl.when(pl.int_range(pl.len()) >= 300).then(2.5).otherwise(1.0)
    risen = market.of(pulled.first.with_columns(pl.col("open", "high", "low", "close") * leaps))
    chosen = settings("strategy.position_limit=1")
    buys, sells = (
        [replace(r, forecasts=r.forecasts.with_columns(forecast=pl.lit(side))) for r in results] for side in (1.0, -1.0)
    )
    alone = scoring.score(chosen, risen, [buys], {})
    found = scoring.score(chosen, risen, [buys], {"ridge": sells})
    rival = found.metrics.pop("baseline")
    assert rival["sharpe"] is None
    assert "is ruined" in rival["note"]
    assert found.sessions.equals(alone.sessions)
    (said,) = (s for s in report.verdict(found.metrics | {"model": "gru", "baseline": rival}) if "baseline" in s)
    assert said.startswith("The ridge baseline could not be traded on the same folds: equity fell to ")
