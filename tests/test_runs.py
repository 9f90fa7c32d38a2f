"""`foxflow runs`: what is listed, found, shown and compared, of runs that lie on the disk in any state."""

import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from runs_samples import make_run

from foxflow import metrics, runs
from foxflow.errors import DataError, FoxflowError
from foxflow.report import comparison

FOXFLOW = [sys.executable, "-c", "from foxflow.cli import main; main()"]
OLD, NEW = "20240101T000000000000Z-old-ridge-1a2b3c4d", "20240202T000000000000Z-new-ridge-5e6f7a8b"
RNG = np.random.default_rng(5)
X, Y = RNG.normal(0.001, 0.01, 60), RNG.normal(0, 0.01, 60)


def foxflow(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*FOXFLOW, "runs", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_runs_are_listed_newest_first_and_broken_ones_are_named_and_left_out(tmp_path: Path) -> None:
    make_run(tmp_path, OLD, X, experiment="old")
    make_run(tmp_path, NEW, X, experiment="new", significance={"deflated_sharpe": 0.75, "n_trials": 4}, sharpe=None)
    # Of a version that wrote almost nothing.
    make_run(tmp_path, "renamed", X)
    (tmp_path / "runs" / "renamed" / "summary.json").write_text('{"run_id": "r"}')
    for name, text in {"half": "{", "list": "[]", "other": "{}"}.items():
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "summary.json").write_text(text)
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / ".work-1-x").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("x")
    done = foxflow("list", "--json", "--out", tmp_path)
    rows = json.loads(done.stdout)
    assert [row["run_id"] for row in rows] == [NEW, OLD, "r"]
    assert [row["deflated_sharpe"] for row in rows] == [0.75, None, None]
    assert [row["n_trials"] for row in rows] == [4, None, None]
    assert [row["sharpe"] for row in rows] == [None, 1.824, None]
    assert [row["verdict"] for row in rows] == ["One thing.", "One thing.", None]
    warned = done.stderr.splitlines()
    assert len(warned) == 4
    for name in ("half", "list", "other", "empty"):
        assert any(line.startswith("warning: ") and f"runs/{name}/summary.json" in line for line in warned)
    table = foxflow("list", "--out", tmp_path).stdout
    assert re.search(rf"{NEW} +│ new +│ ridge +│ 2024-01-02 to 2024-03-27 │ 2 +│ n/a +│ 0.75 +│ 4 +│ One thing.", table)
    assert done.returncode == 0


def test_a_home_without_runs_lists_none_and_finds_none(tmp_path: Path) -> None:
    assert foxflow("list", "--out", tmp_path).stdout == "runs: nothing\n"
    assert foxflow("list", "--json", "--out", tmp_path).stdout == "[]\n"
    done = foxflow("show", "last", "--out", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: no run under '{tmp_path / 'runs'}'; make one with `foxflow backtest`")


def test_a_run_is_found_by_its_id_its_beginning_or_as_the_last(tmp_path: Path) -> None:
    make_run(tmp_path, OLD, X)
    make_run(tmp_path, NEW, X)
    make_run(tmp_path, f"{NEW}-again", X)
    (tmp_path / "runs" / f"{NEW}-again").rename(tmp_path / "runs" / "zzz")
    for name, found in {OLD: OLD, "20240101": OLD, NEW: NEW, "last": NEW, "zz": "zzz"}.items():
        assert runs.find(tmp_path, name).folder.name == found


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("2024", f"'2024' begins 2 runs: {NEW}, {OLD}; give more of the id"),
        ("202402027", f"no run begins with '202402027'; the nearest: {NEW};"),
        ("1a2b", f"no run begins with '1a2b'; the nearest: {OLD};"),
        ("q", f"no run begins with 'q'; the newest: {NEW}, {OLD};"),
        ("", f"no run begins with ''; the newest: {NEW}, {OLD};"),
    ],
)
def test_an_unknown_or_ambiguous_id_names_the_nearest(tmp_path: Path, name: str, says: str) -> None:
    make_run(tmp_path, OLD, X)
    make_run(tmp_path, NEW, X)
    with pytest.raises(FoxflowError, match=re.escape(says)):
        runs.find(tmp_path, name)


