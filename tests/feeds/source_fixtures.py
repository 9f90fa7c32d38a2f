"""An installed source, and a clock that does not move."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import source_samples
from source_samples import HOUR, START, Freely, Toy, install

from foxflow.bars import BAR_SCHEMA
from foxflow.feeds import intake


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path / "site", {"toy": "source_samples:Toy", "freely": "source_samples:Freely"})
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(Toy, "bars", BAR_SCHEMA.to_frame())
    monkeypatch.setattr(Toy, "asks", [])
    monkeypatch.setattr(Toy, "before", staticmethod(lambda: None))
    monkeypatch.setattr(Freely, "pages", ())
    yield
    assert source_samples.Toy is Toy


@pytest.fixture
def fetch(tmp_path: Path) -> Callable[..., list[intake.Fetched]]:
    """Return `intake.fetch` into a store of the test, 100 hours after START, without waiting."""

    def call(source: str = "toy", **given: Any) -> list[intake.Fetched]:
        now = given.pop("now", 100)
        given = {"symbols": ["AAA"], "bar": "1h", "start": START, "wait": lambda _: None} | given
        options = given.pop("options", {})
        return intake.fetch(tmp_path / "s.duckdb", source, options, clock=lambda: START + now * HOUR, **given)

    return call
