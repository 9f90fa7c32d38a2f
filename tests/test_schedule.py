"""Rolling windows and schedules through the whole job: bars of the sample to fold summaries, with ridge."""

import json
import subprocess
import sys
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from foxflow import cron

TINY = Path(__file__).parent / "tiny.toml"
pytestmark = pytest.mark.slow


def backtest(out: Path, *assignments: str) -> dict[str, Any]:
    options = [word for each in assignments for word in ("--set", each)]
    command = [sys.executable, "-c", "from foxflow.cli import main; main()", "backtest", TINY, "--model", "ridge"]
    done = subprocess.run([*command, *options, "--json", "--out", out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schedule")


def test_rolling_folds_learn_from_equally_many_rows(out: Path) -> None:
    summary = backtest(out, "walk_forward.window=rolling")
    rows = [fold["training_rows"] for fold in summary["folds"]]
    # 2 symbols; of 1000 bars 200 are validation and 11 lie in purge and embargo; the first 19 or 20 have no lookback.
    assert rows[1] == rows[2] == 2 * (1000 - 200 - 11)
    assert 2 * (1000 - 200 - 11 - 20) <= rows[0] < rows[1]


@pytest.mark.parametrize(("line", "train"), [("0 22 * * fri", 3150), ("0 22 * * *", 3210)])
def test_a_schedule_retrains_before_each_test_span(out: Path, line: str, train: int) -> None:
    summary = backtest(
        out, "walk_forward.every=", f"walk_forward.train={train}", f"schedule.cron={line}",
        "schedule.time_zone=America/New_York",
    )  # fmt: skip
    folds = [
        {name: datetime.fromisoformat(fold[name]) for name in ("cut", "test_start", "test_end")}
        for fold in summary["folds"]
    ]
    assert len(folds) > 20
    assert datetime.fromisoformat(summary["first_ts"]) == folds[0]["test_start"]
    assert datetime.fromisoformat(summary["last_ts"]) == folds[-1]["test_end"]
    assert all(fold["training_rows"] > 0 for fold in summary["folds"])
    for one, other in pairwise(folds):
        fire = cron.next_fire(line, "America/New_York", at=one["test_end"])
        assert one["test_end"] < fire < other["test_start"]
        # Five bar times of embargo: a week of sessions.
        assert timedelta(days=7) <= other["test_start"] - other["cut"] <= timedelta(days=13)
