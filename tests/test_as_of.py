"""A walk-forward reads each fold as of its own cut: a later correction changes no earlier fold by a bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from foxflow import config, experiment, sample, scoring, store
from foxflow.bars import instant
from foxflow.config import Config
from foxflow.dataset import Dataset, Series
from foxflow.market import Market
from foxflow.training import FoldResult

TINY = Path(__file__).parent / "tiny.toml"
PRICES = ("open", "high", "low", "close")


def settings(model: str = "ridge") -> Config:
    return config.load(TINY, model=model, overrides=["data.source=store"])


def raw() -> pl.DataFrame:
    return sample.load_bars().filter(pl.col("symbol").is_in(["AAPL", "IBM"]))


def times() -> pl.Series:
    return raw()["ts"].unique().sort()


def cut_of(fold: int) -> datetime:
    """Return the cut of a fold of the tiny experiment: 5 bars of embargo before the last bar before its test."""
    return times()[1000 + 757 * fold - 1 - 5]


def bar(symbol: str, number: int) -> pl.DataFrame:
    return raw().filter(pl.col("symbol") == symbol, pl.col("ts") == times()[number])


def three_percent_higher(row: pl.DataFrame) -> pl.DataFrame:
    return row.with_columns(pl.col(PRICES) * 1.03)


def new_store(folder: Path, bars: pl.DataFrame | None = None) -> Path:
    path = experiment.store_path(folder, "store")
    store.write_bars(path, raw() if bars is None else bars, bar="1d")
    store.write_events(path, sample.load_events().filter(pl.col("symbol").is_in(["AAPL", "IBM"])))
    return path


@dataclass(frozen=True)
class Walk:
    """What a run holds before it is written."""

    pulled: Market
    results: list[FoldResult]

    def forecasts(self, fold: int) -> pl.DataFrame:
        return self.results[fold].forecasts

    def key(self, fold: int) -> str:
        """Return what names the fit of a fold: the digest of all that decides it."""
        checkpoints = self.results[fold].checkpoints
        assert checkpoints is not None
        return checkpoints.name


def walk(folder: Path, model: str = "ridge") -> Walk:
    """Return the walk-forward and the final fit of the tiny experiment on the store in a folder."""
    pulled = experiment.pull_market(settings(model), folder)
    data = experiment.build_dataset(settings(model), pulled.first)
    as_of = experiment.samples_as_of(settings(model), pulled, data)
    results = experiment.retrain(
        settings(model), data, as_of=as_of, folder=folder / "model", checkpoints=folder / "fits"
    )
    return Walk(pulled, results)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    folder = tmp_path_factory.mktemp("untouched")
    new_store(folder)
    return walk(folder)


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """Return a walk in which bar 500 of IBM is corrected a microsecond after the cut of fold 1."""
    folder = tmp_path_factory.mktemp("corrected")
    path = new_store(folder)
    known_at = cut_of(1) + timedelta(microseconds=1)
    store.correct_bars(path, three_percent_higher(bar("IBM", 500)), bar="1d", known_at=known_at)
    return walk(folder)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """Return a walk in which bar 1800 of IBM, the 44th that fold 1 tests, is corrected at the next bar."""
    folder = tmp_path_factory.mktemp("inside")
    path = new_store(folder)
    store.correct_bars(path, three_percent_higher(bar("IBM", 1800)), bar="1d", known_at=times()[1801])
    return walk(folder)


def unlike(one: Walk, other: Walk) -> list[int]:
    """Return the folds (3 is the final fit) whose fit or forecasts differ; each has to differ in both or in neither."""
    keys = [n for n in range(4) if one.key(n) != other.key(n)]
    forecasts = [n for n in range(3) if not one.forecasts(n).equals(other.forecasts(n))]
    assert forecasts == [n for n in keys if n < 3]
    return keys


def test_a_correction_changes_only_the_folds_whose_cut_it_was_known_at(
    untouched: Walk, corrected: Walk, tmp_path: Path
) -> None:
    assert [instant(r.cut) for r in untouched.results] == [*(cut_of(n) for n in range(3)), times()[-6]]
    assert unlike(untouched, corrected) == [2, 3]
    path = new_store(tmp_path)
    store.correct_bars(path, three_percent_higher(bar("IBM", 500)), bar="1d", known_at=cut_of(1))
    assert unlike(untouched, walk(tmp_path)) == [1, 2, 3]


def test_a_correction_known_before_the_first_cut_is_as_if_the_bar_had_been_imported_right(
    untouched: Walk, tmp_path: Path
) -> None:
    path = new_store(tmp_path / "a", raw().update(three_percent_higher(bar("IBM", 500)), on=["symbol", "ts"]))
    right = bar("IBM", 500)
    store.correct_bars(path, right, bar="1d", known_at=times()[501])
    mended = walk(tmp_path / "a")
    assert unlike(untouched, mended) == []
    # What was known first stays what could be traded then.
    wrong = mended.pulled.first.filter(pl.col("symbol") == "IBM")["close"][500]
    assert wrong == pytest.approx(1.03 * untouched.pulled.first.filter(pl.col("symbol") == "IBM")["close"][500])


def samples_at(found: Walk, fold: int) -> Dataset:
    return experiment.build_dataset(settings(), found.pulled.as_of(found.results[fold].cut))


def test_the_corrected_bar_is_in_the_training_rows_of_later_folds(untouched: Walk, corrected: Walk) -> None:
    assert corrected.pulled.as_of(corrected.results[1].cut) is corrected.pulled.first
    before, after = (samples_at(w, 2) for w in (untouched, corrected))
    # A running sum keeps the last bits of a value that has left it: those are no difference.
    rows = {
        s.symbol: np.flatnonzero(~np.isclose(s.features, t.features, rtol=1e-9, atol=1e-9).all(axis=1) & s.valid)
        for s, t in _pairs(before, after)
    }
    assert rows["AAPL"].size == 0
    # volatility_20 reads 20 returns, the first of them from bar 500 to 501 and the last from bar 519 to 520.
    assert (rows["IBM"][0], rows["IBM"][-1]) == (500, 520)
    labels = [np.flatnonzero(~np.isclose(s.label[:-6], t.label[:-6], rtol=1e-9)) for s, t in _pairs(before, after)]
    # Left at the open of bar 500, and entered there.
    assert [x.tolist() for x in labels] == [[], [494, 499]]
    # Among the training rows, not only in the validation tail.
    assert instant(corrected.results[2].fold.valid_start) > times()[520]


def _pairs(one: Dataset, other: Dataset) -> list[tuple[Series, Series]]:
    return list(zip(one.series, other.series, strict=True))


def test_a_correction_inside_a_test_span_takes_effect_at_the_next_fit(untouched: Walk, inside: Walk) -> None:
    assert unlike(untouched, inside) == [2, 3]


def test_fills_outcomes_and_equity_are_of_the_prices_known_first(untouched: Walk, inside: Walk) -> None:
    books: Mapping[str, scoring.Score] = {
        name: scoring.score(settings(), w.pulled, [w.results], {})
        for name, w in (("untouched", untouched), ("inside", inside))
    }
    before, after = books["untouched"], books["inside"]
    keys = ["symbol", "ts", "label", "label_end"]
    assert_frame_equal(before.outcomes.select(keys), after.outcomes.select(keys), check_exact=True)
    start = instant(untouched.results[2].fold.test_start)
    # The first bar that fold 2 forecasts is the first at which anything may differ; its orders fill after it.
    for frame in ("equity", "fills"):
        one, other = (getattr(s.book, frame).filter(pl.col("ts") <= start) for s in (before, after))
        assert_frame_equal(one, other, check_exact=True)
    assert not before.book.equity.equals(after.book.equity)


def test_a_correction_after_the_last_cut_changes_nothing(untouched: Walk, tmp_path: Path) -> None:
    path = new_store(tmp_path)
    tonight = times()[-6] + timedelta(microseconds=1)
    store.correct_bars(path, three_percent_higher(bar("IBM", 500)), bar="1d", known_at=tonight)
    assert unlike(untouched, walk(tmp_path)) == []


def test_replaying_a_night_makes_the_fit_of_the_walk_forward(corrected: Walk, tmp_path: Path) -> None:
    """The final fit on what the store held the night before a test span is that span's fold."""
    night = times()[1000 + 2 * 757 - 1]
    path = new_store(tmp_path, raw().filter(pl.col("ts") <= night))
    known_at = cut_of(1) + timedelta(microseconds=1)
    store.correct_bars(path, three_percent_higher(bar("IBM", 500)), bar="1d", known_at=known_at)
    # Known that night, but not at the cut, which lies an embargo before it.
    store.correct_bars(path, three_percent_higher(bar("IBM", 600)), bar="1d", known_at=night)
    replayed = walk(tmp_path)
    assert [r.fold.is_final for r in replayed.results] == [False, False, True]
    assert [replayed.key(n) for n in range(3)] == [corrected.key(n) for n in range(3)]


