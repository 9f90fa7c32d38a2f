"""What the forecasts were worth: judged against outcomes, and traded after costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow import bars, endings, labels, metrics, portfolio, signals, state, training, volatility
from foxflow.config import Config
from foxflow.market import Market
from foxflow.training import FoldResult


@dataclass(frozen=True)
class Score:
    """What the forecasts were worth.

    `outcomes`: `training.FORECAST_SCHEMA` and `label` (null where not known yet); `forecasters`: how a volatility
    forecast ranks (`volatility.score`), None for other labels; `endings`: `endings.ENDING_SCHEMA`.
    """

    outcomes: pl.DataFrame
    book: portfolio.Book
    metrics: dict[str, Any]
    forecasters: pl.DataFrame | None
    endings: pl.DataFrame


def score(
    config: Config, pulled: Market, results: Sequence[FoldResult], others: Mapping[str, Sequence[FoldResult]]
) -> Score:
    """Return what trading and judging the forecasts gives, at the prices that were known first."""
    adjusted = pulled.first
    forecasts = training.forecasts_of(results)
    label = labels.find(config.label.name)
    symbols = forecasts["symbol"].unique().to_list()
    ends = endings.find(
        adjusted, pulled.universe, symbols=symbols, ended=config.data.ended, calendar=config.data.calendar
    )
    exits = endings.exits(symbols, pulled.universe, times=endings.bar_times(adjusted))
    held = signals.positions(
        forecasts,
        strategy=config.strategy,
        horizon=config.label.horizon,
        values=label.values,
        exits=pl.concat([exits, endings.exits_of(ends)]),
    )
    traded = adjusted.filter(pl.col("symbol").is_in(symbols))
    book = portfolio.run(
        held, traded, band=config.strategy.rebalance_band, costs=config.costs, endings=ends, rolls=pulled.rolls
    )
    ends = ends.filter(pl.col("last_ts") >= forecasts["ts"].min())
    known = labels.compute(adjusted, config.label.name, config.label.horizon, bar=config.data.bar)
    outcomes = forecasts.join(known, on=["symbol", "ts"], how="left", maintain_order="left")
    cuts = {r.fold.number: r.cut for r in results}
    age = state.ages(outcomes, adjusted, cuts=cuts, warmup_bars=results[0].warmup_bars)
    rows = _with_references(config, adjusted, outcomes)
    found = {
        **_forecast_metrics(rows),
        "ages": by_age(rows, age),
        **_book_metrics(config, book),
        **_bars_metrics(pulled, newest_cut=results[-1].cut),
        "universe": _universe(pulled, forecasts, ends, book),
        "orders_waited": _waited(book),
    }
    forecasters = None
    if label.values == "log volatility":
        streams = {config.model.name: [r for r in results if not r.fold.is_final], **others}
        forecasters = volatility.score(pulled, streams, horizon=config.label.horizon, bar=config.data.bar)
    return Score(outcomes, book, found, forecasters, ends)


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


def _waited(book: portfolio.Book) -> dict[str, Any]:
    return {
        "n_orders": len(book.waited),
        "n_never_filled": book.waited["filled_ts"].null_count(),
        "most_missed_bars": book.waited["missed_bars"].max(),
        "symbols": sorted(book.waited["symbol"].unique()),
    }


def _with_references(config: Config, adjusted: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """Return the outcomes with what a hit (`reference`) and an R² (`mean`) are judged against: 0 for a return."""
    if labels.find(config.label.name).values != "log volatility":
        return outcomes.with_columns(reference=pl.lit(0.0), mean=pl.lit(0.0))
    # A log volatility has no sign of its own: a hit is the right direction from the newest value.
    simple = volatility.references(adjusted, horizon=config.label.horizon, bar=config.data.bar)
    newest = simple.select("symbol", "ts", "mean", reference="last")
    return outcomes.join(newest, on=["symbol", "ts"], how="left", maintain_order="left")


def _forecast_metrics(outcomes: pl.DataFrame) -> dict[str, Any]:
    """Return how forecasts meet outcomes, over the rows whose label is known."""
    both = outcomes.drop_nulls()
    forecast, outcome, reference = (both[c].to_numpy() for c in ("forecast", "label", "reference"))
    date = both["ts"].dt.timestamp("us").to_numpy()
    overlap = _overlap(date, both["label_end"].dt.timestamp("us").to_numpy())
    ic = metrics.information_coefficient(forecast, outcome, date, overlap=overlap)
    rank = metrics.rank_information_coefficient(forecast, outcome, date, overlap=overlap)
    return {
        "symbols": sorted(outcomes["symbol"].unique().to_list()),
        "n_forecasts": len(outcomes),
        "forecasts_sha256": training.forecasts_sha256(outcomes),
        "first_ts": outcomes["ts"].min(),
        "last_ts": outcomes["ts"].max(),
        "ic": ic.value,
        "ic_t": ic.t_statistic,
        "rank_ic": rank.value,
        "rank_ic_t": rank.t_statistic,
        "hit_rate": metrics.hit_rate(forecast, outcome, reference),
        "within_ten_percent": metrics.within_ten_percent(forecast, outcome),
        "forecast_std": float(forecast.std()),
    }


def by_age(outcomes: pl.DataFrame, age: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return, for each age band of a forecast's state, how many forecasts fall into it and how they meet outcomes.

    Parameters
    ----------
    outcomes
        With `ts`, `forecast`, `label`, `label_end` and `mean`, which R² is judged against.
    age
        `(n_rows,)`, from `state.ages`.
    """
    bands = []
    for (start, stop), name in zip(state.BANDS, state.BAND_NAMES, strict=True):
        inside = outcomes.filter((age >= start) & (age < stop if stop else True))
        both = inside.drop_nulls()
        forecast, outcome, mean = (both[c].to_numpy() for c in ("forecast", "label", "mean"))
        date, end = (both[c].dt.timestamp("us").to_numpy() for c in ("ts", "label_end"))
        ic = metrics.information_coefficient(forecast, outcome, date, overlap=_overlap(date, end))
        r_squared = metrics.r_squared(forecast, outcome, mean) if len(both) else float("nan")
        bands.append(
            {"age": name, "n_forecasts": len(inside), "ic": ic.value, "ic_t": ic.t_statistic, "r_squared": r_squared}
        )
    return bands


