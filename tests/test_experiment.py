"""The main job on the embedded sample: CLI and flow give the same numbers, and nothing half done is ever left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from foxflow import adjustment, experiment, release

TINY = Path(__file__).parent / "tiny.toml"
FOXFLOW = [sys.executable, "-c", "from foxflow.cli import main; main()"]
KEYS = {
    "run_id", "model", "symbols", "n_folds", "n_forecasts", "forecasts_sha256", "first_ts", "last_ts", "ic", "rank_ic",
    "hit_rate", "sharpe", "sharpe_ci95", "max_drawdown", "turnover", "total_return", "benchmark_total_return",
    "cost_total", "seconds", "ages", "state_gap", "report", "release",
}  # fmt: skip


def foxflow(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*FOXFLOW, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def backtest(*arguments: str | Path) -> dict[str, Any]:
    done = foxflow("backtest", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the summary of the tiny experiment with Mamba-2, run once from the command line."""
    return backtest(TINY, "--out", tmp_path_factory.mktemp("tiny"))


def test_a_run_prints_one_object_and_writes_report_release_and_frames(tiny: dict[str, Any]) -> None:
    assert set(tiny) >= KEYS
    assert (tiny["model"], tiny["symbols"], tiny["n_folds"]) == ("mamba2", ["AAPL", "IBM"], 3)
    assert tiny["n_forecasts"] == 2 * (3270 - 1000)
    assert tiny["first_ts"] == "2004-02-25T21:00:00Z"
    assert tiny["last_ts"] == "2013-03-01T21:00:00Z"
    assert Path(tiny["report"]).stat().st_size < 8_000_000
    folder = Path(tiny["report"]).parent
    forecasts = pl.read_parquet(folder / "forecasts.parquet")
    assert len(forecasts) == tiny["n_forecasts"]
    equity = pl.read_parquet(folder / "equity.parquet")["equity"]
    assert tiny["total_return"] == pytest.approx(equity[-1] / 1_000_000 - 1, rel=1e-12)
    fills = pl.read_parquet(folder / "fills.parquet")
    assert tiny["cost_total"] == pytest.approx((fills["fee"] + fills["slippage"]).sum(), rel=1e-9)
    config = (folder / "config.toml").read_text()
    assert 'name = "tiny"' in config


def test_forecasts_are_counted_by_the_age_of_their_state(tiny: dict[str, Any]) -> None:
    # 2 symbols, 3 folds; the embargo of 5 bars makes the first test bar's state 5 bars old.
    assert {band["age"]: band["n_forecasts"] for band in tiny["ages"]} == {
        "0-49": 2 * 3 * 45,
        "50-249": 2 * 3 * 200,
        "250 and over": 2 * (3270 - 1000 - 3 * 245),
    }
    assert all(-1 <= band["ic"] <= 1 for band in tiny["ages"])
    gaps = [fold["state_gap"] for fold in tiny["folds"]]
    assert 0 <= max(gaps) <= tiny["state_gap"] <= 0.05


def test_the_same_command_again_gives_the_same_forecasts_and_the_same_release(tiny: dict[str, Any]) -> None:
    out = Path(tiny["report"]).parents[2]
    # Read from what was kept, and computed anew.
    for more, source in (([], "cached"), (["--no-cache"], "computed")):
        again = backtest(TINY, "--out", out, *more)
        assert {fold["source"] for fold in again["folds"]} == {source}
        changing = {"run_id", "seconds", "report", "folds", "audit", "ledger"}
        assert {k: v for k, v in again.items() if k not in changing} == {
            k: v for k, v in tiny.items() if k not in changing
        }
        assert again["run_id"] != tiny["run_id"]
    listed = json.loads(foxflow("release", "list", "--out", out, "--json").stdout)
    assert [(e["path"], e["experiment"], e["status"]) for e in listed] == [(tiny["release"], "tiny", "challenger")]
    verified = foxflow("release", "verify", listed[0]["id"], "--out", out)
    assert verified.returncode == 0, verified.stderr


