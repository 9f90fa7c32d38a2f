"""The embedded experiments in full, as a new user runs them: the slowest tests, and the claim of the README."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foxflow import release

FOXFLOW = [sys.executable, "-c", "from foxflow.cli import main; main()"]


def run(name: str, out: Path) -> dict[str, Any]:
    done = subprocess.run(
        [*FOXFLOW, "backtest", name, "--out", str(out), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.slow
def test_the_reference_retrains_on_five_real_stocks_trades_and_is_released(tmp_path: Path) -> None:
    summary = run("returns", tmp_path)
    assert (summary["model"], summary["n_folds"]) == ("mamba2", 11)
    assert summary["symbols"] == ["AAPL", "FB", "GOOG", "IBM", "MSFT"]
    assert summary["n_fills"] >= 200
    assert Path(summary["report"]).is_file()
    assert release.verify(Path(summary["release"]))
    for fold in summary["folds"]:
        assert fold["has_learned"] == (fold["best_loss"] < fold["untrained_loss"])
    idle = [f["fold"] for f in summary["folds"] if not f["has_learned"]]
    # A fold that learned nothing is named in words.
    assert bool(idle) == any("learned nothing" in line for line in summary["verdict"])


@pytest.mark.slow
def test_mamba2_forecasts_volatility_better_than_the_last_value_and_ewma(tmp_path: Path) -> None:
    summary = run("volatility", tmp_path)
    scores = {row["forecaster"]: row for row in summary["forecasters"]}
    assert set(scores) == {"last value", "EWMA(0.94)", "HAR", "ridge", "mamba2"}
    assert scores["mamba2"]["r_squared"] > scores["EWMA(0.94)"]["r_squared"]
    assert scores["mamba2"]["r_squared"] > scores["last value"]["r_squared"]
    assert scores["mamba2"]["qlike"] < scores["last value"]["qlike"]
    assert summary["folds_that_learned"] >= 10
