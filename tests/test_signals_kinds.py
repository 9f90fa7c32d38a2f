"""Hysteresis, sizes by volatility and ranks: by hand, and against plain readings of the rules."""

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_samples import bars, day, forecasts, random_case, strategy, thresholds

from foxflow import signals
from foxflow.config import Strategy
from foxflow.endings import EXIT_SCHEMA
from foxflow.errors import ConfigError, DataError


def positions(table: pl.DataFrame, rule: Strategy, **more: object) -> list[float]:
    arguments = {"horizon": 2, "values": "return", **more}
    return signals.positions(table, strategy=rule, **arguments)["position"].to_list()  # type: ignore[arg-type]


def bps(*values: float | None) -> list[float | None]:
    return [None if v is None else v / 1e4 for v in values]


def test_between_the_thresholds_what_is_held_is_kept() -> None:
    rule = strategy(threshold_bps=10.0, exit_threshold_bps=5.0, position_limit=1.0)
    table = forecasts(A=bps(7, 12, 7, 5, 4, 7, -10, -7, -4, 12, -7, 12, -10))
    # -7 leaves the long, for it is below 5 in its direction, and does not reach 10 in its own.
    assert positions(table, rule) == [0, 1, 1, 1, 0, 0, -1, -1, 0, 1, 0, 1, -1]


def test_an_exit_threshold_of_zero_holds_until_the_forecast_turns() -> None:
    rule = strategy(threshold_bps=10.0, exit_threshold_bps=0.0, position_limit=1.0)
    assert positions(forecasts(A=bps(10, 1, 0, -1, 0, -10, 0, 1)), rule) == [1, 1, 1, 0, 0, -1, -1, 0]


def test_long_only_hysteresis_never_goes_short() -> None:
    rule = strategy(threshold_bps=10.0, exit_threshold_bps=5.0, position_limit=1.0, side="long_only")
    assert positions(forecasts(A=bps(12, 6, -12, -6, 6, 10)), rule) == [1, 1, 0, 0, 0, 1]


def test_what_is_held_is_kept_over_missing_bars_and_fold_boundaries_and_forgotten_at_an_exit() -> None:
    rule = strategy(threshold_bps=10.0, exit_threshold_bps=5.0, position_limit=1.0)
    table = forecasts([0, 0, 0, 1, 1, 1], A=bps(12, None, 7, 7, None, 7))
    assert positions(table, rule) == [1, 1, 1, 1]
    exits = pl.DataFrame([("A", day(4))], schema=EXIT_SCHEMA, orient="row")
    assert positions(table, rule, exits=exits) == [1, 1, 1, 0, 0]
    at_a_forecast = pl.DataFrame([("A", day(3))], schema=EXIT_SCHEMA, orient="row")
    assert positions(table, rule, exits=at_a_forecast) == [1, 1, 0, 0]


def test_each_folds_thresholds_apply_to_its_own_span_and_what_is_held_carries_over() -> None:
    rule = strategy(threshold_bps="chosen", position_limit=1.0)
    chosen = {0: thresholds(10, 5), 1: thresholds(20, 0), 2: thresholds(0)}
    table = forecasts([0, 0, 1, 1, 1, 2, 2], A=bps(12, 6, 1, -1, 12, 1, -1))
    assert positions(table, rule, thresholds=chosen) == [1, 1, 1, 0, 0, 1, -1]


def test_chosen_thresholds_that_are_not_given_are_refused_by_fold() -> None:
    rule = strategy(threshold_bps="chosen")
    with pytest.raises(DataError, match=r"none are given for fold\(s\) 1; choose them with signals.choose"):
        positions(forecasts([0, 1], A=[0.01, 0.01]), rule, thresholds={0: thresholds(0)})


