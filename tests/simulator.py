"""A plain account, bar by bar, written from the rules of `[costs]` and `[backtest]`: what vectorbt's has to equal."""

import math
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

import polars as pl
from scipy.optimize import brentq

from foxflow.config import Backtest, Costs

Symbol = str


@dataclass
class Simulated:
    equity: list[float] = field(default_factory=list)
    waited: list[tuple[Symbol, datetime, datetime | None, int]] = field(default_factory=list)
    capped: list[tuple[Symbol, datetime, datetime]] = field(default_factory=list)


def simulate(
    positions: pl.DataFrame, bars: pl.DataFrame, *, band: float, costs: Costs, execution: Backtest, gross_limit: float = 1.0,
    endings: dict[tuple[Symbol, datetime], float] | None = None, rolls: set[tuple[Symbol, datetime]] | None = None,
    raw_shares: float = 1.0, opens: Any = None,
) -> Simulated:  # fmt: skip
    """`opens`: from a bar's ts to when it opens, for delays in seconds; `raw_shares`: those of a day in one of ours."""
    endings, rolls, out = endings or {}, rolls or set(), Simulated()
    at = {(b["symbol"], b["ts"]): b for b in bars.iter_rows(named=True)}
    wants = {(p["symbol"], p["ts"]): p for p in positions.iter_rows(named=True)}
    since = min(ts for _, ts in wants)
    every = {ts for _, ts in [*at, *wants, *endings] if ts >= since}
    times, symbols = sorted(every), sorted({s for s, ts in at if ts >= since})
    history = {s: sorted((b for (n, _), b in at.items() if n == s), key=lambda b: b["ts"]) for s in symbols}
    half, rate = costs.half_spread_bps / 1e4, costs.fee_bps / 1e4

    def strength(s: Symbol, ts: datetime) -> float:
        """Y times the volatility over the root of the volume, of the twenty bars up to a time."""
        if costs.impact == 0:
            return 0.0
        past = [b for b in history[s] if b["ts"] <= ts]
        moves = [math.log(b["close"] / a["close"]) for a, b in pairwise(past)][-20:]
        volume = [b["volume"] / raw_shares for b in past[-20:]]
        return costs.impact * math.sqrt(sum(m * m for m in moves) / len(moves)) / math.sqrt(sum(volume) / len(volume))

    def flow(n: float, price: float, k: float) -> float:
        """Cash that buying n (or selling -n) shares brings: negative where it costs."""
        paid = price * (1 + math.copysign(half + k * math.sqrt(abs(n)), n))
        fee = abs(n) * paid * rate + abs(n) * raw_shares * costs.fee_per_share
        return -n * paid - max(fee, costs.minimum_fee) if n else 0.0

    def reaches(i: int) -> int:
        """The bar that can fill what is decided at bar i."""
        k = i + 1
        while execution.delay_s and k < len(times):
            start = times[k] if execution.fill == "next_close" else opens(times[k])
            if (start - times[i]).total_seconds() >= execution.delay_s:
                break
            k += 1
        return k + execution.delay_bars

    cash, shares, mark = costs.initial_cash, dict.fromkeys(symbols, 0.0), dict.fromkeys(symbols, 0.0)
    underway: list[tuple[int, int, Symbol, float | None]] = []  # bar that can fill, bar decided, symbol, goal
    market: dict[Symbol, list[Any]] = {}  # shares left, bar decided, bar due, has met no bar yet
    worth = cash

    def give_up(s: Symbol, i: int) -> None:
        if s in market and market[s][3] and i > market[s][2]:
            out.waited.append((s, times[market[s][1]], None, i - market[s][2]))
        market.pop(s, None)

    for i, ts in enumerate(times):
        if i:
            days = (ts - times[i - 1]).total_seconds() / 86_400
            short = sum(-n * mark[s] for s, n in shares.items() if n < 0)
            cash -= days / 365 / 1e4 * (costs.borrow_bps * short + costs.financing_bps * max(-cash, 0))
        for s in [s for s in symbols if (s, ts) in endings]:
            cash, shares[s] = cash + flow(-shares[s], endings[s, ts], 0.0), 0.0
            give_up(s, i)
            underway = [u for u in underway if u[2] != s]
        for _, decided, s, goal in [u for u in underway if u[0] <= i]:
            give_up(s, i)
            if goal is not None and goal != shares[s]:
                market[s] = [goal - shares[s], decided, i, True]
        underway, before, line = [u for u in underway if u[0] > i], dict(shares), (gross_limit - 1) * worth
        for sells in (True, False):
            for s in symbols:
                if s not in market or market[s][0] == 0 or (market[s][0] < 0) != sells or (s, ts) not in at:
                    continue
                bar, order = at[s, ts], market[s]
                if order[3] and i > order[2]:
                    out.waited.append((s, times[order[1]], ts, i - order[2]))
                order[3], n, k = False, order[0], strength(s, times[order[1]])
                price = {
                    "next_open": bar["open"],
                    "next_close": bar["close"],
                    "next_mid": (bar["high"] + bar["low"]) / 2,
                }
                most = (
                    math.inf
                    if costs.participation_limit is None
                    else costs.participation_limit * bar["volume"] / raw_shares
                )
                if abs(n) > most:
                    out.capped.append((s, times[order[1]], ts))
                    n = math.copysign(most, n)
                p, room = price[execution.fill], max(cash + line, 0.0)
                if n > 0 and -flow(n, p, k) > room:
                    # Below the minimum fee nothing can be had; the flow jumps by it at zero shares.
                    n = (
                        brentq(partial(_over, flow, p, k, room), 1e-300, n, xtol=1e-300, rtol=1e-15)
                        if room > costs.minimum_fee
                        else 0.0
                    )
                if abs(n) * p * (1 + math.copysign(half + k * math.sqrt(abs(n)), n)) >= 1e-9 * costs.initial_cash:
                    cash, shares[s], order[0] = cash + flow(n, p, k), shares[s] + n, order[0] - n
        for s in [s for s in symbols if (s, ts) in rolls and before[s]]:
            kept = before[s]
            if execution.fill == "next_open":
                kept = math.copysign(min(abs(kept), abs(shares[s])), kept) if kept * shares[s] > 0 else 0.0
            k = strength(s, times[i - 1])
            cash += flow(-kept, at[s, ts]["open"], k) + flow(kept, at[s, ts]["open"], k)
        mark = {s: at[s, ts]["close"] if (s, ts) in at else mark[s] for s in symbols}
        worth = cash + sum(shares[s] * mark[s] for s in symbols)
        out.equity.append(worth)
        for s in symbols:
            want = wants.get((s, ts))
            if want is None:
                continue
            sent = [u for u in underway if u[2] == s][-1:]
            goal = sent[0][3] if sent and sent[0][3] is not None else shares[s]
            if abs(want["position"] - goal * mark[s] / worth) > band or (want["position"] == 0 and goal != 0):
                underway.append((reaches(i), i, s, want["position"] * worth / mark[s] if want["position"] else 0.0))
            elif not sent and s in market and market[s][0] != 0:
                underway.append((reaches(i), i, s, None))
    for s in list(market):
        give_up(s, len(times))
    return out


def _over(flow: Any, price: float, k: float, room: float, n: float) -> float:
    return float(-flow(n, price, k) - room)
