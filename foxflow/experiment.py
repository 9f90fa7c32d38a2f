"""The spine: one walk-forward from bars to report, top to bottom. Read this first.

    pull_market -> build_dataset -> retrain -> score -> build_release -> write

`run` calls the steps in that order; the Prefect flow wraps the very same steps in tasks.
"""

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import polars as pl

from foxflow import (
    audit,
    bars,
    dataset,
    endings,
    features,
    ingest,
    labels,
    ledger,
    market,
    metrics,
    processes,
    provenance,
    record,
    registry,
    release,
    scoring,
    signals,
    significance,
    splits,
    training,
)
from foxflow.config import Config, to_document
from foxflow.dataset import Dataset
from foxflow.errors import plugin_call
from foxflow.market import Market
from foxflow.record import Outcome, Result
from foxflow.scoring import Score
from foxflow.scratch import scratch
from foxflow.training import Fits, FoldProgress, FoldResult, Recipe, SamplesAsOf
from foxflow.universe import EVERYTHING, Universe

# Under the home folder: unfinished fits, and folds that were computed before.
FITS = "fits"
FOLDS = "folds"
FITS_KEPT_DAYS = 30

Stage = Callable[[str], None]
"""Called with the name of the step that starts."""


def home(out: str | Path | None) -> Path:
    """Return where store, runs and releases live: `out`, else $FOXFLOW_HOME, else ./data."""
    return Path(out or os.environ.get("FOXFLOW_HOME") or "data")


def store_path(folder: Path, source: str) -> Path:
    """Return the DuckDB file of a source; the sample has its own, so it never mixes with a user's bars."""
    return folder / ("sample.duckdb" if source == "sample" else "bars.duckdb")


def open_store(folder: Path, source: str) -> Path:
    """Return the file of a source that can be read, with the sample imported into its own where that is meant."""
    path = store_path(folder, source)
    if source == "sample":
        path.parent.mkdir(parents=True, exist_ok=True)
        ingest.import_sample(path)
    return path


def require_runnable(config: Config) -> None:
    """Raise what would otherwise only be found after the bars are read or the folds are fitted."""
    values = labels.find(config.label.name).values
    signals.require_fitting(config.strategy, values=values)
    features.lookback(config.features.names)
    bars.sessions_per_year(config.data.calendar)
    registry.build(config.model.name, config.model.options)
    # Read before the plugin runs: its files may be others by the end.
    provenance.plugin_source(registry.installed()[config.model.name])
    release.require_runtime()


def pull_market(config: Config, folder: Path) -> Market:
    """Return the experiment's bars as they came and with what is known of them since."""
    return market.pull(config, open_store(folder, config.data.source))


def build_dataset(
    config: Config,
    adjusted: pl.DataFrame,
    universe: Universe = EVERYTHING,
    delays: Mapping[str, timedelta] | None = None,
) -> Dataset:
    """Return the samples of adjusted bars; `delays` as in `Dataset`."""
    return dataset.build(
        adjusted,
        feature_names=config.features.names,
        label_name=config.label.name,
        horizon=config.label.horizon,
        bar=config.data.bar,
        universe=universe,
        delays=delays,
    )


def samples_as_of(config: Config, pulled: Market, first: Dataset) -> SamplesAsOf:
    """Return what gives the samples as they were known at a cut.

    `first` are those of the bars as they came, and what a cut before any correction sees.
    """

    # Consecutive folds often see the same; no more is kept, for each may be as large as `first`.
    @lru_cache(maxsize=1)
    def built(corrected_at: int) -> Dataset:
        return build_dataset(config, pulled.as_of(corrected_at), pulled.universe, pulled.delays)

    def seen(cut: int) -> Dataset:
        newest = pulled.corrected_at(cut)
        return first if newest is None else built(newest)

    return seen


