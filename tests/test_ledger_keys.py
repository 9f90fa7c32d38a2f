"""What makes another trial: all that changes the result, and nothing that does not."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points, version
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from foxflow import config as configs
from foxflow import experiment, features, ledger, provenance, scoring, store
from foxflow.bars import TS
from foxflow.config import Config
from foxflow.sample import load_bars, load_events
from foxflow.scoring.trading import decide, trade

TINY = Path(__file__).parent / "tiny.toml"
FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)


def tiny(*overrides: str) -> Config:
    return configs.load(TINY, overrides=overrides, model="ridge")


def bars(n: int, *starts: tuple[str, int]) -> pl.DataFrame:
    """Return `symbol` and `ts` of daily bars from each symbol's start up to day n."""
    rows = [(symbol, FIRST + timedelta(days=d)) for symbol, start in starts for d in range(start, n)]
    return pl.DataFrame(rows, schema={"symbol": pl.String(), "ts": TS}, orient="row")


OLD = bars(30, ("AAPL", 0), ("IBM", 5))
FORECASTS = OLD.filter(pl.col("ts") >= FIRST + timedelta(days=20))


def sessions(n: int, *columns: str) -> pl.DataFrame:
    day = pl.date_range(FIRST.date(), FIRST.date() + timedelta(days=n - 1), eager=True)
    return pl.DataFrame({"session": day} | {c: [1e6 * (1.1 + i) ** d for d in range(n)] for i, c in enumerate(columns)})


def keys(
    config: Config, seen: pl.DataFrame = OLD, forecasts: pl.DataFrame = FORECASTS, columns: Sequence[str] = ("equity",)
) -> list[str]:
    made = ledger.trials_of(
        config, bars=seen, forecasts=forecasts, sessions=sessions(4, *columns), run_id="r", baseline="ridge"
    )
    return [trial.key for trial in made]


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment.name=other"],
        ["experiment.workers=1"],
        ["experiment.n_seeds=1"],
        ['data.accept=["price jump"]'],
        ['data.symbols=["IBM", "AAPL"]'],
        # The plugin's own default, and a value that is read as a float.
        ["model.penalty=0.01"],
        ["costs.fee_bps=1"],
    ],
)
def test_what_does_not_change_the_result_is_the_same_trial(overrides: list[str]) -> None:
    assert keys(tiny(*overrides)) == keys(tiny())


@pytest.mark.parametrize(
    "override",
    [
        "experiment.seed=4",
        "costs.fee_bps=2",
        "model.penalty=0.02",
        'features.names=["volatility_20", "return_1", "range_position", "volume_ratio"]',
        'features.names=["return_1", "volatility_20", "range_position"]',
        "features.clip=4",
        "label.horizon=4",
        "walk_forward.train=1001",
        "walk_forward.embargo=6",
        "strategy.threshold_bps=1",
        "strategy.side=long_only",
        "data.source=store",
        "data.symbols=[]",
        "data.bar=1h",
    ],
)
def test_what_changes_the_result_is_another_trial(override: str) -> None:
    assert keys(tiny(override)) != keys(tiny())


def test_another_model_is_another_trial() -> None:
    assert keys(configs.load(TINY)) != keys(tiny())


def test_bars_and_symbols_that_come_later_change_nothing_earlier_ones_do() -> None:
    key = keys(tiny())
    later = bars(31, ("AAPL", 0), ("IBM", 5), ("NEW", 25))
    assert keys(tiny(), later, later.filter(pl.col("ts") >= FIRST + timedelta(days=20))) == key
    # A symbol whose history reaches back to the first forecast, and a first forecast that comes earlier.
    assert keys(tiny(), bars(30, ("AAPL", 0), ("IBM", 5), ("NEW", 20))) != key
    assert keys(tiny(), OLD, OLD.filter(pl.col("ts") >= FIRST + timedelta(days=19))) != key


def test_every_seed_is_a_trial_and_the_baseline_is_the_one_it_would_be_alone() -> None:
    mamba = configs.load(TINY, overrides=["experiment.n_seeds=3"])
    columns = ("equity", "equity_seed_4", "equity_seed_5", "baseline")
    made = keys(mamba, columns=columns)
    assert len(set(made)) == 4
    assert made[:1] == keys(configs.load(TINY))
    assert made[1:2] == keys(configs.load(TINY, overrides=["experiment.seed=4"]))
    assert made[3:] == keys(tiny())
    trials = ledger.trials_of(
        mamba, bars=OLD, forecasts=FORECASTS, sessions=sessions(4, *columns), run_id="r", baseline="ridge"
    )
    assert [t.seed for t in trials] == [3, 4, 5, 3]
    assert [t.recipe["config"]["model"]["name"] for t in trials] == ["mamba2"] * 3 + ["ridge"]
    assert trials[1].returns == pytest.approx([0, 1.1, 1.1, 1.1])
    assert {t.symbols for t in trials} == {("AAPL", "IBM")}


