"""What a book gets when symbols end, leave or have no bar: against cash computed by hand."""

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import polars as pl
import pytest
from conftest import daily_bars, free
from hypothesis import given, settings
from hypothesis import strategies as st

from foxflow import portfolio
from foxflow.config import Costs
from foxflow.endings import ENDING_SCHEMA, WORTHLESS
from foxflow.signals import POSITION_SCHEMA

EXIT = "exit"


def targets(bars: pl.DataFrame, wanted: Sequence[float | str | None], *, symbol: str) -> pl.DataFrame:
    """Return one position a bar of the symbol; `EXIT` is one without a signal."""
    times = bars.filter(pl.col("symbol") == symbol)["ts"]
    rows = [
        (symbol, ts, None if w == EXIT else w, 0.0 if w == EXIT else w)
        for ts, w in zip(times, wanted, strict=True)
        if w is not None
    ]
    return pl.DataFrame(rows, schema=POSITION_SCHEMA, orient="row")


def ending(symbol: str, *, last: datetime, close: float, loss: float, ts: datetime) -> pl.DataFrame:
    row = (symbol, "delisted", last, close, loss, ts, close * max(1 + loss, WORTHLESS))
    return pl.DataFrame([row], schema=ENDING_SCHEMA, orient="row")


def costs(bps: float = 0.0) -> Costs:
    return free(fee_bps=bps, half_spread_bps=bps, initial_cash=10_000.0)


@pytest.mark.parametrize("bps", [0.0, 10.0])
@pytest.mark.parametrize("side", [1, -1])
def test_a_delisted_symbols_last_loss_is_in_the_equity(bps: float, side: int) -> None:
    a = daily_bars([100.0] * 6, symbol="A")
    z = daily_bars([50.0, 50.0, 40.0], [50.0, 45.0, 40.0], symbol="Z")
    bars = pl.concat([a, z])
    wanted = pl.concat([targets(a, [0.0] * 6, symbol="A"), targets(z, [side * 0.5, None, None], symbol="Z")])
    end = ending("Z", last=z["ts"][2], close=40.0, loss=-0.6, ts=a["ts"][3])
    book = portfolio.run(wanted, bars, band=0.0, costs=costs(bps), endings=end)
    # 0.5 x 10,000 / 50 = 100 shares at open 50; their last close is 40; 0.4 x 40 = 16 is what a holder gets.
    rate = bps / 1e4
    shares = side * 100
    bought = 10_000 - shares * 50 * (1 + side * rate) - 100 * 50 * (1 + side * rate) * rate
    gone = bought + shares * 16 * (1 - side * rate) - 100 * 16 * (1 - side * rate) * rate
    expected = [10_000, bought + shares * 45, bought + shares * 40, gone, gone, gone]
    np.testing.assert_allclose(book.equity["equity"].to_numpy(), expected, rtol=1e-9)
    if bps == 0:
        assert expected[-1] == 10_000 - side * 3_400
    last = book.fills.row(-1, named=True)
    assert (last["symbol"], last["ts"], last["shares"]) == ("Z", a["ts"][3], -shares)
    assert last["price"] == pytest.approx(16 * (1 - side * rate), rel=1e-12)
    assert last["fee"] == pytest.approx(1600 * (1 - side * rate) * rate, rel=1e-12, abs=1e-12)
    # The day of the loss is a held row, though the symbol has no bar that day.
    lost = book.held.filter((pl.col("symbol") == "Z") & (pl.col("ts") == a["ts"][3])).row(0, named=True)
    assert lost["weight"] == 0
    assert lost["return"] == pytest.approx(gone / expected[2] - 1, rel=1e-9)


def test_a_total_loss_leaves_nothing() -> None:
    a, z = daily_bars([100.0] * 4, symbol="A"), daily_bars([50.0, 50.0], symbol="Z")
    wanted = pl.concat([targets(a, [0.0] * 4, symbol="A"), targets(z, [0.5, None], symbol="Z")])
    end = ending("Z", last=z["ts"][1], close=50.0, loss=-1.0, ts=a["ts"][2])
    book = portfolio.run(wanted, pl.concat([a, z]), band=0.0, costs=costs(), endings=end)
    np.testing.assert_allclose(book.equity["equity"].to_numpy(), [10_000, 10_000, 5_000, 5_000], rtol=1e-9)
    np.testing.assert_allclose(book.equity["benchmark"].to_numpy(), [10_000, 10_000, 5_000, 5_000], rtol=1e-9)


