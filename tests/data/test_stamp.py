"""What a file's times mean decides what is known when: the open or the close of a bar, by declaration."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from foxflow import experiment, features, store
from foxflow.features import FEATURES

FOXFLOW = [sys.executable, "-c", "from foxflow.cli import main; main()"]
MINUTE = timedelta(minutes=1)
NEW_YORK = ZoneInfo("America/New_York")
# Friday and Monday at 10:00 in New York, whose clocks change in between.
DAYS = (datetime(2024, 3, 8, 15, tzinfo=UTC), datetime(2024, 3, 11, 14, tzinfo=UTC))


def minutes(*, shift: timedelta) -> pl.DataFrame:
    """Return 240 minutes of two sessions, local times: the first of each closes at 10:01 and is shown at 10:01 + shift.

    Some minutes without a trade are missing.
    """
    noise = np.random.default_rng(5).normal(scale=0.001, size=(3, 240))
    close = 50 * np.exp(np.cumsum(noise[0]))
    open_ = close * np.exp(noise[1] / 3)
    times = [day + MINUTE * (i + 1) + shift for day in DAYS for i in range(120)]
    rows = pl.DataFrame(
        {
            "time": [t.astimezone(NEW_YORK).strftime("%Y-%m-%d %H:%M") for t in times],
            "open": open_,
            "high": np.maximum(open_, close) * 1.0005,
            "low": np.minimum(open_, close) * 0.9995,
            "close": close,
            "volume": np.floor(100 * np.exp(noise[2])) + 1,
        }
    )
    return rows.with_row_index().filter(~pl.col("index").is_in([37, 38, 170])).drop("index")


def imported(folder: Path, rows: pl.DataFrame, *, stamp: str) -> pl.DataFrame:
    """Return the bars that the command line makes of a file declared so."""
    folder.mkdir()
    file = folder / "minutes.csv"
    rows.write_csv(file)
    options = ["--bar", "1m", "--symbol", "AAA", "--tz", "America/New_York", "--stamp", stamp, "--out", str(folder)]
    done = subprocess.run(
        [*FOXFLOW, "bars", "import", str(file), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return store.read_bars(experiment.store_path(folder, "store"), bar="1m")


def computed(bars: pl.DataFrame) -> pl.DataFrame:
    return features.compute(bars, list(FEATURES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stamp")


@pytest.fixture(scope="module")
def closes(folder: Path) -> pl.DataFrame:
    return imported(folder / "closes", minutes(shift=timedelta(0)), stamp="close")


def test_the_same_minutes_stamped_open_and_close_give_the_same_feature_at_the_same_decision(
    folder: Path, closes: pl.DataFrame
) -> None:
    opens = imported(folder / "opens", minutes(shift=-MINUTE), stamp="open")
    # Known when the first minute is over, not when it begins.
    assert opens["ts"][0] == datetime(2024, 3, 8, 15, 1, tzinfo=UTC)
    assert opens["ts"][-1] == datetime(2024, 3, 11, 16, tzinfo=UTC)
    assert len(opens) == 237
    assert_frame_equal(opens, closes, check_exact=True)
    assert_frame_equal(computed(opens), computed(closes), check_exact=True)


def test_the_same_file_declared_otherwise_gives_features_one_bar_later(folder: Path, closes: pl.DataFrame) -> None:
    late = imported(folder / "late", minutes(shift=timedelta(0)), stamp="open")
    assert_frame_equal(late.with_columns(pl.col("ts") - MINUTE), closes, check_exact=True)
    before, after = computed(closes), computed(late)
    assert_frame_equal(after.with_columns(pl.col("ts") - MINUTE), before, check_exact=True)
    # At one and the same decision time the two declarations say different things, nearly everywhere.
    both = before.join(after, on=["symbol", "ts"], suffix="_late").drop_nulls(["return_1", "return_1_late"])
    assert len(both) > 200
    assert (both["return_1"] != both["return_1_late"]).all()
    shifted = both.with_columns(expected=pl.col("return_1").shift(1).over("symbol", order_by="ts"))
    next_to = shifted.filter(pl.col("ts").diff() == MINUTE)
    assert next_to["return_1_late"].equals(next_to["expected"])


def test_minutes_without_a_declaration_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "minutes.csv"
    minutes(shift=timedelta(0)).write_csv(file)
    options = ["--bar", "1m", "--symbol", "AAA", "--tz", "America/New_York", "--out", str(tmp_path)]
    done = subprocess.run(
        [*FOXFLOW, "bars", "import", str(file), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "--stamp" in done.stderr
    assert not experiment.store_path(tmp_path, "store").exists()
