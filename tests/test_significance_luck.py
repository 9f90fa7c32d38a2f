"""On markets without anything to find little is found, and where something is, it is: the whole way, at costs zero."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import free

from foxflow import dataset, labels, metrics, portfolio, report, signals, significance, splits, training
from foxflow.bars import BAR_SCHEMA
from foxflow.config import Strategy, WalkForward
from foxflow.metrics import Floats
from foxflow.report.conclusion import standing
from foxflow.training import FoldResult, Recipe

N_MARKETS, N_BARS = 200, 700
# Two fits and 400 sessions out of sample.
RULE = WalkForward(train=300, every=200, embargo=2)
FEATURES = ["return_1", "volatility_20"]


def independent(random: np.random.Generator) -> Floats:
    returns: Floats = 0.01 * random.standard_normal((N_BARS, 1))
    return returns


def garch(random: np.random.Generator) -> Floats:
    """GARCH(1,1) with Student's t of 5 degrees of freedom: alpha 0.08, beta 0.9, 1 % a day."""
    shocks = random.standard_t(5, N_BARS) / np.sqrt(5 / 3)
    returns, variance = np.zeros((N_BARS, 1)), 1e-4
    for at, shock in enumerate(shocks):
        returns[at] = np.sqrt(variance) * shock
        variance = 0.02 * 1e-4 + 0.08 * float(returns[at, 0]) ** 2 + 0.9 * variance
    return returns


def correlated(random: np.random.Generator) -> Floats:
    """Three symbols of correlation 0.6."""
    common, own = random.standard_normal((N_BARS, 1)), random.standard_normal((N_BARS, 3))
    returns: Floats = 0.01 * (np.sqrt(0.6) * common + np.sqrt(0.4) * own)
    return returns


def market(returns: Floats, random: np.random.Generator) -> pl.DataFrame:
    """Return daily bars that open at the close before them, so that no price is fairer than another."""
    n_bars, n_symbols = returns.shape
    closes = 100 * np.cumprod(1 + returns, axis=0)
    opens = np.vstack([np.full(n_symbols, 100.0), closes[:-1]])
    wicks = 1 + 0.003 * random.random((2, n_bars, n_symbols))
    first = datetime(2000, 1, 2, tzinfo=UTC)
    times = pl.datetime_range(first, first + timedelta(days=n_bars - 1), interval="1d", eager=True)
    frames = [
        pl.DataFrame(
            {
                "symbol": [f"S{of}"] * n_bars,
                "ts": times,
                "open": opens[:, of],
                "high": np.maximum(opens, closes)[:, of] * wicks[0, :, of],
                "low": np.minimum(opens, closes)[:, of] / wicks[1, :, of],
                "close": closes[:, of],
                "volume": np.full(n_bars, 1e6),
            }
        ).cast(BAR_SCHEMA)
        for of in range(n_symbols)
    ]
    return pl.concat(frames)


def walk_forward(bars: pl.DataFrame, *, seed: int) -> list[FoldResult]:
    data = dataset.build(bars, feature_names=FEATURES, label_name="forward_return", horizon=1)
    recipe = Recipe("ridge", {}, seed, 5.0)
    folds = splits.walk_forward(dataset.bar_times(data), RULE)
    return [training.fit_fold(data, fold, recipe, folder=None, progress=lambda *_: None) for fold in folds]


def positions(bars: pl.DataFrame, results: list[FoldResult]) -> pl.DataFrame:
    limit = 1.0 / bars["symbol"].n_unique()
    strategy = Strategy(
        kind="direction", side="long_short", position_limit=limit, rebalance_band=0.0, threshold_bps=0.0
    )
    return signals.positions(training.forecasts_of(results), strategy=strategy, horizon=1, values="return")


def probability(make: Callable[[np.random.Generator], Floats], number: int) -> float:
    """Return the probabilistic Sharpe ratio of ridge on a market with nothing to find."""
    random = np.random.default_rng([26, number])
    bars = market(make(random), random)
    held = positions(bars, walk_forward(bars, seed=number))
    # The account without vectorbt's book of it, which on some of them is made too: two thirds of the time.
    equity = portfolio.replay(held, bars, band=0.0, costs=free()).equity["equity"].to_numpy()
    if number < 5:
        booked = portfolio.run(held, bars, band=0.0, costs=free()).equity["equity"].to_numpy()
        assert equity == pytest.approx(booked, rel=1e-9)
    # One bar a day is one bar a session on a market that never closes.
    found = significance.moments(metrics.returns_of(equity, initial=1e6))
    assert found is not None
    return significance.probabilistic_sharpe(found)


