"""Membership as it was known at the time, and which tables are refused."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foxflow.errors import DataError
from foxflow.universe import EVERYTHING, UNIVERSE_SCHEMA, Universe, require

FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)
Row = tuple[str, int, int | None, float | None, int]


def day(number: int) -> datetime:
    return FIRST + timedelta(days=number)


def micros(*numbers: int) -> np.ndarray:
    return np.array([int(day(n).timestamp()) * 1_000_000 for n in numbers], dtype=np.int64)


def table(*rows: Row) -> pl.DataFrame:
    """Return memberships whose times are numbers of days."""
    dated = [(s, day(since), None if until is None else day(until), r, day(k)) for s, since, until, r, k in rows]
    return pl.DataFrame(dated, schema=UNIVERSE_SCHEMA, orient="row")


def test_a_decision_is_about_a_member_from_the_close_before_its_first_session_to_before_its_last_close() -> None:
    universe = Universe.of(table(("A", 2, None, None, 0), ("A", 2, 5, None, 4)))
    # Decided at the close of day 2 and filled at the open of day 3; decided at the close of day 5, it would fill on 6.
    assert universe.decides_on("A", micros(0, 1, 2, 3, 4, 5, 6)).tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert not universe.decides_on("B", micros(3)).any()


def test_what_is_known_later_changes_nothing_before() -> None:
    late = Universe.of(table(("A", 2, None, None, 3), ("A", 2, 5, -0.3, 7)))
    # The start is known on day 3, the end of day 5 only on day 7.
    assert late.decides_on("A", micros(2, 3, 4, 5, 6, 7, 8)).tolist() == [0, 1, 1, 1, 1, 0, 0]
    # As known on day 4 it has no end, as known on day 7 it had ended on day 5, for all days alike.
    assert late.decides_on("A", micros(2, 5, 6, 9), as_of=int(micros(4)[0])).tolist() == [1, 1, 1, 1]
    assert late.decides_on("A", micros(2, 4, 5, 9), as_of=int(micros(7)[0])).tolist() == [1, 1, 0, 0]
    assert not late.decides_on("A", micros(2, 4), as_of=int(micros(1)[0])).any()


def test_several_memberships_of_a_symbol_may_touch_but_not_overlap() -> None:
    rows = (("A", 0, None, None, 0), ("A", 0, 3, None, 3))
    universe = Universe.of(table(*rows, ("A", 5, None, None, 5)))
    assert universe.decides_on("A", micros(0, 2, 3, 4, 5, 9)).tolist() == [1, 1, 0, 0, 1, 1]
    assert Universe.of(table(*rows, ("A", 3, None, None, 3))).decides_on("A", micros(2, 3, 4)).all()
    with pytest.raises(
        DataError, match=r"A since 2024-01-01 21:00Z until 2024-01-04 21:00Z.* overlaps A since 2024-01"
    ):
        require(table(*rows, ("A", 2, None, None, 3)), where="u.csv")
    with pytest.raises(DataError, match="as known at 2024-01-03 21:00Z, A since 2024-01-01 21:00Z with no end"):
        # On day 2 nobody knew yet that the first one would end.
        require(table(*rows, ("A", 3, None, None, 2)), where="u.csv")


def test_without_a_table_everything_is_a_member() -> None:
    assert Universe.of(table()) == EVERYTHING
    assert EVERYTHING.decides_on("A", micros(0, 1)).all()
    assert not EVERYTHING.is_recorded


def test_who_is_a_member_within_a_span() -> None:
    universe = Universe.of(table(("A", 0, 3, None, 0), ("B", 3, None, None, 0), ("C", 6, None, None, 6)))
    first, last = (int(t) for t in micros(3, 5))
    assert universe.within(first, last) == ["B"]
    assert universe.within(int(micros(2)[0]), int(micros(6)[0])) == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((("A", 3, 3, None, 0),), "A since 2024-01-04 21:00Z until 2024-01-04 21:00Z.*: expected an end after"),
        ((("A", 0, None, -0.5, 0),), "a delisting return needs the end"),
        ((("A", 0, 3, -60.0, 0),), "delisting return -60, .*a fraction of -1 or more"),
        ((("A", 0, 3, float("nan"), 0),), "a fraction of -1 or more"),
        ((("A\tb", 0, 3, None, 0),), "expected a symbol: a letter, a digit"),
        ((("A", 0, 3, None, 3),), "first known when it was over"),
        ((("A", 0, 3, None, 0), ("A", 0, 5, None, 5)), "a longer membership than the one known before it"),
        ((("A", 0, 3, None, 0), ("A", 0, 4, None, 0)), "stand in more than one row"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(rows: tuple[Row, ...], message: str) -> None:
    with pytest.raises(DataError, match=f"u.csv: .*{message}"):
        require(table(*rows), where="u.csv")


def test_a_longer_membership_may_be_learned_in_time_and_a_return_at_any_time() -> None:
    universe = Universe.of(table(("A", 0, 3, None, 0), ("A", 0, 6, None, 4), ("A", 0, 6, -0.3, 9)))
    assert universe.decides_on("A", micros(2, 3, 4, 5, 6)).tolist() == [1, 0, 1, 1, 0]


@given(
    revisions=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=4, unique_by=lambda r: r[1]
    )
)
def test_membership_is_what_a_plain_reading_of_the_newest_known_row_says(revisions: list[tuple[int, int]]) -> None:
    rows = sorted(revisions, key=lambda r: r[1])
    try:
        universe = Universe.of(table(*(("A", 0, until, None, known) for until, known in rows)))
    except DataError:
        return
    for ts in range(14):
        known = [until for until, at in rows if at <= ts]
        assert universe.decides_on("A", micros(ts))[0] == bool(known and ts < known[-1])
