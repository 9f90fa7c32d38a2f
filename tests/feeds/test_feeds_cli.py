"""`foxflow bars fetch` and `foxflow bars sources`."""

import json
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result
from source_fixtures import installed  # noqa: F401  (fixture)
from source_samples import START, Toy, hourly, install

from foxflow import registry, store
from foxflow.cli import app
from foxflow.errors import ConfigError, FoxflowError, PluginError


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["bars", *arguments])
    if isinstance(result.exception, FoxflowError):
        raise result.exception
    return result


def fetch(tmp_path: Path, *more: str) -> Result:
    return run(
        "fetch", "toy", "--symbols", "AAA,BBB", "--bar", "1h", "--start", "2024-01-01", "--out", str(tmp_path), *more
    )


def test_sources_are_listed_without_being_imported() -> None:
    rows = json.loads(run("sources", "--json").stdout)
    assert {"name": "toy", "distribution": "toy-source", "version": "1.0"} in rows


def test_a_sources_parameters_are_shown() -> None:
    assert json.loads(run("sources", "toy", "--json").stdout) == [
        {"parameter": "size", "type": "int", "default": 2},
        {"parameter": "delay_s", "type": "float", "default": 0.0},
    ]
    shown = run("sources", "toy").stdout
    assert "Hands over `bars` in pages" in shown
    assert "--set KEY=VALUE" in shown


def test_what_was_fetched_is_told_and_stored(tmp_path: Path) -> None:
    Toy.bars = pl.concat([hourly("AAA", 1, 5), hourly("BBB", 2, 3)])
    result = fetch(tmp_path, "--set", "size=3", "--json", "--end", "2024-01-01T05:30+00:30")
    assert json.loads(result.stdout) == [
        {"symbol": "AAA", "after": "2024-01-01T00:00:00Z", "added": 5, "present": 0, "corrected": 0, "kept": 0, "quarantined": 0, "first_ts": "2024-01-01T01:00:00Z", "last_ts": "2024-01-01T05:00:00Z"},
        {"symbol": "BBB", "after": "2024-01-01T00:00:00Z", "added": 2, "present": 0, "corrected": 0, "kept": 0, "quarantined": 0, "first_ts": "2024-01-01T02:00:00Z", "last_ts": "2024-01-01T03:00:00Z"},
    ]  # fmt: skip
    assert store.read_bars(tmp_path / "bars.duckdb", bar="1h").equals(Toy.bars)
    assert result.stderr == ""


def test_a_series_that_begins_late_is_told(tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 241, 245)
    assert fetch(tmp_path).stderr == (
        "AAA begins on 2024-01-11, 10 days after the time it was asked for from: it was listed then, or toy keeps no more\n"
    )
    assert fetch(tmp_path).stderr == ""


def test_a_rule_for_restated_bars_is_an_option(tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 5)
    fetch(tmp_path)
    Toy.bars = hourly("AAA", 1, 5, close=20.0)
    with pytest.raises(FoxflowError, match="--on-conflict"):
        fetch(tmp_path)
    (row, _) = json.loads(fetch(tmp_path, "--on-conflict", "correct", "--json").stdout)
    assert (row["added"], row["corrected"]) == (0, 1)
    assert fetch(tmp_path, "--on-conflict", "guess").exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "size"), "--set 'size'; expected key=value, as in --set exchange=binance"),
        (("--set", "size=two"), r"\[toy\] size = 'two' is str; expected int"),
        (("--start", "yesterday"), "--start 'yesterday' is no time; expected a day as in 2024-01-31"),
        (("--start", "2024-13-01"), "--start '2024-13-01' is no time"),
        (
            ("--end", "2024-01-02T10:00"),
            "--end '2024-01-02T10:00' has no time zone; give it in UTC, as in 2024-01-02T10:00Z",
        ),
    ],
)
def test_what_is_mistyped_is_refused(tmp_path: Path, options: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fetch(tmp_path, *options)


def test_an_absent_or_broken_source_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "broken", {"gone": "no_such_module:X", "half": "json:JSONDecoder"}, distribution="broken")
    monkeypatch.syspath_prepend(tmp_path / "broken")
    for name, message in {
        "toys": r"unknown source 'toys'; known: .*toy; did you mean 'toy'\?.*entry point in foxflow.sources",
        "gone": "source 'gone' failed in the import of no_such_module:X of broken: ModuleNotFoundError",
        "half": "source 'half' lacks name, Parameters, origin, delay, fetch; see foxflow.feeds for the contract",
    }.items():
        with pytest.raises(PluginError, match=message):
            run("fetch", name, "--symbols", "A", "--bar", "1h", "--start", "2024-01-01", "--out", str(tmp_path))


def test_a_name_claimed_twice_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "again", {"toy": "json:JSONDecoder"}, distribution="another")
    monkeypatch.syspath_prepend(tmp_path / "again")
    with pytest.raises(PluginError, match="source 'toy' is claimed by two distributions, another and toy-source"):
        registry.installed(registry.SOURCES)


def test_times_are_utc(tmp_path: Path) -> None:
    Toy.bars = hourly("AAA", 1, 30)
    fetch(tmp_path, "--start", "2024-01-01T05:00+05:30")
    assert Toy.asks[0][2] == START - timedelta(minutes=30)
