"""Thresholds chosen per fold: the ones computed by hand, from the fold's own validation tail and nothing else."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_samples import bars, day, random_case, thresholds

from foxflow import config, experiment, signals
from foxflow.config import Config
from foxflow.errors import LeakageError
from foxflow.signals.thresholds import QUANTILES
from foxflow.splits import Fold
from foxflow.training.results import VALIDATION_SCHEMA

TINY = Path(__file__).parent / "tiny.toml"


@dataclass(frozen=True)
class Validated:
    fold: Fold
    validation: pl.DataFrame
    valid_end: int


def us(i: int) -> int:
    return int(day(i).timestamp()) * 1_000_000


def chosen_config(horizon: int = 1, fee_bps: float = 0.0, **strategy: object) -> Config:
    document = config.to_document(config.load("returns", model="ridge"))
    document["strategy"] = {
        "kind": "direction",
        "side": "long_short",
        "threshold_bps": "chosen",
        "position_limit": 1.0,
        "rebalance_band": 0.0,
        **({"hold": "refresh"} if horizon > 1 else {}),
        **strategy,
    }
    document["label"]["horizon"] = horizon
    document["costs"] |= {"fee_bps": fee_bps, "half_spread_bps": 0.0}
    return config.parse(document)


def tail(
    values: dict[str, tuple[Sequence[float], Sequence[float]]], *, number: int = 0, start: int = 0, horizon: int = 1
) -> Validated:
    """Forecasts and labels of each symbol, a pair a day from `start` on, all known at the fold's cut."""
    rows = [
        (symbol, day(start + i), float(f), float(y))
        for symbol, (forecast, label) in values.items()
        for i, (f, y) in enumerate(zip(forecast, label, strict=True))
    ]
    n_days = max(len(f) for f, _ in values.values())
    cut = start + n_days + horizon
    fold = Fold(
        number=number,
        train_start=us(0),
        train_limit=us(start - 1),
        valid_start=us(start),
        valid_limit=us(cut),
        test_start=us(cut + 1),
        test_end=us(cut + 100),
    )
    return Validated(fold, pl.DataFrame(rows, schema=VALIDATION_SCHEMA, orient="row"), us(cut))


# Four strong forecasts that are right, then sixteen weak ones that are wrong.
STRONG_FIRST = ([0.01] * 4 + [0.0001] * 16, [0.02] * 4 + [-0.01] * 16)


def test_the_chosen_threshold_is_the_one_computed_by_hand() -> None:
    found = signals.choose([tail({"A": STRONG_FIRST})], chosen_config())[0]
    # Of |forecast| sorted, the 0.8 quantile lies 0.2 of the way from the 16th (1 bp) to the 17th (100 bps).
    assert found.enter_bps == pytest.approx(1 + 0.2 * 99)
    assert (found.enter_quantile, found.exit_quantile, found.exit_bps) == (0.8, 0.8, found.enter_bps)
    # 4 days of 2 %, 16 of nothing: mean 0.4 %, standard deviation 0.8 %. All days: 4 of 2 %, 16 of -1 %.
    assert found.score == pytest.approx(0.5)
    assert found.score_at_zero == pytest.approx(-0.004 / 0.012)
    assert (found.n_rows, found.n_dates, found.note) == (20, 20, None)


def test_the_score_is_after_the_costs_of_entering_and_leaving() -> None:
    found = signals.choose([tail({"A": STRONG_FIRST})], chosen_config(fee_bps=10))[0]
    net = [0.02 - 0.001, 0.02, 0.02, 0.02, -0.001, *[0.0] * 15]
    assert found.score == pytest.approx(np.mean(net) / np.std(net))


def test_hysteresis_is_chosen_where_leaving_and_coming_back_costs_more_than_it_saves() -> None:
    # Two runs in which every other forecast is weak and loses a little, and after each a calm of weak ones that are
    # wrong and whose sign changes every day.
    strength = ([0.01, 0.004] * 5 + [-0.004, 0.004] * 5) * 2
    worth = ([0.01, -0.0005] * 5 + [0.003, -0.003] * 5) * 2
    found = signals.choose([tail({"A": (strength, worth)})], chosen_config(fee_bps=20))[0]
    # Leaving below 0 or below 40 is the same here: the lower is simpler.
    assert (found.enter_bps, found.exit_bps) == pytest.approx((100, 0))
    # It enters on two days and leaves on the two days after the runs.
    net = np.array(([0.01, -0.0005] * 5 + [0.0] * 10) * 2)
    net[[0, 10, 20, 30]] -= 0.002
    assert found.score == pytest.approx(net.mean() / net.std())
    # Without costs the weak days only lose.
    free = signals.choose([tail({"A": (strength, worth)})], chosen_config())[0]
    assert (free.enter_bps, free.exit_bps) == pytest.approx((100, 100))


