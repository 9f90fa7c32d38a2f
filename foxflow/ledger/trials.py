"""What a trial is: everything that decides its result but the end of the data, and the returns it gave."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import polars as pl

from foxflow import features, labels, metrics, provenance, registry
from foxflow.config import Config, ModelChoice, from_mapping, to_document
from foxflow.dataset import Floats
from foxflow.errors import DataError
from foxflow.ledger.chain import canonical

# Of [experiment] and [data]: what a run is called, how it is computed, and which findings it was not refused for.
WITHOUT_EFFECT = {"experiment": ("name", "seed", "n_seeds", "workers", "threads"), "data": ("accept",)}


@dataclass(frozen=True)
class Trial:
    """One configuration and seed, scored.

    Attributes
    ----------
    recipe
        JSON values; what decides the result but the seed and the end of the data.
    symbols
        That were forecast, ascending.
    sessions
        `(n_sessions,)` dates, ascending.
    returns
        `(n_sessions,)` of the strategy, fractions, net of costs.
    """

    recipe: Mapping[str, Any]
    seed: int
    experiment: str
    run_id: str
    symbols: tuple[str, ...]
    sessions: pl.Series
    returns: Floats

    def __post_init__(self) -> None:
        if not len(self.sessions) or len(self.sessions) != len(self.returns):
            raise DataError(
                f"a trial of {len(self.sessions)} sessions and {len(self.returns)} returns; expected one return for "
                "each of at least one session"
            )
        if not (self.sessions.dtype == pl.Date and self.sessions.diff().dt.total_days().drop_nulls().gt(0).all()):
            raise DataError("the sessions of a trial are not ascending dates; expected each session once, in order")
        if not np.isfinite(self.returns).all():
            raise DataError(f"a trial of run {self.run_id} has returns that are not finite; expected a number each")

    @property
    def key(self) -> str:
        """The sha256 of recipe and seed: equal for the same trial on longer bars."""
        return hashlib.sha256(canonical({"recipe": self.recipe, "seed": self.seed}).encode()).hexdigest()

    @property
    def first(self) -> date:
        """The first session."""
        return _day(self.sessions[0])

    @property
    def last(self) -> date:
        """The last session."""
        return _day(self.sessions[-1])


def _day(value: object) -> date:
    assert isinstance(value, date)
    return value


def recipe(config: Config, bars: pl.DataFrame, forecasts: pl.DataFrame) -> dict[str, Any]:
    """Return what decides a result but the seed and the end of the data, as JSON values.

    The config without `WITHOUT_EFFECT`, every parameter of the model written out; what the named features and the label
    compute; the plugin, its version and, under development, its source; and where the data begins: the first forecast
    and the symbols that had a bar by then. A bar or a symbol that comes later changes none of it.

    Parameters
    ----------
    bars
        With `symbol` and `ts`: what the experiment was given of members, as they were known at each bar.
    forecasts
        With `ts`.
    """
    document = {
        section: {k: v for k, v in values.items() if k not in WITHOUT_EFFECT.get(section, ())}
        for section, values in to_document(config).items()
    }
    document["data"]["symbols"] = sorted(document["data"]["symbols"])
    plugin = registry.load(config.model.name)
    parameters = from_mapping(plugin.Parameters, config.model.options, section="model")
    # A default that is written down is the same model.
    document["model"] = {"name": config.model.name, **asdict(parameters)}
    first = forecasts["ts"].min()
    start = bars.filter(pl.col("ts") <= first)["symbol"].unique().sort().to_list()
    label = labels.find(config.label.name).expression(config.label.horizon, config.data.bar)
    found = {
        "config": {section: values for section, values in document.items() if values},
        "features": {name: _content(features.FEATURES[name].expression) for name in config.features.names},
        "label": _content(label),
        "plugin": provenance.plugin_source(registry.installed()[config.model.name]),
        "start": {"first_ts": forecasts["ts"].dt.timestamp("us").min(), "symbols": start},
    }
    return found


def _content(expression: pl.Expr) -> str:
    """Return the sha256 of what an expression computes, whatever it is called."""
    return hashlib.sha256(expression.meta.serialize(format="json").encode()).hexdigest()


def trials_of(
    config: Config,
    *,
    bars: pl.DataFrame,
    forecasts: pl.DataFrame,
    sessions: pl.DataFrame,
    run_id: str,
    baseline: str | None,
) -> list[Trial]:
    """Return the trials of one run: each seed, the first in front, and the baseline where it was scored.

    Parameters
    ----------
    bars, forecasts
        As `recipe` takes them; the forecasts of the first seed, with `symbol`.
    sessions
        `session` (dates) and what was held at the end of each: `equity` of the first seed, `equity_seed_K` of the
        others and `baseline`, in money.
    baseline
        The model of the column `baseline`, with its own defaults.
    """
    models = {"equity": (config.model, config.experiment.seed)}
    for i in range(1, config.experiment.n_seeds):
        seed = config.experiment.seed + i
        models[f"equity_seed_{seed}"] = (config.model, seed)
    if "baseline" in sessions.columns:
        assert baseline is not None
        models["baseline"] = (ModelChoice(name=baseline), config.experiment.seed)
    # The baseline is another model than the config's.
    recipes = {
        name: recipe(replace(config, model=model), bars, forecasts)
        for name, model in {model.name: model for model, _ in models.values()}.items()
    }
    return [
        Trial(
            recipe=recipes[model.name],
            seed=seed,
            experiment=config.experiment.name,
            run_id=run_id,
            symbols=tuple(forecasts["symbol"].unique().sort()),
            sessions=sessions["session"],
            returns=metrics.returns_of(sessions[column].to_numpy(), initial=config.costs.initial_cash),
        )
        for column, (model, seed) in models.items()
    ]
