"""Gross and net limits: by hand, against a plain reading of the rule, and as properties of every kind of strategy."""

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategy_samples import day, forecasts, random_case, strategy, thresholds

from foxflow import signals
from foxflow.config import Strategy
from foxflow.dataset import Floats
from foxflow.endings import EXIT_SCHEMA
from foxflow.signals.limits import limited

NAN = float("nan")
ROUNDING = 1e-12
CHOSEN = {0: thresholds(10, 5), 1: thresholds(20, 0), 2: thresholds(0)}
KINDS = {
    "plain": strategy(),
    "follow every forecast": strategy(threshold_bps=0.0),
    "long only": strategy(side="long_only", position_limit=0.7),
    "hysteresis": strategy(exit_threshold_bps=5.0),
    "hysteresis in tranches": strategy(exit_threshold_bps=0.0, hold="tranches"),
    "chosen": strategy(threshold_bps="chosen"),
    "sized by volatility": strategy(size="volatility", target_volatility=0.002, volatility_bars=3),
    "rank": strategy(kind="rank", threshold_bps=None, share=0.3),
    "rank in tranches, long only": strategy(
        kind="rank", threshold_bps=None, share=0.5, side="long_only", hold="tranches"
    ),
    "volatility target": strategy(
        kind="volatility_target", threshold_bps=None, side="long_only", target_volatility=0.5
    ),
}


def positions(table: pl.DataFrame, rule: Strategy, exits: pl.DataFrame, prices: pl.DataFrame) -> pl.DataFrame:
    return signals.positions(
        table,
        strategy=rule,
        horizon=3,
        values="log volatility" if rule.kind == "volatility_target" else "return",
        exits=exits,
        thresholds=CHOSEN,
        bars=prices,
    )


def in_force(found: pl.DataFrame) -> Floats:
    """`(n_times, n_symbols)`: each symbol's newest position at each time."""
    times, symbols = found["ts"].unique().sort(), found["symbol"].unique().sort()
    return newest(signals.to_wide(found, "position", times, symbols))


def newest(wide: Floats) -> Floats:
    return pl.DataFrame(wide).select(pl.all().fill_nan(None).forward_fill().fill_null(0.0)).to_numpy()


def with_limits(rule: Strategy, *, position: float, gross: float, net: float | None) -> Strategy:
    changes = {"position_limit": position, "gross_limit": gross}
    is_net = net is not None and rule.side == "long_short"
    settings_of = {f: getattr(rule, f) for f in Strategy.__dataclass_fields__}
    return Strategy(**{**settings_of, **changes, "net_limit": net if is_net else None})


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(sorted(KINDS)),
    position=st.sampled_from([0.05, 0.4, 1.0]),
    gross=st.sampled_from([0.3, 1.0, 4.0]),
    net=st.sampled_from([None, 0.0, 0.1, 0.25]),
)
def test_no_bar_ever_holds_more_than_the_limits(
    seed: int, kind: str, position: float, gross: float, net: float | None
) -> None:
    table, exits, prices = random_case(seed)
    if not len(table):
        return
    rule = with_limits(KINDS[kind], position=position, gross=gross, net=net)
    held = in_force(positions(table, rule, exits, prices))
    assert np.abs(held).max() <= position
    assert np.abs(held).sum(axis=1).max() <= gross + ROUNDING
    if rule.net_limit is not None:
        assert np.abs(held.sum(axis=1)).max() <= rule.net_limit + ROUNDING
    if rule.side == "long_only":
        assert held.min() >= 0


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(sorted(KINDS)), net=st.sampled_from([None, 0.1]))
def test_what_comes_later_changes_no_position(seed: int, kind: str, net: float | None) -> None:
    table, exits, prices = random_case(seed)
    rule = with_limits(KINDS[kind], position=0.4, gross=0.8, net=net)
    random = np.random.default_rng(seed + 1)
    cut = day(int(random.integers(1, 40)))
    is_early = pl.col("ts") <= cut
    if table.filter(is_early).is_empty():
        return
    found = positions(table, rule, exits, prices).filter(is_early)
    later = pl.when(is_early)
    other = positions(
        # Other forecasts, bars and exits after the cut; of the forecasts some are gone.
        table.with_columns(forecast=later.then("forecast").otherwise(-3.0 * pl.col("forecast") + 0.001)).filter(
            is_early | pl.Series(random.random(len(table)) < 0.7)
        ),
        rule,
        exits.filter(is_early),
        prices.with_columns(later.then("close").otherwise(pl.col("close") * 1000).alias("close")),
    )
    assert found.equals(other.filter(is_early))


