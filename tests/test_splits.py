from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import daily_bars
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from foxflow import bars, cron, dataset, splits
from foxflow.config import Schedule, WalkForward
from foxflow.dataset import Dataset
from foxflow.errors import ConfigError, DataError, LeakageError

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


MINUTE, HOUR = 60_000_000, 3_600_000_000


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def test_a_rolling_fold_learns_from_the_newest_bar_times_only() -> None:
    data = small(horizon=1, n_bars=40)
    times = dataset.bar_times(data)
    rolling = replace(RULE, window="rolling")
    folds = splits.walk_forward(times, rolling)
    index = {int(t): i for i, t in enumerate(times)}
    assert [(index[f.train_start], index[f.valid_start], index[f.test_start]) for f in folds] == [
        (0, 15, 20), (6, 21, 26), (12, 27, 32), (18, 33, 38),
    ]  # fmt: skip
    # The first fold has no older bar to leave out, so both windows make the same.
    assert folds[0] == splits.walk_forward(times, RULE)[0]
    pieces = dataset.parts(data, folds[2], warmup_bars=100)
    train = pieces.train.series[0]
    assert train.ts[0] == times[12]
    assert [index[int(t)] for t in train.ts[train.weight > 0]] == list(range(12, 23))
    assert pieces.valid.series[0].ts[0] == times[12]
    # A live stream is warmed with whatever lies before it.
    assert dataset.test_data(data, folds[2], warmup_bars=25).series[0].ts[0] == times[5]


def test_the_final_fit_rolls_too() -> None:
    times = dataset.bar_times(small())
    fold = splits.final(times, replace(RULE, window="rolling"), number=2)
    assert (fold.train_start, fold.valid_start) == (times[12], times[27])


def test_a_window_that_has_no_room_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"20 bar times before its test leave no room for validation = 0\.25 and embargo = 15"
    ):
        splits.walk_forward(dataset.bar_times(small()), replace(RULE, window="rolling", embargo=15))


FRIDAYS = Schedule(cron="0 22 * * fri", time_zone="America/New_York")
# Closes of New York in two weeks of March 2024, the clocks changed in between on the 10th; Friday the 8th is a holiday here.
CLOSES = [at(f"2024-03-{d:02}T{h}:00") for d, h in [(4, 21), (5, 21), (6, 21), (7, 21), (11, 20), (12, 20), (13, 20), (14, 20), (15, 20), (18, 20), (19, 20)]]  # fmt: skip
SHORT = WalkForward(train=4, embargo=0, validation=0.25)


def spans(folds: list[splits.Fold], times: list[int]) -> list[tuple[int, int, int]]:
    index = {t: i for i, t in enumerate(times)}
    return [(index[f.cut], index[f.test_start], index[f.test_end]) for f in folds]


def test_a_schedule_starts_a_test_span_at_the_first_bar_after_each_fire() -> None:
    folds = splits.walk_forward(np.array(CLOSES), SHORT, schedule=FRIDAYS)
    # The Friday of the holiday retrains on the four days before it, the Friday after on nine bars; no bar, no fold.
    assert spans(folds, CLOSES) == [(3, 4, 8), (8, 9, 10)]


def test_a_night_without_a_new_bar_makes_no_fold() -> None:
    nightly = Schedule(cron="0 22 * * *", time_zone="America/New_York")
    folds = splits.walk_forward(np.array(CLOSES), SHORT, schedule=nightly)
    assert spans(folds, CLOSES) == [(i - 1, i, i) for i in range(4, 11)]


def test_a_fire_at_a_bars_own_time_sees_that_bar_and_forecasts_the_next() -> None:
    at_the_close = Schedule(cron="0 16 * * *", time_zone="America/New_York")
    folds = splits.walk_forward(np.array(CLOSES), SHORT, schedule=at_the_close)
    assert spans(folds, CLOSES)[0] == (3, 4, 4)


def test_a_fit_sees_no_bar_that_was_not_known_when_it_was_made() -> None:
    nightly = Schedule(cron="0 22 * * *", time_zone="America/New_York")
    late = np.array(CLOSES) + 7 * HOUR
    folds = splits.walk_forward(np.array(CLOSES), SHORT, schedule=nightly, known=late)
    # Each night the bar of its day is still to come. Friday's is known on Saturday's, which takes the place of
    # Friday's retraining, for no bar came between.
    assert spans(folds, CLOSES) == [(3, 4, 5), (4, 6, 6), (5, 7, 7), (6, 8, 8), (8, 9, 10)]


