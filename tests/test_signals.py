from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from foxflow import signals
from foxflow.config import Strategy
from foxflow.endings import EXIT_SCHEMA
from foxflow.errors import ConfigError
from foxflow.training import FORECAST_SCHEMA

START = datetime(2024, 1, 1, 21, tzinfo=UTC)


def forecasts(**series: list[float | None]) -> pl.DataFrame:
    rows = [
        (symbol, START + timedelta(days=i), 0, value)
        for symbol, values in series.items()
        for i, value in enumerate(values)
        if value is not None
    ]
    return pl.DataFrame(rows, schema=FORECAST_SCHEMA, orient="row")


def direction(**changes: object) -> Strategy:
    settings = {
        "kind": "direction",
        "side": "long_short",
        "threshold_bps": 10.0,
        "position_limit": 0.2,
        "rebalance_band": 0.0,
    }
    return Strategy(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_forecast_below_the_threshold_gives_no_position() -> None:
    table = signals.positions(
        forecasts(A=[0.0009, 0.001, -0.001, -0.0009]), strategy=direction(), horizon=1, values="return"
    )
    assert table["position"].to_list() == [0.0, 0.2, -0.2, 0.0]


def test_long_only_never_goes_short() -> None:
    table = signals.positions(
        forecasts(A=[0.01, -0.01]), strategy=direction(side="long_only"), horizon=1, values="return"
    )
    assert table["position"].to_list() == [0.2, 0.0]


def test_tranches_hold_each_forecast_for_the_horizon() -> None:
    table = signals.positions(
        forecasts(A=[0.01, 0.01, -0.01, -0.01, -0.01]),
        strategy=direction(hold="tranches", position_limit=1.0),
        horizon=2,
        values="return",
    )
    assert table["position"].to_list() == [0.5, 1.0, 0.0, -1.0, -1.0]


def test_refresh_follows_the_newest_forecast() -> None:
    table = signals.positions(
        forecasts(A=[0.01, -0.01, 0.01]), strategy=direction(hold="refresh"), horizon=2, values="return"
    )
    assert table["position"].to_list() == [0.2, -0.2, 0.2]


def test_positions_together_never_exceed_the_gross_limit_even_where_a_symbol_has_no_row() -> None:
    table = signals.positions(
        forecasts(A=[0.01, 0.01], B=[-0.01, None]),
        strategy=direction(position_limit=0.8, gross_limit=0.8),
        horizon=1,
        values="return",
    )
    assert table["position"].to_list() == pytest.approx([0.4, 0.4, -0.4])


def test_volatility_target_holds_the_target_over_the_forecast_at_most_the_limit() -> None:
    rule = Strategy(
        kind="volatility_target", side="long_only", target_volatility=0.01, position_limit=0.5, rebalance_band=0.0
    )
    logs = [-3.912023005428146, -4.605170185988091, -5.298317366548036]  # 2 %, 1 %, 0.5 % a bar
    table = signals.positions(forecasts(A=logs), strategy=rule, horizon=1, values="log volatility")
    assert table["position"].to_list() == pytest.approx([0.25, 0.5, 0.5])


def test_a_strategy_for_returns_refuses_a_volatility_forecast() -> None:
    with pytest.raises(
        ConfigError, match="kind = 'direction' needs a label of returns, but the label is a log volatility"
    ):
        signals.positions(forecasts(A=[0.01]), strategy=direction(), horizon=1, values="log volatility")


def test_the_gross_limit_holds_where_symbols_never_share_a_bar() -> None:
    rows = [
        ("A", START, 0, -0.01),
        ("B", START + timedelta(hours=1), 0, -0.01),
        ("C", START + timedelta(hours=2), 0, -0.01),
        ("A", START + timedelta(hours=24), 0, 0.0),
        ("B", START + timedelta(hours=25), 0, -0.01),
    ]
    table = signals.positions(
        pl.DataFrame(rows, schema=FORECAST_SCHEMA, orient="row"),
        strategy=direction(position_limit=0.6),
        horizon=1,
        values="return",
    ).sort("ts")
    assert table["position"].to_list() == pytest.approx([-0.6, -0.4, 0.0, 0.0, -0.6])


def test_tranches_of_one_symbol_never_count_another_ones_signals() -> None:
    table = signals.positions(
        forecasts(A=[0.01, 0.01], B=[-0.01, -0.01]),
        strategy=direction(hold="tranches", position_limit=0.5),
        horizon=2,
        values="return",
    )
    assert table["position"].to_list() == [0.25, 0.5, -0.25, -0.5]


def test_a_symbol_that_leaves_is_closed_frees_its_room_and_starts_anew_when_it_comes_back() -> None:
    # A: forecast on days 0-2, out on day 3, back on day 5; B throughout.
    table = forecasts(A=[0.01, 0.01, 0.01, None, None, 0.01], B=[0.01] * 6)
    exits = pl.DataFrame([("A", START + timedelta(days=3))], schema=EXIT_SCHEMA, orient="row")
    found = signals.positions(
        table, strategy=direction(hold="tranches", gross_limit=0.3), horizon=2, values="return", exits=exits
    )
    # Half of 0.2 each, then both; 0.4 is scaled to 0.3 while both are in, and B has the room alone when A is out.
    of = {s: f["position"].to_list() for (s,), f in found.partition_by("symbol", as_dict=True).items()}
    assert of["A"] == pytest.approx([0.1, 0.15, 0.15, 0.0, 0.1])
    assert of["B"] == pytest.approx([0.1, 0.15, 0.15, 0.2, 0.2, 0.2])
    gone = found.filter(pl.col("symbol") == "A").row(3, named=True)
    assert (gone["ts"], gone["signal"]) == (START + timedelta(days=3), None)


def test_an_exit_before_the_first_forecast_is_none_and_one_at_a_forecast_only_forgets() -> None:
    exits = pl.DataFrame(
        [("A", START), ("A", START + timedelta(days=2)), ("B", START)], schema=EXIT_SCHEMA, orient="row"
    )
    found = signals.positions(
        forecasts(A=[None, 0.01, 0.01]), strategy=direction(hold="tranches"), horizon=2, values="return", exits=exits
    )
    # Day 2 has a forecast of its own: it counts, the one of day 1 no more.
    assert found.select("ts", "position").rows() == [
        (START + timedelta(days=1), 0.1),
        (START + timedelta(days=2), 0.1),
    ]