def test_a_run_is_shown_as_it_was_printed(tmp_path: Path) -> None:
    folder = make_run(tmp_path, OLD, X)
    summary = json.loads((folder / "summary.json").read_text())
    assert json.loads(foxflow("show", "last", "--json", "--out", tmp_path).stdout) == summary
    summary.pop("sharpe_ci95")
    (folder / "summary.json").write_text(json.dumps(summary))
    done = foxflow("show", "last", "--out", tmp_path)
    assert done.returncode == 1
    assert f"{OLD} was written by a version whose summaries had no 'sharpe_ci95'" in done.stderr


def compared(a: Path, b: Path) -> dict[str, Any]:
    return runs.compare(runs.read(a), runs.read(b)).found


def test_settings_numbers_and_folds_that_differ_stand_side_by_side(tmp_path: Path) -> None:
    a = make_run(tmp_path, OLD, X, overrides=["costs.fee_bps=3"], sharpe=1.5, significance={"pbo": 0.25})
    b = make_run(tmp_path, NEW, Y, overrides=['data.ended="last_close"'], sharpe=1.25, ic_t=None)
    found = compared(a, b)
    assert found["config"] == [
        {"key": "costs.fee_bps", "a": 3.0, "b": 1.0},
        {"key": "data.ended", "a": None, "b": "last_close"},
    ]
    numbers = {row["name"]: row for row in found["numbers"]}
    assert numbers["sharpe"] == {"name": "sharpe", "a": 1.5, "b": 1.25, "difference": 0.25}
    assert numbers["ic_t"] == {"name": "ic_t", "a": 3.214, "b": None, "difference": None}
    assert numbers["pbo"]["b"] is None
    assert "psr" not in numbers
    first, second = found["folds"]
    assert first["test_start"] == "2024-01-02T21:00:00Z"
    assert first["return_a"] == pytest.approx(np.prod(1 + X[:30]) - 1, rel=1e-12)
    assert second["return_b"] == pytest.approx(np.prod(1 + Y[30:]) - 1, rel=1e-12)
    assert [first["ic_a"], second["ic_a"]] == pytest.approx([1, -1])


def test_the_difference_of_returns_has_the_t_statistic_that_statsmodels_gives(tmp_path: Path) -> None:
    found = compared(make_run(tmp_path, OLD, X), make_run(tmp_path, NEW, Y))["returns"]
    lags = metrics.persistence_lags(X - Y)
    fitted = sm.OLS(X - Y, np.ones(60)).fit(cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False})
    assert found["difference_t"] == pytest.approx(fitted.tvalues[0], rel=1e-9)
    assert found["lags"] == lags
    assert found["correlation"] == pytest.approx(np.corrcoef(X, Y)[0, 1], rel=1e-9)
    assert found["mean_difference_a_year"] == pytest.approx((X - Y).mean() * 252, rel=1e-9)
    assert (found["n_sessions_a"], found["n_sessions_both"]) == (60, 60)


def test_only_sessions_of_both_are_compared_and_growth_begins_where_they_meet(tmp_path: Path) -> None:
    a = make_run(tmp_path, OLD, X, n_seeds=3)
    b = make_run(tmp_path, NEW, Y[:30], first=date(2024, 2, 14))
    made = runs.compare(runs.read(a), runs.read(b))
    returns = made.found["returns"]
    # The thirtieth session of 2024 is 2024-02-13.
    assert (returns["n_sessions_both"], str(returns["first_session"])) == (30, "2024-02-14")
    assert returns["correlation"] == pytest.approx(np.corrcoef(X[30:], Y[:30])[0, 1], rel=1e-9)
    assert made.found["notes"] == [
        "They share 30 sessions, of 60 and 30: correlation and t are of those alone, the key numbers of each run's own.",
        "Key numbers are means over the seeds; folds, returns and curves are of the first seed.",
        "Their forecasts are the same to the bit.",
    ]
    growth = made.growth
    assert growth["a"][29] == pytest.approx(1, abs=1e-12)
    assert growth["b"][29:31].to_list() == [None, pytest.approx(1 + Y[0], rel=1e-12)]
    assert growth["a"][0] == pytest.approx((1 + X[0]) / np.prod(1 + X[:30]), rel=1e-12)


