"""One TOML an experiment: sections as frozen dataclasses, unknown keys refused by name."""

import dataclasses
import math
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from foxflow.errors import ConfigError, unknown

Section = TypeVar("Section")
# Forty years of sessions; more is a slip of the finger, which would overflow before it failed.
LONGEST_HORIZON = 10_000
SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def from_mapping(kind: type[Section], values: Mapping[str, object], *, section: str) -> Section:
    """Return `kind` (a dataclass) filled from one TOML section, every key and type checked.

    Raises
    ------
    ConfigError
        On an unknown key (naming the nearest), a missing required key, a value of another type, or a
        ValueError from the dataclass's own `__post_init__`.
    """
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for key in values:
        if key not in fields:
            raise ConfigError(f"[{section}] {unknown('key', key, fields)}")
    for name, each in fields.items():
        required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(
                f"[{section}] {name} is required and missing; add `{name} = ...` to the section, or --set"
            )
    checked = {key: _checked(value, hints[key], where=f"[{section}] {key}") for key, value in values.items()}
    try:
        return kind(**checked)
    except ValueError as e:
        raise ConfigError(f"[{section}] {e}") from e


def _checked(value: object, hint: Any, *, where: str) -> object:  # noqa: ANN401  (any annotation)
    """Return `value` as the type `hint` asks for: exact types, whole numbers allowed for floats, lists for tuples."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        # Only `X | None`: TOML has no null, so a value that is given must be an X.
        return _checked(value, next(a for a in arguments if a is not type(None)), where=where)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{where} = {value!r}; expected one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r}; expected a list")
        return tuple(_checked(v, arguments[0], where=f"{where}[{i}]") for i, v in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ConfigError(f"{where} = {value!r} is {type(value).__name__}; expected {hint.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} = {value!r}; expected a finite number")
    return value


def _require(condition: bool, message: str) -> None:  # noqa: FBT001  (reads as assert does)
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Name and reproducibility: every fit's seed derives from (seed, cut)."""

    name: str
    seed: int
    threads: int = 1
    workers: int = 2

    def __post_init__(self) -> None:
        _require(
            SLUG.fullmatch(self.name) is not None,
            f"name = {self.name!r}; expected lower-case letters, digits, '-' and '_', at most 64, for it names folders",
        )
        _require(self.threads == 1, f"threads = {self.threads}; only 1 is repeatable to the bit, so only 1 is allowed")
        _require(self.workers >= 1, f"workers = {self.workers}; expected at least 1 process")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which bars: the embedded sample or the store, which symbols (empty = all), which bar length.

    `stored_bar`: the length of the bars read, where `bar` is made of smaller ones; `anchor` and `outside_sessions` say
    how (see `resample.resample`; `clock` and `refuse` where nothing is said).
    `accept`: the severe findings of `foxflow bars check` that training takes all the same, by name (`check.gate`).
    `ended`: what becomes of a symbol whose bars end without a recorded end; None refuses it (see `endings.find`).
    """

    source: Literal["sample", "store"]
    bar: str
    calendar: str
    symbols: tuple[str, ...] = ()
    ended: Literal["last_close"] | None = None
    accept: tuple[str, ...] = ()
    stored_bar: str | None = None
    anchor: Literal["clock", "session"] | None = None
    outside_sessions: Literal["refuse", "drop", "join"] | None = None

    def __post_init__(self) -> None:
        for name in ("anchor", "outside_sessions"):
            _require(
                self.stored_bar is not None or getattr(self, name) is None,
                f"{name} has no effect without stored_bar; remove it, or name the length of the bars to read",
            )


@dataclass(frozen=True, kw_only=True)
class Futures:
    """Continuous series of futures, each called by its root; see `futures.continuous`."""

    roots: tuple[str, ...]
    roll: Literal["volume", "open_interest", "calendar"]
    adjust: Literal["ratio", "difference"]
    days_before: int | None = None

    def __post_init__(self) -> None:
        _require(len(self.roots) > 0, "roots = []; expected at least one root, as in ES")
        _require(len(set(self.roots)) == len(self.roots), f"roots = {list(self.roots)}; expected each root once")
        if self.roll == "calendar":
            _require(self.days_before is not None, "days_before is required with roll = 'calendar'")
            _require((self.days_before or 0) >= 0, f"days_before = {self.days_before}; expected 0 or more sessions")
        else:
            _require(self.days_before is None, f"days_before has no effect with roll = {self.roll!r}; remove it")


@dataclass(frozen=True, kw_only=True)
class Features:
    """Feature names, in the order of the model's columns, and the clip in robust standard units."""

    names: tuple[str, ...]
    clip: float = 5.0

    def __post_init__(self) -> None:
        _require(len(self.names) > 0, "names = []; expected at least one feature")
        _require(len(set(self.names)) == len(self.names), f"names = {list(self.names)}; expected each feature once")
        _require(self.clip > 0, f"clip = {self.clip}; expected a positive number of robust standard units")