@pytest.mark.parametrize(
    ("values", "note"),
    [
        # All alike: every threshold up to it does the same.
        (([0.001] * 30, [0.01, 0.02] * 15), None),
        (([0.0] * 30, [0.01] * 30), None),
        (
            ([0.01] * 3 + [0.0001] * 16, [0.02] * 3 + [-0.01] * 16),
            "19 dates of validation, fewer than 20 horizons of 1",
        ),
    ],
    ids=["ties", "zeros", "short"],
)
def test_zero_is_kept_on_ties_and_on_a_short_tail(values: tuple[list[float], list[float]], note: str | None) -> None:
    found = signals.choose([tail({"A": values})], chosen_config())[0]
    assert (found.enter_bps, found.exit_bps) == (0.0, 0.0)
    assert found.score == found.score_at_zero
    assert (found.note or "").startswith(note or "")
    assert (found.note is None) == (note is None)


def test_a_tail_is_as_long_as_its_outcomes_that_do_not_overlap() -> None:
    notes = []
    for n_days in (59, 60):
        values = ([0.01, -0.0001] * n_days)[:n_days], ([0.02, 0.01] * n_days)[:n_days]
        found = signals.choose([tail({"A": values}, horizon=3)], chosen_config(3))[0]
        notes.append((found.note, found.enter_bps > 0))
    assert notes == [("59 dates of validation, fewer than 20 horizons of 3: nothing is chosen", False), (None, True)]


def test_a_tail_without_rows_chooses_nothing() -> None:
    empty = replace(tail({"A": STRONG_FIRST}), validation=pl.DataFrame(schema=VALIDATION_SCHEMA))
    found = signals.choose([empty], chosen_config())[0]
    assert (found.enter_bps, found.exit_bps, found.score, found.n_rows) == (0.0, 0.0, 0.0, 0)
    assert found.note == "0 dates of validation, fewer than 20 horizons of 1: nothing is chosen"


def plain_scores(
    forecast: list[float],
    label: list[float],
    pairs: list[tuple[float, float]],
    *,
    horizon: int,
    cost: float,
    n_parts: int,
) -> list[float]:
    """One symbol, day after day."""
    scores = []
    for enter, leave in pairs:
        held, signs, net, before = 0, [], [], 0.0
        for f, y in zip(forecast, label, strict=True):
            if abs(f) >= enter:
                held = (f > 0) - (f < 0)
            elif held * f < leave:
                held = 0
            signs.append(held)
            position = sum(signs[-n_parts:]) / n_parts
            net.append(held * y / horizon - cost * abs(position - before))
            before = position
        mean = sum(net) / len(net)
        deviation = math.sqrt(sum((n - mean) ** 2 for n in net) / len(net))
        scores.append(mean / deviation if deviation > 1e-15 else 0.0)
    return scores


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    horizon=st.sampled_from([1, 3]),
    hold=st.sampled_from(["refresh", "tranches"]),
    fee_bps=st.sampled_from([0.0, 5.0, 50.0]),
)
def test_the_choice_is_the_best_of_all_pairs_read_plainly(seed: int, horizon: int, hold: str, fee_bps: float) -> None:
    random = np.random.default_rng(seed)
    forecast = random.normal(0, 0.01, 80).tolist()
    label = (random.normal(0, 0.02, 80) + random.choice([0.0, 0.5]) * np.array(forecast)).tolist()
    settings_of = chosen_config(horizon, fee_bps, **({"hold": hold} if horizon > 1 else {}))
    found = signals.choose([tail({"A": (forecast, label)}, horizon=horizon)], settings_of)[0]
    levels = [0.0, *np.quantile(np.abs(forecast), QUANTILES[1:]).tolist()]
    pairs = [(enter, leave) for enter in levels for leave in levels if leave <= enter]
    n_parts = horizon if hold == "tranches" else 1
    scores = plain_scores(forecast, label, pairs, horizon=horizon, cost=fee_bps / 1e4, n_parts=n_parts)
    assert found.score == pytest.approx(max(scores), abs=1e-9)
    at = [s for (e, leave), s in zip(pairs, scores, strict=True) if (e, leave) == pytest.approx(
        (found.enter_bps / 1e4, found.exit_bps / 1e4))]  # fmt: skip
    assert at == [pytest.approx(max(scores), abs=1e-9)]
    assert found.score_at_zero == pytest.approx(scores[0], abs=1e-9)


