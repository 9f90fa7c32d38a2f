"""Sources for tests: how one is installed, and one that does what a test tells it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from foxflow.bars import BAR_SCHEMA

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
Ask = tuple[tuple[str, ...], str, datetime, datetime]


def install(folder: Path, sources: Mapping[str, str], *, distribution: str = "toy-source") -> None:
    """Write what pip would: a distribution whose entry points are these sources of bars."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    points = "\n".join(f"{name} = {value}" for name, value in sources.items())
    (info / "entry_points.txt").write_text(f"[foxflow.sources]\n{points}\n")


def hourly(symbol: str, first: int, last: int, *, close: float = 10.0) -> pl.DataFrame:
    """Return the bars that are complete `first` to `last` hours after START, the close of each its own."""
    hours = range(first, last + 1)
    return pl.DataFrame(
        {
            "symbol": [symbol] * len(hours),
            "ts": [START + h * HOUR for h in hours],
            "open": [close] * len(hours),
            "high": [close + 200.0] * len(hours),
            "low": [1.0] * len(hours),
            "close": [close + h / 100 for h in hours],
            "volume": [float(h) for h in hours],
        },
        schema=BAR_SCHEMA,
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """Nothing that matters."""

    size: int = 2
    delay_s: float = 0.0


class Toy:
    """Hands over `bars` in pages of `size`, and does before each page what `before` says."""

    name = "toy"
    Parameters = Options
    bars = BAR_SCHEMA.to_frame()
    asks: ClassVar[list[Ask]] = []
    before: Callable[[], Any] = staticmethod(lambda: None)

    def __init__(self, parameters: Options) -> None:
        self.parameters = parameters

    @property
    def origin(self) -> str:
        return "toy"

    @property
    def delay(self) -> timedelta:
        return timedelta(seconds=self.parameters.delay_s)

    def fetch(self, symbols: Sequence[str], *, bar: str, start: datetime, end: datetime) -> Iterator[pl.DataFrame]:
        self.asks.append((tuple(symbols), bar, start, end))
        wanted = (
            type(self)
            .bars.filter(pl.col("symbol").is_in(list(symbols)), pl.col("ts") > start, pl.col("ts") <= end)
            .sort("ts", "symbol")
        )
        for page in wanted.iter_slices(self.parameters.size):
            type(self).before()
            yield page
        type(self).before()


class Freely(Toy):
    """Hands over whatever `pages` is."""

    name = "freely"
    pages: Any = ()

    def fetch(self, symbols: Sequence[str], *, bar: str, start: datetime, end: datetime) -> Any:
        return type(self).pages