def test_buy_and_hold_takes_the_loss_too_and_spreads_what_is_left() -> None:
    a = daily_bars([100.0, 100.0, 100.0, 100.0, 100.0, 120.0], symbol="A")
    z = daily_bars([50.0, 50.0, 40.0], symbol="Z")
    wanted = pl.concat([targets(a, [0.0] * 6, symbol="A"), targets(z, [0.0, 0.0, 0.0], symbol="Z")])
    end = ending("Z", last=z["ts"][2], close=40.0, loss=-0.6, ts=a["ts"][3])
    book = portfolio.run(wanted, pl.concat([a, z]), band=0.0, costs=costs(), endings=end)
    # 50 shares of A and 100 of Z; Z falls to 40 and pays 16; 6,600 are set into A at the close, 66 shares at open 100.
    assert book.benchmark_fills.rows() == [
        ("A", a["ts"][1], 50.0, 100.0, 0.0, 0.0),
        ("Z", a["ts"][1], 100.0, 50.0, 0.0, 0.0),
        ("Z", a["ts"][3], -100.0, 16.0, 0.0, 0.0),
        ("A", a["ts"][4], 16.0, 100.0, 0.0, 0.0),
    ]
    np.testing.assert_allclose(
        book.equity["benchmark"].to_numpy(), [10_000, 10_000, 9_000, 6_600, 6_600, 7_920], rtol=1e-9
    )
    assert len(book.fills) == 0


def test_buy_and_hold_sells_a_symbol_that_leaves_and_keeps_one_whose_ending_comes_first() -> None:
    a, z = (daily_bars([100.0] * 6, symbol=s) for s in "AZ")
    leaves = targets(z, [0.0, 0.0, EXIT, None, None, None], symbol="Z")
    wanted = pl.concat([targets(a, [0.0] * 6, symbol="A"), leaves])
    book = portfolio.run(wanted, pl.concat([a, z]), band=0.0, costs=costs())
    of = book.benchmark_fills.filter(pl.col("ts") > a["ts"][1])
    assert of.select("symbol", "ts", "shares").rows() == [("A", a["ts"][3], 50.0), ("Z", a["ts"][3], -50.0)]
    # Known to be over at its last close, Z has no open to be sold at: its money comes with its ending.
    end = ending("Z", last=z["ts"][2], close=100.0, loss=-0.5, ts=a["ts"][3])
    book = portfolio.run(wanted, pl.concat([a, z.head(3)]), band=0.0, costs=costs(), endings=end)
    of = book.benchmark_fills.filter(pl.col("ts") > a["ts"][1])
    assert of.select("symbol", "ts", "shares").rows() == [("Z", a["ts"][3], -50.0), ("A", a["ts"][4], 25.0)]


def test_an_ending_comes_before_the_open_of_the_same_bar_and_cancels_what_was_ordered() -> None:
    a, z = daily_bars([100.0] * 5, symbol="A"), daily_bars([50.0, 50.0, 50.0, 50.0, 50.0], symbol="Z")
    wanted = pl.concat([targets(a, [0.0] * 5, symbol="A"), targets(z, [0.5, None, 0.9, 0.2, None], symbol="Z")])
    end = ending("Z", last=z["ts"][2], close=50.0, loss=-0.6, ts=a["ts"][3])
    book = portfolio.run(wanted, pl.concat([a, z]), band=0.0, costs=costs(), endings=end)
    # 100 shares close at 20, the order to hold 90 % is never filled; 20 % of 7,000 is bought by the decision after it.
    assert book.fills.select("ts", "shares", "price").rows() == [
        (a["ts"][1], 100.0, 50.0),
        (a["ts"][3], -100.0, 20.0),
        (a["ts"][4], 28.0, 50.0),
    ]


def test_an_order_due_at_a_missing_bar_waits_for_the_next_one_and_is_listed() -> None:
    a, z, y = (daily_bars([100.0] * 6, symbol=s) for s in "AZY")
    z = z.filter(~pl.col("ts").is_in([z["ts"][1], z["ts"][2]]))
    y = y.head(1)
    wanted = pl.concat(
        [targets(a, [0.2, 0.3, None, None, None, 0.1], symbol="A"), targets(z, [0.2, 0.4, None, None], symbol="Z"),
         targets(y, [0.2], symbol="Y")]
    )  # fmt: skip
    book = portfolio.run(wanted, pl.concat([a, y, z]), band=0.0, costs=costs())
    # Z's order of bar 0 meets its next open at bar 3, Y's never any; one decided at the last bar is not late.
    assert book.waited.rows() == [("Y", a["ts"][0], None, 5), ("Z", a["ts"][0], a["ts"][3], 2)]
    assert book.fills.filter(pl.col("symbol") == "Z")["ts"].to_list() == [a["ts"][3], a["ts"][4]]