def test_an_embargo_counts_from_the_test_whether_or_not_its_bars_were_known() -> None:
    nightly = Schedule(cron="0 22 * * *", time_zone="America/New_York")
    rule = replace(SHORT, train=6, embargo=2, validation=0.45)
    folds = splits.walk_forward(np.array(CLOSES), rule, schedule=nightly)
    assert spans(folds, CLOSES) == [(i - 3, i, i) for i in range(6, 11)]
    late = splits.walk_forward(np.array(CLOSES), rule, schedule=nightly, known=np.array(CLOSES) + 7 * HOUR)
    assert spans(late, CLOSES) == [(4, 7, 7), (5, 8, 8), (6, 9, 10)]


def test_neither_or_both_ways_to_say_when_are_refused() -> None:
    for rule, schedule in ((SHORT, None), (RULE, FRIDAYS)):
        with pytest.raises(ConfigError, match="expected exactly one to say when to retrain"):
            splits.walk_forward(np.array(CLOSES), rule, schedule=schedule)


def test_a_schedule_that_never_fires_among_the_bars_is_refused() -> None:
    never = Schedule(cron="0 0 1 1 *", time_zone="UTC")
    with pytest.raises(DataError, match=r"'0 0 1 1 \*' in UTC never fires between the 4 bar times"):
        splits.walk_forward(np.array(CLOSES), SHORT, schedule=never)


def test_bars_of_a_time_are_known_when_the_slowest_symbols_is() -> None:
    data = replace(small(n_bars=3, n_symbols=2, horizon=1), delays={"S1": timedelta(hours=2)})
    data = replace(data, series=(data.series[0], data.series[1].slice(1, 3)))
    assert (dataset.known_times(data) - dataset.bar_times(data)).tolist() == [0, 2 * HOUR, 2 * HOUR]


@st.composite
def universes(draw: st.DrawFn) -> tuple[Dataset, int]:
    """Draw bars at irregular times for one to three symbols, each with bars of its own, and labels of one horizon."""
    gaps = draw(st.lists(st.sampled_from([HOUR, 5 * HOUR, DAY, 3 * DAY]), min_size=25, max_size=70))
    times = at("2024-03-01T09:00") + np.cumsum(np.array(gaps, dtype=np.int64))
    horizon = draw(st.integers(1, 6))
    series = []
    for number in range(draw(st.integers(1, 3))):
        kept = np.array(draw(st.lists(st.booleans(), min_size=len(times), max_size=len(times)))) | (number == 0)
        ts = times[kept]
        n = len(ts)
        if n == 0:
            continue
        end = np.full(n, dataset.UNKNOWN_END)
        end[: max(n - 1 - horizon, 0)] = ts[1 + horizon :]
        label = np.where(end == dataset.UNKNOWN_END, np.nan, 0.0)
        series.append(
            dataset.Series(f"S{number}", ts, np.zeros((n, 1)), np.ones(n, dtype=bool), label, end, np.zeros(n))
        )
    return Dataset(("a",), "forward_return", horizon, 1, tuple(series)), horizon


def folds_of(
    times: splits.Times, rule: WalkForward, schedule: Schedule | None, known: splits.Times
) -> list[splits.Fold]:
    """Return the folds; what is too short for one is drawn again."""
    try:
        return splits.walk_forward(times, rule, schedule=schedule, known=known)
    except DataError as e:
        if not any(w in str(e) for w in ("leave no room", "expected more than", "never fires")):
            raise
        reject()


