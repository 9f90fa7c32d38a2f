"""Each named cost, each way of filling and each delay, against arithmetic done by hand."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import daily_bars, free

from foxflow import adjustment, config, experiment, market, portfolio, sample
from foxflow.bars import BAR_SCHEMA
from foxflow.config import Backtest
from foxflow.endings import ENDING_SCHEMA
from foxflow.errors import DataError
from foxflow.scoring.trading import Plan, replay, trade
from foxflow.signals import POSITION_SCHEMA

OPENS = [100.0, 102.0, 105.0, 103.0, 110.0, 108.0]
CLOSES = [101.0, 104.0, 104.0, 106.0, 109.0, 107.0]


def targets(bars: pl.DataFrame, wanted: dict[int, float], *, symbol: str = "AAA") -> pl.DataFrame:
    times = bars.filter(pl.col("symbol") == symbol)["ts"]
    rows = [(symbol, times[i], w, w) for i, w in wanted.items()]
    return pl.DataFrame(rows, schema=POSITION_SCHEMA, orient="row")


def book_of(wanted: dict[int, float], bars: pl.DataFrame | None = None, **how: Any) -> portfolio.Book:
    bars = daily_bars(OPENS, CLOSES) if bars is None else bars
    costs = how.pop("costs", {})
    return portfolio.run(targets(bars, wanted), bars, band=0.0, costs=free(initial_cash=10_000.0, **costs), **how)


def paid(book: portfolio.Book) -> dict[str, float]:
    return {name: amount for name, amount in book.costs.items() if amount}


def test_fees_by_value_and_by_share_add_up_and_come_to_the_minimum_at_least() -> None:
    shares = 0.5 * 10_000 / 101
    fills = {0: 0.5, 2: 0.0}
    both = book_of(fills, costs={"fee_bps": 10.0, "fee_per_share": 0.02})
    assert paid(both) == pytest.approx({"fee": shares * (102 + 103) * 0.001, "per_share_fee": shares * 0.04})
    # 5.05 + 0.99 = 6.04 and 5.10 + 0.99 = 6.09 come to 7 each.
    least = book_of(fills, costs={"fee_bps": 10.0, "fee_per_share": 0.02, "minimum_fee": 7.0})
    assert sum(paid(least).values()) == pytest.approx(14.0)
    assert least.fills["fee"].to_list() == pytest.approx([7.0, 7.0])
    assert least.equity["equity"][-1] == pytest.approx(10_000 + shares * (103 - 102) - 14)


def test_an_order_moves_the_price_by_the_root_of_its_share_of_the_volume_known_when_it_was_decided() -> None:
    closes = [100.0, 110.0, 100.0, 100.0, 100.0]
    bars = daily_bars(closes, closes).with_columns(volume=pl.Series([1_000.0, 2_000.0, 3_000.0, 1.0, 1e9]))
    book = book_of({2: 0.5}, bars, costs={"impact": 2.0})
    # log(1.1)² twice, over the two returns; a mean volume of 2,000; 50 shares at 100.
    volatility = 0.0953101798
    moved = 2.0 * volatility * (50 / 2_000) ** 0.5
    assert book.fills["price"].to_list() == pytest.approx([100 * (1 + moved)], rel=1e-9)
    assert paid(book) == pytest.approx({"impact": 5_000 * moved}, rel=1e-9)
    sold = book_of({2: -0.5}, bars, costs={"impact": 2.0})
    assert sold.fills["price"].to_list() == pytest.approx([100 * (1 - moved)], rel=1e-9)


@pytest.mark.parametrize(("volume", "at"), [(None, 1), (0.0, None)])
def test_an_impact_that_is_not_known_is_refused_by_name(volume: float | None, at: int | None) -> None:
    bars = daily_bars(OPENS, CLOSES)
    unknown = pl.lit(volume, pl.Float64)
    bars = bars.with_columns(
        volume=unknown if at is None else pl.when(pl.int_range(6) == at).then(unknown).otherwise("volume")
    )
    with pytest.raises(DataError, match=r"AAA: the order due at 2024-01-05 21:00Z has an impact that is not known"):
        book_of({3: 0.5}, bars, costs={"impact": 1.0})


def test_an_order_takes_its_share_of_a_bars_volume_and_the_rest_waits() -> None:
    bars = daily_bars([100.0] * 6).with_columns(volume=pl.Series([9e9, 200.0, 0.0, 300.0, 100.0, 9e9]))
    book = book_of({0: 1.0}, bars, costs={"participation_limit": 0.2})
    # 100 shares: 40 of 200, none of nothing, and the last 60 of 300.
    assert book.fills.select("ts", "shares").rows() == [(bars["ts"][1], 40.0), (bars["ts"][3], 60.0)]
    assert book.capped.drop("symbol").rows() == [
        (bars["ts"][0], bars["ts"][1], 100.0, 40.0),
        (bars["ts"][0], bars["ts"][2], 60.0, 0.0),
    ]
    assert portfolio.replay(
        targets(bars, {0: 1.0}), bars, band=0.0, costs=free(initial_cash=10_000.0, participation_limit=0.2)
    ).most_participation == pytest.approx(0.2)
    unknown = bars.with_columns(volume=pl.lit(None, pl.Float64))
    with pytest.raises(DataError, match=r"AAA at 2024-01-02 21:00Z: its bar has no volume that is known"):
        book_of({0: 1.0}, unknown, costs={"participation_limit": 0.2})


def test_borrowed_shares_cost_their_value_by_the_calendar_day() -> None:
    bars = daily_bars([100.0, 100.0, 100.0, 100.0]).with_columns(
        ts=pl.Series([datetime(2024, 1, d, 21, tzinfo=UTC) for d in (3, 4, 5, 8)]).cast(BAR_SCHEMA["ts"])
    )
    book = book_of({0: -0.5}, bars, costs={"borrow_bps": 365.0})
    # 50 shares short from Thursday on: one day to Friday and three to Monday, at 1 bp a day of 5,000.
    assert book.carry["borrow"].to_list() == pytest.approx([0.0, 0.0, 0.5, 1.5])
    assert book.equity["equity"].to_list() == pytest.approx([10_000, 10_000, 9_999.5, 9_998])
    assert paid(book) == pytest.approx({"borrow": 2.0})


def test_a_gross_limit_above_one_borrows_cash_which_is_paid_for_and_without_it_buys_stay_within_the_cash() -> None:
    bars = daily_bars([100.0, 100.0, 110.0, 110.0])
    within = book_of({0: 1.5}, bars, costs={"financing_bps": 365.0})
    assert within.fills["shares"].to_list() == [100.0]
    assert paid(within) == {}
    book = book_of({0: 1.5}, bars, costs={"financing_bps": 365.0}, gross_limit=1.5)
    assert book.fills["shares"].to_list() == [150.0]
    # 5,000 are owed from the second bar on; each day costs 1 bp of what is owed.
    first, second = 5_000 * 1e-4, (5_000 + 5_000 * 1e-4) * 1e-4
    assert book.carry["financing"].to_list() == pytest.approx([0, 0, first, second])
    assert book.equity["equity"].to_list() == pytest.approx([10_000, 10_000, 11_500 - first, 11_500 - first - second])
    # An order of twice the equity goes as far as half the newest equity of 10,000, then 11,500, can be borrowed.
    assert book_of({0: 2.0}, bars, gross_limit=1.5).fills["shares"].to_list() == pytest.approx([150.0, 750 / 110])


@pytest.mark.parametrize(("fill", "price"), [("next_open", 102.0), ("next_close", 104.0), ("next_mid", 103.5)])
def test_the_fill_price_is_the_open_the_close_or_the_mid_of_high_and_low(fill: Any, price: float) -> None:
    bars = daily_bars(OPENS, CLOSES).with_columns(high=pl.col("high") + 1)
    # Of the second bar: high 105, low 102.
    book = book_of({0: 0.5}, bars, execution=Backtest(fill=fill))
    assert book.fills.select("ts", "price").rows() == [(bars["ts"][1], price)]
    assert book.equity["equity"][1] == pytest.approx(10_000 + 0.5 * 10_000 / 101 * (104 - price))


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_a_delay_in_bars_moves_the_fill_and_not_the_share_count(delay: int) -> None:
    bars = daily_bars(OPENS, CLOSES)
    book = book_of({0: 0.5}, bars, execution=Backtest(delay_bars=delay))
    assert book.fills.select("ts", "shares", "price").rows() == [
        (bars["ts"][1 + delay], 0.5 * 10_000 / 101, OPENS[1 + delay])
    ]
    assert book.charges["decided_ts"].to_list() == [bars["ts"][0]]


def test_orders_under_way_are_not_ordered_again_and_each_decision_reaches_its_own_count() -> None:
    bars = daily_bars([100.0] * 7)
    same = book_of(dict.fromkeys(range(5), 0.5), bars, execution=Backtest(delay_bars=2))
    assert same.fills.select("ts", "shares").rows() == [(bars["ts"][3], 50.0)]
    turned = book_of({0: 0.5, 1: 0.2, 2: 0.0}, bars, execution=Backtest(delay_bars=1))
    assert turned.fills.select("ts", "shares").rows() == [
        (bars["ts"][2], 50.0), (bars["ts"][3], -30.0), (bars["ts"][4], -20.0),
    ]  # fmt: skip


def test_an_order_that_comes_after_the_open_is_filled_by_the_next_bar() -> None:
    first = datetime(2024, 1, 2, 14, 45, tzinfo=UTC)
    # Around the clock the next bar opens at ts itself.
    hours = [first + timedelta(minutes=15 * k) for k in range(4)]
    around = daily_bars([100.0, 101.0, 102.0, 103.0]).with_columns(ts=pl.Series(hours).cast(BAR_SCHEMA["ts"]))
    at = {s: Backtest(delay_s=float(s)) for s in (0, 1, 900, 901)}
    where = {
        s: book_of({0: 0.5}, around, execution=e, bar="15m", calendar="24/7").fills["ts"][0] for s, e in at.items()
    }
    assert where == {0: hours[1], 1: hours[2], 900: hours[2], 901: hours[3]}
    closing = Backtest(delay_s=1.0, fill="next_close")
    assert book_of({0: 0.5}, around, execution=closing, bar="15m", calendar="24/7").fills["ts"][0] == hours[1]
    sessions = [datetime(2024, 1, d, 21, tzinfo=UTC) for d in (2, 3, 4)]
    daily = daily_bars([100.0, 101.0, 102.0]).with_columns(ts=pl.Series(sessions).cast(BAR_SCHEMA["ts"]))
    # New York opens at 14:30 UTC, 17.5 hours after the close before.
    for seconds, bar in ((17.5 * 3600, 1), (17.5 * 3600 + 1, 2)):
        book = book_of({0: 0.5}, daily, execution=Backtest(delay_s=seconds), bar="1d", calendar="XNYS")
        assert book.fills["ts"].to_list() == [sessions[bar]]
    with pytest.raises(DataError, match="needs the bar length and the calendar"):
        book_of({0: 0.5}, daily, execution=Backtest(delay_s=1.0))


def test_an_order_that_meets_no_bar_when_it_is_due_after_its_delay_is_listed() -> None:
    a, clock = daily_bars(OPENS, CLOSES), daily_bars(OPENS, CLOSES, symbol="CLOCK")
    gap = pl.concat([a.filter(~pl.col("ts").is_in([a["ts"][2], a["ts"][3]])), clock])
    wanted = pl.concat([targets(a, {0: 0.5}), targets(clock, {0: 0.0}, symbol="CLOCK")])
    book = portfolio.run(wanted, gap, band=0.0, costs=free(), execution=Backtest(delay_bars=1))
    assert book.waited.rows() == [("AAA", a["ts"][0], a["ts"][4], 2)]
    assert book.fills["price"].to_list() == [110.0]


@pytest.mark.parametrize("fill", ["next_open", "next_close", "next_mid"])
@pytest.mark.parametrize("delay", [0, 1])
def test_the_bar_that_fills_changes_no_share_count_ordered_at_ts(fill: Any, delay: int, stocks: pl.DataFrame) -> None:
    bars = stocks.filter((pl.col("ts").dt.year() == 2004) & pl.col("symbol").is_in(["IBM", "MSFT"]))
    ibm = bars.filter(pl.col("symbol") == "IBM")["ts"]
    costs = free(fee_bps=5, fee_per_share=0.01, minimum_fee=5, half_spread_bps=5, impact=1.0, initial_cash=1e7)
    counts = []
    for bend in (1.0, 0.9):
        later = pl.col("ts") > ibm[120]
        bent = bars.with_columns(
            *(pl.when(later).then(pl.col(c) * bend).otherwise(c).alias(c) for c in ("open", "high", "low", "close")),
            volume=pl.when(later).then(pl.col("volume") * bend).otherwise("volume"),
        )
        wanted = bent.select("symbol", "ts", signal=pl.lit(1.0), position=(pl.col("ts").dt.ordinal_day() % 5) / 20.0)
        book = portfolio.run(wanted.filter(pl.col("ts").is_between(ibm[25], ibm[120])), bent, band=0.0, costs=costs, execution=Backtest(fill=fill, delay_bars=delay))  # fmt: skip
        reached = book.fills.filter(pl.col("ts") <= ibm[121 + delay]).group_by("symbol").agg(pl.col("shares").sum())
        counts.append((book.fills["shares"].to_list(), reached.sort("symbol").rows()))
    assert len(counts[0][0]) > 100
    assert counts[0] == counts[1]


def test_every_cost_zero_by_name_gives_the_gross_curve_to_the_bit_and_the_waterfall_adds_up(
    stocks: pl.DataFrame,
) -> None:
    bars = stocks.filter((pl.col("ts").dt.year() >= 2009) & (pl.col("symbol") != "FB"))
    wanted = bars.filter(pl.col("ts").dt.year() >= 2010).select(
        "symbol",
        "ts",
        signal=pl.lit(1.0),
        position=(pl.col("ts").dt.ordinal_day() * 7 % 11).cast(pl.Float64) / 10 - 0.4,
    )
    costs = free(
        fee_bps=1, fee_per_share=0.005, minimum_fee=60, half_spread_bps=2, impact=1, borrow_bps=50, financing_bps=300,
        participation_limit=0.05,
    )  # fmt: skip
    how: dict[str, Any] = {"band": 0.02, "gross_limit": 2.0}
    book = portfolio.run(wanted, bars, costs=costs, **how)
    free_of_all = portfolio.run(wanted, bars, costs=costs.without(), **how)
    assert book.gross["gross"].to_list() == free_of_all.gross["gross"].to_list()
    assert free_of_all.equity["equity"].to_list() == pytest.approx(book.gross["gross"].to_list(), rel=1e-12)
    assert (
        portfolio.replay(wanted, bars, costs=costs.without(), **how).equity["equity"].to_list()
        == book.gross["gross"].to_list()
    )
    assert all(book.costs[name] > 0 for name in book.costs if name != "roll")
    rows = {row["name"]: row["amount"] for row in book.waterfall()}
    assert list(rows) == [
        "gross", "fee", "per_share_fee", "minimum_fee", "half_spread", "impact", "borrow", "financing", "roll",
        "smaller_positions", "net",
    ]  # fmt: skip
    assert round(100 * rows["net"]) == sum(round(100 * amount) for name, amount in rows.items() if name != "net")
    assert rows["net"] == round(book.equity["equity"][-1] - 1_000_000, 2)
    # Nothing but what was paid separates the account from its fills.
    spent = (book.charges.select(pl.sum_horizontal("fee", "per_share_fee", "minimum_fee")).sum()).item()
    assert spent == pytest.approx(book.fills["fee"].sum(), rel=1e-12)
    assert book.charges.select(pl.sum_horizontal("half_spread", "impact")).sum().item() == pytest.approx(
        book.fills["slippage"].sum(), rel=1e-12
    )
    plain = {row["name"]: row["amount"] for row in free_of_all.waterfall()}
    assert plain["gross"] == plain["net"]
    assert plain["smaller_positions"] == 0


def test_per_share_fees_of_apple_in_2000_are_those_of_the_shares_of_the_day(tmp_path: Path) -> None:
    settings = config.load(
        "returns", overrides=["costs.fee_per_share=0.01", "costs.fee_bps=0", "costs.half_spread_bps=0"]
    )
    pulled = market.pull(settings, experiment.open_store(tmp_path, "sample"))
    apple = pulled.first.filter(pl.col("symbol") == "AAPL")
    day = {d: datetime(2000, 6, d, 20, tzinfo=UTC) for d in (16, 19, 20, 21, 22)}
    wanted = pl.DataFrame(
        [("AAPL", day[16], 0.5, 0.5), ("AAPL", day[20], 0.25, 0.25), ("AAPL", day[21], 0.0, 0.0)], schema=POSITION_SCHEMA, orient="row"
    )  # fmt: skip
    book = portfolio.run(wanted, apple, band=0.0, costs=settings.costs, factors=pulled.factors)
    # As it was traded: closes 91.19, 101.25 and, after 2:1, 55.63; opens 90.56, 50.50 and 55.75.
    bought = 500_000 / 91.19
    cash = 1_000_000 - bought * 90.56 - bought * 0.01
    equity = cash + bought * 101.25
    kept = 2 * 0.25 * equity / 101.25
    sold = 2 * bought - kept
    cash += sold * 50.50 - sold * 0.01
    cash += kept * 55.75 - kept * 0.01
    assert book.charges["raw_shares"].to_list() == pytest.approx([bought, -sold, -kept], rel=1e-12)
    assert book.fills["fee"].to_list() == pytest.approx([bought * 0.01, sold * 0.01, kept * 0.01], rel=1e-12)
    assert book.equity.filter(pl.col("ts") == day[22])["equity"].item() == pytest.approx(cash, rel=1e-12)
    # Read as if the adjusted prices were those of the day, the fees of the second and third would be half.
    assert (
        portfolio.run(wanted, apple, band=0.0, costs=settings.costs).costs["per_share_fee"]
        < book.costs["per_share_fee"]
    )


def test_a_run_charges_the_shares_of_the_day(tmp_path: Path) -> None:
    settings = config.load("returns", overrides=["costs.fee_per_share=0.01", "backtest.delay_bars=1"])
    pulled = market.pull(settings, experiment.open_store(tmp_path, "sample"))
    apple = pulled.first.filter(pl.col("symbol") == "AAPL")
    wanted = targets(apple, {1500: 0.5, 1600: 0.0}, symbol="AAPL")
    plan = Plan(wanted, wanted, ENDING_SCHEMA.to_frame(), apple, {})
    book = trade(settings, pulled, plan)
    # After 2:1 twice.
    assert book.charges["raw_shares"].to_list() == pytest.approx((4 * book.fills["shares"]).to_list())
    assert book.charges["per_share_fee"].to_list() == pytest.approx((0.04 * book.fills["shares"].abs()).to_list())
    assert replay(settings, pulled, plan).costs == book.costs
    assert book.fills["ts"][0] == apple["ts"][1502]


def test_a_resampled_bar_opens_with_the_shares_of_its_first_day_and_closes_with_those_of_its_last() -> None:
    raw, events = sample.load_bars(), sample.load_events()
    settings = config.load("returns").data
    reading = market.Reading(
        config.Data(source="store", bar="1w", stored_bar="1d", calendar=settings.calendar, symbols=("AAPL",)),
        None, events, pl.DataFrame(), None, until=raw["ts"].max(),
    )  # fmt: skip
    apple = raw.filter(pl.col("symbol") == "AAPL")
    week = reading.factors(apple).filter(pl.col("ts") == datetime(2000, 6, 23, 20, tzinfo=UTC)).row(0, named=True)
    assert (week["shares_at_open"], week["shares_at_close"], week["volume_factor"]) == (1.0, 2.0, 1.0)
    made, _ = reading.make(apple)
    friday = made.filter(pl.col("ts") == datetime(2000, 6, 23, 20, tzinfo=UTC)).row(0, named=True)
    assert friday["open"] == pytest.approx(90.56 * 1.0)
    assert friday["close"] == pytest.approx(51.69 * 2.0)


def test_factors_turn_adjusted_bars_back_into_those_of_the_day() -> None:
    raw, events = sample.load_bars().sort("symbol", "ts"), sample.load_events()
    adjusted, factors = adjustment.adjust(raw, events).sort("symbol", "ts"), adjustment.factors(raw, events)
    assert (adjusted["close"] / factors["shares"] - raw["close"]).abs().max() < 1e-9
    assert (adjusted["volume"] * factors["splits"] / raw["volume"] - 1).abs().max() < 1e-12
