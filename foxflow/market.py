"""The bars of an experiment: as they came, and as they were known when a fold was fitted.

A correction says other values for a bar that is stored, from its `known_at` on. Whoever trades meets a bar as it came,
and a model that was fitted yesterday goes on with what it saw: the correction takes effect at the next fit. So a fold
sees the newest values known at its cut, and the first known values of the bars that no correction had reached by then,
among them all bars after the cut. Fills, outcomes and equity are of the first known values throughout.

Stored bars are raw, of one length and, for futures, of one contract each. A `Reading` makes them the experiment's:
adjusted for splits and dividends, or continuous series of futures; then of a larger length, where that is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from foxflow import adjustment, bars, futures, resample, store
from foxflow.check import gate
from foxflow.config import Config, Data, Futures
from foxflow.errors import DataError
from foxflow.universe import EVERYTHING, Universe


@dataclass(frozen=True)
class Reading:
    """How raw stored bars become those of an experiment.

    Attributes
    ----------
    events
        Splits and dividends (`bars.EVENT_SCHEMA`).
    contracts
        All revisions of the futures contracts (`futures.CONTRACT_REVISION_SCHEMA`).
    open_interest
        `futures.OPEN_INTEREST_SCHEMA`, None where it decides no roll.
    until
        The newest stored bar: how far the bars are known, whatever part of them is made.
    """

    data: Data
    series: Futures | None
    events: pl.DataFrame
    contracts: pl.DataFrame
    open_interest: pl.DataFrame | None
    until: datetime

    @property
    def stored(self) -> str:
        """The length of the stored bars."""
        return self.data.stored_bar or self.data.bar

    def make(self, raw: pl.DataFrame, *, at: datetime | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the experiment's bars, sorted by (symbol, ts), and the rolls in them (`futures.ROLL_SCHEMA`).

        By contracts as they were known at an instant, or as each was known first.
        """
        if self.series is not None:
            contracts = futures.known_contracts(self.contracts, at=at)
            built = [self._continuous(raw, contracts, root) for root in self.series.roots]
            made, rolls = pl.concat([s.bars for s in built]), pl.concat([s.rolls for s in built])
        else:
            made = adjustment.adjust(raw, self.events, calendar=self._events_calendar)
            rolls = futures.ROLL_SCHEMA.to_frame()
        return self._resampled(made).sort("symbol", "ts"), rolls

    def factors(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Return how many raw shares one share of the experiment's bars is (`adjustment.FACTOR_SCHEMA`).

        A share of futures is a contract, so one of a series is a contract over its multiplier, and with `adjust =
        "ratio"` that changes at each roll.

        Raises
        ------
        DataError
            On contracts of a root without a multiplier, or with several.
        """
        if self.series is not None:
            contracts = futures.known_contracts(self.contracts)
            counted = pl.concat([self._contracts_held(raw, contracts, root) for root in self.series.roots])
        else:
            counted = adjustment.factors(raw, self.events, calendar=self._events_calendar)
        # A resampled bar opens with the first of its bars and closes with the last.
        shares, ratio = (
            self._resampled(counted.select("symbol", "ts", *(value.alias(c) for c in bars.PRICES), volume=pl.lit(0.0)))
            for value in (pl.col("shares"), pl.col("splits") / pl.col("shares"))
        )
        return shares.select(
            "symbol", "ts", shares_at_open="open", shares_at_close="close", volume_factor=ratio["close"]
        ).sort("symbol", "ts")

    def _contracts_held(self, raw: pl.DataFrame, contracts: pl.DataFrame, root: str) -> pl.DataFrame:
        assert self.series is not None
        own = contracts.filter(pl.col("root") == root)["multiplier"].unique()
        if len(own) != 1 or own[0] is None:
            raise DataError(
                f"the contracts of {root} have the multipliers {own.to_list()}; a share of futures is a contract, and "
                "costs by the share or by volume need one number for all: record it with `foxflow bars contracts "
                "FILE`, or set [costs] fee_per_share and impact to 0 and leave participation_limit out"
            )
        built = self._continuous(raw, contracts, root)
        moved = built.rolls["old_price"] / built.rolls["new_price"]
        steps = pl.Series([1.0, *(moved.cum_prod() if self.series.adjust == "ratio" else [1.0] * len(moved))])
        step = steps.gather(built.rolls["ts"].search_sorted(built.bars["ts"], side="right"))
        return built.bars.select("symbol", "ts", shares=step / own[0], splits=pl.lit(1.0))

    @property
    def _events_calendar(self) -> str | None:
        return None if self.stored.endswith("d") else self.data.calendar

    def _resampled(self, made: pl.DataFrame) -> pl.DataFrame:
        if self.data.stored_bar is None:
            return made
        return resample.resample(
            made,
            bar=self.data.stored_bar,
            to=self.data.bar,
            calendar=self.data.calendar,
            anchor=self.data.anchor or "clock",
            outside=self.data.outside_sessions or "refuse",
            until=self.until,
        )

    def _continuous(self, raw: pl.DataFrame, contracts: pl.DataFrame, root: str) -> futures.Continuous:
        assert self.series is not None
        return futures.continuous(
            raw,
            contracts,
            root=root,
            calendar=self.data.calendar,
            roll=self.series.roll,
            adjust=self.series.adjust,
            days_before=self.series.days_before,
            open_interest=self.open_interest,
            latest=futures.known_contracts(self.contracts, at=datetime.max.replace(tzinfo=UTC)),
        )


@dataclass(frozen=True)
class Market:
    """The bars of an experiment (`bars.BAR_SCHEMA`), adjusted, sorted by (symbol, ts).

    Attributes
    ----------
    first
        The first known values of every bar.
    events
        The splits and dividends that adjust them (`bars.EVENT_SCHEMA`).
    corrected
        The raw first known values of what a correction changes: the symbols that have one, or all contracts.
    corrections
        All later values of single bars, raw (`store.REVISION_SCHEMA`), sorted by (symbol, ts, known_at).
    universe
        Who is a member when, whatever symbols were pulled.
    reading
        How raw bars become these; None for bars that came from no store.
    rolls
        Of the futures among `first` (`futures.ROLL_SCHEMA`).
    n_outside
        How many stored bars outside every session were dropped by `[data] outside_sessions`.
    accepted
        The names of severe findings in the first known values that the experiment takes all the same.
    findings
        All findings in them (`bars.FINDING_SCHEMA`).
    delays
        How long after its `ts` a bar of each symbol was known at the latest.
    factors
        From the prices and volumes of `first` to those of the day (`adjustment.FACTOR_SCHEMA`), where costs need them.
    """

    first: pl.DataFrame
    events: pl.DataFrame
    corrected: pl.DataFrame
    corrections: pl.DataFrame
    universe: Universe = EVERYTHING
    reading: Reading | None = None
    rolls: pl.DataFrame = field(default_factory=futures.ROLL_SCHEMA.to_frame)
    n_outside: int = 0
    accepted: tuple[str, ...] = ()
    findings: pl.DataFrame = field(default_factory=bars.FINDING_SCHEMA.to_frame)
    delays: Mapping[str, timedelta] = field(default_factory=dict)
    factors: pl.DataFrame | None = None

    def as_of(self, cut: int) -> pl.DataFrame:
        """Return the adjusted bars that a fold with that cut (int64 us) sees; `first` where no correction was known."""
        if self.reading is None or self.corrected_at(cut) is None:
            return self.first
        known = self.corrections.filter(pl.col("known_at").dt.timestamp("us") <= cut)
        newest = known.unique(["symbol", "ts"], keep="last", maintain_order=True).drop("known_at")
        raw, others = self.corrected, self.first.clear()
        if self.reading.series is None:
            touched = pl.col("symbol").is_in(newest["symbol"].unique().to_list())
            raw, others = raw.filter(touched), self.first.filter(~touched)
        kept = raw.join(newest, on=["symbol", "ts"], how="anti")
        mended = bars.require(pl.concat([kept, newest.select(kept.columns)]), where="corrected bars")
        made, _ = self.reading.make(mended, at=bars.instant(cut))
        return pl.concat([others, made]).sort("symbol", "ts")

    def corrected_at(self, cut: int) -> int | None:
        """Return when the newest correction known at a cut became known (int64 us), None where none was.

        Cuts with the same answer see the same bars.
        """
        times = self.corrections["known_at"]
        if self.reading is not None:
            times = pl.concat([times, _changes(self.reading.contracts)])
        times = times.dt.timestamp("us")
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
        When the store cannot be read, holds no such bars, a bar or event is not sound, or the bars have a severe
        finding that the experiment does not accept.
    """
    data, contracts, interest = config.data, futures.CONTRACT_REVISION_SCHEMA.to_frame(), None
    name, symbols = data.stored_bar or data.bar, data.symbols
    if config.futures is not None:
        contracts = store.read_contracts(path).filter(pl.col("root").is_in(config.futures.roots))
        symbols = _contracts_of(config.futures, contracts, path, bar=name)
        interest = store.read_open_interest(path) if config.futures.roll == "open_interest" else None
    raw = bars.require(store.read_first(path, bar=name, symbols=symbols), where=str(path))
    # A bar that came in between the two readings is left out, and so are its corrections.
    corrections = store.read_revisions(path, bar=name, symbols=symbols).join(
        raw, on=["symbol", "ts"], how="semi", maintain_order="left"
    )
    events = store.read_events(path, symbols=raw["symbol"].unique().to_list())
    if config.futures is not None and len(events):
        raise DataError(
            f"{path}: {events['symbol'][0]} is a contract of a continuous series and has splits or dividends, which "
            "such a series can't be adjusted for; give them to another symbol, or leave [futures] out"
        )
    reading = Reading(data, config.futures, events, contracts, interest, until=raw.select(pl.col("ts").max()).item())
    first, rolls = reading.make(raw)
    if first.is_empty():
        raise DataError(f"{path}: {len(raw)} bars of {name} make no finished bar of {data.bar}; import more")
    delays = store.read_delays(path, bar=name, symbols=symbols)
    if config.futures is not None:
        delays = dict.fromkeys(first["symbol"].unique(), max(delays.values()))
    _require_in_time(first, delays, bar=data.bar, calendar=data.calendar)
    # A contract is thin until its turn comes: what is traded is the series made of them.
    judged, length = (raw, name) if config.futures is None else (first, data.bar)
    accepted, found = gate.require_sound(
        judged, events, bar=length, calendar=data.calendar, accept=data.accept, where=str(path)
    )
    corrected = raw.filter(pl.col("symbol").is_in(corrections["symbol"].unique().to_list()))
    if config.futures is not None and (len(corrections) or len(_changes(contracts))):
        corrected = raw
    dropped = 0
    if data.outside_sessions == "drop":
        dropped = len(resample.outside_sessions(raw, bar=name, calendar=data.calendar))
    universe = Universe.of(store.read_universe(path))
    factors = reading.factors(raw) if config.costs.need_raw_shares else None
    return Market(
        first,
        events,
        corrected,
        corrections,
        universe,
        reading=reading,
        rolls=rolls,
        n_outside=dropped,
        accepted=accepted,
        findings=found,
        delays=delays,
        factors=factors,
    )


def _changes(contracts: pl.DataFrame) -> pl.Series:
    """Return when contracts became known to be otherwise than at first."""
    return contracts.filter(pl.col("known_at") > pl.col("known_at").min().over("symbol"))["known_at"]


def _contracts_of(chosen: Futures, contracts: pl.DataFrame, path: Path, *, bar: str) -> tuple[str, ...]:
    """Return the symbols of the contracts that have bars of that length."""
    for root in chosen.roots:
        if root not in contracts["root"]:
            raise DataError(
                f"{path}: no contracts of {root} are recorded; record them with `foxflow bars contracts FILE`"
            )
    listed = store.list_bars(path).filter(pl.col("bar") == store.bar_name(bar))["symbol"]
    found = contracts.filter(pl.col("symbol").is_in(listed.to_list()))
    missing = [root for root in chosen.roots if root not in found["root"]]
    if missing:
        raise DataError(f"{path}: no bars of {bar} of any contract of {missing[0]} are stored; import them")
    return tuple(found["symbol"].unique().sort())


def _require_in_time(first: pl.DataFrame, delays: Mapping[str, timedelta], *, bar: str, calendar: str) -> None:
    """Raise DataError where the next bar had opened before a bar was known: no forecast of it fills at that open."""
    late = pl.DataFrame(
        [(s, d) for s, d in delays.items() if d > timedelta(0)],
        schema={"symbol": pl.String(), "delay": pl.Duration("us")},
        orient="row",
    )
    delayed = first.join(late, on="symbol").sort("ts")
    if delayed.is_empty():
        return
    known = bars.sessions_around(calendar, delayed["ts"][0], delayed["ts"][-1])
    starts = pl.concat([known["open"], known["break_end"].drop_nulls()]).sort().alias("start").to_frame()
    following = pl.col("ts").shift(-1).over("symbol", order_by="ts")
    # A bar of a day or a week opens with its first session.
    length = None if bar.endswith(("d", "w")) else bars.bar_length(bar)
    opens = pl.max_horizontal(
        "ts",
        pl.when(pl.col("start") < pl.col("following")).then("start"),
        pl.col("following") - pl.lit(length, dtype=pl.Duration("us")),
    )
    bad = (
        delayed.with_columns(following=following)
        .join_asof(starts, left_on="ts", right_on="start", strategy="forward", coalesce=False)
        .with_columns(opens=opens)
        .filter(pl.col("ts") + pl.col("delay") > pl.col("opens"), pl.col("following").is_not_null())
        .sort("symbol", "ts")
    )
    if len(bad):
        row = bad.row(0, named=True)
        raise DataError(
            f"{row['symbol']}: bars of {bar} were known up to {row['delay']} after their end, and the one at "
            f"{row['ts']:%Y-%m-%d %H:%M}Z not before the next had opened at {row['opens']:%Y-%m-%d %H:%M}Z; a "
            "forecast made then can't be filled at that open: use bars that a pause follows, as those of a session, or "
            "a source that is faster"
        )