def test_a_feature_that_computes_something_else_under_its_name_is_another_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = keys(tiny())
    changed = dict(features.FEATURES)
    monkeypatch.setattr(features, "FEATURES", changed)
    changed["return_5"] = replace(changed["return_5"], expression=changed["return_1"].expression)
    assert keys(tiny()) == key
    changed["return_1"] = replace(changed["return_1"], meaning="says it otherwise")
    assert keys(tiny()) == key
    changed["return_1"] = replace(changed["return_1"], expression=changed["return_1"].expression + 1)
    assert keys(tiny()) != key


SOURCE = """
import sys
sys.path[:0] = {path!r}
from importlib.metadata import EntryPoint
from foxflow import provenance
{more}
print(provenance.plugin_source(EntryPoint("loose", "loose.model:Model", "foxflow.models"))["sha256"])
"""


def source(folder: Path, more: str = "") -> str:
    script = SOURCE.format(path=[str(folder), *sys.path], more=more)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_a_plugins_source_is_its_own_and_that_of_the_loose_packages_it_imports(tmp_path: Path) -> None:
    for name, text in {
        "loose/__init__.py": "",
        "loose/model.py": "import numpy, beneath.parts, loose\nfrom . import kernel\n",
        "loose/template.py": "this is {no} python",
        "loose/kernel.cuh": "// one",
        "beneath/__init__.py": "from foxflow import model\n",
        "beneath/parts.py": "import loose\n",
        "beside.py": "x = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = source(tmp_path)
    assert len(before) == 64
    # What else is loaded, compiled or changed is no part of it.
    (tmp_path / "beside.py").write_text("x = 2\n")
    assert source(tmp_path, "import beside, loose, beneath.parts") == before
    for name in ("loose/kernel.cuh", "beneath/parts.py", "loose/new.py"):
        (tmp_path / name).write_text("# two")
        after = source(tmp_path)
        assert after != before, name
        before = after


def test_an_installed_plugin_is_known_by_its_version() -> None:
    # As any installed package is, whatever its group.
    point = next(p for p in entry_points(group="pytest11") if p.dist and p.dist.name == "hypothesis")
    assert provenance.plugin_source(point) == {
        "distribution": "hypothesis",
        "version": version("hypothesis"),
        "sha256": None,
    }


@pytest.mark.slow
def test_nightly_reruns_and_other_names_are_no_trials_and_a_seed_is_one(tmp_path: Path) -> None:
    every = load_bars().filter(pl.col("symbol").is_in(["AAPL", "IBM"]))
    newest = every["ts"].max()
    path = experiment.store_path(tmp_path, "store")
    store.write_bars(path, every.filter(pl.col("ts") < newest), bar="1d")
    store.write_events(path, load_events().filter(pl.col("symbol").is_in(["AAPL", "IBM"])))
    counts, lengths = [], []

    def night(*overrides: str) -> None:
        config = tiny("data.source=store", *overrides)
        pulled = experiment.pull_market(config, tmp_path)
        data = experiment.build_dataset(config, pulled.first)
        results = experiment.retrain(config, data)
        plan = decide(config, pulled, results)
        sessions = scoring.per_session(trade(config, pulled, plan).equity, config.data.calendar)
        made = ledger.trials_of(
            config, bars=pulled.first, forecasts=plan.forecasts, sessions=sessions, run_id="r", baseline=None
        )
        ledger.record(tmp_path, made)
        found = ledger.family(tmp_path, symbols=made[0].symbols, first=made[0].first, last=made[0].last)
        counts.append(len(found.trials))
        lengths.append(int(np.isfinite(found.returns[:, 0]).sum()))
        assert found.is_known

    night()
    store.write_bars(path, every.filter(pl.col("ts") == newest), bar="1d")
    night()
    night("experiment.name=renamed")
    night("experiment.seed=4")
    night("costs.fee_bps=7")
    assert counts == [1, 1, 1, 2, 3]
    assert lengths[1:] == [lengths[0] + 1] * 4
