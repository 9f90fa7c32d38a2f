"""One TOML an experiment: sections as frozen dataclasses, unknown keys refused by name."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from foxflow.config.costs import Costs
from foxflow.config.execution import Backtest
from foxflow.config.experiment import Experiment, ModelChoice, Schedule, WalkForward
from foxflow.config.mapping import from_mapping
from foxflow.config.samples import Data, Features, Futures, Label
from foxflow.config.strategy import Strategy
from foxflow.errors import ConfigError, unknown

__all__ = [
    "Backtest",
    "Config",
    "Costs",
    "Data",
    "Experiment",
    "Features",
    "Futures",
    "Label",
    "ModelChoice",
    "Schedule",
    "Strategy",
    "WalkForward",
    "embedded",
    "from_mapping",
    "load",
    "parse",
    "to_document",
]


@dataclass(frozen=True, kw_only=True)
class Config:
    """One experiment."""

    experiment: Experiment
    data: Data
    features: Features
    label: Label
    walk_forward: WalkForward
    model: ModelChoice
    strategy: Strategy
    costs: Costs
    backtest: Backtest = field(default_factory=Backtest)
    schedule: Schedule | None = None
    futures: Futures | None = None

    def __post_init__(self) -> None:
        if (self.walk_forward.every is None) == (self.schedule is None):
            both = "are both given" if self.schedule is not None else "are both missing"
            raise ConfigError(
                f"[walk_forward] every and [schedule] {both}; expected exactly one to say when to retrain: every = so "
                "many bar times, or [schedule] cron and time_zone; --set walk_forward.every= takes it away"
            )
        if self.futures is not None:
            if self.data.source == "sample":
                raise ConfigError("[futures] has no effect on [data] source = 'sample', which has none; remove it")
            if self.data.symbols:
                raise ConfigError("[data] symbols has no effect with [futures] roots, which name the series; remove it")
        if self.label.horizon > 1 and self.strategy.hold is None:
            raise ConfigError(
                f"[strategy] hold is required with [label] horizon = {self.label.horizon}; "
                "use hold = 'refresh' (the newest forecast decides) or 'tranches' (each is held for the horizon)"
            )
        if self.label.horizon == 1 and self.strategy.hold is not None:
            raise ConfigError("[strategy] hold has no effect with [label] horizon = 1; remove it")


SECTIONS: Mapping[str, type] = {
    "experiment": Experiment,
    "data": Data,
    "features": Features,
    "label": Label,
    "walk_forward": WalkForward,
    "strategy": Strategy,
    "costs": Costs,
}
# May be left out.
OPTIONAL_SECTIONS: Mapping[str, type] = {"backtest": Backtest, "schedule": Schedule, "futures": Futures}


def parse(document: Mapping[str, object]) -> Config:
    """Return the experiment that a parsed TOML document describes."""
    for name, body in document.items():
        if name not in (*SECTIONS, *OPTIONAL_SECTIONS, "model"):
            raise ConfigError(f"{unknown('section', name, (*SECTIONS, *OPTIONAL_SECTIONS, 'model'))}")
        if not isinstance(body, Mapping):
            raise ConfigError(f"{name} = {body!r}; expected a section [{name}]")
    for name in (*SECTIONS, "model"):
        if name not in document:
            raise ConfigError(f"section [{name}] is missing; copy it from an embedded config: {', '.join(embedded())}")
    options = dict(document["model"])  # type: ignore[call-overload]
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"[model] name = {name!r}; expected the name of an installed model, see `foxflow models list`"
        )
    sections: dict[str, Any] = {
        key: from_mapping(kind, document[key], section=key)  # type: ignore[arg-type]
        for key, kind in {**SECTIONS, **OPTIONAL_SECTIONS}.items()
        if key in document
    }
    return Config(model=ModelChoice(name=name, options=options), **sections)


def load(path: str | Path | None, *, overrides: Sequence[str] = (), model: str | None = None) -> Config:
    """Return the experiment in a TOML file, or the embedded one of that name (`None`: `returns`).

    Parameters
    ----------
    overrides
        `section.key=value` assignments, the value in TOML (a bare word is taken as a string); `section.key=` removes
        the key.
    model
        Run this plugin instead of the config's; another plugin starts from its own defaults.
    """
    document = _document("returns" if path is None else path)
    if model is not None:
        body = document.get("model")
        if not isinstance(body, dict) or body.get("name") != model:
            document["model"] = {"name": model}
    for assignment in overrides:
        _override(document, assignment)
    return parse(document)


def embedded() -> list[str]:
    """Return the names of the configs that ship inside the package."""
    folder = resources.files("foxflow.sample")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def _document(path: str | Path) -> dict[str, Any]:
    if str(path) in embedded():
        text, where = (resources.files("foxflow.sample") / f"{path}.toml").read_text("utf-8"), f"embedded {path}"
    else:
        where = str(path)
        try:
            text = Path(path).read_text("utf-8-sig")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
            raise ConfigError(
                f"no config file at {where!r}; give the path of a TOML file or one of {', '.join(embedded())}"
            ) from e
        except UnicodeDecodeError as e:
            raise ConfigError(f"{where} is not UTF-8 text ({e.reason} at byte {e.start}); save it as UTF-8") from e
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{where} is not valid TOML: {e}; mend that line") from e


def _override(document: dict[str, Any], assignment: str) -> None:
    key, separator, text = assignment.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (separator and dot and section and name):
        raise ConfigError(f"--set {assignment!r}; expected section.key=value, as in --set costs.fee_bps=2")
    if not text.strip():
        _remove(document, section, name)
        return
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    body = document.setdefault(section, {})
    if not isinstance(body, dict):
        raise ConfigError(f"{section} = {body!r}; expected a section [{section}]")
    body[name] = value


def _remove(document: dict[str, Any], section: str, name: str) -> None:
    body = document.get(section)
    if not isinstance(body, dict) or name not in body:
        known = ", ".join(body) if isinstance(body, dict) else "none"
        raise ConfigError(f"--set {section}.{name}= removes that key, but [{section}] sets {known}; drop it")
    del body[name]


def to_document(config: Config) -> dict[str, dict[str, Any]]:
    """Return the experiment as plain TOML values: what `parse` reads back to an equal config."""
    document: dict[str, dict[str, Any]] = {}
    for name in (*SECTIONS, *OPTIONAL_SECTIONS):
        if (section := getattr(config, name)) is None:
            continue
        values = dataclasses.asdict(section)
        document[name] = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}
    document["model"] = {"name": config.model.name, **config.model.options}
    return document