def retrain(
    config: Config,
    data: Dataset,
    *,
    as_of: SamplesAsOf | None = None,
    model: str | None = None,
    seed: int | None = None,
    folder: Path | None = None,
    checkpoints: Path | None = None,
    kept: Path | None = None,
    pool: processes.Workers | None = None,
    progress: FoldProgress | None = None,
) -> list[FoldResult]:
    """Return the walk-forward's fold results and, with `folder`, that of the final fit, which is saved there.

    `as_of`: what each fold sees, where bars have been corrected. `model`: another plugin on the same folds, with its
    own defaults. `seed`: another than the config's first. `checkpoints`: where an interrupted run left its fits, to go
    on from there. `kept`: where folds that were computed before are, None to compute all. `pool`: as in `training.run`.
    """
    if checkpoints is not None:
        _forget_old(checkpoints)
    times = dataset.bar_times(data)
    known = dataset.known_times(data)
    folds = splits.walk_forward(times, config.walk_forward, schedule=config.schedule, known=known)
    if folder is not None:
        folds.append(splits.final(times, config.walk_forward, number=len(folds)))
    options = config.model.options if model is None else {}
    seed = config.experiment.seed if seed is None else seed
    recipe = Recipe(model or config.model.name, options, seed, config.features.clip)
    forecast = training.require_forecasts(data, folds, recipe)
    own = {s.symbol: s.ts for s in data.series if s.symbol in forecast}
    endings.require_recorded(own, data.universe, times=times, ended=config.data.ended, calendar=config.data.calendar)
    return training.run(
        data,
        folds,
        recipe,
        workers=config.experiment.workers,
        as_of=as_of,
        folder=folder,
        checkpoints=checkpoints,
        kept=kept,
        forecaster=release.forecast_by_graph if config.backtest.score_with == "onnx" else None,
        pool=pool,
        progress=progress,
    )


def retrain_all(
    config: Config,
    data: Dataset,
    *,
    as_of: SamplesAsOf | None = None,
    folder: Path,
    checkpoints: Path,
    kept: Path | None = None,
    progress: FoldProgress | None = None,
) -> Fits:
    """Return the fits of every seed and of the baseline, which a model is printed beside but never beside itself.

    Parameters are those of `retrain`.
    """
    seed, n_seeds = config.experiment.seed, config.experiment.n_seeds
    has_baseline = config.model.name != scoring.BASELINE and scoring.BASELINE in registry.installed()
    with processes.workers(config.experiment.workers) as pool:
        again = partial(retrain, config, data, as_of=as_of, kept=kept, pool=pool)
        first = again(folder=folder, checkpoints=checkpoints, progress=progress)
        others = [again(seed=seed + i, checkpoints=checkpoints, progress=progress) for i in range(1, n_seeds)]
        return Fits((first, *others), {scoring.BASELINE: again(model=scoring.BASELINE)} if has_baseline else {})


def run(
    config: Config,
    folder: Path,
    *,
    cached: bool = True,
    stage: Stage = lambda _: None,
    progress: FoldProgress | None = None,
) -> Result:
    """Return the result of the whole experiment; without `cached`, every fold and the release are computed anew.

    Where it fails or is interrupted nothing is left behind but `fits/` and `folds/`, from which the same run goes on.
    """
    started = time.monotonic()
    require_runnable(config)
    with scratch(folder) as work:
        stage("bars")
        pulled = pull_market(config, folder)
        data = build_dataset(config, pulled.first, pulled.universe, pulled.delays)
        as_of = samples_as_of(config, pulled, data)
        stage("audit")
        audited = audit.quick(config, pulled, data, store=store_path(folder, config.data.source))
        stage("retrain")
        fits = retrain_all(
            config,
            data,
            as_of=as_of,
            folder=work / "model",
            checkpoints=folder / FITS,
            kept=folder / FOLDS if cached else None,
            progress=progress,
        )
        stage("score")
        scored = scoring.score(config, pulled, fits.seeds, fits.baselines)
        proof = prove(config, pulled, fits, scored, data=data, audited=audited)
        stage("release")
        bundle = build_release(config, as_of(fits.released[-1].cut), fits.released, work / "model", folder)
        stage("report")
        outcome = Outcome(fits, scored, proof, bundle)
        return finish(config, folder, pulled, outcome, seconds=time.monotonic() - started)


def prove(
    config: Config, pulled: Market, fits: Fits, scored: Score, *, data: Dataset, audited: audit.Audit
) -> dict[str, Any]:
    """Return the proof that nothing later reached a forecast or a fill: keys `audit` and `folds` of the summary.

    Raises
    ------
    LeakageError
        Where a fold or a fill contradicts it, before any score is shown.
    """
    folds = [audit.prove(config, data, results) for results in fits.seeds]
    for name, results in fits.baselines.items():
        audit.prove(config, data, results, model=name)
    fills = audit.require_fills(config, pulled, scored.book, endings=scored.endings)
    timeline = audit.timeline(config, pulled, fits.released, scored.book)
    checks = [dataclasses.asdict(check) for check in (*audited.checks, fills)]
    return {
        "audit": {"passed": True, "seconds": audited.seconds, "checks": checks, "timeline": timeline},
        "folds": folds[0],
    }