def test_a_tranche_opens_with_what_hysteresis_says_that_bar() -> None:
    rule = strategy(threshold_bps=10.0, exit_threshold_bps=5.0, position_limit=1.0, hold="tranches")
    # Signals 1, 1, 1, 0, 0, -1; each held for two bars in a half.
    assert positions(forecasts(A=bps(12, 6, 6, 4, 6, -10)), rule) == [0.5, 1, 1, 0.5, 0, -0.5]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), side=st.sampled_from(["long_short", "long_only"]))
def test_hysteresis_is_a_state_per_symbol_and_stay(seed: int, side: str) -> None:
    table, exits, _ = random_case(seed)
    if not len(table):
        return
    rule = strategy(threshold_bps="chosen", position_limit=1.0, gross_limit=10.0, side=side)
    chosen = {0: (10, 5), 1: (20, 0), 2: (0, 0)}
    found = signals.positions(
        table, strategy=rule, horizon=1, values="return", exits=exits,
        thresholds={fold: thresholds(*pair) for fold, pair in chosen.items()},
    )  # fmt: skip
    gone, held = set(exits.rows()), dict.fromkeys("ABCDE", 0)
    times = {s: t["ts"].to_list() for (s,), t in found.partition_by("symbol", as_dict=True).items()}
    forecast = {(s, ts): (fold, value) for s, ts, fold, value in table.rows()}
    expected = []
    for symbol, own in times.items():
        for ts in own:
            if (symbol, ts) in gone:
                held[symbol] = 0
            if (symbol, ts) in forecast:
                fold, value = forecast[symbol, ts]
                enter, leave = chosen[fold]
                # Levels are whole basis points.
                strength = round(value * 1e4)
                if abs(strength) >= enter:
                    held[symbol] = (strength > 0) - (strength < 0)
                elif held[symbol] * strength < leave:
                    held[symbol] = 0
            expected.append(max(held[symbol], 0) if side == "long_only" else held[symbol])
    assert found["position"].to_list() == expected


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(1e-6, 1e6), kind=st.sampled_from(["direction", "rank"]))
def test_the_scale_of_forecasts_changes_no_sign_and_no_rank(seed: int, factor: float, kind: str) -> None:
    table, exits, _ = random_case(seed)
    rule = strategy(threshold_bps=0.0) if kind == "direction" else rank()
    scaled = table.with_columns(pl.col("forecast") * factor)
    assert positions(table, rule, exits=exits) == positions(scaled, rule, exits=exits)


def test_a_size_by_volatility_moves_equity_by_the_target() -> None:
    rule = strategy(size="volatility", target_volatility=0.004, volatility_bars=2, position_limit=0.5)
    # Log returns of 2 % up and down, then of 0.4 %.
    logs = [0.0, 0.02, 0.0, 0.02, 0.016, 0.02]
    prices = bars(A=[100 * math.exp(x) for x in logs])
    found = positions(forecasts(A=[0.01, 0.01, 0.01, -0.01, -0.01, -0.01]), rule, bars=prices)
    mixed = math.sqrt((0.02**2 + 0.004**2) / 2)
    # Too few bars, too few bars, then target over volatility, at most the limit.
    assert found == pytest.approx([0, 0, 0.2, -0.2, -0.004 / mixed, -0.5])


def test_a_size_reads_all_stored_bars_also_before_the_first_forecast_and_between_forecasts() -> None:
    rule = strategy(size="volatility", target_volatility=0.004, volatility_bars=3, position_limit=0.5)
    prices = bars(A=[100 * math.exp(0.02 * (i % 2)) for i in range(6)])
    assert positions(forecasts(A=[None, None, None, 0.01, None, 0.01]), rule, bars=prices) == pytest.approx([0.2, 0.2])


def test_a_tranche_keeps_the_size_it_was_opened_with() -> None:
    rule = strategy(size="volatility", target_volatility=0.004, volatility_bars=2, position_limit=0.5, hold="tranches")
    logs = [0.0, 0.02, 0.0, 0.004, 0.0]
    found = positions(forecasts(A=[None, None, 0.01, 0.01, 0.01]), rule, bars=bars(A=[math.exp(x) for x in logs]))
    mixed = 0.004 / math.sqrt((0.02**2 + 0.004**2) / 2)
    assert found == pytest.approx([0.2 / 2, (0.2 + mixed) / 2, (mixed + 0.5) / 2])


