"""What an audit found: which attack was made on what, how often, and that it held."""

from dataclasses import asdict, dataclass
from typing import Any

from foxflow.errors import LeakageError


@dataclass(frozen=True)
class Check:
    """An attack that was withstood: `n` times on `target`; `note` says what else a reader should know."""

    attack: str
    target: str
    n: int
    note: str = ""


@dataclass(frozen=True)
class Audit:
    """The checks of an audit that found no leak (one that finds a leak raises), and how long they took."""

    checks: tuple[Check, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return what a run's summary holds."""
        return {"passed": True, "seconds": self.seconds, "checks": [asdict(c) for c in self.checks]}


def accuse(seen: str, expected: str, remedy: str) -> LeakageError:
    """Return the error of a leak: what was seen, what was expected, what to do."""
    return LeakageError(f"{seen}; expected {expected}; {remedy}")