def plain(wanted: Floats, gross: float, net: float | None) -> Floats:
    """The rule read plainly, one time after another and one symbol after another."""
    n_times, n_symbols = wanted.shape
    found, held = np.full(wanted.shape, NAN), [0.0] * n_symbols
    for i in range(n_times):
        new = [j for j in range(n_symbols) if not np.isnan(wanted[i, j])]
        old = [j for j in range(n_symbols) if np.isnan(wanted[i, j])]
        room = max(gross - sum(abs(held[j]) for j in old), 0.0)
        asked = sum(abs(wanted[i, j]) for j in new)
        for j in new:
            held[j] = found[i, j] = wanted[i, j] * (room / asked if asked > room else 1.0)
        for group in (new, old):
            total = sum(held)
            if net is None or abs(total) <= net + ROUNDING:
                continue
            side = [j for j in group if held[j] * total > 0]
            weight = sum(abs(held[j]) for j in side)
            for j in side:
                held[j] = found[i, j] = held[j] * max(weight - (abs(total) - net), 0.0) / weight
    return found


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    density=st.sampled_from([0.2, 0.7, 1.0]),
    gross=st.sampled_from([0.5, 1.5]),
    net=st.sampled_from([None, 0.0, 0.2]),
)
@example(seed=0, density=0.0, gross=0.5, net=0.2)
def test_limits_are_the_rule_read_plainly(seed: int, density: float, gross: float, net: float | None) -> None:
    random = np.random.default_rng(seed)
    shape = (int(random.integers(1, 30)), int(random.integers(1, 12)))
    wanted = np.where(random.random(shape) < density, random.choice([-0.5, -0.2, 0.0, 0.1, 0.5], shape), NAN)
    found = limited(wanted, gross_limit=gross, net_limit=net)
    assert np.isfinite(found[np.isfinite(wanted)]).all()
    assert newest(found) == pytest.approx(newest(plain(wanted, gross, net)), abs=1e-12)


def test_the_heavier_side_is_scaled_down_to_the_net_limit_and_the_other_side_is_left() -> None:
    table = positions_of({"A": [0.01], "B": [0.01], "C": [0.01], "D": [-0.01]}, net_limit=0.3, position_limit=0.25)
    # 0.75 long and 0.25 short are 0.5 net: the longs give 0.2.
    assert table["position"].to_list() == pytest.approx([0.55 / 3, 0.55 / 3, 0.55 / 3, -0.25])


def test_gross_is_scaled_before_net() -> None:
    table = positions_of({"A": [0.01], "B": [0.01], "C": [-0.01]}, net_limit=0.2, position_limit=1.0, gross_limit=1.5)
    # Gross 3 becomes 0.5 each; net 0.5 then becomes 0.2.
    assert table["position"].to_list() == pytest.approx([0.35, 0.35, -0.5])


def test_what_stays_is_cut_with_the_signal_it_has_where_its_counterweight_goes() -> None:
    exits = pl.DataFrame([("B", day(1))], schema=EXIT_SCHEMA, orient="row")
    table = positions_of(
        {"A": [0.01, None, 0.01], "B": [-0.01, None, None], "C": [-0.01, None, None]},
        exits=exits,
        net_limit=0.1,
        position_limit=0.2,
    )
    # Day 0: 0.2 long, 0.4 short; for a net of -0.1 the shorts become 0.15 each. B goes: a net of 0.05 cuts nothing.
    assert table.filter(pl.col("symbol") == "A").select("ts", "position").rows() == [(day(0), 0.2), (day(2), 0.2)]
    table = positions_of({"A": [0.01, None], "B": [-0.01, None]}, exits=exits, net_limit=0.1, position_limit=0.2)
    row = table.filter(pl.col("symbol") == "A").row(1, named=True)
    assert (row["ts"], row["signal"], row["position"]) == (day(1), 1.0, pytest.approx(0.1))
    assert table.filter((pl.col("symbol") == "B") & pl.col("signal").is_null())["position"].to_list() == [0.0]


def test_a_net_limit_of_zero_holds_nothing_without_a_counterweight() -> None:
    table = positions_of({"A": [0.01, 0.01], "B": [0.01, -0.01]}, net_limit=0.0, position_limit=0.5)
    assert table["position"].to_list() == pytest.approx([0.0, 0.5, 0.0, -0.5])


def test_borrowed_money_holds_more_than_equity() -> None:
    table = positions_of({"A": [0.01], "B": [-0.01]}, position_limit=1.5, gross_limit=2.4)
    assert table["position"].to_list() == pytest.approx([1.2, -1.2])


def test_dense_times_are_scaled_as_times_one_by_one() -> None:
    random = np.random.default_rng(5)
    wanted = random.normal(0, 0.3, (500, 7))
    alone = np.concatenate([limited(row[None], gross_limit=1.0, net_limit=0.2) for row in wanted])
    assert np.array_equal(limited(wanted, gross_limit=1.0, net_limit=0.2), alone)


def positions_of(
    series: dict[str, list[float | None]], *, exits: pl.DataFrame | None = None, **changes: object
) -> pl.DataFrame:
    table = forecasts(**series)
    return signals.positions(table, strategy=strategy(**changes), horizon=1, values="return", exits=exits)
