"""The ledger of trials: what counts as one, and who belongs to a family."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_samples import FIRST, days, family, trial

from foxflow import ledger
from foxflow.errors import DataError
from foxflow.ledger import chain


def test_a_fresh_home_has_no_trial_and_that_is_known(tmp_path: Path) -> None:
    found = family(tmp_path)
    assert (len(found.trials), found.returns.shape, found.is_known) == (0, (0, 0), True)
    assert found.note == "no trial on these bars so far"
    assert list(tmp_path.iterdir()) == []


def test_returns_come_back_to_the_bit_by_session_and_trial(tmp_path: Path) -> None:
    awkward = (0.1 + 0.2, -1e-300, 5e-324)
    ledger.record(
        tmp_path, [trial("a", returns=awkward), trial("b", returns=(1.0, 2.0), start=FIRST + timedelta(days=2))]
    )
    found = family(tmp_path)
    nan = np.nan
    expected = [[awkward[0], nan], [awkward[1], nan], [awkward[2], 1.0], [nan, 2.0]]
    assert found.returns.tobytes() == np.array(expected).tobytes()
    assert found.sessions.to_list() == days(4).to_list()
    assert found.is_known
    assert found.note.startswith("2 trials on these bars, by the ledger begun on 20")


def test_the_same_trial_on_longer_bars_is_one_trial_and_its_newest_returns_count(tmp_path: Path) -> None:
    first = ledger.record(tmp_path, [trial(returns=(0.1, 0.2), run_id="first")])
    second = ledger.record(tmp_path, [trial(returns=(0.1, 0.2, 0.3), run_id="second")])
    found = family(tmp_path)
    assert found.trials["run_id"].to_list() == ["second"]
    assert found.returns.tolist() == [[0.1], [0.2], [0.3]]
    # The older record is still there.
    assert (first.n_records, second.n_records) == (2, 3)
    assert second.ledger == first.ledger


def test_another_seed_or_recipe_is_another_trial(tmp_path: Path) -> None:
    ledger.record(tmp_path, [trial("a"), trial("a", seed=1), trial("b")])
    assert family(tmp_path).trials["seed"].to_list() == [0, 1, 0]


@pytest.mark.parametrize(
    ("other", "is_in"),
    [
        (trial("b", symbols=("AAA", "BBB")), True),
        (trial("b", symbols=("BBB",)), False),
        # One session in common, and none.
        (trial("b", start=FIRST + timedelta(days=2)), True),
        (trial("b", start=FIRST + timedelta(days=3)), False),
        (trial("b", start=FIRST - timedelta(days=2)), True),
        (trial("b", start=FIRST - timedelta(days=3)), False),
        # Hourly bars are the same luck.
        (trial("b", bar="1h"), True),
    ],
)
def test_a_family_shares_a_symbol_and_a_session(tmp_path: Path, other: ledger.Trial, is_in: bool) -> None:
    ledger.record(tmp_path, [trial("a"), other])
    assert len(family(tmp_path).trials) == 1 + is_in


def test_a_family_reaches_no_further_than_direct_relatives(tmp_path: Path) -> None:
    ledger.record(tmp_path, [trial("a"), trial("b", symbols=("AAA", "BBB")), trial("c", symbols=("BBB",))])
    assert len(family(tmp_path).trials) == 2


@pytest.mark.parametrize(
    ("sessions", "returns", "says"),
    [
        (days(2), [0.1], "2 sessions and 1 returns"),
        (days(0), [], "0 sessions"),
        (days(2).reverse(), [0.1, 0.2], "not ascending"),
        (days(2).cast(int), [0.1, 0.2], "not ascending dates"),
        (days(2), [0.1, np.nan], "not finite"),
    ],
)
def test_a_trial_that_says_nothing_is_refused(sessions: object, returns: list[float], says: str) -> None:
    with pytest.raises(DataError, match=says):
        ledger.Trial({}, 0, "e", "r", ("A",), sessions, np.array(returns))  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 9), st.integers(1, 5), st.sampled_from(["A", "B", "AB"])),
        max_size=12,
    ),
    st.integers(0, 9),
    st.sampled_from(["A", "B"]),
)  # fmt: skip
def test_a_family_is_what_a_plain_search_finds(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int, int, int, str]], at: int, symbol: str
) -> None:
    home = tmp_path_factory.mktemp("home")
    expected: dict[tuple[str, int], list[tuple[date, float]]] = {}
    for number, (name, seed, start, n, symbols) in enumerate(made):
        begin = FIRST + timedelta(days=start)
        returns = [number + i / 8 for i in range(n)]
        ledger.record(home, [trial(name, seed=seed, returns=returns, start=begin, symbols=tuple(symbols))])
        if start <= at + 1 and start + n - 1 >= at and symbol in symbols:
            expected[name, seed] = [(begin + timedelta(days=i), r) for i, r in enumerate(returns)]
    first = FIRST + timedelta(days=at)
    found = family(home, symbol, first=first, last=first + timedelta(days=1))
    columns = [
        [(s, r) for s, r in zip(found.sessions, column, strict=True) if not np.isnan(r)] for column in found.returns.T
    ]
    assert columns == list(expected.values())
    assert found.is_known


def test_two_thousand_trials_of_ten_years_are_read_to_the_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    long = trial(returns=[0.0] * 2500)
    batch = [replace(long, seed=i, returns=rng.normal(size=2500)) for i in range(2000)]
    ledger.record(tmp_path, batch)
    found = family(tmp_path)
    assert found.returns.shape == (2500, 2000)
    assert np.array_equal(found.returns[:, 7], batch[7].returns)


def test_a_store_that_is_no_ledger_is_left_alone_and_kept(tmp_path: Path) -> None:
    (tmp_path / chain.FILE).write_bytes(b"not a database at all, and of some length" * 50)
    assert "cannot be read" in family(tmp_path).note
    ledger.record(tmp_path, [trial()])
    (aside,) = tmp_path.glob("*.unreadable-*")
    assert aside.read_bytes().startswith(b"not a database")
    found = family(tmp_path)
    assert not found.is_known
    assert f"is kept as {aside.name}" in found.note
    assert "At least 1 trial on these bars" in found.note
