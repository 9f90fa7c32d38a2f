"""vectorbt's equity against a plain account kept beside it, over whatever hypothesis thinks of."""

from datetime import datetime

import numpy as np
import polars as pl
import pytest
from conftest import daily_bars
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import simulate

from foxflow import portfolio
from foxflow.adjustment import FACTOR_SCHEMA
from foxflow.config import Backtest, Costs
from foxflow.endings import ENDING_SCHEMA
from foxflow.errors import DataError
from foxflow.futures import ROLL_SCHEMA
from foxflow.signals import POSITION_SCHEMA

N_BARS = 30
COSTS = st.builds(
    Costs,
    fee_bps=st.sampled_from([0.0, 5.0, 50.0]),
    fee_per_share=st.sampled_from([0.0, 0.005, 0.3]),
    minimum_fee=st.sampled_from([0.0, 1.0, 40.0]),
    half_spread_bps=st.sampled_from([0.0, 3.0, 80.0]),
    impact=st.sampled_from([0.0, 1.0, 3.0]),
    borrow_bps=st.sampled_from([0.0, 500.0, 20_000.0]),
    financing_bps=st.sampled_from([0.0, 700.0, 20_000.0]),
    participation_limit=st.sampled_from([None, 0.02, 0.5]),
    initial_cash=st.sampled_from([10_000.0, 1_000_000.0]),
)
EXECUTION = st.builds(
    Backtest,
    fill=st.sampled_from(["next_open", "next_close", "next_mid"]),
    delay_bars=st.sampled_from([0, 0, 1, 2]),
    delay_s=st.sampled_from([0.0, 0.0, 3_600.0, 30_000.0]),
)


def market(seed: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return bars that start, pause and stop at random, positions long and short, endings and rolls."""
    random = np.random.default_rng(seed)
    times = daily_bars([1.0] * N_BARS)["ts"].to_list()
    frames, wanted, ends, rolls = [], [], [], []
    for symbol in ("A", "B", "C", "D"):
        start, stop = (
            sorted(random.choice(np.arange(N_BARS + 8), 2, replace=False).tolist()) if symbol != "A" else (0, N_BARS)
        )
        own = [i for i in range(start, min(stop + 1, N_BARS)) if random.random() > 0.2]
        if len(own) < 6:
            continue
        close = 50 * np.exp(np.cumsum(random.normal(0, 0.04, N_BARS)))
        open_ = close * np.exp(random.normal(0, 0.02, N_BARS))
        bars = daily_bars(open_.tolist(), close.tolist(), symbol=symbol).with_columns(
            high=pl.max_horizontal("open", "close") * 1.01,
            low=pl.min_horizontal("open", "close") * 0.98,
            volume=pl.Series(np.where(random.random(N_BARS) < 0.1, 0.0, random.lognormal(7, 1, N_BARS))),
        )
        frames.append(bars[own])
        # The first three bars say how much an order moves the price.
        sizes = random.choice([0.0, 1.0], N_BARS) * random.uniform(-0.6, 0.9, N_BARS)
        wanted += [(symbol, times[i], 1.0, float(sizes[i])) for i in own[3:] if random.random() < 0.6]
        if random.random() < 0.3:
            wanted += [(symbol, times[i], None, 0.0) for i in (own[-1] - 1,) if i > own[4] and i not in own]
        if own[-1] < N_BARS - 2 and random.random() < 0.7:
            paid = close[own[-1]] * float(random.choice([1e-12, 0.4, 1.0, 1.4]))
            ends.append((symbol, "delisted", times[own[-1]], close[own[-1]], 0.0, times[own[-1] + 1], paid))
        rolls += [(symbol, times[i], "old", "new", 1.0, 1.0, times[i]) for i in own[4:] if random.random() < 0.05]
    return (
        pl.concat(frames),
        pl.DataFrame(wanted, schema=POSITION_SCHEMA, orient="row").unique(["symbol", "ts"]).sort("symbol", "ts"),
        pl.DataFrame(ends, schema=ENDING_SCHEMA, orient="row"),
        pl.DataFrame(rolls, schema=ROLL_SCHEMA, orient="row"),
    )


def midnight(ts: datetime) -> datetime:
    return ts.replace(hour=0)


def factors_of(bars: pl.DataFrame, raw_shares: float) -> pl.DataFrame:
    return bars.select(
        "symbol", "ts", shares_at_open=raw_shares, shares_at_close=raw_shares, volume_factor=1 / raw_shares
    ).cast(FACTOR_SCHEMA)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    costs=COSTS,
    execution=EXECUTION,
    band=st.sampled_from([0.0, 0.1]),
    gross_limit=st.sampled_from([1.0, 2.5]),
    raw_shares=st.sampled_from([1.0, 2.5]),
)
def test_vectorbts_equity_is_that_of_a_plain_account(
    *, seed: int, costs: Costs, execution: Backtest, band: float, gross_limit: float, raw_shares: float
) -> None:
    bars, positions, ends, rolls = market(seed)
    how = {"band": band, "costs": costs, "execution": execution, "gross_limit": gross_limit}
    try:
        book = portfolio.run(
            positions, bars, **how, endings=ends, rolls=rolls, factors=factors_of(bars, raw_shares), bar="1d", calendar="24/7"
        )  # fmt: skip
    except DataError as e:
        # What no broker would let happen; one in 28 of the draws, so nearly all of them are compared.
        assert "ruined" in str(e) or "take all of the price" in str(e)  # noqa: PT017
        return
    expected = simulate(
        positions, bars, **how, endings={(e["symbol"], e["ts"]): e["price"] for e in ends.iter_rows(named=True)},
        rolls=set(rolls.select("symbol", "ts").iter_rows()), raw_shares=raw_shares, opens=midnight,
    )  # fmt: skip
    np.testing.assert_allclose(book.equity["equity"].to_numpy(), expected.equity, rtol=1e-9)
    assert sorted(book.waited.rows()) == sorted(expected.waited)
    assert book.capped.select("symbol", "decided_ts", "ts").rows() == sorted(
        expected.capped, key=lambda c: (c[2], c[0])
    )
    light = portfolio.replay(
        positions, bars, **how, endings=ends, rolls=rolls, factors=factors_of(bars, raw_shares), bar="1d", calendar="24/7"
    )  # fmt: skip
    np.testing.assert_allclose(light.equity["equity"].to_numpy(), expected.equity, rtol=1e-9)
    assert light.n_fills == len(book.fills)
    rows = book.waterfall()
    assert round(sum(r["amount"] for r in rows[:-1]), 2) == rows[-1]["amount"]
