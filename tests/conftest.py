"""Small hand-made bars and the embedded sample, shared by the tests."""

import os

# Bits are repeatable with one thread, and that is how fits run; set before anything can load numpy or torch.
os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from foxflow import adjustment, sample
from foxflow.bars import BAR_SCHEMA
from foxflow.config import Costs


def daily_bars(
    opens: Sequence[float], closes: Sequence[float] | None = None, *, symbol: str = "AAA", start: int = 0
) -> pl.DataFrame:
    """Return bars of one symbol, one a day at 21:00 UTC, whose high and low are those of open and close."""
    closes = opens if closes is None else closes
    first = datetime(2024, 1, 1, 21, tzinfo=UTC) + timedelta(days=start)
    return pl.DataFrame(
        {
            "symbol": [symbol] * len(opens),
            "ts": [first + timedelta(days=i) for i in range(len(opens))],
            "open": opens,
            "high": [max(o, c) for o, c in zip(opens, closes, strict=True)],
            "low": [min(o, c) for o, c in zip(opens, closes, strict=True)],
            "close": closes,
            "volume": [1000.0] * len(opens),
        },
        schema=BAR_SCHEMA,
        strict=False,
    )


def free(**costs: float | None) -> Costs:
    """Return costs that are all zero but for those given."""
    return replace(
        Costs(
            fee_bps=0.0,
            fee_per_share=0.0,
            minimum_fee=0.0,
            half_spread_bps=0.0,
            impact=0.0,
            borrow_bps=0.0,
            financing_bps=0.0,
        ),
        **costs,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="session")
def stocks() -> pl.DataFrame:
    """Return the embedded sample, adjusted."""
    return adjustment.adjust(sample.load_bars(), sample.load_events())


_REAL_FILES = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture(scope="session")
def real_files(request: pytest.FixtureRequest) -> list[tuple[str, str, str]]:
    """Return the table of real files, to be filled: name, outcome, and what was said of it."""
    return request.config.stash.setdefault(_REAL_FILES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of real files, where they were read."""
    table = terminalreporter.config.stash.get(_REAL_FILES, [])
    if table:
        terminalreporter.section("real files")
        for name, outcome, says in table:
            terminalreporter.line(f"{name:60}  {outcome:18}  {says[:300]}")
