import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from foxflow import splits
from foxflow.dataset import UNKNOWN_END
from foxflow.errors import DataError, LeakageError
from foxflow.splits import Combination


def made(n: int, horizon: int, *, n_groups: int, n_test_groups: int, embargo: int) -> list[Combination]:
    times = np.arange(n)
    return list(
        splits.combinatorial(times, times + horizon, n_groups=n_groups, n_test_groups=n_test_groups, embargo=embargo)
    )


def test_six_groups_of_which_two_are_tested_make_fifteen_splits_and_five_paths() -> None:
    # López de Prado (2018), section 12.3 and figures 12.1 and 12.2.
    found = made(60, 0, n_groups=6, n_test_groups=2, embargo=0)
    assert len(found) == 15
    assert found[0].test_groups == (0, 1)
    assert found[14].test_groups == (4, 5)
    # Splits by path, for each group, with the book's S1 as 0.
    assert splits.paths(n_groups=6, n_test_groups=2).T.tolist() == [
        [0, 1, 2, 3, 4],
        [0, 5, 6, 7, 8],
        [1, 5, 9, 10, 11],
        [2, 6, 9, 12, 13],
        [3, 7, 10, 12, 14],
        [4, 8, 11, 13, 14],
    ]


def test_a_row_whose_label_meets_a_test_group_on_either_side_is_not_learned_from() -> None:
    # Three groups of 4, labels of 2, the middle one tested: bars 4 to 7, labels to 9; embargo of one bar, 10.
    found = made(12, 2, n_groups=3, n_test_groups=1, embargo=1)[1]
    assert found.test_groups == (1,)
    assert np.flatnonzero(found.tests).tolist() == [4, 5, 6, 7]
    assert np.flatnonzero(found.trains).tolist() == [0, 1, 11]


def test_two_test_groups_apart_are_each_purged() -> None:
    found = next(c for c in made(20, 1, n_groups=5, n_test_groups=2, embargo=0) if c.test_groups == (1, 3))
    assert np.flatnonzero(found.trains).tolist() == [0, 1, 2, 9, 10, 17, 18, 19]


def test_a_label_that_has_not_come_is_not_learned_from_and_bars_nothing_after_it() -> None:
    times = np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2])
    # A second symbol ends at 2, its last label never comes.
    label_end = np.array([1, 2, 3, 4, 5, 6, 7, UNKNOWN_END, 1, 2, UNKNOWN_END])
    first = next(splits.combinatorial(times, label_end, n_groups=2, n_test_groups=1, embargo=0))
    assert np.flatnonzero(first.tests).tolist() == [0, 1, 2, 3, 8, 9, 10]
    assert np.flatnonzero(first.trains).tolist() == [5, 6]


def test_groups_differ_by_one_bar_time_at_most_whatever_rows_they_hold() -> None:
    times = np.array([0, 0, 0, 1, 2, 3, 4, 5, 6, 6])
    found = next(splits.combinatorial(times, times, n_groups=3, n_test_groups=1, embargo=0))
    assert found.group.tolist() == [0, 0, 0, 0, 0, 1, 1, 2, 2, 2]


def test_a_split_that_learns_one_row_too_many_is_a_leakage_error() -> None:
    times = np.arange(12)
    found = made(12, 2, n_groups=3, n_test_groups=1, embargo=1)[1]
    found.prove(times, times + 2)
    for row in (2, 3, 8, 9, 10):
        wrong = found.trains.copy()
        wrong[row] = True
        with pytest.raises(
            LeakageError, match=f"a training row from {row} to {row + 2} meets a test span from 4 to 10"
        ):
            replace(found, trains=wrong).prove(times, times + 2)
    with pytest.raises(LeakageError, match="both learned from and tested"):
        replace(found, trains=found.tests).prove(times, times + 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_groups": 1}, "n_groups = 1; expected 2 to 8"),
        ({"n_groups": 9}, "n_groups = 9; expected 2 to 8"),
        ({"n_test_groups": 0}, "n_test_groups = 0; expected 1 to 3"),
        ({"n_test_groups": 4}, "n_test_groups = 4; expected 1 to 3"),
        ({"embargo": -1}, "embargo = -1; expected 0 or more"),
    ],
)
def test_numbers_that_make_no_split_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        made(8, 0, **{"n_groups": 4, "n_test_groups": 2, "embargo": 0, **options})