def _overlap(ts: NDArray[np.int64], label_end: NDArray[np.int64]) -> int:
    """Return how many dates ahead an outcome reaches: its horizon where all symbols share their bars, else more."""
    dates = np.unique(ts)
    if not len(dates):
        return 0
    return int(np.median(np.searchsorted(dates, label_end) - np.searchsorted(dates, ts)))


def _bars_metrics(pulled: Market, *, newest_cut: int) -> dict[str, Any]:
    """Return what was done to the bars on reading them."""
    known, every = pulled.n_corrections(newest_cut), pulled.n_corrections()
    return {
        "adjustments": pulled.adjustments(),
        "accepted_findings": list(pulled.accepted),
        "corrections": every,
        "corrections_after_last_cut": every - known,
        "rolls": pulled.rolls.select("symbol", "ts", "old", "new", "old_price", "new_price").to_dicts(),
        "bars_outside_sessions": pulled.n_outside,
    }


def _book_metrics(config: Config, book: portfolio.Book) -> dict[str, Any]:
    """Return what the book earned and cost, per session of the calendar."""
    cash = config.costs.initial_cash
    sessions = per_session(book.equity, config.data.calendar)
    year = bars.sessions_per_year(config.data.calendar)
    equity, rival = (sessions[c].to_numpy() for c in ("equity", "benchmark"))
    ours, theirs = (metrics.returns_of(e, initial=cash) for e in (equity, rival))
    ratio, benchmark, active = (metrics.sharpe(r, periods_per_year=year) for r in (ours, theirs, ours - theirs))
    value = (book.fills["shares"].abs() * book.fills["price"]).sum()
    cost = float((book.fills["fee"] + book.fills["slippage"]).sum())
    gross = float(equity[-1] - cash + cost)
    return {
        "sharpe": ratio.value,
        "sharpe_ci95": [ratio.low, ratio.high],
        "max_drawdown": float(metrics.drawdown(np.concatenate([[cash], equity])).min()),
        "turnover": float(value / equity.mean() / (len(equity) / year)),
        "n_fills": len(book.fills),
        "total_return": float(equity[-1] / cash - 1),
        "benchmark_total_return": float(rival[-1] / cash - 1),
        "benchmark_sharpe": benchmark.value,
        "benchmark_sharpe_ci95": [benchmark.low, benchmark.high],
        "benchmark_max_drawdown": float(metrics.drawdown(np.concatenate([[cash], rival])).min()),
        "information_ratio": active.value,
        "information_ratio_ci95": [active.low, active.high],
        "cost_total": cost,
        "cost_share": cost / gross if gross > 0 else float("nan"),
        "sessions_per_year": year,
    }


def per_session(equity: pl.DataFrame, calendar: str) -> pl.DataFrame:
    """Return the last equity of each session (`session`, and the columns of `portfolio.EQUITY_SCHEMA`).

    Ratios are annualised from session returns: intraday bars are compounded first, so nights and bars weigh right.
    """
    first, last = equity["ts"][0], equity["ts"][-1]
    # The bars after a session's close, as on a weekend of another market, belong to the session that comes.
    known = bars.session_closes(calendar, first.date(), last.date() + timedelta(days=14)).rename({"ts": "close"})
    closes = known.filter(pl.col("close") >= first)
    at = closes["close"].search_sorted(equity["ts"], side="left").clip(0, len(closes) - 1)
    by_session = equity.with_columns(session=closes["session"].gather(at)).group_by("session").last()
    # A session without a bar is one without a return: left out, the year would have too few of them.
    spanned = closes.head(int(at[-1]) + 1).select("session")
    return spanned.join(by_session, on="session", how="left", maintain_order="left").fill_null(strategy="forward")