@pytest.mark.slow
@pytest.mark.parametrize("make", [independent, garch, correlated])
def test_luck_passes_for_skill_as_often_as_the_level_says(make: Callable[[np.random.Generator], Floats]) -> None:
    found = np.array([probability(make, number) for number in range(N_MARKETS)])
    print(
        f"\n{make.__name__}: PSR above 0.95 in {np.mean(found > 0.95):.1%}, below 0.05 in {np.mean(found < 0.05):.1%}"
    )
    # The standard error of a share of 5 % among 200 is 1.5 %.
    assert 0.02 <= np.mean(found > 0.95) <= 0.08
    assert np.mean(found < 0.5) == pytest.approx(0.5, abs=0.11)


def planted(random: np.random.Generator) -> Floats:
    """Return three symbols whose returns carry a fifth of the return before: a linear model's information is 0.2."""
    returns = 0.01 * random.standard_normal((1500, 3))
    for at in range(1, len(returns)):
        returns[at] += 0.2 * returns[at - 1]
    return returns


def summary(make: Callable[[np.random.Generator], Floats], number: int, *, n_others: int) -> dict[str, Any]:
    """Return what the verdict reads of ridge on a market, as one trial beside others that are luck alone."""
    random = np.random.default_rng([30, number])
    bars = market(make(random), random)
    results = walk_forward(bars, seed=number)
    book = portfolio.run(positions(bars, results), bars, band=0.0, costs=free())
    ours, theirs = (metrics.returns_of(book.equity[c].to_numpy(), initial=1e6) for c in ("equity", "benchmark"))
    sharpe, rival, lead = (metrics.sharpe(r, periods_per_year=365) for r in (ours, theirs, ours - theirs))
    known = labels.compute(bars, "forward_return", 1)
    both = training.forecasts_of(results).join(known, on=["symbol", "ts"]).drop_nulls()
    ic = metrics.information_coefficient(
        both["forecast"].to_numpy(), both["label"].to_numpy(), both["ts"].dt.timestamp("us").to_numpy(), overlap=1
    )
    others = 0.01 * random.standard_normal((len(ours), n_others))
    trials = significance.Trials(np.column_stack([ours, others]), is_known=True, note="")
    return {
        "model": "ridge",
        "n_fills": len(book.fills),
        "sharpe": sharpe.value,
        "sharpe_ci95": [sharpe.low, sharpe.high],
        "total_return": float(np.prod(1 + ours) - 1),
        "benchmark_total_return": float(np.prod(1 + theirs) - 1),
        "benchmark_sharpe": rival.value,
        "information_ratio": lead.value,
        "information_ratio_ci95": [lead.low, lead.high],
        "ic": ic.value,
        "ic_t": ic.t_statistic,
        "folds": [{"fold": r.fold.number, "has_learned": r.has_learned} for r in results],
        **significance.assess(ours, theirs, periods_per_year=365, trials=trials, seed=number),
    }


@pytest.mark.slow
def test_planted_information_is_called_skill_and_noise_never_is() -> None:
    for number in range(3):
        found = summary(planted, number, n_others=19)
        print(f"\nplanted {number}: " + " ".join(report.verdict(found)))
        assert found["significance"]["n_trials"] == 20
        assert standing(found) == "skill"
    for make in (independent, garch, correlated):
        stood = [standing(summary(make, number, n_others=0)) for number in range(10)]
        print(f"\n{make.__name__}: {stood}")
        assert "skill" not in stood


@pytest.mark.slow
def test_planted_information_is_no_skill_while_the_trials_are_not_known() -> None:
    found = summary(planted, 0, n_others=0)
    unknown = significance.assess(
        np.array([0.01, -0.01] * 100), np.zeros(200), periods_per_year=365, seed=0,
        trials=significance.Trials(np.empty((0, 0)), is_known=False, note="the ledger was deleted"),
    )["significance"]  # fmt: skip
    names = ("trials_known", "n_trials", "deflated_sharpe", "trials_note")
    found["significance"] |= {name: unknown[name] for name in names}
    assert standing(found) == "good"
    assert any("cannot be called skill: the ledger was deleted." in said for said in report.verdict(found))