@given(
    drawn=universes(),
    train=st.integers(12, 30),
    embargo=st.integers(0, 3),
    validation=st.sampled_from([0.2, 0.35, 0.49]),
    window=st.sampled_from(["expanding", "rolling"]),
    every=st.one_of(
        st.integers(1, 40),
        st.sampled_from(["0 22 * * *", "0 9 * * 1-5", "*/30 * * * *", "30 2 * * sun", "0 12 1,15 * *"]),
    ),
    delay=st.sampled_from([timedelta(), timedelta(minutes=20), timedelta(hours=7), timedelta(days=2)]),
)
@settings(max_examples=150, deadline=None)
def test_no_fold_of_any_kind_learns_from_its_test_or_after(
    *,
    drawn: tuple[Dataset, int],
    train: int,
    embargo: int,
    validation: float,
    window: Any,
    every: int | str,
    delay: timedelta,
) -> None:
    data = replace(drawn[0], delays={"S0": delay})
    times, known = dataset.bar_times(data), dataset.known_times(data)
    schedule = Schedule(cron=every, time_zone="America/New_York") if isinstance(every, str) else None
    rule = WalkForward(train=train, every=every if isinstance(every, int) else None, embargo=embargo, validation=validation, window=window)  # fmt: skip
    folds = folds_of(times, rule, schedule, known)
    position = {int(t): i for i, t in enumerate(times)}
    # Test spans are disjoint and cover every bar from the first start; purge and embargo do not change them.
    tested = np.concatenate([np.flatnonzero(f.tests_on(times)) for f in folds])
    assert tested.tolist() == list(range(position[folds[0].test_start], len(times)))
    assert all(f.tests_on(times).any() for f in folds)
    bare = splits.walk_forward(times, replace(rule, embargo=0), schedule=schedule, known=known)
    assert [(f.test_start, f.test_end) for f in bare] == [(f.test_start, f.test_end) for f in folds]
    for fold in folds:
        start = position[fold.test_start]
        for s in data.series:
            learned, judged = fold.trains_on(s.ts, s.label_end), fold.validates_on(s.ts, s.label_end)
            assert not (learned & judged).any()
            assert not ((learned | judged) & fold.tests_on(s.ts)).any()
            if learned.any():
                assert position[int(s.label_end[learned].max())] < position[fold.valid_start] - embargo
                assert s.ts[learned].min() >= fold.train_start
            if judged.any():
                assert position[int(s.label_end[judged].max())] < start - embargo
        seen = start
        if schedule is not None:
            # The newest fire before the test span, which may be at the very time of the bar before it.
            fires, moment = [], bars.instant(int(times[start - 1]))
            while (moment := cron.next_fire(schedule.cron, schedule.time_zone, at=moment)) < bars.instant(
                fold.test_start
            ):
                fires.append(moment)
                moment += timedelta(microseconds=1)
            seen = int((np.maximum.accumulate(known) <= int(fires[-1].timestamp()) * 1_000_000).sum())
        assert position[fold.cut] == min(seen, start - embargo) - 1
        assert position[fold.train_start] == (seen - train if window == "rolling" else 0)
    last = splits.final(times, rule, number=len(folds))
    assert last.is_final
    assert last.cut == times[len(times) - 1 - embargo]


@given(
    drawn=universes(),
    delay=st.sampled_from([timedelta(), timedelta(hours=7), timedelta(days=2)]),
    line=st.sampled_from(["0 22 * * *", "0 9,18 * * 1-5", "30 2 * * sun", "0 12 1,15 * *"]),
)
@settings(max_examples=100, deadline=None)
def test_a_schedule_retrains_when_a_night_by_night_replay_does(
    drawn: tuple[Dataset, int], delay: timedelta, line: str
) -> None:
    data = replace(drawn[0], delays={s.symbol: delay for s in drawn[0].series})
    times, schedule = dataset.bar_times(data), Schedule(cron=line, time_zone="Europe/London")
    rule = WalkForward(train=12, embargo=0, validation=0.2)
    replayed, before, moment = dict[int, int](), 0, bars.instant(int(times[0]))
    while (moment := cron.next_fire(line, "Europe/London", at=moment)) < bars.instant(int(times[-1])):
        known = [t for t in times if bars.instant(int(t)) + delay <= moment]
        if len(known) >= 12 and len(known) > before:
            before = len(known)
            replayed[min(int(t) for t in times if bars.instant(int(t)) > moment)] = int(known[-1])
        moment += timedelta(microseconds=1)
    if not replayed:
        with pytest.raises(DataError, match="never fires"):
            splits.walk_forward(times, rule, schedule=schedule, known=dataset.known_times(data))
        return
    folds = splits.walk_forward(times, rule, schedule=schedule, known=dataset.known_times(data))
    assert {f.test_start: f.cut for f in folds} == replayed
