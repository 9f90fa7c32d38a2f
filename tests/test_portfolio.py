"""A 6-bar book against cash computed by hand, and the rules of filling."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import polars as pl
import pytest
from conftest import daily_bars, free

from foxflow import portfolio
from foxflow.config import Costs
from foxflow.futures import ROLL_SCHEMA
from foxflow.signals import POSITION_SCHEMA

OPENS = [100.0, 102.0, 105.0, 103.0, 110.0, 108.0]
CLOSES = [101.0, 104.0, 104.0, 106.0, 109.0, 107.0]


def targets(bars: pl.DataFrame, wanted: Sequence[float | None], *, symbol: str = "AAA") -> pl.DataFrame:
    of = bars.filter(pl.col("symbol") == symbol)
    frame = of.select("symbol", "ts").with_columns(position=pl.Series(wanted, dtype=pl.Float64))
    return frame.with_columns(signal=pl.col("position")).select(list(POSITION_SCHEMA)).drop_nulls()


def costs(bps: float) -> Costs:
    return free(fee_bps=bps, half_spread_bps=bps, initial_cash=10_000.0)


# Decided at bar 0: 0.5 x 10,000 / 101 = 49.504950495 shares, bought at open 102.
# Decided at bar 2 (half of it sold): equity and shares as below, filled at open 103. Closed from bar 4 at open 108.
# At 0 bps: 10,000 - 49.50495 x 102 = 4,950.495050 cash; at bar 2 equity 4,950.495050 + 49.50495 x 104 = 10,099.009901;
# 0.25 of it is 24.276466 shares; 25.228484 sold at 103 = 2,598.533853; then 24.276466 sold at 108 = 2,621.858330.
BY_HAND = {0.0: 10_170.89, 5.0: 10_160.56, 10.0: 10_150.23}


@pytest.mark.parametrize("bps", [0.0, 5.0, 10.0])
def test_a_six_bar_three_trade_book_equals_cash_computed_by_hand(bps: float) -> None:
    bars = daily_bars(OPENS, CLOSES)
    book = portfolio.run(targets(bars, [0.5, None, 0.25, None, 0.0, None]), bars, band=0.0, costs=costs(bps))
    assert book.fills["ts"].to_list() == [bars["ts"][i] for i in (1, 3, 5)]
    rate = bps / 1e4
    shares = 0.5 * 10_000 / 101
    cash = 10_000 - shares * 102 * (1 + rate) * (1 + rate)
    keep = 0.25 * (cash + shares * 104) / 104
    cash += (shares - keep) * 103 * (1 - rate) * (1 - rate)
    cash += keep * 108 * (1 - rate) * (1 - rate)
    assert round(book.equity["equity"][-1], 2) == round(cash, 2)
    assert round(cash, 2) == BY_HAND[bps]


def test_fills_happen_at_the_next_open_never_on_the_bar_that_was_forecast_from() -> None:
    bars = daily_bars(OPENS, CLOSES)
    book = portfolio.run(targets(bars, [None, None, 1.0, None, None, None]), bars, band=0.0, costs=costs(0))
    assert book.fills.select("ts", "price").rows() == [(bars["ts"][3], 103.0)]


def test_the_next_open_changes_no_share_count() -> None:
    bars = daily_bars(OPENS, CLOSES)
    bent = bars.with_columns(
        pl.when(pl.int_range(6) == 1).then(90.0).otherwise(pl.col(c)).alias(c) for c in ("open", "low")
    )
    wanted = [0.5, None, None, None, None, None]
    counts = [
        portfolio.run(targets(b, wanted), b, band=0.0, costs=costs(5)).fills["shares"].to_list() for b in (bars, bent)
    ]
    assert counts[0] == counts[1] == [0.5 * 10_000 / 101]


def test_a_target_inside_the_band_is_not_traded_and_a_target_of_zero_always_is() -> None:
    bars = daily_bars(OPENS, CLOSES)
    book = portfolio.run(targets(bars, [0.5, 0.5, 0.52, 0.5, 0.0, None]), bars, band=0.6, costs=costs(0))
    assert len(book.fills) == 0
    book = portfolio.run(targets(bars, [0.5, 0.5, 0.52, 0.5, 0.0, None]), bars, band=0.1, costs=costs(0))
    assert book.fills["ts"].to_list() == [bars["ts"][1], bars["ts"][5]]


def test_a_buy_never_spends_more_than_the_cash_and_sells_come_first() -> None:
    a = daily_bars([100.0, 100.0, 100.0, 120.0], symbol="A")
    z = daily_bars([50.0, 50.0, 50.0, 50.0], symbol="Z")
    bars = pl.concat([a, z])
    wanted = pl.concat(
        [targets(bars, [0.0, 1.0, None, None], symbol="A"), targets(bars, [1.0, 0.0, None, None], symbol="Z")]
    )
    book = portfolio.run(wanted, bars, band=0.0, costs=costs(10))
    # Z is bought with all cash, sold, and A bought with what is left, at the same open.
    assert book.fills["symbol"].to_list() == ["Z", "A", "Z"]
    assert book.fills["shares"].to_list()[0] == pytest.approx(10_000 / (50 * 1.001 * 1.001))
    assert book.fills["ts"].to_list() == [a["ts"][1], a["ts"][2], a["ts"][2]]
    assert book.equity["equity"].min() > 0


def test_a_buy_without_cash_left_is_no_fill() -> None:
    a, z = (daily_bars([100.0, 130.0, 130.0, 130.0], symbol=s) for s in "AZ")
    bars = pl.concat([a, z])
    wanted = pl.concat(
        [targets(bars, [0.8, None, None, None], symbol="A"), targets(bars, [0.2, None, None, None], symbol="Z")]
    )
    book = portfolio.run(wanted, bars, band=0.0, costs=costs(10))
    # 80 shares at 130.13 and their fee cost more than all the cash, so nothing is left for Z.
    assert book.fills.select("symbol").to_series().to_list() == ["A"]
    assert book.fills["shares"][0] == pytest.approx(10_000 / (130 * 1.001 * 1.001))


def test_an_order_waits_for_the_symbols_next_bar() -> None:
    a = daily_bars(OPENS, CLOSES, symbol="A")
    z = daily_bars(OPENS, CLOSES, symbol="Z")
    bars = pl.concat([a.filter(~pl.col("ts").is_in([a["ts"][1], a["ts"][2]])), z])
    wanted = targets(z, [0.0] * 6, symbol="Z").vstack(targets(a, [0.5, None, None, None, None, None], symbol="A"))
    book = portfolio.run(wanted, bars, band=0.0, costs=costs(0))
    assert book.fills.select("symbol", "ts", "price").rows() == [("A", a["ts"][3], 103.0)]


def test_a_short_gains_when_the_price_falls() -> None:
    bars = daily_bars([100.0, 100.0, 90.0], [100.0, 100.0, 90.0])
    book = portfolio.run(targets(bars, [-0.5, None, None]), bars, band=0.0, costs=costs(0))
    assert book.equity["equity"].to_list() == [10_000.0, 10_000.0, 10_500.0]


def test_buy_and_hold_starts_a_symbol_at_equal_weight_at_its_entry_with_the_same_costs() -> None:
    a = daily_bars([100.0] * 6, symbol="A")
    z = daily_bars([10.0, 10.0, 10.0, 10.0, 20.0, 20.0], symbol="Z")
    bars = pl.concat([a, z])
    wanted = pl.concat([targets(a, [0.0] * 6, symbol="A"), targets(z, [None, None, 0.0, 0.0, 0.0, 0.0], symbol="Z")])
    book = portfolio.run(wanted, bars, band=0.0, costs=costs(0))
    # All in A from the second bar; half of it moves to Z at the fourth; Z doubles.
    assert book.benchmark_fills.select("symbol", "shares").rows() == [("A", 100.0), ("A", -50.0), ("Z", 500.0)]
    assert book.equity["benchmark"].to_list()[-1] == 15_000.0


def test_returns_and_costs_of_the_held_rows_add_up_to_the_equity(stocks: pl.DataFrame) -> None:
    bars = stocks.filter(pl.col("ts").dt.year() >= 2012)
    wanted = bars.select(
        "symbol", "ts", signal=pl.lit(1.0), position=(pl.col("ts").dt.ordinal_day() % 9).cast(pl.Float64) / 50 - 0.06
    )
    book = portfolio.run(wanted, bars, band=0.01, costs=free(fee_bps=3, half_spread_bps=4))
    daily = book.held.group_by("ts").agg(pl.col("return").sum(), pl.col("cost").sum()).sort("ts")
    equity = book.equity["equity"]
    assert (daily["return"] - (equity / equity.shift(1, fill_value=1_000_000.0) - 1)).abs().max() < 1e-12
    before = equity.shift(1, fill_value=1_000_000.0)
    paid = (book.fills["fee"] + book.fills["slippage"]).sum()
    assert (daily["cost"] * before).sum() == pytest.approx(paid, rel=1e-12)


def rolls(*at: datetime, symbol: str = "AAA") -> pl.DataFrame:
    rows = [(symbol, ts, "AAAF", "AAAG", 1.0, 1.0, ts) for ts in at]
    return pl.DataFrame(rows, schema=ROLL_SCHEMA, orient="row")


def test_a_roll_of_what_is_held_costs_a_sale_and_a_purchase_and_moves_nothing_else() -> None:
    bars = daily_bars(OPENS, CLOSES)
    wanted = targets(bars, [0.5, None, None, None, None, None])
    plain = portfolio.run(wanted, bars, band=0.0, costs=costs(10))
    book = portfolio.run(wanted, bars, band=0.0, costs=costs(10), rolls=rolls(bars["ts"][3]))
    shares = plain.fills["shares"][0]
    # Sold at 103 less 10 bps and bought at 103 plus 10 bps, each with a fee of 10 bps: 0.412 a share.
    sold, bought = 103 * 0.999, 103 * 1.001
    cost = shares * (bought - sold + 0.001 * (sold + bought))
    assert cost == pytest.approx(0.412 * shares)
    gone = (plain.equity["equity"] - book.equity["equity"]).to_list()
    assert gone == pytest.approx([0, 0, 0, cost, cost, cost], abs=1e-9)
    assert book.fills["shares"].to_list() == [shares, -shares, shares]
    assert book.fills.filter(pl.col("ts") == bars["ts"][3])["price"].to_list() == pytest.approx([sold, bought])
    paid = (book.fills["fee"] + book.fills["slippage"]).sum() - (plain.fills["fee"] + plain.fills["slippage"]).sum()
    assert paid == pytest.approx(cost)
    # What a symbol cost and brought adds up to what the equity did.
    before = [10_000.0, *book.equity["equity"].to_list()[:-1]]
    moved = [e / b - 1 for e, b in zip(book.equity["equity"], before, strict=True)]
    assert book.held["return"].to_list() == pytest.approx(moved, abs=1e-12)
    assert book.held["cost"][3] == pytest.approx(cost / before[3])
    # Buy-and-hold rolls too.
    assert len(book.benchmark_fills) == len(plain.benchmark_fills) + 2


def test_what_is_bought_or_sold_at_a_roll_is_traded_once() -> None:
    bars = daily_bars(OPENS, CLOSES)
    for wanted, kept in (
        ([None, None, 0.5, None, None, None], 0.0),
        ([1.0, None, 0.0, None, None, None], 0.0),
        ([1.0, None, 0.25, None, None, None], 0.25),
        ([0.25, None, 0.5, None, None, None], 0.25),
    ):
        plain = portfolio.run(targets(bars, wanted), bars, band=0.0, costs=costs(0))
        book = portfolio.run(targets(bars, wanted), bars, band=0.0, costs=costs(0), rolls=rolls(bars["ts"][3]))
        held = plain.fills.sort("ts").with_columns(after=pl.col("shares").cum_sum())["after"].to_list()
        through = min(held[-2:]) if kept else 0.0
        at_the_roll = book.fills.filter(pl.col("ts") == bars["ts"][3])["shares"].abs().sum()
        ordered = plain.fills.filter(pl.col("ts") == bars["ts"][3])["shares"].abs().sum()
        assert at_the_roll == pytest.approx(ordered + 2 * through)
        assert book.equity["equity"].to_list() == pytest.approx(plain.equity["equity"].to_list())


def test_a_short_rolls_too_and_at_the_next_bar_its_series_has() -> None:
    bars = daily_bars(OPENS, CLOSES)
    other = daily_bars(OPENS, CLOSES, symbol="BBB")
    thin = pl.concat([bars.filter(pl.col("ts") != bars["ts"][3]), other])
    wanted = pl.concat(
        [targets(bars, [-0.5, None, None, None, None, None]), targets(other, [0.1, *[None] * 5], symbol="BBB")]
    )
    between = bars["ts"][2] + timedelta(hours=5)
    book = portfolio.run(wanted, thin, band=0.0, costs=costs(10), rolls=rolls(between))
    fills = book.fills.filter(pl.col("symbol") == "AAA")
    assert fills["ts"].to_list() == [bars["ts"][1], bars["ts"][4], bars["ts"][4]]
    assert fills["shares"].to_list()[1:] == [-fills["shares"][0], fills["shares"][0]]
    # Bought back above the open, sold again below it.
    assert fills["price"].to_list()[1:] == pytest.approx([110 * 1.001, 110 * 0.999])


def test_a_roll_before_the_first_position_after_the_last_bar_or_of_nothing_held_costs_nothing() -> None:
    bars = daily_bars(OPENS, CLOSES)
    wanted = targets(bars, [None, None, 0.5, None, None, None])
    plain = portfolio.run(wanted, bars, band=0.0, costs=costs(10))
    never = pl.concat([rolls(bars["ts"][1], bars["ts"][5] + timedelta(days=1)), rolls(bars["ts"][4], symbol="ZZZ")])
    assert portfolio.run(wanted, bars, band=0.0, costs=costs(10), rolls=never).equity.equals(plain.equity)
