"""What a run is called and how it repeats; which model is retrained, when, and on what."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from foxflow import cron
from foxflow.config.mapping import require

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Name and reproducibility: every fit's seed derives from (seed, cut).

    `n_seeds`: how many seeds are run, from `seed` on. What is reported is their mean, each of them is a trial, and the
    release is of the first, whichever did best.
    """

    name: str
    seed: int
    n_seeds: int = 1
    threads: int = 1
    workers: int = 2

    def __post_init__(self) -> None:
        require(
            SLUG.fullmatch(self.name) is not None,
            f"name = {self.name!r}; expected lower-case letters, digits, '-' and '_', at most 64, for it names folders",
        )
        require(self.threads == 1, f"threads = {self.threads}; only 1 is repeatable to the bit, so only 1 is allowed")
        require(1 <= self.n_seeds <= 100, f"n_seeds = {self.n_seeds}; expected 1 to 100 seeds")
        require(self.workers >= 1, f"workers = {self.workers}; expected at least 1 process")


@dataclass(frozen=True, kw_only=True)
class WalkForward:
    """A walk-forward, counted in bar times of the universe.

    `train`: bar times before the first test span; `every`: bar times between retrainings, which is the length of
    a test span, left out where a [schedule] says when; `embargo`: extra bar times between the last training label's
    end and the test span; `validation`: share of the training bar times held back, at their end, for early stopping;
    `window`: whether a fold learns from all bar times before its test (expanding) or the newest `train` (rolling).
    """

    train: int
    embargo: int
    every: int | None = None
    validation: float = 0.2
    window: Literal["expanding", "rolling"] = "expanding"

    def __post_init__(self) -> None:
        require(self.train >= 2, f"train = {self.train}; expected at least 2 bars")
        require(self.every is None or self.every >= 1, f"every = {self.every}; expected at least 1 bar")
        require(self.embargo >= 0, f"embargo = {self.embargo}; expected 0 or more bars")
        require(0 < self.validation < 0.5, f"validation = {self.validation}; expected a share between 0 and 0.5")


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """The plugin's name and its raw options, which the registry checks against the plugin's own dataclass."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a model is retrained, in the backtest as at night: a cron line of five fields (`foxflow.cron`) in a zone."""

    cron: str
    time_zone: str

    def __post_init__(self) -> None:
        cron.require(self.cron)
        cron.require_zone(self.time_zone)
