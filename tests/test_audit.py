"""A sound pipeline is accused of nothing, and the proof of its folds says what the bars' own times say."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
import tomli_w
from audit_samples import daily, document, experiment, quarter_hours, splits_of, stored, volatility
from click.testing import CliRunner

from foxflow import audit, bars, dataset, market
from foxflow import experiment as experiments
from foxflow.audit import folds, models, samples
from foxflow.audit.trading import attack_trading
from foxflow.bars import PRICES
from foxflow.cli import app
from foxflow.config import Config
from foxflow.errors import DataError, LeakageError
from foxflow.scoring import trading
from foxflow.training import FoldResult

ATTACKED = (
    "stored bars", "features", "label", "folds", "scaler", "model 'ridge'", "graph", "positions", "fills",
)  # fmt: skip


def walked(config: Config, store: Path) -> tuple[market.Market, samples.Dataset, list[FoldResult]]:
    """Return the market of an experiment, its samples, and the results of all its folds."""
    pulled = market.pull(config, store)
    data = samples.build(config, pulled.first)
    return (
        pulled,
        data,
        [r for fold in folds.walk(config, data) if (r := models.fit(config, data, fold).result) is not None],
    )


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = daily(5, n_bars=220)
    return stored(tmp_path_factory.mktemp("days"), rows, events=splits_of(rows))


def returns(horizon: int) -> Callable[[], Config]:
    hold = {"hold": "tranches"} if horizon > 1 else {}
    return lambda: experiment(label={"horizon": horizon}, strategy=hold)


def hourly(horizon: int) -> Callable[[], Config]:
    hold = {"hold": "refresh"} if horizon > 1 else {}
    hours = {"bar": "1h", "stored_bar": "15m"}
    return lambda: experiment(data=hours, label={"horizon": horizon}, strategy=hold)


KINDS = [returns(1), returns(5), volatility, hourly(1), hourly(5)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_sound_pipeline_is_accused_of_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int) -> None:
    monkeypatch.setattr("foxflow.audit.samples.FULL_MOMENTS", 5)
    monkeypatch.setattr("foxflow.audit.FULL_CUTS", 3)
    config = KINDS[seed % len(KINDS)]()
    if config.data.bar == "1d":
        rows = daily(seed, n_bars=200)
        store = stored(tmp_path, rows, events=splits_of(rows, at=100 + seed))
    else:
        store = stored(tmp_path, quarter_hours(seed, n_days=26), bar="15m")
    found = audit.full(config, store)
    targets = " ".join(f"{c.attack} {c.target}" for c in found.checks)
    assert [a for a in ATTACKED if a not in targets] == []
    assert all(c.n > 0 for c in found.checks)


def test_the_quick_audit_is_of_everything_before_a_fit(days: Path) -> None:
    config = experiment()
    pulled = market.pull(config, days)
    data = samples.build(config, pulled.first)
    found = audit.quick(config, pulled, data)
    assert {"features return_1, volatility_5, range_position, volume_ratio", "scaler and training data"} <= {
        c.target for c in found.checks
    }
    assert found.to_dict()["passed"] is True
    assert json.loads(json.dumps(found.to_dict()))["checks"][0]["attack"] == "samples of the bars"


def test_samples_that_are_not_those_of_the_bars_are_refused(days: Path) -> None:
    config = experiment()
    pulled = market.pull(config, days)
    data = samples.build(config, pulled.first)
    bent = data.series[1].features.copy()
    bent[100, 2] += 1e-9
    other = replace(data, series=(data.series[0], replace(data.series[1], features=bent), data.series[2]))
    with pytest.raises(LeakageError, match="the features of BBB at 2020-05-27T20:00:00Z"):
        audit.quick(config, pulled, other)


def test_the_proof_of_each_fold_is_what_the_bars_times_say(days: Path) -> None:
    config = experiment(label={"horizon": 3}, strategy={"hold": "refresh"})
    pulled, data, results = walked(config, days)
    times = pulled.first["ts"].unique().sort()
    proof = audit.prove(config, data, results)
    assert len(proof) == 2
    # 120 bar times before the first test, a fifth of them validation, an embargo of 2: bar 96 starts validation, so
    # the newest training label ends at bar 93, of a row 4 bars before it. Features read 21 bars.
    iso = [bars.iso(t) for t in times]
    assert proof[0] == {
        "train_label_end": iso[93],
        "valid_label_end": iso[117],
        "valid_start": iso[96],
        "embargo_bars": 2,
        "scaler_first_ts": iso[20],
        "scaler_last_ts": iso[89],
        "first_forecast_ts": iso[120],
    }


def test_a_model_scored_before_its_own_cut_raises(days: Path) -> None:
    config = experiment()
    _, data, results = walked(config, days)
    audit.require_after_cut(results, model="ridge")
    early = replace(results[1], fold=replace(results[1].fold, valid_limit=int(results[1].fold.test_start)))
    with pytest.raises(LeakageError) as caught:
        audit.require_after_cut([results[0], early], model="ridge")
    assert "model 'ridge', fold 1: a forecast of AAA at 2020-09-18T20:00:00Z is scored" in str(caught.value)
    with pytest.raises(LeakageError, match="model 'ridge', fold 1"):
        audit.prove(config, data, [results[0], early])


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("train_end", "fold 0 has a training label that ends at"),
        ("valid_end", "fold 0 has a validation label that ends at"),
        ("scaler_span", "fold 0 "),
    ],
)
def test_a_fold_whose_facts_break_its_split_is_refused(days: Path, field: str, words: str) -> None:
    config = experiment()
    _, data, results = walked(config, days)
    late = int(results[0].fold.test_start)
    wrong = replace(results[0], **{field: (0, late) if field == "scaler_span" else late})  # type: ignore[arg-type]
    with pytest.raises(LeakageError, match=words):
        audit.prove(config, data, [wrong])


def test_the_timeline_of_one_forecast_is_that_of_the_bars(days: Path) -> None:
    config = experiment()
    pulled, _, results = walked(config, days)
    book = trading.trade(config, pulled, trading.decide(config, pulled, results))
    found = audit.timeline(config, pulled, results, book)
    own = [bars.iso(t) for t in pulled.first.filter(symbol="AAA")["ts"]]
    assert (found["symbol"], found["fold"], found["first_bar_ts"]) == ("AAA", 0, own[0])
    assert (found["cut"], found["train_label_end"]) == (own[117], own[93])
    assert (found["data_cut"], found["decision_ts"], found["order_ts"]) == (own[120], own[120], own[120])
    assert (found["fill_ts"], found["label_end"]) == (own[121], own[122])
    assert found["exit_ts"] is None or found["exit_ts"] > found["fill_ts"]
    opened = pulled.first.filter(symbol="AAA")["open"][121]
    assert found["fill_price"] == pytest.approx(opened, rel=3e-4)
    assert audit.require_fills(config, pulled, book).n == len(book.fills)


def test_a_fill_at_another_price_is_refused(days: Path) -> None:
    config = experiment()
    pulled, _, results = walked(config, days)
    book = trading.trade(config, pulled, trading.decide(config, pulled, results))
    dearer = replace(book, fills=book.fills.with_columns(pl.col("price") * 1.0001))
    with pytest.raises(LeakageError, match="the fill of AAA in the bar at 2020-06-25T20:00:00Z"):
        audit.require_fills(config, pulled, dearer)
    undecided = replace(book, held=book.held.with_columns(position=None))
    with pytest.raises(LeakageError, match="has no decision before it"):
        audit.require_fills(config, pulled, undecided)


def test_moments_lie_in_the_warm_up_between_and_before_the_last_bar() -> None:
    config, rows = experiment(), daily(1, n_bars=120)
    times = rows["ts"].unique().sort().dt.timestamp("us").to_list()
    when = samples.moments(config, rows, full=True)
    # Half of the lookback of 20 bars into the first symbol, and into the one that starts 40 bars later.
    assert {times[10], times[50], times[118]} <= set(when)
    assert when == sorted(when)
    assert times[119] not in when
    assert len(samples.moments(config, rows, full=False)) <= 6


def test_a_large_market_is_attacked_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = daily(1, n_bars=300, symbols=tuple(f"S{i:02d}" for i in range(40)))
    monkeypatch.setattr(samples, "MOST_BARS", 100)
    part = samples.few(rows)
    assert part["symbol"].n_unique() == samples.MOST_SYMBOLS
    assert part["ts"].n_unique() == 100
    assert part["ts"].min() == rows["ts"].min()
    small = daily(1, n_bars=90)
    assert samples.few(small).equals(small)


def test_the_command_prints_every_attack(days: Path, tmp_path: Path) -> None:
    path = tmp_path / "audited.toml"
    path.write_text(tomli_w.dumps(document()))
    result = CliRunner().invoke(app, ["audit", str(path), "--out", str(days.parent)])
    assert result.exit_code == 0, result.output
    assert "no leak found" in result.output
    assert "held" in result.output
    for name in ("attack", "target", "result", "later bars: cut", "window graph"):
        assert name in result.output


def test_an_impulse_moves_no_feature_before_it_and_says_how_far_on(days: Path) -> None:
    config = experiment(features={"names": ["return_5", "volatility_20"]})
    (check,) = samples.attack_impulses(config, market.pull(config, days).first)
    # volatility_20 reads 21 bars: a bar moves its own row and 20 more.
    assert check.note == "moved up to 20 bar(s) on; the lookback is 21, the bar itself among them"
    assert check.n == 12


PLUGIN = '''
"""A model that standardises each feature over all bars it is asked about."""

from dataclasses import replace
from foxflow_ridge import FittedRidge, Ridge


class Fitted(FittedRidge):
    def forecast(self, data):
        mean = lambda s: s.features.mean(axis=0)
        return FittedRidge.forecast(self, replace(data, series=tuple(replace(s, features=s.features - mean(s)) for s in data.series)))


class Hindsight(Ridge):
    name = "hindsight"

    def fit(self, *arguments, **options):
        return Fitted(**vars(super().fit(*arguments, **options)))

    def load(self, folder):
        return Fitted(**vars(super().load(folder)))
'''


@pytest.mark.slow
def test_the_command_names_an_installed_plugin_that_leaks_in_one_line(days: Path, tmp_path: Path) -> None:
    (tmp_path / "hindsight.py").write_text(PLUGIN)
    about = tmp_path / "hindsight-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hindsight\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[foxflow.models]\nhindsight = hindsight:Hindsight\n")
    path = tmp_path / "audited.toml"
    path.write_text(tomli_w.dumps(document()))
    searched = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", "from foxflow.cli import main; main()", "audit", str(path), "--model", "hindsight"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": searched, "FOXFLOW_HOME": str(days.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: model 'hindsight' reads later bars: with the features after ")
    assert "the forecast of AAA at 2020-" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_shares_sold_short_for_good_after_the_last_forecast_ruin_no_attack(days: Path) -> None:
    config = returns(1)()
    pulled, _, results = walked(config, days)
    walk = [r for r in results if not r.fold.is_final][:1]
    short = [replace(r, forecasts=r.forecasts.with_columns(forecast=pl.lit(-0.01))) for r in walk]
    last = short[0].forecasts["ts"].max()
    # Four times as much a bar, from 30 bars after the last forecast on.
    n = (pl.col("ts") > last).cast(pl.Int64).cum_sum().over("symbol", order_by="ts")
    factor = pl.lit(4.0).pow((n - 30).clip(0, 6))
    soaring = replace(pulled, first=pulled.first.with_columns(pl.col(PRICES) * factor))
    plan = trading.decide(config, soaring, short)
    with pytest.raises(DataError, match="the strategy is ruined"):
        trading.trade(config, soaring, plan)
    assert attack_trading(config, soaring, short)


def test_the_audits_samples_are_known_as_late_as_the_runs(days: Path) -> None:
    config = returns(1)()
    pulled = replace(market.pull(config, days), delays={"AAA": timedelta(hours=7)})
    made = samples.build(config, pulled.first, pulled.universe, pulled.delays)
    run = experiments.build_dataset(config, pulled.first, pulled.universe, pulled.delays)
    assert dataset.known_times(made).tolist() == dataset.known_times(run).tolist()
    assert (dataset.known_times(made) > dataset.bar_times(made)).any()
