"""What the book earned and cost, per session of the calendar."""

from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from foxflow import bars, metrics, portfolio
from foxflow.config import Config


def earned(config: Config, book: portfolio.Book) -> dict[str, Any]:
    """Return what the book earned and cost, per session of the calendar; drawdowns are of the equity at every bar."""
    cash = config.costs.initial_cash
    sessions = per_session(book.equity, config.data.calendar)
    year = bars.sessions_per_year(config.data.calendar)
    equity, rival = (sessions[c].to_numpy() for c in ("equity", "benchmark"))
    ours, theirs = (metrics.returns_of(e, initial=cash) for e in (equity, rival))
    ratio, benchmark, active = (metrics.sharpe(r, periods_per_year=year) for r in (ours, theirs, ours - theirs))
    value = (book.fills["shares"].abs() * book.fills["price"]).sum()
    cost = float(sum(book.costs.values()))
    return {
        "sharpe": ratio.value,
        "sharpe_ci95": [ratio.low, ratio.high],
        "max_drawdown": _deepest(book.equity["equity"], initial=cash),
        "turnover": float(value / equity.mean() / (len(equity) / year)),
        "n_fills": len(book.fills),
        "total_return": float(equity[-1] / cash - 1),
        "benchmark_total_return": float(rival[-1] / cash - 1),
        "benchmark_sharpe": benchmark.value,
        "benchmark_sharpe_ci95": [benchmark.low, benchmark.high],
        "benchmark_max_drawdown": _deepest(book.equity["benchmark"], initial=cash),
        "information_ratio": active.value,
        "information_ratio_ci95": [active.low, active.high],
        "cost_total": cost,
        "gross_return": float(book.gross["gross"][-1] / cash - 1),
        "sessions_per_year": year,
    }


def _deepest(equity: pl.Series, *, initial: float) -> float:
    return float(metrics.drawdown(np.concatenate([[initial], equity.to_numpy()])).min())


def cost_share(gross: float, *, net: float) -> float:
    """Return what is lost from gross to net profit, as in the waterfall, above 1 for a loss; NaN without a profit."""
    return (gross - net) / gross if gross > 0 else float("nan")


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


def exposure(held: pl.DataFrame, *, turnover: float) -> dict[str, float]:
    """Return how much was held at the bars' closes, fractions of equity: `held` is `portfolio.HELD_SCHEMA`.

    A symbol without a bar at a time still has the weight of its last one.
    """
    wide = held.sort("ts").pivot("symbol", index="ts", values="weight", maintain_order=True).drop("ts")
    weights = wide.select(pl.all().forward_fill().fill_null(0.0)).to_numpy()
    gross, net = np.abs(weights).sum(axis=1), weights.sum(axis=1)
    return {
        "mean_gross": float(gross.mean()),
        "mean_net": float(net.mean()),
        "most_gross": float(gross.max()),
        "share_of_bars_invested": float((gross > 0).mean()),
        "turnover_a_year": turnover,
    }


def monthly(sessions: pl.DataFrame, *, initial: float) -> list[dict[str, Any]]:
    """Return `year`, `month` and the fraction gained of each month; `sessions` as `per_session` gives them."""
    last = (
        sessions.group_by(year=pl.col("session").dt.year(), month=pl.col("session").dt.month())
        .agg(pl.col("equity").sort_by("session").last())
        .sort("year", "month")
    )
    gained = pl.col("equity") / pl.col("equity").shift(1, fill_value=initial) - 1
    return last.select("year", "month", gained.alias("return")).to_dicts()


def worst_drawdowns(sessions: pl.DataFrame, *, initial: float, n: int = 5) -> list[dict[str, Any]]:
    """Return the `n` deepest falls from a highest equity at the close of a session, deepest first.

    `start` is the session of the highest equity (the first session where that is the initial cash), `trough` that of
    the lowest, `end` the first back at the highest (None: not yet); `sessions` and `recovery_sessions` count from start
    and from trough to the end, or to the last session.
    """
    days, equity = sessions["session"].to_list(), np.concatenate([[initial], sessions["equity"].to_numpy()])
    below = metrics.drawdown(equity)
    under = np.concatenate([[False], below[1:] < 0, [False]])
    edges = np.flatnonzero(np.diff(under.astype(np.int8)))
    found = []
    for before, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        trough = before + 1 + int(below[before + 1 : last + 1].argmin())
        is_over = last + 1 < len(equity)
        end = min(last + 1, len(equity) - 1)
        found.append(
            {
                "start": days[max(before - 1, 0)],
                "trough": days[trough - 1],
                "end": days[end - 1] if is_over else None,
                "depth": float(below[trough]),
                "sessions": end - before,
                "recovery_sessions": end - trough if is_over else None,
            }
        )
    return sorted(found, key=lambda f: f["depth"])[:n]