@dataclass(frozen=True, kw_only=True)
class Label:
    """What is predicted and over how many bars."""

    name: str
    horizon: int

    def __post_init__(self) -> None:
        _require(
            1 <= self.horizon <= LONGEST_HORIZON, f"horizon = {self.horizon}; expected 1 to {LONGEST_HORIZON:,} bars"
        )


@dataclass(frozen=True, kw_only=True)
class WalkForward:
    """Expanding walk-forward, counted in bar times of the universe.

    `train`: bar times before the first test span; `every`: bar times between retrainings, which is the length of
    a test span; `embargo`: extra bar times between the last training label's end and the test span;
    `validation`: share of the training bar times held back, at their end, for early stopping.
    """

    train: int
    every: int
    embargo: int
    validation: float = 0.2

    def __post_init__(self) -> None:
        _require(self.train >= 2, f"train = {self.train}; expected at least 2 bars")
        _require(self.every >= 1, f"every = {self.every}; expected at least 1 bar")
        _require(self.embargo >= 0, f"embargo = {self.embargo}; expected 0 or more bars")
        _require(0 < self.validation < 0.5, f"validation = {self.validation}; expected a share between 0 and 0.5")


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How a forecast becomes a position (a fraction of equity per symbol).

    `direction` holds `position_limit` in the forecast's direction where |forecast| reaches `threshold_bps`;
    `volatility_target` holds `position_limit` times `target_volatility` (a fraction per bar) over the forecast
    volatility, at most `position_limit` itself. The sum of absolute positions never exceeds `gross_limit`.
    """

    kind: Literal["direction", "volatility_target"]
    side: Literal["long_only", "long_short"]
    position_limit: float
    rebalance_band: float
    hold: Literal["refresh", "tranches"] | None = None
    threshold_bps: float | None = None
    target_volatility: float | None = None
    gross_limit: float = 1.0

    def __post_init__(self) -> None:
        _require(0 < self.position_limit <= 1, f"position_limit = {self.position_limit}; expected a fraction in (0, 1]")
        _require(0 < self.gross_limit <= 1, f"gross_limit = {self.gross_limit}; expected a fraction in (0, 1]")
        _require(self.rebalance_band >= 0, f"rebalance_band = {self.rebalance_band}; expected 0 or more")
        wants, idle = (
            ("threshold_bps", "target_volatility")
            if self.kind == "direction"
            else ("target_volatility", "threshold_bps")
        )
        _require(getattr(self, wants) is not None, f"{wants} is required with kind = {self.kind!r}")
        _require(getattr(self, wants) >= 0, f"{wants} = {getattr(self, wants)}; expected 0 or more")
        _require(getattr(self, idle) is None, f"{idle} has no effect with kind = {self.kind!r}; remove it")
        _require(
            self.kind == "direction" or self.side == "long_only",
            "side = 'long_short' has no effect with kind = 'volatility_target'; use 'long_only'",
        )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a fill, in basis points of its value; zero must be written down."""

    fee_bps: float
    slippage_bps: float
    initial_cash: float = 1_000_000.0

    def __post_init__(self) -> None:
        _require(0 <= self.fee_bps < 1_000, f"fee_bps = {self.fee_bps}; expected basis points in [0, 1000)")
        _require(
            0 <= self.slippage_bps < 1_000, f"slippage_bps = {self.slippage_bps}; expected basis points in [0, 1000)"
        )
        # Less buys so small a share of anything that vectorbt takes the order for none.
        _require(self.initial_cash >= 1, f"initial_cash = {self.initial_cash}; expected an amount of at least 1")


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """The plugin's name and its raw options, which the registry checks against the plugin's own dataclass."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)


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
    futures: Futures | None = None

    def __post_init__(self) -> None:
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
OPTIONAL_SECTIONS: Mapping[str, type] = {"futures": Futures}


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
        `section.key=value` assignments, the value in TOML (a bare word is taken as a string).
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
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    body = document.setdefault(section, {})
    if not isinstance(body, dict):
        raise ConfigError(f"{section} = {body!r}; expected a section [{section}]")
    body[name] = value


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
