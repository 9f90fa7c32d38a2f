"""How old a forecast's state is, what forecasts are worth by that age, and whether a fit's memory fits its warm-up."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from foxflow import dataset, scoring, splits, state, training
from foxflow.config import WalkForward
from foxflow.dataset import Dataset, Floats, Series
from foxflow.errors import PluginError
from foxflow.training import Epoch, Recipe

FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)
RECIPE = Recipe("made up", {}, 3, 5.0)


def micros(day: int) -> int:
    return int((FIRST + timedelta(days=day)).timestamp() * 1e6)


def keys(symbol: str, days: range | list[int], fold: int = 0) -> pl.DataFrame:
    times = [FIRST + timedelta(days=d) for d in days]
    return pl.DataFrame({"symbol": symbol, "ts": times, "fold": fold})


def test_age_counts_the_bars_since_the_warm_up_in_every_fold_and_from_a_late_symbols_own_warm_up() -> None:
    # A has 100 bars up to fold 0's cut and 380 up to fold 1's; B has 5 up to the first, C none.
    bars = pl.concat([keys("A", range(500)), keys("B", range(95, 500)), keys("C", range(120, 500))])
    asked = {
        ("A", 0): ([100, 149, 150, 349, 350], [0, 49, 50, 249, 250]),
        ("A", 1): ([380, 385], [0, 5]),
        # Ten bars of its own have to pass: days 95 to 104.
        ("B", 0): ([105, 107], [0, 2]),
        ("B", 1): ([380, 430], [0, 50]),
        ("C", 0): ([130, 180], [0, 50]),
        ("C", 1): ([381], [1]),
    }
    forecasts = pl.concat([keys(symbol, days, fold) for (symbol, fold), (days, _) in asked.items()])
    found = state.ages(forecasts, bars, cuts={0: micros(99), 1: micros(379)}, warmup_bars=10)
    assert found.tolist() == [age for _, expected in asked.values() for age in expected]


def test_age_counts_bars_and_not_days() -> None:
    bars = keys("A", [*range(100), 130, 160, 190])
    forecasts = keys("A", [130, 160, 190])
    assert state.ages(forecasts, bars, cuts={0: micros(99)}, warmup_bars=3).tolist() == [0, 1, 2]


def test_a_band_holds_its_first_age_and_not_its_last() -> None:
    rows = [  # age, forecast, label
        (0, 1.0, 2.0), (48, 2.0, 4.0), (49, 3.0, 6.0),
        (50, 1.0, -1.0), (249, -1.0, 1.0),
        (250, 1.0, None), (900, 2.0, None),
    ]  # fmt: skip
    outcomes = pl.DataFrame(
        {
            "ts": [FIRST + timedelta(days=age) for age, _, _ in rows],
            "forecast": [forecast for _, forecast, _ in rows],
            "label": [label for _, _, label in rows],
            "label_end": [FIRST + timedelta(days=age + 1) for age, _, _ in rows],
            "mean": 0.0,
        }
    )
    young, middle, old = scoring.by_age(outcomes, np.array([age for age, _, _ in rows]))
    assert [young["age"], middle["age"], old["age"]] == ["0-49", "50-249", "250 and over"]
    assert [young["n_forecasts"], middle["n_forecasts"], old["n_forecasts"]] == [3, 2, 2]
    # 1 - (1 + 4 + 9) / (4 + 16 + 36), and 1 - (4 + 4) / (1 + 1).
    assert (young["ic"], young["r_squared"]) == (pytest.approx(1.0), pytest.approx(0.75))
    assert (middle["ic"], middle["r_squared"]) == (pytest.approx(-1.0), pytest.approx(-3.0))
    assert math.isnan(old["ic"])
    assert math.isnan(old["r_squared"])


def made(*lengths: int, lookback: int = 1, seed: int = 0) -> Dataset:
    """Return series of one feature, drawn from a normal distribution."""
    generator = np.random.default_rng(seed)
    series = tuple(
        Series(
            f"S{i:03}", np.arange(n), generator.normal(size=(n, 1)), np.ones(n, bool), np.full(n, np.nan), np.arange(n),
            np.zeros(n),
        )
        for i, n in enumerate(lengths)
    )  # fmt: skip
    return Dataset(("x",), "label", 1, lookback, series)


def counted(data: Dataset) -> tuple[Floats, ...]:
    """Forecast how many bars the state has seen."""
    return tuple(np.arange(1.0, len(s) + 1) for s in data.series)


def averaged(decay: float) -> Callable[[Dataset], tuple[Floats, ...]]:
    """Return a forecast that sums its feature, all earlier ones fading by `decay` a bar."""

    def forecast(data: Dataset) -> tuple[Floats, ...]:
        forecasts = []
        for series in data.series:
            kept, total = [], 0.0
            for value in series.features[:, 0]:
                total = decay * total + value
                kept.append(total)
            forecasts.append(np.array(kept))
        return tuple(forecasts)

    return forecast


def test_the_gap_is_the_difference_over_the_spread_of_the_carried_forecasts() -> None:
    # One block, bars 50 to 99, re-warmed from bar 40: 51 to 100 carried, 11 to 60 re-warmed.
    assert state.gap(counted, made(100), warmup_bars=10) == pytest.approx(40 / math.sqrt((50**2 - 1) / 12))
    # Without warm-up two blocks, the first of which starts where the carried state does.
    expected = math.sqrt((50**2 + 0) / 2) / math.sqrt((100**2 - 1) / 12)
    assert state.gap(counted, made(100), warmup_bars=0) == pytest.approx(expected)


def test_a_bar_that_is_not_valid_is_not_compared() -> None:
    data = made(100)
    valid = np.arange(100) >= 75
    data = replace(data, series=(replace(data.series[0], valid=valid),))
    assert state.gap(counted, data, warmup_bars=10) == pytest.approx(40 / math.sqrt((25**2 - 1) / 12))
    nowhere = replace(data, series=(replace(data.series[0], valid=np.zeros(100, bool)),))
    assert math.isnan(state.gap(counted, nowhere, warmup_bars=10))


@pytest.mark.parametrize("warmup_bars", [5, 20, 40])
def test_what_a_fading_average_forgets_in_its_warm_up_is_its_gap(warmup_bars: int) -> None:
    decay, data = 0.9, made(200, 105, lookback=3)
    carried = averaged(decay)(data)
    lost, kept = [], []
    for total, starts in zip(carried, ([150, 100, 50], [55]), strict=True):
        for start in starts:
            before = total[start - warmup_bars - 1]
            lost += [decay ** (warmup_bars + 1 + age) * before for age in range(50)]
            kept += total[start : start + 50].tolist()
    expected = np.sqrt(np.mean(np.square(lost))) / np.std(kept)
    assert state.gap(averaged(decay), data, warmup_bars=warmup_bars) == pytest.approx(expected)


def test_a_model_without_memory_and_one_that_learned_nothing_have_no_gap() -> None:
    assert state.gap(averaged(0.0), made(400, 300), warmup_bars=0) == 0.0
    assert state.gap(lambda d: tuple(np.full(len(s), 0.3) for s in d.series), made(400), warmup_bars=64) == 0.0


def test_a_carried_forecast_that_is_stuck_where_a_fresh_one_is_not_has_no_finite_gap() -> None:
    def stuck(data: Dataset) -> tuple[Floats, ...]:
        return tuple(np.minimum(np.arange(1.0, len(s) + 1), 40.0) for s in data.series)

    assert state.gap(stuck, made(200), warmup_bars=10) == math.inf


def test_long_and_many_series_are_compared_on_a_few_blocks_at_even_spacing() -> None:
    asked: list[list[int]] = []

    def forecast(data: Dataset) -> tuple[Floats, ...]:
        asked.append([int(s.ts[0]) for s in data.series])
        return averaged(0.5)(data)

    # 48 blocks: bars 50 to 99 of the first to bars 2400 to 2449.
    state.gap(forecast, made(2450), warmup_bars=30)
    assert len(asked[1]) == 24
    assert (min(asked[1]), max(asked[1])) == (50 - 30, 2400 - 30)
    steps = np.diff(np.sort(asked[1]))
    assert set(steps.tolist()) <= {100, 150}
    asked.clear()
    # 47 symbols of one block each: every second is carried.
    state.gap(forecast, made(*[100] * 47), warmup_bars=30)
    assert [len(a) for a in asked] == [24, 24]


def test_a_symbol_too_short_for_a_block_is_not_judged() -> None:
    # Lookback of 3 and warm-up of 10: the first forecast is that of bar 12, so a block ends at bar 61.
    assert math.isnan(state.gap(counted, made(61, lookback=3), warmup_bars=10))
    assert state.gap(counted, made(62, lookback=3), warmup_bars=10) > 0
    assert math.isnan(state.require_warm(counted, made(61, lookback=3), warmup_bars=10, where="here"))


def test_a_memory_longer_than_the_warm_up_is_refused_with_the_number_and_the_limit() -> None:
    message = (
        r"^model 'x', fold 3: forecasts from a state re-warmed over 10 bars differ from those of the carried state by "
        r"2\.772 of their standard deviation; expected at most 0\.05: raise \[model\] warmup_bars, or shorten"
    )
    with pytest.raises(PluginError, match=message):
        state.require_warm(counted, made(100), warmup_bars=10, where="model 'x', fold 3")


class Average:
    """A model, and its fit, that forecasts a fading average of its feature."""

    history = (Epoch(0, 1.0, 1.0), Epoch(1, 0.9, 0.9))
    best_epoch = 1

    def __init__(self, decay: float, warmup_bars: int) -> None:
        self.warmup_bars = warmup_bars
        self.forecast = averaged(decay)

    def fit(self, *_: object, **__: object) -> "Average":
        return self

    def save(self, folder: object) -> None:
        raise AssertionError("a fit that is refused is not saved")


def walk(n_bars: int) -> tuple[Dataset, splits.Fold]:
    """Return raw samples with labels of horizon 1 and their one fold, tested from bar 400 on."""
    data = made(n_bars)
    rows = data.series[0]
    labelled = replace(rows, label=rows.features[:, 0] + 1, label_end=rows.ts + 2)
    return replace(data, series=(labelled,)), splits.walk_forward(
        rows.ts, WalkForward(train=400, every=n_bars, embargo=3)
    )[0]


def fit(data: Dataset, fold: splits.Fold) -> training.FoldResult:
    return training.fit_fold(data, fold, RECIPE, folder=None, progress=lambda *_: None)


def test_each_fit_is_measured_and_one_that_remembers_too_long_is_refused_before_it_is_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    data, fold = walk(500)
    monkeypatch.setattr(training.registry, "build", lambda *_: Average(0.9, 60))
    assert 0 < fit(data, fold).state_gap < 0.05
    monkeypatch.setattr(training.registry, "build", lambda *_: Average(0.9, 6))
    with pytest.raises(
        PluginError, match=r"^model 'made up', fold 0: .* re-warmed over 6 bars .*: `foxflow audit` says$"
    ):
        training.fit_fold(data, fold, RECIPE, folder=tmp_path, progress=lambda *_: None)  # type: ignore[arg-type]


def test_nothing_after_the_cut_touches_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.registry, "build", lambda *_: Average(0.9, 40))
    data, fold = walk(500)
    rows = data.series[0]
    before = fit(data, fold)
    late = rows.ts > before.cut
    # The newest label that is used ends at bar 396, an embargo of 3 before the test.
    assert before.cut == 396
    for value in (np.nan, 1e9):
        bent = np.where(late[:, None], value, rows.features)
        series = replace(
            rows, features=bent, valid=np.isfinite(bent).all(axis=1), label=np.where(late, value, rows.label)
        )
        after = fit(replace(data, series=(series,)), fold)
        assert (after.cut, after.state_gap) == (before.cut, before.state_gap)


def test_what_is_seen_up_to_a_cut_holds_no_label_and_no_symbol_that_comes_later() -> None:
    data, _ = walk(500)
    late = replace(data.series[0], symbol="S001", ts=data.series[0].ts + 250)
    found = dataset.seen(replace(data, series=(data.series[0], late)), cut=249)
    assert [(s.symbol, len(s), int(s.ts[-1])) for s in found.series] == [("S000", 250, 249)]
    assert np.isnan(found.series[0].label).all()
    assert not found.series[0].weight.any()