def test_a_size_by_volatility_without_bars_is_refused() -> None:
    rule = strategy(size="volatility", target_volatility=0.004, volatility_bars=2)
    with pytest.raises(DataError, match="no bars are given to take it from; pass bars="):
        positions(forecasts(A=[0.01]), rule)


def rank(**changes: object) -> Strategy:
    return strategy(**{"kind": "rank", "threshold_bps": None, "share": 0.4, "position_limit": 1.0, **changes})


def test_rank_is_long_the_best_share_and_short_the_worst_in_equal_weights() -> None:
    table = forecasts(A=[0.03], B=[0.01], C=[0.02], D=[-0.01], E=[0.0])
    assert positions(table, rank()) == [0.25, 0, 0.25, -0.25, -0.25]
    assert positions(table, rank(side="long_only")) == [0.5, 0, 0.5, 0, 0]
    assert positions(table, rank(share=0.2, position_limit=0.3)) == [0.3, 0, 0, -0.3, 0]
    # Even the best of many is one.
    assert positions(table, rank(share=0.01)) == [0.5, 0, 0, -0.5, 0]


def test_a_share_of_a_whole_number_loses_no_symbol_to_rounding() -> None:
    table = forecasts(**{f"S{i:03}": [i / 1e4] for i in range(100)})
    found = positions(table, rank(share=0.29))
    assert (sum(p > 0 for p in found), sum(p < 0 for p in found)) == (29, 29)


def test_symbols_that_tie_share_the_places_they_compete_for() -> None:
    # Two places for A, B, C at the top: two thirds each; one at the bottom is E's, the other D's.
    table = forecasts(A=[0.02], B=[0.02], C=[0.02], D=[0.01], E=[0.0])
    assert positions(table, rank(gross_limit=4.0)) == pytest.approx([2 / 3, 2 / 3, 2 / 3, -1, -1])
    # All alike: nobody is better; also where the zeros differ in sign.
    assert positions(forecasts(A=[0.0], B=[-0.0], C=[0.0]), rank()) == [0, 0, 0]


def test_rank_decides_among_the_symbols_forecast_at_that_time_and_alone_nobody_is_best() -> None:
    table = forecasts(A=[0.01, 0.01, 0.01], B=[0.02, None, 0.0], C=[None, None, None])
    found = signals.positions(table, strategy=rank(), horizon=1, values="return").sort("symbol", "ts")
    # On day 1 B stays short of a forecast: it keeps what it has, and A goes flat.
    assert found["position"].to_list() == [-0.5, 0, 0.5, 0.5, -0.5]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.1, 0.25, 0.5]))
def test_ranks_go_by_forecasts_and_not_by_names_and_are_neutral(seed: int, share: float) -> None:
    table, _, _ = random_case(seed)
    if not len(table):
        return
    rule = rank(share=share, gross_limit=10.0)
    named = dict(zip("ABCDE", "DBEAC", strict=True))
    found = signals.positions(table, strategy=rule, horizon=1, values="return")
    other = signals.positions(
        table.with_columns(pl.col("symbol").replace(named)), strategy=rule, horizon=1, values="return"
    )
    assert found.with_columns(pl.col("symbol").replace(named)).sort("symbol", "ts").equals(other)
    sums = found.group_by("ts").agg(net=pl.col("signal").sum(), gross=pl.col("signal").abs().sum(), n=pl.len())
    assert sums["net"].abs().max() <= 1e-12
    # As many long as short, and never more than the share.
    assert (sums["gross"] <= 2 * sums["n"] * share + 2).all()


def test_rank_needs_a_label_of_returns() -> None:
    with pytest.raises(ConfigError, match="kind = 'rank' needs a label of returns, but the label is a log volatility"):
        positions(forecasts(A=[0.01]), rank(), values="log volatility")
