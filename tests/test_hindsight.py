"""Nothing decided by a time depends on what was known later: bars, splits, members and corrections, in a whole run."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from foxflow import bars, config, dataset, experiment, scoring, splits, store, training
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA, PRICES
from foxflow.universe import UNIVERSE_SCHEMA

TINY = Path(__file__).parent / "tiny.toml"
DAYS = bars.session_closes("XNYS", date(2020, 1, 2), date(2020, 8, 31))["ts"].to_list()
JUST_BEFORE = timedelta(hours=1)
OVERRIDES = (
    "data.source=store", "data.symbols=[]", "data.ended=last_close", "walk_forward.train=70", "walk_forward.every=25",
    'features.names=["return_1", "volatility_5", "volume_ratio"]',
)  # fmt: skip


@dataclass(frozen=True)
class Past:
    """All that a store is told."""

    bars: pl.DataFrame
    events: pl.DataFrame
    members: pl.DataFrame
    corrections: tuple[tuple[pl.DataFrame, datetime], ...]

    def known(self, t: datetime) -> "Past":
        """Return what was known at a time."""
        by = pl.col("ts") <= t
        early = tuple(c for c in self.corrections if c[1] <= t)
        return Past(self.bars.filter(by), self.events.filter(by), self.members.filter(pl.col("known_at") <= t), early)

    def bent(self, t: datetime) -> "Past":
        """Return another future: prices and volumes after a time, and what was corrected after it, a third larger."""
        late = [pl.when(pl.col("ts") > t).then(pl.col(c) * 1.33).otherwise(c).alias(c) for c in (*PRICES, "volume")]
        corrections = tuple(
            (row if k <= t else row.with_columns(pl.col(PRICES) * 1.33), k) for row, k in self.corrections
        )
        return Past(self.bars.with_columns(late), self.events, self.members, corrections)


def past() -> Past:
    """Return five symbols: C pauses, D ends unrecorded, E is delisted and that is learned three days late."""
    random = np.random.default_rng(11)
    frames, n = [], len(DAYS)
    for symbol in "ABCDE":
        close = 50 * np.exp(np.cumsum(random.normal(0, 0.02, n)))
        open_ = np.concatenate([[50.0], close[:-1]]) * np.exp(random.normal(0, 0.005, n))
        frame = pl.DataFrame(
            {
                "symbol": [symbol] * n,
                "ts": DAYS,
                "open": open_,
                "high": np.maximum(open_, close),
                "low": np.minimum(open_, close),
                "close": close,
                "volume": random.uniform(1000, 2000, n),
            },
            schema=BAR_SCHEMA,
        )
        gone = {"C": range(100, 104), "D": range(100, n), "E": range(121, n)}.get(symbol, range(0))
        frames.append(frame.filter(~pl.int_range(n).is_in(list(gone))))
    rows = pl.concat(frames)
    # A split of 101 for 100, a dividend before and one after what is looked at.
    events = [("A", DAYS[90], "split", 1.01), ("B", DAYS[95], "dividend", 0.5), ("B", DAYS[140], "dividend", 0.5)]
    since = DAYS[0] - JUST_BEFORE
    members = [(s, since, None, None, since) for s in "ABCDE"] + [("E", since, DAYS[120], -0.6, DAYS[123])]
    corrections = tuple(
        (
            rows.filter(pl.col("symbol") == "A", pl.col("ts") == DAYS[at]).with_columns(pl.col(PRICES) * 1.02),
            DAYS[known],
        )
        for at, known in ((60, 80), (75, 118), (110, 130))
    )
    return Past(
        rows,
        pl.DataFrame(events, schema=EVENT_SCHEMA, orient="row"),
        pl.DataFrame(members, schema=UNIVERSE_SCHEMA, orient="row"),
        corrections,
    )


def decided(folder: Path, told: Past) -> dict[str, pl.DataFrame]:
    """Return what a run decides and books, by name."""
    path = folder / "bars.duckdb"
    store.write_bars(path, told.bars, bar="1d")
    store.write_events(path, told.events)
    store.write_universe(path, told.members)
    for row, known_at in told.corrections:
        store.correct_bars(path, row, bar="1d", known_at=known_at)
    chosen = config.load(TINY, model="ridge", overrides=list(OVERRIDES))
    pulled = experiment.pull_market(chosen, folder)
    data = experiment.build_dataset(chosen, pulled.first, pulled.universe)
    as_of = experiment.samples_as_of(chosen, pulled, data)
    recipe = training.Recipe("ridge", {}, chosen.experiment.seed, chosen.features.clip)
    results = [
        training.fit_fold(as_of(fold.cut), fold, recipe, folder=None, progress=lambda *_: None)
        for fold in splits.walk_forward(dataset.bar_times(data), chosen.walk_forward)
    ]
    scored = scoring.score(chosen, pulled, [results], {})
    return {
        "bars": pulled.first,
        "forecasts": scored.outcomes.drop("label", "label_end"),
        "fills": scored.book.fills,
        "benchmark": scored.book.benchmark_fills,
        "equity": scored.book.equity,
        "held": scored.book.held,
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    return decided(tmp_path_factory.mktemp("whole"), past())


# In C's pause, before the end of D shows; with E's end not learned; after all of it.
@pytest.mark.parametrize("number", [102, 104, 121, 135])
def test_a_run_up_to_a_time_and_one_with_another_future_agree_up_to_it(
    number: int, whole: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    t = DAYS[number]
    for name, told in (("truncated", past().known(t)), ("bent", past().bent(t))):
        other = decided(tmp_path / name, told)
        for frame, rows in whole.items():
            # A return that is not known by the last bar is booked there, where nothing can be decided any more.
            until = pl.col("ts") <= t if frame in ("bars", "forecasts") else pl.col("ts") < t
            assert other[frame].filter(until).equals(rows.filter(until)), f"{name}: {frame}"


def test_the_run_holds_what_could_be_known_too_early(whole: dict[str, pl.DataFrame]) -> None:
    fills = whole["fills"]
    last = {s: fills.filter(pl.col("symbol") == s)["ts"].max() for s in "DE"}
    assert last == {"D": DAYS[105], "E": DAYS[123]}
    assert set(fills["symbol"]) == set("ABCDE")
