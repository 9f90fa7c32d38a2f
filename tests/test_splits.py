from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from conftest import daily_bars

from foxflow import dataset, splits
from foxflow.config import WalkForward
from foxflow.dataset import Dataset
from foxflow.errors import DataError, LeakageError

RULE = WalkForward(train=20, every=6, embargo=2, validation=0.25)
DAY = 86_400_000_000


def small(horizon: int = 3, n_bars: int = 32, n_symbols: int = 1) -> Dataset:
    frames = [daily_bars([100.0 + (i * 7 + k) % 11 for i in range(n_bars)], symbol=f"S{k}") for k in range(n_symbols)]
    return dataset.build(pl.concat(frames), feature_names=["range"], label_name="forward_return", horizon=horizon)


def test_folds_follow_each_other_without_a_gap_and_the_last_is_as_long_as_the_bars_last() -> None:
    times = dataset.bar_times(small())
    at = {int(t): i for i, t in enumerate(times)}
    folds = splits.walk_forward(times, RULE)
    assert [(at[f.test_start], at[f.test_end]) for f in folds] == [(20, 25), (26, 31)]
    assert [at[f.valid_start] for f in folds] == [15, 20]
    assert [at[f.train_limit] for f in folds] == [12, 17]
    assert [at[f.valid_limit] for f in folds] == [17, 23]


def test_purge_drops_rows_whose_label_ends_inside_the_span_after_it() -> None:
    data = small(horizon=3, n_bars=36)
    times = dataset.bar_times(data)
    pieces = dataset.parts(data, splits.walk_forward(times, replace(RULE, train=28))[0], warmup_bars=0)
    train = pieces.train.series[0]
    # A label at bar t ends at bar t + 4; validation starts at bar 21, so with 2 bars of embargo the last is bar 18.
    assert [int(np.searchsorted(times, t)) for t in train.ts[train.weight > 0]] == list(range(15))


def test_validation_rows_lie_between_its_start_and_the_embargo_before_the_test() -> None:
    data = small(horizon=1)
    times = dataset.bar_times(data)
    pieces = dataset.parts(data, splits.walk_forward(times, RULE)[0], warmup_bars=0)
    valid = pieces.valid.series[0]
    assert [int(np.searchsorted(times, t)) for t in valid.ts[valid.weight > 0]] == [15]
    assert splits.walk_forward(times, RULE)[0].cut == times[17]


@pytest.mark.parametrize("horizon", [1, 2, 5])
@pytest.mark.parametrize("embargo", [0, 1, 4])
def test_no_training_label_ends_at_or_after_the_first_bar_of_the_next_span(horizon: int, embargo: int) -> None:
    data = small(horizon=horizon, n_bars=90, n_symbols=3)
    times = dataset.bar_times(data)
    rule = WalkForward(train=40, every=7, embargo=embargo, validation=0.3)
    for fold in splits.walk_forward(times, rule):
        pieces = dataset.parts(data, fold, warmup_bars=0)
        for part, until in ((pieces.train, fold.valid_start), (pieces.valid, fold.test_start)):
            newest = max(int(s.label_end[s.weight > 0].max()) for s in part.series)
            assert until - newest == (embargo + 1) * DAY


def test_a_purge_one_bar_short_is_a_leakage_error() -> None:
    data = small(horizon=1)
    fold = splits.walk_forward(dataset.bar_times(data), RULE)[0]
    short = replace(fold, valid_limit=fold.test_start)
    with pytest.raises(LeakageError, match="fold 0: a valid label ends at"):
        dataset.parts(data, short, warmup_bars=0)


def test_rows_that_do_not_count_show_no_label() -> None:
    data = small(horizon=1)
    pieces = dataset.parts(data, splits.walk_forward(dataset.bar_times(data), RULE)[0], warmup_bars=5)
    for part in (pieces.train, pieces.valid):
        idle = part.series[0].weight == 0
        assert idle.any()
        assert np.isnan(part.series[0].label[idle]).all()


def test_test_data_hold_no_label_and_start_warmup_bars_up_to_the_cut() -> None:
    data = small(horizon=1)
    times = dataset.bar_times(data)
    fold = splits.walk_forward(times, RULE)[0]
    stream = dataset.test_data(data, fold, warmup_bars=4).series[0]
    assert stream.ts.tolist() == times[14:26].tolist()
    assert np.isnan(stream.label).all()
    assert (stream.weight == 0).all()


def test_rows_weigh_equally_per_date_then_per_symbol() -> None:
    late = daily_bars([100.0 + i % 7 for i in range(26)], symbol="B", start=6)
    both = pl.concat([daily_bars([100.0 + i % 11 for i in range(32)], symbol="A"), late])
    data = dataset.build(both, feature_names=["range"], label_name="forward_return", horizon=1)
    pieces = dataset.parts(data, splits.walk_forward(dataset.bar_times(data), RULE)[0], warmup_bars=0)
    a, b = pieces.train.series
    # 11 dates count: 6 with A alone, 5 with both; 16 rows in all.
    assert a.weight[:11].tolist() == pytest.approx([16 / 11] * 6 + [8 / 11] * 5)
    assert b.weight[:5].tolist() == pytest.approx([8 / 11] * 5)


def test_too_few_bars_for_one_fold_are_refused_with_the_numbers() -> None:
    data = small(n_bars=20)
    with pytest.raises(
        DataError, match=r"20 bar time\(s\) in the universe; expected more than \[walk_forward\] train = 20"
    ):
        splits.walk_forward(dataset.bar_times(data), RULE)


def test_the_final_fit_is_one_more_fold_with_an_empty_test() -> None:
    times = dataset.bar_times(small())
    fold = splits.final(times, RULE, number=2)
    assert fold.is_final
    assert fold.valid_limit == times[32 - 1 - 2]
    assert fold.valid_start == times[24]
