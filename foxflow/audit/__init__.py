"""The leak gate: every step from stored bars to fills is attacked, and a score is shown only if all of them hold.

An attack calls the very functions that a run calls, through their modules, so it finds what a feature, a plugin or a
change of foxflow itself lets through. Where truth is needed, it is worked out again from bars and their times.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from foxflow import market, registry
from foxflow.audit import folds, models, outcomes, reading, samples, trading
from foxflow.audit.checks import Audit, Check, accuse
from foxflow.audit.corruption import first_difference
from foxflow.audit.folds import prove, require_after_cut
from foxflow.audit.trading import require_fills, timeline
from foxflow.config import Config
from foxflow.dataset import Dataset
from foxflow.market import Market
from foxflow.splits import Fold

__all__ = ["Audit", "Check", "full", "prove", "quick", "require_after_cut", "require_fills", "timeline"]

QUICK_CUTS, FULL_CUTS = 2, 12
QUICK_FOLDS, FULL_FOLDS = 12, 10_000


def quick(config: Config, pulled: Market, data: Dataset, *, store: Path | None = None) -> Audit:
    """Return the audit of bars, features, labels, splits and scaler, without a fit.

    Parameters
    ----------
    data
        The samples of `pulled.first`.
    store
        The DuckDB file that `pulled` came from; None leaves the reading of stored bars unattacked.

    Raises
    ------
    LeakageError
        On the first leak, naming the guilty feature, label, fold or step and the first bar.
    """
    started = time.monotonic()
    checks: list[Check] = []
    if store is not None:
        checks += reading.attack(config, pulled, store, n=QUICK_CUTS, in_part=True)
    checks += _without_fit(config, pulled, data, full=False)
    return Audit(tuple(checks), time.monotonic() - started)


def full(config: Config, store: Path) -> Audit:
    """Return the audit of everything, with fits of the experiment's own model on two folds.

    Parameters
    ----------
    store
        The DuckDB file with the experiment's bars.

    Raises
    ------
    LeakageError
        On the first leak, naming the guilty feature, label, fold, model or step and the first bar.
    """
    started = time.monotonic()
    pulled = market.pull(config, store)
    data = samples.build(config, pulled.first, pulled.universe, pulled.delays)
    checks = reading.attack(config, pulled, store, n=FULL_CUTS, in_part=False)
    checks += _without_fit(config, pulled, data, full=True)
    checks += _with_fits(config, pulled, data)
    return Audit(tuple(checks), time.monotonic() - started)


def _without_fit(config: Config, pulled: Market, data: Dataset, *, full: bool) -> Iterator[Check]:
    bars = pulled.first if full else samples.few(pulled.first)
    yield _same_samples(config, pulled, data)
    when = samples.moments(config, bars, full=full)
    yield from samples.attack_features(config, bars, when)
    if full:
        yield from samples.attack_impulses(config, bars)
    yield from outcomes.attack_labels(config, bars, when)
    warmup_bars = registry.build(config.model.name, config.model.options).warmup_bars
    most_folds = FULL_FOLDS if full else QUICK_FOLDS
    yield from folds.attack_splits(config, data, warmup_bars=warmup_bars, most_folds=most_folds)
    again = partial(samples.build, config, universe=pulled.universe)
    yield from folds.attack_scaler(config, pulled.first, data, again, warmup_bars=warmup_bars, full=full)


def _same_samples(config: Config, pulled: Market, data: Dataset) -> Check:
    """Hold the samples that the folds are given against those of the bars."""
    own = samples.build(config, pulled.first, pulled.universe)
    end = int(max(s.ts[-1] for s in own.series))
    for array in ("features", "label", "label_end"):
        both = samples.earlier(data, own, array, until=end)
        pairs = [(symbol, ts, a.astype(np.float64), b.astype(np.float64)) for symbol, ts, a, b in both]
        found = first_difference(pairs)
        if found is not None:
            raise accuse(
                f"the {array} of {found.when} is {found.before:.9g} in the samples that are trained on and "
                f"{found.after:.9g} in those of the bars",
                "the samples that dataset.build makes of the bars",
                "change nothing in between",
            )
    return Check("samples of the bars", "features and labels", sum(len(s) for s in own.series))


def _with_fits(config: Config, pulled: Market, data: Dataset) -> Iterator[Check]:
    walk = [fold for fold in folds.walk(config, data) if not fold.is_final]
    chosen: list[Fold] = walk[:1] if len(walk) == 1 else [walk[0], walk[1]]
    made = [models.fit(config, data, fold) for fold in chosen]
    results = [m.result for m in made if m.result is not None]
    prove(config, data, results)
    yield Check("proof of each fold", f"model {config.model.name!r}", len(results))
    for one in made[:1]:
        yield from models.attack_forecasts(config, one)
        yield from models.attack_graphs(config, one)
    again = partial(samples.build, config, universe=pulled.universe)
    yield from models.attack_fitted_scaler(config, made[0], pulled.first, again)
    yield from models.attack_fit(config, made[-1], pulled.first, again)
    yield from trading.attack_trading(config, pulled, results)
