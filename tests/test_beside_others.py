"""Four backtests and an import on one store at once, as real processes: nobody fails, and all four agree."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from conftest import daily_bars

from foxflow import sample, store

FOXFLOW = [sys.executable, "-c", "from foxflow.cli import main; main()"]
TINY = Path(__file__).parent / "tiny.toml"


@pytest.mark.slow
def test_four_backtests_and_an_import_on_one_store_all_finish(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    store.write_bars(home / "bars.duckdb", sample.load_bars(), bar=sample.BAR)
    store.write_events(home / "bars.duckdb", sample.load_events())
    stranger = tmp_path / "stranger.csv"
    rows = 200_000
    minutes = daily_bars([100.0], symbol="NEW").select(pl.exclude("ts")).select(pl.all().repeat_by(rows).explode())
    minutes.insert_column(
        1, pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2026, 1, 1), "1m", eager=True).head(rows).alias("ts")
    ).write_csv(stranger)
    backtest = [*FOXFLOW, "backtest", str(TINY), "--set", "data.source=store", "--symbols", "AAPL,IBM,MSFT"]
    backtest += ["--model", "ridge", "--out", str(home), "--json"]
    importing = [*FOXFLOW, "bars", "import", str(stranger), "--bar", "1m", "--stamp", "close", "--tz", "UTC"]
    importing += ["--out", str(home), "--json"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in (backtest, backtest, importing, backtest, backtest)
    ]
    done = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0] * 5, [err for _, err in done]
    answers = [json.loads(out) for out, _ in done]
    assert answers.pop(2)[0]["added"] == rows
    assert len({run["forecasts_sha256"] for run in answers}) == 1
    assert len({run["report"] for run in answers}) == 4
