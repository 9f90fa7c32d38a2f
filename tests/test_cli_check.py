"""`foxflow bars check` as a user runs it: what it prints, what it writes, how it exits."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from conftest import daily_bars

from foxflow import experiment, store

FOXFLOW = [sys.executable, "-c", "from foxflow.cli import main; main()"]


def checked(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*FOXFLOW, "bars", "check", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home whose store has a symbol with a severe finding, one with a warning, and a clean one."""
    folder = tmp_path_factory.mktemp("home")
    prices = [100 + 0.7 * (n * 7 % 11) for n in range(60)]
    closes = [p + 0.3 for p in prices]
    volumes = pl.int_range(pl.len()).cast(pl.Float64) % 17 + 1000
    clean = daily_bars(prices, closes, symbol="CLEAN").with_columns(volume=volumes)
    split = daily_bars(
        [p / (10 if n >= 40 else 1) for n, p in enumerate(prices)],
        [p / (10 if n >= 40 else 1) for n, p in enumerate(closes)],
        symbol="SPLIT",
    ).with_columns(volume=volumes)
    quote = clean.with_columns(symbol=pl.lit("QUOTE"), volume=pl.lit(None, dtype=pl.Float64))
    store.write_bars(experiment.store_path(folder, "store"), pl.concat([clean, split, quote]), bar="1d")
    return folder


def test_exit_codes_follow_the_severity(home: Path) -> None:
    codes = {
        arguments: checked("--out", home, "--symbols", *arguments).returncode
        for arguments in (
            ("SPLIT,CLEAN",),
            ("QUOTE",),
            ("QUOTE", "--strict"),
            ("CLEAN", "--strict"),
            ("SPLIT", "--strict"),
        )
    }
    assert list(codes.values()) == [1, 0, 3, 0, 1]


def test_findings_are_a_line_each_or_json(home: Path) -> None:
    done = checked("--out", home, "--calendar", "24/7", "--json")
    assert done.returncode == 1
    rows = json.loads(done.stdout)
    assert [(r["symbol"], r["check"], r["severity"], r["ts"], r["count"]) for r in rows] == [
        ("SPLIT", "possible split", "severe", "2024-02-10T21:00:00Z", 1),
        ("QUOTE", "volume unknown", "warning", "2024-01-01T21:00:00Z", 60),
    ]
    table = checked("--out", home).stdout
    assert "2 findings in 180 bars of 1d: 1 severe, 1 warning, 0 note" in table
    assert "no --calendar given" in table


def test_pictures_are_written_beside_an_index(home: Path, tmp_path: Path) -> None:
    done = checked("--out", home, "--html", tmp_path / "html")
    assert f"pictures: {tmp_path / 'html' / 'index.html'}" in done.stdout
    assert {f.name for f in (tmp_path / "html").iterdir()} == {"index.html", "CLEAN.html", "QUOTE.html", "SPLIT.html"}


def test_what_is_not_there_is_refused_by_name(home: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("--symbols", "SPLOT"), "unknown symbol 'SPLOT'; known: CLEAN, QUOTE, SPLIT; did you mean 'SPLIT'?"),
        (("--bar", "1m"), "holds no bars of 1m; it holds 1d"),
        (("--calendar", "NYSE!"), "unknown calendar 'NYSE!'"),
    ):
        done = checked("--out", home, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
    assert "no store at" in checked("--out", tmp_path).stderr
