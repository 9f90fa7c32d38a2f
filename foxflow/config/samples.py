"""Which bars, and what is made of them: features and label."""

from dataclasses import dataclass
from typing import Literal

from foxflow.config.mapping import require

# Forty years of sessions; more is a slip of the finger, which would overflow before it failed.
LONGEST_HORIZON = 10_000


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
            require(
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
        require(len(self.roots) > 0, "roots = []; expected at least one root, as in ES")
        require(len(set(self.roots)) == len(self.roots), f"roots = {list(self.roots)}; expected each root once")
        if self.roll == "calendar":
            require(self.days_before is not None, "days_before is required with roll = 'calendar'")
            require((self.days_before or 0) >= 0, f"days_before = {self.days_before}; expected 0 or more sessions")
        else:
            require(self.days_before is None, f"days_before has no effect with roll = {self.roll!r}; remove it")


@dataclass(frozen=True, kw_only=True)
class Features:
    """Feature names, in the order of the model's columns, and the clip in robust standard units."""

    names: tuple[str, ...]
    clip: float = 5.0

    def __post_init__(self) -> None:
        require(len(self.names) > 0, "names = []; expected at least one feature")
        require(len(set(self.names)) == len(self.names), f"names = {list(self.names)}; expected each feature once")
        require(self.clip > 0, f"clip = {self.clip}; expected a positive number of robust standard units")


@dataclass(frozen=True, kw_only=True)
class Label:
    """What is predicted and over how many bars."""

    name: str
    horizon: int

    def __post_init__(self) -> None:
        require(
            1 <= self.horizon <= LONGEST_HORIZON, f"horizon = {self.horizon}; expected 1 to {LONGEST_HORIZON:,} bars"
        )