def weigh(config: Config, folder: Path, pulled: Market, scored: Score, *, run_id: str) -> record.Weighed:
    """Record the run's trials and return how likely its result is luck, given all that was tried on these bars."""
    begins = pulled.first.filter(pl.col("ts") <= scored.outcomes["ts"].min())
    trials = ledger.trials_of(
        config,
        # Where a universe is recorded it says who there was: with other members it is another trial.
        bars=begins.filter(pulled.universe.mask(begins)),
        forecasts=scored.outcomes,
        sessions=scored.sessions,
        run_id=run_id,
        baseline=scoring.BASELINE,
    )
    # Before anything is shown: what is scored and then given up was tried.
    height = ledger.record(folder, trials)
    first = trials[0]
    family = ledger.family(folder, symbols=first.symbols, first=first.first, last=first.last)
    found = significance.assess(
        [trial.returns for trial in trials[: config.experiment.n_seeds]],
        metrics.returns_of(scored.sessions["benchmark"].to_numpy(), initial=config.costs.initial_cash),
        periods_per_year=bars.sessions_per_year(config.data.calendar),
        trials=significance.Trials(family.returns, is_known=family.is_known, note=family.note),
        seed=config.experiment.seed,
    )
    return record.Weighed(height, {**found, "ledger": dataclasses.asdict(height)})


def finish(config: Config, folder: Path, pulled: Market, outcome: Outcome, *, seconds: float) -> Result:
    """Return the result after recording its trials and writing its folder."""
    run_id = record.name_run(config)
    weighed = weigh(config, folder, pulled, outcome.scored, run_id=run_id)
    result = record.write(config, folder, outcome, weighed, run_id=run_id, seconds=seconds)
    _forget([r for seed in outcome.fits.seeds for r in seed])
    return result


def build_release(
    config: Config, data: Dataset, results: list[FoldResult], model_folder: Path, folder: Path
) -> release.Release:
    """Return the release of the final fit, verified against it, under `releases/<experiment>/`.

    `data` are the samples that the final fit saw.
    Built in a process of one thread, as the fit was: forecasts, and with them the release, are then the same bits on
    any machine of one kind. One that was made of the same fit before is taken where it is whole.
    """
    into = folder / "releases" / config.experiment.name
    named = release.name_of(results[-1], data, since=results[0].fold.test_start, config=to_document(config))
    found = None if named is None else release.read(folder / FOLDS, named, into=into)
    if found is not None:
        return found
    with processes.workers(1) as pool:
        made = pool.submit(_build_release, config, data, results, model_folder, into).result()
    if named is not None:
        release.keep(folder / FOLDS, named, made)
    return made


def _build_release(
    config: Config, data: Dataset, results: list[FoldResult], model_folder: Path, into: Path
) -> release.Release:
    model = registry.build(config.model.name, config.model.options)
    with plugin_call(config.model.name, "load"):
        fitted = model.load(model_folder)
    return release.build(
        fitted,
        data,
        results[-1],
        since=results[0].fold.test_start,
        checkpoint=model_folder,
        config=to_document(config),
        folder=into,
    )


def _forget_old(checkpoints: Path) -> None:
    """Remove unfinished fits that nobody went on with for `FITS_KEPT_DAYS`: their run was changed or given up."""
    oldest = time.time() - FITS_KEPT_DAYS * 86_400
    for fit in checkpoints.glob("*"):
        if max((p.stat().st_mtime for p in (fit, *fit.glob("*"))), default=oldest) < oldest:
            shutil.rmtree(fit, ignore_errors=True)


def _forget(results: list[FoldResult]) -> None:
    """Remove what the fits of a run that is now written kept in case of an interruption."""
    kept = [r.checkpoints for r in results if r.checkpoints is not None]
    for folder in kept:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in {f.parent for f in kept if f.parent.exists()}:
        # Fits of other runs stay, and their folder with them.
        with contextlib.suppress(OSError):
            folder.rmdir()
