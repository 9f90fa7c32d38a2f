"""THE CONTRACT OF A SOURCE: an exchange or a vendor that hands over bars when it is asked for them.

A source is an installed package with an entry point in the group `foxflow.sources`:

    [project.entry-points."foxflow.sources"]
    mine = "my_source:Mine"

It fetches, and nothing else. Around it, `foxflow.feeds.intake` keeps each page in the store as it comes, remembers
which times the source has answered for and asks only for the others, waits and asks again when it does not answer,
and settles what it restates. `foxflow.feeds.ccxt` is one to read.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol

import polars as pl

from foxflow.bars import BAR_SCHEMA
from foxflow.errors import DataError, UnavailableError

__all__ = ["BAR_SCHEMA", "DataError", "Source", "UnavailableError"]


class Source(Protocol):
    """A source plugin: built by the registry as `Plugin(parameters)`.

    `Parameters` is a frozen dataclass; a user's options are checked against its fields. A key or a password is never
    among them: they say in which environment variable it is.
    """

    name: ClassVar[str]
    Parameters: ClassVar[type[Any]]

    def __init__(self, parameters: Any) -> None: ...  # noqa: ANN401  (an instance of the plugin's own Parameters)

    @property
    def origin(self) -> str:
        """Where the bars come from, as in `ccxt binance`.

        What was fetched is remembered by it: two settings that may give other bars have two origins.
        """

    @property
    def delay(self) -> timedelta:
        """How long after its `ts` a bar can be known: it is not asked for before, and stored as known from then on."""

    def fetch(self, symbols: Sequence[str], *, bar: str, start: datetime, end: datetime) -> Iterator[pl.DataFrame]:
        """Yield the bars of `symbols` with `start < ts <= end` in pages (`BAR_SCHEMA`), which may be empty.

        Raw and complete: prices not adjusted, `ts` the UTC instant the bar was complete, nothing that is still in the
        making. A symbol's bars ascend over all pages, and a page leaves out none that came before its last one: when
        it is kept, they are taken for fetched. Its size is what one answer of the source holds.

        Raises
        ------
        UnavailableError
            The source did not answer, or asked to be left alone; with `retry_after_s` where it said for how long. The
            pages until then are kept, and `fetch` is called again for the rest.
        DataError
            What is asked for does not exist, naming what does.
        """