def test_rows_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match="row 1: label_end = 0 lies before its time 1"):
        splits.combinatorial(np.array([0, 1]), np.array([0, 0]), n_groups=2, n_test_groups=1, embargo=0)
    with pytest.raises(DataError, match="expected one of each a row"):
        splits.combinatorial(np.arange(3), np.arange(2), n_groups=2, n_test_groups=1, embargo=0)
    with pytest.raises(DataError, match="leaves nothing to learn from"):
        made(6, 6, n_groups=2, n_test_groups=1, embargo=0)


@st.composite
def rows(draw: st.DrawFn) -> tuple[splits.Times, splits.Times]:
    """Draw rows of one to three symbols in any order, at irregular times, with labels of any length."""
    grid = np.cumsum(np.array(draw(st.lists(st.integers(1, 9), min_size=12, max_size=50))))
    n = draw(st.integers(len(grid), 2 * len(grid)))
    times = np.concatenate([grid, np.array(draw(st.lists(st.sampled_from(grid.tolist()), min_size=n - len(grid), max_size=n - len(grid))), dtype=np.int64)])  # fmt: skip
    lengths = np.array(draw(st.lists(st.integers(0, 12), min_size=n, max_size=n)))
    unknown = np.array(draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))) == 0
    order = np.array(draw(st.permutations(range(n))))
    return times[order], np.where(unknown, UNKNOWN_END, times + lengths)[order]


@given(drawn=rows(), n_groups=st.integers(2, 8), share=st.integers(1, 7), embargo=st.integers(0, 4))
@settings(max_examples=80, deadline=None)
def test_no_split_learns_from_a_row_that_meets_a_test_group_or_its_embargo(
    drawn: tuple[splits.Times, splits.Times], n_groups: int, share: int, embargo: int
) -> None:
    times, label_end = drawn
    k = min(share, n_groups - 1)
    try:
        found = list(splits.combinatorial(times, label_end, n_groups=n_groups, n_test_groups=k, embargo=embargo))
    except DataError as e:
        if "leaves nothing to learn from" not in str(e):
            raise
        reject()
    assert len(found) == math.comb(n_groups, k)
    group, unique = found[0].group, np.unique(times)
    for g in range(n_groups):
        assert sum(g in c.test_groups for c in found) == math.comb(n_groups - 1, k - 1)
        # A group is one run of bar times.
        own = unique[np.isin(unique, times[group == g])]
        assert ((unique >= own[0]) & (unique <= own[-1])).sum() == len(own)
    for c in found:
        assert not (c.trains & c.tests).any()
        assert set(group[c.tests]) == set(c.test_groups)
        expected = np.zeros(len(times), dtype=bool)
        for i in range(len(times)):
            meets = label_end[i] == UNKNOWN_END
            for g in c.test_groups:
                own = group == g
                ends = [int(e) for e, t in zip(label_end[own], times[own], strict=True) if e != UNKNOWN_END]
                first, last = int(times[own].min()), max([int(times[own].max()), *ends])
                after = [int(t) for t in unique if t > last][:embargo]
                meets = meets or (int(times[i]) <= last and int(label_end[i]) >= first) or int(times[i]) in after
            expected[i] = not meets
        assert c.trains.tolist() == expected.tolist()
    walked = splits.paths(n_groups=n_groups, n_test_groups=k)
    assert walked.shape == (math.comb(n_groups - 1, k - 1), n_groups)
    assert all(g in found[int(n)].test_groups for path in walked for g, n in enumerate(path))
    pairs = {(g, int(n)) for path in walked for g, n in enumerate(path)}
    assert len(pairs) == walked.size == math.comb(n_groups, k) * k
