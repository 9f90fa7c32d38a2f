"""`foxflow backtest` with strategies other than the embedded ones, from the command line to the stored run."""

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from foxflow.cli import app

TINY = Path(__file__).parent / "tiny.toml"


@pytest.mark.slow
@pytest.mark.parametrize(
    "assignments",
    [
        (
            "threshold_bps=chosen",
            "size=volatility",
            "target_volatility=0.005",
            "volatility_bars=60",
            "gross_limit=1.5",
            "position_limit=1.2",
            "net_limit=0.7",
        ),
        ("kind=rank", "threshold_bps=", "share=0.5", "position_limit=1", "hold=refresh"),
    ],
    ids=["chosen and sized", "rank"],
)
def test_a_backtest_trades_the_strategy_of_its_config(assignments: tuple[str, ...], tmp_path: Path) -> None:
    chosen = [x for a in assignments for x in ("--set", f"strategy.{a}")]
    done = CliRunner().invoke(
        app, ["backtest", str(TINY), "--model", "ridge", *chosen, "--out", str(tmp_path), "--json"]
    )
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    held = pl.read_parquet(Path(summary["report"]).parent / "held.parquet")
    wanted = held.drop_nulls("position").group_by("ts").agg(pl.col("position").sum(), n=pl.len())
    if "kind=rank" in assignments:
        both = wanted.filter(pl.col("n") == 2)
        assert both["position"].abs().max() <= 1e-12
        assert set(held["position"].drop_nulls().abs().unique()) == {0.5}
        assert [f["thresholds"] for f in summary["folds"]] == [None] * len(summary["folds"])
    else:
        assert wanted["position"].abs().max() <= 0.7 + 1e-12
        for fold in summary["folds"]:
            found = fold["thresholds"]
            assert 0 <= found["exit_bps"] <= found["enter_bps"]
            assert (found["n_dates"] > 100, found["note"]) == (True, None)
            assert found["score"] >= found["score_at_zero"]
    assert summary["n_fills"] > 10
