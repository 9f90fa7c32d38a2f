"""No clock setting of the machine reaches a result: the whole pipeline under three zones, from a file to a report."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import polars as pl
import pytest

from foxflow import bars, sample

TINY = Path(__file__).parent / "tiny.toml"
FOXFLOW = [sys.executable, "-c", "from foxflow.cli import main; main()"]
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
NEW_YORK = ZoneInfo("America/New_York")


@dataclass(frozen=True)
class Done:
    """What a pipeline left: the store's rows, what `bars check` printed, the summary, the report."""

    store: dict[str, list[tuple[Any, ...]]]
    checked: str
    summary: dict[str, Any]
    report: str


def foxflow(*arguments: str | Path, zone: str) -> str:
    # What DuckDB, Polars and Python would take for the machine's zone.
    environment = {**os.environ, "TZ": zone}
    done = subprocess.run(
        [*FOXFLOW, *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def local_times() -> list[datetime]:
    """Return the hourly closes of 545 sessions of New York, as its clocks show them, over four changes of the clock."""
    sessions = bars.session_closes("XNYS", date(2011, 1, 3), date(2013, 6, 30))["session"].to_list()[:545]
    return [datetime.combine(s, time(10, 30)) + timedelta(hours=h) for s in sessions for h in range(6)]


def hourly(seed: int) -> pl.DataFrame:
    """Return a walk of 3,270 hours; `time` is local and has no offset."""
    noise = np.random.default_rng(seed).normal(scale=0.005, size=(3, 3270))
    close = 100 * np.exp(np.cumsum(noise[0]))
    open_ = close * np.exp(noise[1] / 3)
    return pl.DataFrame(
        {
            "time": [t.strftime("%Y-%m-%d %H:%M:%S") for t in local_times()],
            "open": open_,
            "high": np.maximum(open_, close) * 1.001,
            "low": np.minimum(open_, close) * 0.999,
            "close": close,
            "volume": np.floor(1000 * np.exp(noise[2])) + 1,
        }
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two files of local hours, one of sessions and one of splits."""
    folder = tmp_path_factory.mktemp("files")
    for seed, symbol in enumerate(("AAPL", "IBM")):
        hourly(seed).write_csv(folder / f"{symbol}.csv")
    days = sample.load_bars().filter(pl.col("symbol") == "AAPL").head(1500)
    dated = days.select(pl.lit("DAY").alias("symbol"), pl.col("ts").dt.date().alias("date"), *days.columns[2:])
    dated.write_csv(folder / "days.csv")
    (folder / "events.csv").write_text("symbol,session,kind,value\nDAY,2000-06-21,split,2\n")
    return folder


def run(files: Path, out: Path, zone: str) -> Done:
    to = ("--out", out)
    for symbol in ("AAPL", "IBM"):
        options = ("--bar", "1h", "--symbol", symbol, "--stamp", "close", "--tz", "America/New_York")
        foxflow("bars", "import", files / f"{symbol}.csv", *options, *to, zone=zone)
    dated = ("--bar", "1d", "--calendar", "XNYS", "--events", files / "events.csv")
    foxflow("bars", "import", files / "days.csv", *dated, *to, zone=zone)
    checked = foxflow("bars", "check", "--bar", "1h", "--json", *to, zone=zone)
    chosen = ("--model", "ridge", "--set", "data.source=store", "--set", "data.bar=1h")
    summary = json.loads(foxflow("backtest", TINY, *chosen, "--json", *to, zone=zone))
    return Done(stored(out / "bars.duckdb"), checked, summary, Path(summary["report"]).read_text("utf-8"))


def stored(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with duckdb.connect(str(path), read_only=True) as con:
        con.execute("set TimeZone = 'UTC'")
        tables = [row[0] for row in con.execute("select table_name from duckdb_tables() order by 1").fetchall()]
        return {t: con.execute(f"select * from {t} order by all").fetchall() for t in tables}


@pytest.fixture(scope="module")
def done(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    # Named alike, so that a path in what is printed has the same length.
    return {zone: run(files, tmp_path_factory.mktemp("out"), zone) for zone in ZONES}


def lasting(value: Any) -> Any:
    """Return a summary without the seconds a run took, the names that hold the time of the run, and the ledger's."""
    if isinstance(value, dict):
        without = {"seconds", "run_id", "report", "release", "ledger"}
        return {k: lasting(v) for k, v in value.items() if k not in without}
    return [lasting(v) for v in value] if isinstance(value, list) else value


def scrubbed(found: Done) -> str:
    """Return the report's text with the same left out."""
    text = found.report
    for name in ("run_id", "release"):
        text = text.replace(str(found.summary[name]), name)
    seconds = {f["seconds"] for f in found.summary["folds"]} | {found.summary["seconds"]}
    for taken in seconds:
        text = re.sub(rf"(<d?t?d>){taken:,.1f}( s)?(</d?t?d>)", r"\1seconds\3", text)
    return re.sub(r"attacks in [\d,.]+ s", "attacks in seconds", text)


@pytest.mark.slow
def test_the_store_holds_the_same_instants_under_every_zone(done: dict[str, Done]) -> None:
    # Of a ledger of its own each, whose name is drawn.
    stores = {zone: {k: v for k, v in found.store.items() if k != "ledger_heights"} for zone, found in done.items()}
    expected = stores["UTC"]
    assert {name: len(rows) for name, rows in expected.items() if rows} == {"bars": 2 * 3270 + 1500, "events": 1}
    for zone in ZONES:
        assert stores[zone] == expected
    # By the zone database: 10:30 in New York is 15:30 UTC in winter and 14:30 in summer.
    times = sorted(row[2] for row in expected["bars"] if row[0] == "IBM")
    assert times == [t.replace(tzinfo=NEW_YORK) for t in local_times()]
    assert {(t.hour, t.minute) for t in times if t.astimezone(NEW_YORK).hour == 10} == {(14, 30), (15, 30)}


@pytest.mark.slow
def test_check_says_the_same_under_every_zone(done: dict[str, Done]) -> None:
    assert {found.checked for found in done.values()} == {done["UTC"].checked}


@pytest.mark.slow
def test_a_run_is_the_same_under_every_zone(done: dict[str, Done]) -> None:
    expected = done["UTC"]
    assert expected.summary["n_forecasts"] == 2 * (3270 - 1000)
    for zone in ZONES:
        assert done[zone].summary["forecasts_sha256"] == expected.summary["forecasts_sha256"]
        assert lasting(done[zone].summary) == lasting(expected.summary)
        assert Path(done[zone].summary["release"]).name == Path(expected.summary["release"]).name


@pytest.mark.slow
def test_a_report_differs_between_zones_only_in_the_time_of_the_run(done: dict[str, Done]) -> None:
    expected = scrubbed(done["UTC"])
    assert len(expected) > 100_000
    for zone in ZONES:
        assert scrubbed(done[zone]) == expected


def frames(found: Done) -> Iterator[pl.DataFrame]:
    folder = Path(found.summary["report"]).parent
    yield from (pl.read_parquet(folder / f"{n}.parquet") for n in ("forecasts", "equity", "fills", "held"))


@pytest.mark.slow
def test_the_frames_of_a_run_are_the_same_under_every_zone(done: dict[str, Done]) -> None:
    for zone in ZONES[1:]:
        assert all(a.equals(b) for a, b in zip(frames(done[zone]), frames(done["UTC"]), strict=True))
