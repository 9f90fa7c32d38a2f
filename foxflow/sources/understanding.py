"""What the first rows of a file settled, and what was found on the way."""

from dataclasses import dataclass, field

from foxflow.sources.forms import Form, Kind
from foxflow.sources.numbers import Style


@dataclass
class Understanding:
    """What the first rows settled, and what was found on the way."""

    style: Style | None = None
    form: Form | None = None
    symbols: set[str] = field(default_factory=set)
    n_faults: int = 0
    n_mended_by_adjusted: int = 0
    n_unknown_volumes: int = 0
    n_inexact_volumes: int = 0
    has_negative: bool = False
    example: str | None = None
    day_zone: str | None = None
    has_begun: bool = False
    clock_digits: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """What the times are: as written, or days where they are the midnights of a zone."""
        assert self.form is not None
        return "date" if self.day_zone is not None else self.form.kind