@pytest.mark.slow
def test_the_release_is_of_what_the_final_fit_saw(tmp_path: Path) -> None:
    """A correction known in time gives the very release of a store in which the bar was right from the start."""
    path = new_store(tmp_path / "a", raw().update(three_percent_higher(bar("IBM", 3200)), on=["symbol", "ts"]))
    store.correct_bars(path, bar("IBM", 3200), bar="1d", known_at=times()[3201])
    new_store(tmp_path / "b")
    names = [Path(experiment.run(settings("mamba2"), tmp_path / f).summary["release"]).name for f in ("a", "b")]
    assert names[0] == names[1]


def test_a_recurrent_network_forecasts_the_same_bits_until_the_correction_was_known(tmp_path: Path) -> None:
    forecasts = []
    for name, known_at in (("a", None), ("b", cut_of(1) + timedelta(microseconds=1))):
        path = new_store(tmp_path / name)
        if known_at is not None:
            store.correct_bars(path, three_percent_higher(bar("IBM", 500)), bar="1d", known_at=known_at)
        forecasts.append(walk(tmp_path / name, "mamba2"))
    assert unlike(*forecasts) == [2, 3]


def test_times_of_the_tiny_experiment_are_those_that_the_tests_count_on() -> None:
    assert (len(times()), times()[0], times()[-1]) == (
        3270,
        datetime(2000, 3, 1, 21, tzinfo=UTC),
        datetime(2013, 3, 1, 21, tzinfo=UTC),
    )
