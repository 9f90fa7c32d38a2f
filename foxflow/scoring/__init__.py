"""What the forecasts were worth: judged against outcomes, and traded after costs.

Every seed is judged alone; what is reported is their mean. Tables by row, age or fold, and all frames, are of the first
seed, which is also the one released.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from foxflow import bars, endings, labels, portfolio, signals, state, volatility
from foxflow.config import Config
from foxflow.errors import DataError
from foxflow.market import Market
from foxflow.scoring.forecasts import by_age, calibration, judged, overlap, rolling_ic, with_references
from foxflow.scoring.returns import cost_share, earned, exposure, monthly, per_session, worst_drawdowns
from foxflow.scoring.sensitivity import sensitivity
from foxflow.scoring.trading import Plan, decide, trade
from foxflow.training import FoldResult

__all__ = ["Plan", "Score", "by_age", "decide", "overlap", "per_session", "score", "trade"]

BASELINE = "ridge"


@dataclass(frozen=True)
class Score:
    """What the forecasts were worth.

    `outcomes`: `training.FORECAST_SCHEMA`, `label` and `label_end` (null where not known yet). `book.equity` also has
    `baseline`, the baseline's equity, and `equity_seed_K` of every further seed, where there are any.
    `sessions`: the last of each of those in each session (`per_session`). `forecasters`: how a volatility forecast
    ranks (`volatility.score`), None for other labels; `endings`: `endings.ENDING_SCHEMA`; `thresholds`: of each fold by
    number, where they are chosen.
    """

    outcomes: pl.DataFrame
    book: portfolio.Book
    sessions: pl.DataFrame
    metrics: dict[str, Any]
    forecasters: pl.DataFrame | None
    endings: pl.DataFrame
    thresholds: Mapping[int, signals.Thresholds]


@dataclass(frozen=True)
class _Judged:
    """One seed: its plan and book, its forecasts beside their outcomes, and what both come to."""

    plan: Plan
    book: portfolio.Book
    outcomes: pl.DataFrame
    metrics: dict[str, Any]


def score(
    config: Config, pulled: Market, seeds: Sequence[Sequence[FoldResult]], others: Mapping[str, Sequence[FoldResult]]
) -> Score:
    """Return what trading and judging the forecasts gives, at the prices that were known first.

    Parameters
    ----------
    seeds
        The fold results of each seed.
    others
        Those of the models they are printed beside, by name.
    """
    every = [_judge(config, pulled, results) for results in seeds]
    baseline, why_none = None, None
    if BASELINE in others:
        try:
            baseline = _judge(config, pulled, others[BASELINE])
        except DataError as e:
            # A baseline that is ruined is no reason to lose the strategy.
            why_none = str(e)
    first, results = every[0], seeds[0]
    book = replace(first.book, equity=_equities(config, every, baseline))
    sessions = per_session(book.equity, config.data.calendar)
    cash, year = config.costs.initial_cash, bars.sessions_per_year(config.data.calendar)
    cuts = {r.fold.number: r.cut for r in results}
    age = state.ages(first.outcomes, pulled.first, cuts=cuts, warmup_bars=results[0].warmup_bars)
    dates_a_year = round(year * _dates_per_session(first.outcomes, sessions))
    mean = _mean([each.metrics for each in every])
    found = {
        **mean,
        # Of the means: where one seed made no profit before costs, a mean of shares would deny that of all others.
        "cost_share": cost_share(mean["gross_return"], net=mean["total_return"]),
        "n_seeds": len(every),
        "seeds": [_seed(config.experiment.seed + i, each.metrics) for i, each in enumerate(every)],
        "baseline": _rival(baseline, why_none) if BASELINE in others else None,
        "ages": by_age(with_references(config, pulled.first, first.outcomes), age),
        "calibration": calibration(first.outcomes),
        "rolling_ic": rolling_ic(first.outcomes, dates_a_year=dates_a_year),
        "monthly": monthly(sessions, initial=cash),
        "drawdowns": worst_drawdowns(sessions, initial=cash),
        "exposure": _mean([exposure(each.book.held, turnover=each.metrics["turnover"]) for each in every]),
        "waterfall": first.book.waterfall(),
        "trading": _trading(config, book),
        "sensitivity": sensitivity(config, pulled, [each.plan for each in every]),
        **_bars_metrics(pulled, newest_cut=results[-1].cut),
    }
    plan = first.plan
    ends = plan.endings.filter(pl.col("last_ts") >= plan.forecasts["ts"].min())
    found |= {"universe": _universe(pulled, plan.forecasts, ends, book), "orders_waited": _waited(book)}
    forecasters = None
    if labels.find(config.label.name).values == "log volatility":
        streams = {config.model.name: [r for r in results if not r.fold.is_final], **others}
        forecasters = volatility.score(pulled, streams, horizon=config.label.horizon, bar=config.data.bar)
    return Score(first.outcomes, book, sessions, found, forecasters, ends, plan.thresholds)


def _judge(config: Config, pulled: Market, results: Sequence[FoldResult]) -> _Judged:
    plan = decide(config, pulled, results)
    book = trade(config, pulled, plan)
    known = labels.compute(pulled.first, config.label.name, config.label.horizon, bar=config.data.bar)
    outcomes = plan.forecasts.join(known, on=["symbol", "ts"], how="left", maintain_order="left")
    rows = with_references(config, pulled.first, outcomes)
    return _Judged(plan, book, outcomes, {**judged(rows), **earned(config, book)})


def _equities(config: Config, every: Sequence[_Judged], baseline: _Judged | None) -> pl.DataFrame:
    """Return the first seed's equity with those of the other seeds and the baseline beside it."""
    equity = every[0].book.equity
    others = {f"equity_seed_{config.experiment.seed + i}": each for i, each in enumerate(every) if i}
    if baseline is not None:
        others["baseline"] = baseline
    for name, each in others.items():
        # Before its own first forecast a stream holds its cash.
        own = each.book.equity.select("ts", pl.col("equity").alias(name))
        equity = equity.join_asof(own, on="ts").with_columns(pl.col(name).fill_null(config.costs.initial_cash))
    return equity


