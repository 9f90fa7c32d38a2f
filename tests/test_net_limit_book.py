"""The net limit in the book: a symbol that is cut while it has no bar is sold at its next one."""

import polars as pl
import pytest
from strategy_samples import bars, day, forecasts, strategy

from foxflow import config, portfolio, signals
from foxflow.endings import EXIT_SCHEMA


def test_what_is_cut_for_the_net_limit_without_a_bar_is_sold_at_the_next() -> None:
    costs = config.parse({
        **config.to_document(config.load("returns")),
        "costs": {**config.to_document(config.load("returns"))["costs"], "fee_bps": 0.0, "half_spread_bps": 0.0},
    }).costs  # fmt: skip
    prices = bars(A=[100.0] * 6, B=[100.0] * 6).filter(~((pl.col("symbol") == "A") & (pl.col("ts") == day(2))))
    exits = pl.DataFrame([("B", day(2))], schema=EXIT_SCHEMA, orient="row")
    rule = strategy(position_limit=0.4, net_limit=0.1)
    found = signals.positions(
        forecasts(A=[0.01, 0.01], B=[-0.01, -0.01]), strategy=rule, horizon=1, values="return", exits=exits
    )
    # B leaves on day 2, where A has no bar: a net of 0.4 is cut to 0.1, and A's order waits for day 3.
    book = portfolio.run(found, prices, band=0.0, costs=costs)
    of_a = book.fills.filter(pl.col("symbol") == "A").select("ts", "shares")
    assert of_a["ts"].to_list() == [day(1), day(3)]
    assert of_a["shares"].to_list() == pytest.approx([4_000.0, -3_000.0])