def test_a_symbol_that_leaves_while_it_has_no_bar_is_sold_at_its_next_open_and_not_bought_any_more() -> None:
    a, z, y = (daily_bars([100.0] * 7, symbol=s) for s in "AZY")
    held, halted = [z["ts"][i] for i in (3, 4)], [y["ts"][i] for i in (2, 3, 4)]
    z, y = z.filter(~pl.col("ts").is_in(held)), y.filter(~pl.col("ts").is_in(halted))
    out = [(s, a["ts"][3], None, 0.0) for s in "ZY"]
    wanted = pl.concat(
        [
            targets(a, [0.0] * 7, symbol="A"),
            targets(z, [0.2, None, None, None, None], symbol="Z"),
            targets(y, [None, 0.3, None, None], symbol="Y"),
            pl.DataFrame(out, schema=POSITION_SCHEMA, orient="row"),
        ]
    )
    book = portfolio.run(wanted, pl.concat([a, y, z]), band=0.0, costs=costs())
    # Z is held when it leaves on day 3 and sold on day 5; Y's order of day 1 waits still and is dropped on day 3.
    assert book.fills.select("symbol", "ts", "shares").rows() == [("Z", a["ts"][1], 20.0), ("Z", a["ts"][5], -20.0)]
    assert book.waited.rows() == [("Y", a["ts"][1], None, 2), ("Z", a["ts"][3], a["ts"][5], 1)]
    # Buy-and-hold sets A alone from day 3 on, and has the money for it when Z is sold.
    assert book.benchmark_fills.filter(pl.col("ts") == a["ts"][5])["symbol"].to_list() == ["A", "Z"]


def test_an_order_that_an_ending_cancels_is_listed_as_never_filled() -> None:
    a, z = daily_bars([100.0] * 5, symbol="A"), daily_bars([50.0, 50.0], symbol="Z")
    wanted = pl.concat([targets(a, [0.0] * 5, symbol="A"), targets(z, [0.2, 0.8], symbol="Z")])
    end = ending("Z", last=z["ts"][1], close=50.0, loss=-0.5, ts=a["ts"][3])
    book = portfolio.run(wanted, pl.concat([a, z]), band=0.0, costs=costs(), endings=end)
    assert book.waited.rows() == [("Z", a["ts"][1], None, 1)]
    assert book.equity["equity"][-1] == 9_000.0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_equity_is_cash_of_all_fills_plus_what_is_held_in_any_universe(seed: int) -> None:
    """Random walks that start, pause, leave and end at random, with random losses, long and short."""
    random = np.random.default_rng(seed)
    n_bars, frames, wanted, ends = 24, [daily_bars([1.0] * 24, symbol="CLOCK")], [], []
    times = frames[0]["ts"]
    wanted.append(targets(frames[0], [0.0] * n_bars, symbol="CLOCK"))
    for symbol in ("A", "B", "C"):
        start, stop = sorted(random.choice(np.arange(n_bars), 2, replace=False).tolist())
        prices = 100 * np.exp(np.cumsum(random.normal(0, 0.05, n_bars)))
        opens, closes = prices * np.exp(random.normal(0, 0.02, n_bars)), prices
        bars = daily_bars(opens.tolist(), closes.tolist(), symbol=symbol)
        bars = bars.filter(pl.Series(random.random(n_bars) > 0.2) | (pl.col("ts") == times[start]))
        bars = bars.filter(pl.col("ts").is_between(times[start], times[stop]))
        position = [None if random.random() < 0.3 else float(random.uniform(-0.3, 0.3)) for _ in range(len(bars))]
        choices = [EXIT if p is not None and random.random() < 0.2 else p for p in position]
        wanted.append(targets(bars, choices, symbol=symbol))
        frames.append(bars)
        last, close = bars.row(-1, named=True)["ts"], bars["close"][-1]
        if last < times[-1] and random.random() < 0.8:
            loss = float(random.choice([-1.0, -0.6, 0.0, 0.4]))
            ends.append(ending(symbol, last=last, close=close, loss=loss, ts=times.filter(times > last)[0]))
    book = portfolio.run(
        pl.concat(wanted), pl.concat(frames), band=0.0, costs=costs(7), endings=pl.concat(ends) if ends else None
    )
    closes = {str(s): f for (s,), f in pl.concat(frames).partition_by("symbol", as_dict=True).items()}
    gone = {e["symbol"][0]: e["ts"][0] for e in ends}
    for column, fills in (("equity", book.fills), ("benchmark", book.benchmark_fills)):
        for ts, equity in book.equity.select("ts", column).iter_rows():
            done = fills.filter(pl.col("ts") <= ts)
            cash = 10_000 - (done["shares"] * done["price"]).sum() - done["fee"].sum()
            worth = 0.0
            for (symbol,), of in done.partition_by("symbol", as_dict=True).items():
                held = of["shares"].sum()
                if symbol in gone and ts >= gone[symbol]:
                    assert held == pytest.approx(0, abs=1e-9)
                    continue
                worth += held * closes[symbol].filter(pl.col("ts") <= ts)["close"][-1]
            assert equity == pytest.approx(cash + worth, rel=1e-9)
    daily = book.held.group_by("ts").agg(pl.col("return").sum()).sort("ts")
    equity = book.equity["equity"]
    assert (daily["return"] - (equity / equity.shift(1, fill_value=10_000.0) - 1)).abs().max() < 1e-9