def test_runs_apart_or_equal_or_still_have_no_statistic_and_say_so(tmp_path: Path) -> None:
    a, b = make_run(tmp_path, OLD, X), make_run(tmp_path, NEW, Y, first=date(2025, 1, 2), forecasts_sha256="x")
    apart = compared(a, b)
    assert apart["returns"]["n_sessions_both"] == 0
    assert apart["notes"] == [
        "The runs have no session in common: nothing can be said of the difference of their returns."
    ]
    assert {apart["returns"][k] for k in ("correlation", "difference_t", "lags", "first_session")} == {None}
    same = compared(a, a)
    assert (same["config"], same["returns"]["difference_t"]) == ([], None)
    assert same["returns"]["correlation"] == pytest.approx(1)
    idle = compared(a, make_run(tmp_path, "idle", [0.0] * 60))
    assert idle["returns"]["correlation"] is None
    assert idle["returns"]["difference_t"] is not None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("config.toml", None, "config.toml cannot be read: No such file"),
        ("config.toml", "[data", "config.toml cannot be read"),
        ("config.toml", "", "not the folder of a run that can be compared"),
        ("equity.parquet", None, "equity.parquet cannot be read: No such file"),
        ("equity.parquet", "PAR", "equity.parquet cannot be read"),
        ("forecasts.parquet", "", "forecasts.parquet cannot be read"),
        ("summary.json", '{"run_id": "r", "folds": [{}]}', "the folds of"),
    ],
)
def test_a_run_that_cannot_be_compared_says_what_is_broken(
    tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    a, b = make_run(tmp_path, OLD, X), make_run(tmp_path, NEW, Y)
    (b / name).unlink() if text is None else (b / name).write_text(text)
    with pytest.raises(DataError, match=says):
        compared(a, b)


def test_a_comparison_is_printed_and_drawn_on_one_page_that_loads_nothing(tmp_path: Path) -> None:
    make_run(tmp_path, OLD, X, model="<b>ridge</b>")
    make_run(tmp_path, NEW, Y)
    page = tmp_path / "page.html"
    done = foxflow("compare", OLD, "last", "--out", tmp_path, "--html", page)
    assert done.returncode == 0, done.stderr
    assert "Both have 60 sessions, 2024-01-02 to 2024-03-27" in done.stdout
    assert re.search(r"Sharpe ratio +│ 1.82 +│ 1.82 +│ 0.00", done.stdout)
    assert "settings that differ: nothing" in done.stdout
    text = page.read_text()
    assert "&lt;b&gt;ridge" in text
    assert "<b>ridge" not in text
    block = re.search(r'<script id="figures" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    traces = json.loads(block[1])["growth"]["data"]
    assert [t["name"] for t in traces] == ["A", "B"]
    assert traces[0]["y"][0] == pytest.approx(1 + X[0], rel=1e-5)
    # Plotly's own text aside.
    assert not re.search(r'(src|href)="(?!#)', re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
    again = foxflow("compare", OLD, "last", "--out", tmp_path, "--json")
    assert json.loads(again.stdout)["runs"][1]["run_id"] == NEW


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.5, 1.9, {"tickmode": "array", "tickvals": [0.5, 0.7, 0.97, 1.4, 1.9]}),
        (0.9991, 1.0003, {"tickmode": "array", "tickvals": [0.9991, 0.9994, 0.9997, 1.0, 1.0003]}),
        (1.0, 1.0, {"tickmode": "array", "tickvals": [1.0]}),
        (0.5, 20.0, {"dtick": "D2"}),
        (0.1, 90.0, {"dtick": 1}),
    ],
)
def test_the_ticks_of_growth_tell_each_other_apart(low: float, high: float, ticks: dict[str, Any]) -> None:
    assert comparison._ticks(pl.DataFrame({"a": [low, 1.0], "b": [None, high]})) == ticks


@pytest.mark.parametrize(("a", "b", "told"), [(1, 10, True), (10, 10, False), (None, 10, False)])
def test_deflated_ratios_of_two_states_of_the_ledger_are_said_not_to_compare(a: int | None, b: int, told: bool) -> None:
    found = {
        "returns": {"n_sessions_both": 5, "first_session": "2024-01-02", "last_session": "2024-01-08",
                    "correlation": 0.5, "difference_t": None},
        "numbers": [{"name": "n_trials", "a": a, "b": b, "difference": None}],
        "notes": [],
    }  # fmt: skip
    said = comparison.sentences(found)
    assert any(s.startswith("A was scored as one of 1 trials and B as one of 10:") for s in said) is told