def test_the_prefect_flow_gives_the_numbers_of_the_command_line(tiny: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "flow.py"
    script.write_text(
        "import json, sys\n"
        "from foxflow_flows.backtest import backtest\n"
        "if __name__ == '__main__':\n"
        "    summary = backtest(config=sys.argv[1], out=sys.argv[2])\n"
        "    print('SUMMARY ' + json.dumps(summary))\n"
    )
    environment = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    }
    done = subprocess.run(
        [sys.executable, str(script), str(TINY), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    line = next((x for x in done.stdout.splitlines() if x.startswith("SUMMARY ")), None)
    assert line is not None, done.stdout + done.stderr
    summary = json.loads(line.removeprefix("SUMMARY "))
    changing = {"run_id", "seconds", "report", "release", "folds", "audit", "ledger"}
    assert {k: v for k, v in summary.items() if k not in changing} == {
        k: v for k, v in tiny.items() if k not in changing
    }
    assert Path(summary["release"]).name == Path(tiny["release"]).name


def test_the_release_says_what_the_walk_forwards_last_bars_would_have_said(tiny: dict[str, Any]) -> None:
    """Window to step hand-over: the state at the cut, stepped over the bars after it, gives the golden forecasts' model."""
    from safetensors.numpy import load_file

    from foxflow import dataset, sample
    from foxflow.release.parity import Graph

    bundle = release.load(Path(tiny["release"]))
    adjusted = adjustment.adjust(sample.load_bars(), sample.load_events()).filter(
        pl.col("symbol").is_in(["AAPL", "IBM"])
    )
    data = dataset.build(adjusted, feature_names=bundle.manifest["features"], label_name="forward_return", horizon=5)
    states = load_file(bundle.path / "state.safetensors")
    step, window = (Graph.load(str(bundle.path / f"{k}.onnx")) for k in ("step", "window"))
    cut = int(pl.Series([bundle.manifest["cut"]]).str.to_datetime(time_zone="UTC").dt.timestamp("us")[0])
    tolerance = bundle.manifest["golden"]["tolerance"]
    for series in data.series:
        stop = int(np.searchsorted(series.ts, cut, side="right"))
        start = stop - bundle.manifest["warmup_bars"]
        whole, _, _ = window.run(series.features[None, start:].astype(np.float32), window.zero_state())
        state = {name: states[f"{series.symbol}/{name}"] for name in step.past}
        for i in range(stop, len(series)):
            forecast, valid, state = step.run(series.features[i : i + 1].astype(np.float32), state)
            assert valid[0]
            assert abs(float(forecast[0]) - float(whole[0, i - start])) <= tolerance


def test_ridge_runs_with_its_own_defaults_and_gets_a_release_too(tmp_path: Path) -> None:
    summary = backtest(TINY, "--model", "ridge", "--symbols", "IBM", "--set", "costs.fee_bps=0", "--out", tmp_path)
    assert (summary["model"], summary["symbols"]) == ("ridge", ["IBM"])
    assert release.verify(Path(summary["release"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "walk_forward.embarg=3"], "unknown key 'embarg'"),
        (["--model", "rigde"], "unknown model 'rigde'"),
        (["--set", "model.d_modle=8"], "unknown key 'd_modle'"),
        (["--symbols", "AAPLE"], "did you mean 'AAPL'"),
        (["--set", "data.source=store"], "no store at"),
        (["--symbols", "FB"], "train = 1000"),
        (
            ["--symbols", "FB", "--set", "walk_forward.train=100", "--set", "model.warmup_bars=180"],
            "with 200 bars behind it",
        ),
        (["--set", "data.calendar=XNYZ"], "unknown calendar 'XNYZ'"),
        (["--set", "data.bar=5m"], "5m"),
        (["--set", f"label.horizon={10**30}"], "expected 1 to 10,000 bars"),
    ],
)
def test_a_users_error_is_one_clear_line_and_exit_1(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = foxflow("backtest", TINY, *arguments, "--quiet", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not list(tmp_path.rglob(".work-*"))
    assert not (tmp_path / "out" / "runs").exists()


def test_a_missing_config_a_broken_one_and_an_empty_store_are_one_line_each(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[data\n")
    cases = {
        "no config file at": foxflow("backtest", tmp_path / "none.toml"),
        "is not valid TOML": foxflow("backtest", broken),
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    import duckdb

    duckdb.connect(str(empty / "bars.duckdb")).close()
    cases["holds no bars"] = foxflow("backtest", TINY, "--set", "data.source=store", "--quiet", "--out", empty)
    for message, done in cases.items():
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert message in done.stderr


def test_wrong_usage_of_the_command_line_is_exit_2() -> None:
    assert foxflow("backtest", "--no-such-option").returncode == 2
    assert foxflow("bars", "import").returncode == 2
    assert foxflow("no-such-command").returncode == 2


def files(folder: Path) -> set[str]:
    return {p.name for p in folder.rglob("*")} if folder.exists() else set()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_half_done(how: signal.Signals, tmp_path: Path) -> None:
    run = start(tmp_path)
    run.send_signal(how)
    _, error = run.communicate(timeout=60)
    assert run.returncode == 130, error
    assert "interrupted" in error
    assert "Traceback" not in error
    assert {n for n in files(tmp_path) if n.startswith(".work")} == set()
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "releases").exists()


def test_a_killed_run_leaves_no_process_and_the_next_one_cleans_up_after_it(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    run = start(tmp_path)
    children = children_of(run.pid)
    assert children
    run.kill()
    run.communicate(timeout=60)
    assert any(n.startswith(".work") for n in files(tmp_path))
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    again = backtest(TINY, "--out", tmp_path)
    assert again["forecasts_sha256"] == tiny["forecasts_sha256"]
    assert {n for n in files(tmp_path) if n.startswith(".work")} == set()


def test_a_run_killed_in_its_fits_goes_on_from_their_last_epochs_to_the_same_bits(tmp_path: Path) -> None:
    command = [TINY, "--set", "model.epochs=12", "--set", "model.patience=12"]
    whole = backtest(*command, "--out", tmp_path / "whole")
    out = tmp_path / "killed"
    run = subprocess.Popen([*FOXFLOW, "backtest", *map(str, command), "--out", str(out)], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and sum(len(e) for e in unfinished(out).values()) < 8:
        time.sleep(0.05)
    run.kill()
    run.communicate(timeout=60)
    before = unfinished(out)
    assert sum(len(epochs) for epochs in before.values()) >= 8
    again = backtest(*command, "--out", out)
    assert again["forecasts_sha256"] == whole["forecasts_sha256"]
    assert Path(again["release"]).name == Path(whole["release"]).name
    # The seconds of an epoch are those of when it ran: what was fitted before the kill was not fitted again.
    history = pl.read_parquet(Path(again["report"]).parent / "history.parquet")
    for epochs in before.values():
        assert set(epochs) <= set(history["seconds"])
    assert not (out / "fits").exists()


def test_fits_that_nobody_went_on_with_for_30_days_are_removed(tmp_path: Path) -> None:
    for name, days in (("old", 31), ("new", 29)):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "unfinished.safetensors"
        file.write_bytes(b"")
        for path in (file, tmp_path / name):
            os.utime(path, (time.time() - days * 86_400,) * 2)
    experiment._forget_old(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def unfinished(out: Path) -> dict[str, list[float]]:
    """Return the seconds of every epoch of each unfinished fit."""
    from safetensors import safe_open

    found = {}
    for path in out.glob("fits/*/*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            found[path.parent.name] = [e["seconds"] for e in json.loads(file.metadata()["foxflow"])["history"]]
    return found


def start(out: Path) -> subprocess.Popen[str]:
    """Start a run that would take long, and return it once its folds are being fitted."""
    long = ["--set", "model.epochs=500", "--set", "model.patience=500"]
    run = subprocess.Popen(
        [*FOXFLOW, "backtest", str(TINY), "--out", str(out), *long], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while len(children_of(run.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    assert run.poll() is None
    return run


def children_of(pid: int) -> list[int]:
    task = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in task.read_text().split()] if task.exists() else []
