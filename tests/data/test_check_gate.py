"""Training refuses bars with severe findings, unless told otherwise by name."""

from pathlib import Path

import polars as pl
import pytest
from test_check_jumps import split, walk

from foxflow import config, experiment, sample, store
from foxflow.bars import EVENT_SCHEMA
from foxflow.check import gate
from foxflow.config import Config
from foxflow.errors import DataError
from foxflow.report import tables

NAME = "possible split AAA 2024-03-01"
NOTHING = EVENT_SCHEMA.to_frame()


def passed(bars: pl.DataFrame, *accept: str, events: pl.DataFrame = NOTHING) -> tuple[str, ...]:
    return gate.require_sound(bars, events, bar="1d", calendar="24/7", accept=accept, where="here")[0]


def test_sound_bars_pass_and_so_does_a_split_that_is_recorded() -> None:
    assert passed(walk()) == ()
    assert passed(walk(factor=1 / 2), events=split(60, 2.0)) == ()


def test_a_severe_finding_is_refused_with_its_name_its_reason_and_what_to_do() -> None:
    with pytest.raises(DataError) as refused:
        passed(walk(factor=1 / 2))
    message = str(refused.value)
    assert message.startswith(f"here: 1 severe finding(s) in the bars of 1d: {NAME}: close 99.2007 then open 49.7522")
    assert f'[data] accept = ["{NAME}"]' in message
    assert "foxflow bars check --bar 1d --calendar 24/7" in message


@pytest.mark.parametrize("name", ["possible split", "possible split AAA", NAME])
def test_a_finding_is_accepted_by_its_check_its_symbol_or_its_day(name: str) -> None:
    assert passed(walk(factor=1 / 2), name) == (NAME,)


def test_accepting_one_finding_accepts_no_other() -> None:
    both = pl.concat([walk(factor=1 / 2), walk(factor=1 / 3, symbol="BBB", seed=8)])
    with pytest.raises(DataError, match=r"1 severe finding\(s\) .*: possible split BBB 2024-03-01"):
        passed(both, "possible split AAA")
    assert passed(both, "possible split") == (NAME, "possible split BBB 2024-03-01")


@pytest.mark.parametrize("name", ["possible split AAB", "jump", "possible splits", NAME.replace("03-01", "03-02")])
def test_a_name_that_fits_nothing_names_what_there_is(name: str) -> None:
    with pytest.raises(DataError, match=rf"\[data\] accept: unknown severe finding '{name}'; known: {NAME}"):
        passed(walk(factor=1 / 2), NAME, name)
    with pytest.raises(DataError, match="known: none"):
        passed(walk(), name)


def stored(tmp_path: Path, bars: pl.DataFrame, *accept: str) -> Config:
    store.write_bars(experiment.store_path(tmp_path, "store"), bars, bar="1d")
    settings = ["data.source=store", "data.calendar=24/7", f"data.accept={list(accept)}"]
    return config.load("returns", overrides=settings, model="ridge")


def test_an_experiment_takes_only_bars_that_are_sound_or_accepted_and_says_which(tmp_path: Path) -> None:
    bars = walk(factor=1 / 2)
    with pytest.raises(DataError, match=f"accept = ..{NAME}"):
        experiment.pull_market(stored(tmp_path, bars), tmp_path)
    pulled = experiment.pull_market(stored(tmp_path, bars, NAME), tmp_path)
    assert pulled.accepted == (NAME,)
    assert len(pulled.first) == 120


def test_the_sample_passes_and_the_report_says_so(tmp_path: Path) -> None:
    assert gate.require_sound(
        sample.load_bars(), sample.load_events(), bar="1d", calendar=sample.CALENDAR, accept=(), where="sample"
    )[0] == ()  # fmt: skip
    shown = {"run_id": "r", "accepted_findings": [NAME, "frozen BBB 2024-01-05"]}
    assert f"2 severe findings, accepted by name: {NAME}, frozen BBB 2024-01-05." in tables.provenance(shown)
    assert "No severe finding" in tables.provenance({**shown, "accepted_findings": []})
