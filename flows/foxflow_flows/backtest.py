"""The backtest flow: `foxflow backtest` as Prefect tasks, with the same numbers."""

import time
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from foxflow import audit, experiment, scoring
from foxflow import config as configs
from foxflow.audit import Audit
from foxflow.config import Config
from foxflow.dataset import Dataset
from foxflow.market import Market
from foxflow.record import Outcome, Result
from foxflow.release import Release
from foxflow.scratch import scratch
from foxflow.training import Fits, FoldResult, SamplesAsOf


@task(cache_policy=NO_CACHE)
def pull_market(settings: Config, folder: Path) -> Market:
    """Return the experiment's bars from DuckDB, as they came and with what is known of them since."""
    return experiment.pull_market(settings, folder)


@task(cache_policy=NO_CACHE)
def build_dataset(settings: Config, pulled: Market) -> Dataset:
    """Return the samples of the bars as they came."""
    return experiment.build_dataset(settings, pulled.first, pulled.universe, pulled.delays)


@task(cache_policy=NO_CACHE)
def attack(settings: Config, pulled: Market, data: Dataset, folder: Path) -> Audit:
    """Return the audit of everything that needs no fit."""
    return audit.quick(settings, pulled, data, store=experiment.store_path(folder, settings.data.source))


@task(cache_policy=NO_CACHE)
def retrain(settings: Config, data: Dataset, as_of: SamplesAsOf, folder: Path, home: Path) -> Fits:
    """Return the fits of every seed and of the baseline; the final fit is saved in `folder`."""
    return experiment.retrain_all(
        settings, data, as_of=as_of, folder=folder, checkpoints=home / experiment.FITS, kept=home / experiment.FOLDS
    )


@task(cache_policy=NO_CACHE)
def build_release(
    settings: Config, data: Dataset, results: list[FoldResult], model_folder: Path, folder: Path
) -> Release:
    """Return the verified release of the final fit."""
    return experiment.build_release(settings, data, results, model_folder, folder)


@task(cache_policy=NO_CACHE)
def score(settings: Config, pulled: Market, fits: Fits) -> scoring.Score:
    """Return what the forecasts were worth."""
    return scoring.score(settings, pulled, fits.seeds, fits.baselines)


@task(cache_policy=NO_CACHE)
def prove(
    settings: Config, pulled: Market, fits: Fits, scored: scoring.Score, *, data: Dataset, audited: Audit
) -> dict[str, Any]:
    """Return the proof that nothing later reached a forecast or a fill."""
    return experiment.prove(settings, pulled, fits, scored, data=data, audited=audited)


@task(cache_policy=NO_CACHE)
def finish(settings: Config, folder: Path, pulled: Market, outcome: Outcome, *, seconds: float) -> Result:
    """Return the result after recording its trials and writing the run."""
    return experiment.finish(settings, folder, pulled, outcome, seconds=seconds)


@flow(name="backtest", validate_parameters=False)
def backtest(
    config: str = "returns",
    model: str | None = None,
    overrides: list[str] | None = None,
    out: str | None = None,
) -> dict[str, Any]:
    """Return the summary of a whole experiment, as `foxflow backtest --json` prints it.

    Parameters
    ----------
    config
        A TOML file, or the name of an embedded config.
    overrides
        `section.key=value` assignments, as after `--set`.
    out
        Folder of store, runs and releases; else $FOXFLOW_HOME, else ./data.
    """
    started = time.monotonic()
    settings = configs.load(config, overrides=overrides or [], model=model)
    experiment.require_runnable(settings)
    folder = experiment.home(out)
    with scratch(folder) as work:
        pulled = pull_market(settings, folder)
        data = build_dataset(settings, pulled)
        as_of = experiment.samples_as_of(settings, pulled, data)
        audited = attack(settings, pulled, data, folder)
        fits = retrain(settings, data, as_of, work / "model", folder)
        scored = score(settings, pulled, fits)
        proof = prove(settings, pulled, fits, scored, data=data, audited=audited)
        bundle = build_release(settings, as_of(fits.released[-1].cut), fits.released, work / "model", folder)
        outcome = Outcome(fits, scored, proof, bundle)
        result = finish(settings, folder, pulled, outcome, seconds=time.monotonic() - started)
    get_run_logger().info("report: %s", result.summary["report"])
    return result.summary


if __name__ == "__main__":
    backtest()