def test_symbols_of_one_date_are_scored_together_under_the_limits() -> None:
    random = np.random.default_rng(3)
    f, y = random.normal(0, 0.01, (2, 60)), random.normal(0, 0.02, (2, 60))
    table = tail({"A": (f[0].tolist(), y[0].tolist()), "B": (f[1].tolist(), y[1].tolist())})
    found = signals.choose([table], chosen_config(position_limit=0.8))[0]
    # Both at 0.8 are 1.6 of equity, so half each; with thresholds of 0 both are always held.
    net = (np.sign(f) * 0.5 * y).sum(axis=0)
    assert found.score_at_zero == pytest.approx(net.mean() / net.std())


def test_the_size_by_volatility_is_scored_too() -> None:
    random = np.random.default_rng(4)
    f, y = random.normal(0, 0.01, 60), random.normal(0, 0.02, 60)
    closes = 100 * np.exp(np.cumsum(random.normal(0, 0.01, 70)))
    table = tail({"A": (f.tolist(), y.tolist())}, start=5)
    chosen = chosen_config(size="volatility", target_volatility=0.005, volatility_bars=5)
    found = signals.choose([table], chosen, bars=bars(A=closes.tolist()))[0]
    square = np.diff(np.log(closes)) ** 2
    size = np.array([min(1.0, 0.005 / math.sqrt(square[i : i + 5].mean())) for i in range(60)])
    net = np.sign(f) * size * y
    assert found.score_at_zero == pytest.approx(net.mean() / net.std())


def test_a_tail_that_was_not_known_at_the_cut_is_a_leak() -> None:
    fine = tail({"A": STRONG_FIRST}, number=4)
    settings_of = chosen_config()
    after = replace(fine, fold=replace(fine.fold, valid_limit=us(18)))
    with pytest.raises(
        LeakageError, match=r"fold 4: thresholds would be chosen on A at 2024-01-20T21:00:00Z; expected"
    ):
        signals.choose([after], settings_of)
    learned = replace(fine, fold=replace(fine.fold, valid_start=us(1)))
    with pytest.raises(LeakageError, match=r"fold 4: thresholds would be chosen on A at 2024-01-01T21:00:00Z"):
        signals.choose([learned], settings_of)
    label_end = replace(fine, valid_end=fine.fold.cut + 1)
    with pytest.raises(LeakageError, match="fold 4: thresholds would be chosen on labels that end at 2024-01-22T21:00"):
        signals.choose([label_end], settings_of)
    # The last row at the cut itself was known then.
    assert signals.choose([replace(fine, fold=replace(fine.fold, valid_limit=us(21)))], settings_of)


def test_a_strategy_without_chosen_thresholds_chooses_none() -> None:
    assert signals.choose([tail({"A": STRONG_FIRST})], config.load("returns")) == {}


def test_another_folds_tail_changes_no_choice_and_the_order_of_rows_none_either() -> None:
    one, two = tail({"A": STRONG_FIRST}, number=0), tail({"A": STRONG_FIRST}, number=1, start=40)
    worse = replace(two, validation=two.validation.with_columns(-pl.col("label")))
    settings_of = chosen_config()
    found, other = signals.choose([one, two], settings_of), signals.choose([one, worse], settings_of)
    assert found[0] == other[0]
    assert found[1] != other[1]
    turned = replace(one, validation=one.validation.reverse())
    assert signals.choose([turned], settings_of)[0] == found[0]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_positions_of_a_fold_depend_on_no_later_folds_choice(seed: int) -> None:
    table, exits, _ = random_case(seed)
    rule = chosen_config(position_limit=0.5).strategy
    random = np.random.default_rng(seed)
    first = {fold: thresholds(float(random.choice([0, 5, 10, 20]))) for fold in range(3)}
    for last in (0, 1):
        other = {fold: t if fold <= last else thresholds(15, 5) for fold, t in first.items()}
        found, changed = (
            signals.positions(table, strategy=rule, horizon=1, values="return", exits=exits, thresholds=t)
            for t in (first, other)
        )
        start = table.filter(pl.col("fold") > last)["ts"].min()
        before = pl.lit(value=True) if start is None else pl.col("ts") < start
        assert found.filter(before).equals(changed.filter(before))


def test_a_walk_forward_chooses_from_what_each_fold_knew(tmp_path: Path) -> None:
    chosen = config.load(TINY, model="ridge", overrides=["strategy.threshold_bps=chosen", "costs.fee_bps=5"])
    assert chosen.strategy.threshold_bps == "chosen"
    pulled = experiment.pull_market(chosen, tmp_path)
    results = experiment.retrain(chosen, experiment.build_dataset(chosen, pulled.first))
    found = signals.choose(results, chosen)
    assert list(found) == [r.fold.number for r in results]
    assert all(t.n_rows == len(r.validation) and t.note is None for t, r in zip(found.values(), results, strict=True))
    # Forecasts of the test span, as if they were known, change nothing.
    blind = [replace(r, forecasts=r.forecasts.with_columns(forecast=-pl.col("forecast"))) for r in results]
    assert signals.choose(blind, chosen) == found
