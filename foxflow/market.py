"""The bars of an experiment: as they came, and as they were known when a fold was fitted.

A correction says other values for a bar that is stored, from its `known_at` on. Whoever trades meets a bar as it came,
and a model that was fitted yesterday goes on with what it saw: the correction takes effect at the next fit. So a fold
sees the newest values known at its cut, and the first known values of the bars that no correction had reached by then,
among them all bars after the cut. Fills, outcomes and equity are of the first known values throughout.
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import polars as pl

from foxflow import bars, store
from foxflow.config import Config
from foxflow.errors import DataError
from foxflow.universe import EVERYTHING, Universe


@dataclass(frozen=True)
class Market:
    """Bars adjusted for splits and dividends (`bars.BAR_SCHEMA`), sorted by (symbol, ts).

    Attributes
    ----------
    first
        The first known values of every bar.
    events
        The splits and dividends that adjust them (`bars.EVENT_SCHEMA`).
    corrected
        The raw first known values of the symbols that have a correction.
    corrections
        All later values of single bars, raw (`store.REVISION_SCHEMA`), sorted by (symbol, ts, known_at).
    universe
        Who is a member when, whatever symbols were pulled.
    """

    first: pl.DataFrame
    events: pl.DataFrame
    corrected: pl.DataFrame
    corrections: pl.DataFrame
    universe: Universe = EVERYTHING

    def as_of(self, cut: int) -> pl.DataFrame:
        """Return the adjusted bars that a fold with that cut (int64 us) sees; `first` where no correction was known."""
        known = self.corrections.filter(pl.col("known_at").dt.timestamp("us") <= cut)
        if known.is_empty():
            return self.first
        newest = known.unique(["symbol", "ts"], keep="last", maintain_order=True).drop("known_at")
        touched = newest["symbol"].unique().to_list()
        raw = self.corrected.filter(pl.col("symbol").is_in(touched))
        kept = raw.join(newest, on=["symbol", "ts"], how="anti")
        mended = bars.require(pl.concat([kept, newest.select(kept.columns)]), where="corrected bars")
        others = self.first.filter(~pl.col("symbol").is_in(touched))
        return pl.concat([others, bars.adjust(mended, self.events)]).sort("symbol", "ts")

    def corrected_at(self, cut: int) -> int | None:
        """Return when the newest correction known at a cut became known (int64 us), None where none was.

        Cuts with the same answer see the same bars.
        """
        times = self.corrections["known_at"].dt.timestamp("us")
        newest = times.filter(times <= cut).max()
        return None if newest is None else int(newest)  # type: ignore[arg-type]

    def n_corrections(self, cut: int | None = None) -> int:
        """Return how many corrections there are, or how many were known at a cut (int64 us)."""
        times = self.corrections["known_at"].dt.timestamp("us")
        return len(times) if cut is None else int((times <= cut).sum())

    def adjustments(self) -> dict[str, dict[str, int]]:
        """Return how many events of each kind (`bars.EVENT_KINDS`) lie between a symbol's first bar and its last."""
        counts = {s: dict.fromkeys(bars.EVENT_KINDS, 0) for s in self.first["symbol"].unique().sort()}
        spans = self.first.group_by("symbol").agg(first=pl.col("ts").min(), last=pl.col("ts").max())
        # What happened at the first bar itself changed nobody's holding.
        within = (pl.col("ts") > pl.col("first")) & (pl.col("ts") <= pl.col("last"))
        for symbol, kind in self.events.join(spans, on="symbol").filter(within).select("symbol", "kind").iter_rows():
            counts[symbol][kind] += 1
        return counts


def of(adjusted: pl.DataFrame) -> Market:
    """Return the market of adjusted bars that were never corrected."""
    empty = store.REVISION_SCHEMA.to_frame()
    return Market(adjusted, bars.EVENT_SCHEMA.to_frame(), adjusted.clear(), empty)


def pull(config: Config, path: Path) -> Market:
    """Return the market of an experiment from its store.

    Raises
    ------
    DataError
        When the store cannot be read, holds no such bars, or a bar or event is not sound.
    """
    name, symbols = config.data.bar, config.data.symbols
    raw = bars.require(store.read_first(path, bar=name, symbols=symbols), where=str(path))
    # A bar that came in between the two readings is left out, and so are its corrections.
    corrections = store.read_revisions(path, bar=name, symbols=symbols).join(
        raw, on=["symbol", "ts"], how="semi", maintain_order="left"
    )
    events = store.read_events(path, symbols=raw["symbol"].unique().to_list())
    if len(events) and bars.bar_length(name) < timedelta(days=1):
        raise DataError(
            f"{events['symbol'][0]} has splits or dividends, which are dated by session, and [data] bar = "
            f"{name!r}; only daily bars can be adjusted: use bar = '1d' or leave that symbol out"
        )
    corrected = raw.filter(pl.col("symbol").is_in(corrections["symbol"].unique().to_list()))
    universe = Universe.of(store.read_universe(path))
    return Market(bars.adjust(raw, events), events, corrected, corrections, universe)