def _mean(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean over seeds of every number and pair of numbers, and the first seed's of all else."""
    mean: dict[str, Any] = dict(every[0])
    for name, value in every[0].items():
        values = [each[name] for each in every]
        if isinstance(value, list) and value and isinstance(value[0], float):
            mean[name] = np.mean(values, axis=0).tolist()
        elif isinstance(value, float):
            mean[name] = float(np.mean(values))
        elif isinstance(value, int):
            mean[name] = round(float(np.mean(values)))
    return mean


_BRIEF = ("sharpe", "total_return", "max_drawdown", "ic", "ic_t")


def _brief(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in _BRIEF}


def _rival(baseline: _Judged | None, why_none: str | None) -> dict[str, Any]:
    found = dict.fromkeys(_BRIEF) if baseline is None else _brief(baseline.metrics)
    return {"model": BASELINE, **found, "note": why_none}


def _seed(seed: int, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seed": seed,
        **_brief(found),
        **{name: found[name] for name in ("n_fills", "cost_total", "forecasts_sha256")},
    }


def _dates_per_session(outcomes: pl.DataFrame, sessions: pl.DataFrame) -> float:
    return outcomes["ts"].n_unique() / len(sessions)


def _universe(pulled: Market, forecasts: pl.DataFrame, ends: pl.DataFrame, book: portfolio.Book) -> dict[str, Any]:
    """Return who could be traded over the walk-forward, who could not, and what became of those that ended."""
    first, last = (int(t) for t in forecasts.select(a=pl.col("ts").min(), b=pl.col("ts").max()).cast(pl.Int64).row(0))
    own, universe = endings.own_times(pulled.first, pulled.first["symbol"].unique().to_list()), pulled.universe
    spans = {symbol: ts[(ts >= first) & (ts <= last)] for symbol, ts in own.items()}
    closed = ends.join(
        book.fills.select("symbol", "ts", "shares"), on=["symbol", "ts"], how="left", maintain_order="left"
    )
    return {
        "is_recorded": universe.is_recorded,
        "never_members": [s for s, ts in spans.items() if len(ts) and not universe.decides_on(s, ts).any()],
        "members_without_bars": [s for s in universe.within(first, last) if s not in own],
        "endings": closed.to_dicts(),
    }


def _trading(config: Config, book: portfolio.Book) -> dict[str, Any]:
    """Return how orders met the market."""
    return {
        "fill": config.backtest.fill,
        "delay_bars": config.backtest.delay_bars,
        "delay_s": config.backtest.delay_s,
        "participation_limit": config.costs.participation_limit,
        "n_orders_waited": len(book.waited),
        "n_orders_capped": book.capped.n_unique(["symbol", "decided_ts"]) if len(book.capped) else 0,
    }


def _waited(book: portfolio.Book) -> dict[str, Any]:
    return {
        "n_orders": len(book.waited),
        "n_never_filled": book.waited["filled_ts"].null_count(),
        "most_missed_bars": book.waited["missed_bars"].max(),
        "symbols": sorted(book.waited["symbol"].unique()),
    }


def _findings(found: pl.DataFrame) -> list[dict[str, Any]]:
    """Return, for each check and severity, how often it found something and of which symbols."""
    by_check = found.group_by(name="check", severity="severity", maintain_order=True).agg(
        n=pl.len(), symbols=pl.col("symbol").unique().sort()
    )
    return by_check.to_dicts()


def _bars_metrics(pulled: Market, *, newest_cut: int) -> dict[str, Any]:
    """Return what was done to the bars on reading them."""
    known, every = pulled.n_corrections(newest_cut), pulled.n_corrections()
    return {
        "adjustments": pulled.adjustments(),
        "accepted_findings": list(pulled.accepted),
        "data_findings": _findings(pulled.findings),
        "bars_sha256": bars.sha256(pulled.first),
        "corrections": every,
        "corrections_after_last_cut": every - known,
        "rolls": pulled.rolls.select("symbol", "ts", "old", "new", "old_price", "new_price").to_dicts(),
        "bars_outside_sessions": pulled.n_outside,
    }
