"""From a source into the store: page by page, what is stored is not asked for again, and a failed call goes on."""

import hashlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import polars as pl

from foxflow import registry, store
from foxflow.bars import BAR_SCHEMA, PRICES, SYMBOL, bar_length, check, iso
from foxflow.errors import DataError, FoxflowError, PluginError, UnavailableError, plugin_call
from foxflow.feeds import Source
from foxflow.store.bars import bar_name

# Six waits, 1 s to 32 s: a minute in all without an answer, and then a person should know.
TRIES = 7
# A source that wants to be left alone for longer is asked again by the next run, not by one that hangs.
LONGEST_WAIT_S = 120.0
VALUES = (*PRICES, "volume")


@dataclass
class Fetched:
    """What a fetch did with one symbol: bars added, there already, corrected, kept against the source's other value.

    `quarantined` counts what was no bar, and was put aside for the first time.
    `after` is the earliest time it asked for bars from, None where all were stored; `first_ts` and `last_ts` are of the
    bars it received, which may begin long after that.
    """

    symbol: str
    after: datetime | None = None
    added: int = 0
    present: int = 0
    corrected: int = 0
    kept: int = 0
    quarantined: int = 0
    first_ts: datetime | None = None
    last_ts: datetime | None = None


@dataclass(frozen=True)
class Progress:
    """A page was kept, up to `last_ts` of `symbol` on the way to `until`; or `waiting_s` begin, and why."""

    symbol: str
    start: datetime
    until: datetime
    last_ts: datetime
    waiting_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class _Ask:
    """Bars of some symbols with `after < ts <= until` that are missing.

    `overlap`: the bar at `after` is stored, and asked for once more to see whether it still is what it was.
    `closes`: the bars behind `until` are stored, so that the span is done when the source has no more.
    """

    symbols: tuple[str, ...]
    after: datetime
    until: datetime
    overlap: bool
    closes: bool


def fetch(
    store_path: str | Path,
    source: str,
    options: Mapping[str, object],
    *,
    symbols: Sequence[str],
    bar: str,
    start: datetime,
    end: datetime | None = None,
    conflict: store.Conflict = "refuse",
    quarantine: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    wait: Callable[[float], None] = time.sleep,
) -> list[Fetched]:
    """Add the bars of a source with `start < ts <= end` that are not stored yet; return what became of each symbol.

    Every page is one transaction, so whatever ends a fetch, the next one goes on behind the last page. It asks for the
    last stored bar once more: a source that restates it has restated its history.

    Parameters
    ----------
    source, options
        An installed source plugin and its parameters.
    end
        None, or later than now: up to the last bar that is complete.
    conflict
        What to do with a bar whose stored values differ, see `store.write_bars`; corrections are known from now on.
    quarantine
        Put bars that break an invariant aside, countable; else they refuse their page.
    clock, wait
        The machine's, unless a test has others.

    Raises
    ------
    DataError
        On a request that cannot be met, a bar that is refused, or a source that does not answer `TRIES` times in a row.
    PluginError
        When the source is absent, breaks, or hands over what it may not: a bar that is not complete, or not asked for.
    """
    plugin: Source = registry.build_plugin(registry.SOURCES, source, options, section=source)
    with plugin_call(source, "its origin and delay", kind="source"):
        origin, delay = plugin.origin, plugin.delay
    _require_request(symbols, start=start, end=end)
    bar = bar_name(bar)
    until = min(end or clock(), clock() - delay)
    if until <= start:
        raise DataError(
            f"start {iso(start)} is not before {iso(until)}, the end or the last time at which a bar of {origin} can "
            "be complete; give an earlier --start"
        )
    intake = _Intake(
        path=Path(store_path),
        name=source,
        plugin=plugin,
        origin=origin,
        delay=delay,
        bar=bar,
        start=start,
        conflict=conflict,
        quarantine=quarantine,
        progress=progress,
        clock=clock,
        wait=wait,
        found={symbol: Fetched(symbol) for symbol in symbols},
    )
    stored = store.read_fetched(store_path, origin=origin, bar=bar, symbols=symbols)
    intake.run(_missing(stored, start, until))
    return list(intake.found.values())


def _require_request(symbols: Sequence[str], *, start: datetime, end: datetime | None) -> None:
    for name, moment in (("start", start), ("end", end)):
        if moment is not None and moment.tzinfo is None:
            raise DataError(f"{name} = {moment} has no time zone; give it in UTC, as in {moment.isoformat()}Z")
    if not symbols:
        raise DataError("no symbol to fetch; give at least one, as in --symbols BTC/USDT,ETH/USDT")
    for n, symbol in enumerate(symbols):
        if SYMBOL.fullmatch(symbol) is None:
            raise DataError(f"symbol {symbol!r}; expected a name that the store can hold, as in BTC/USDT")
        if symbol in symbols[:n]:
            raise DataError(f"symbol {symbol!r} is asked for twice; name each once")


def _missing(stored: Mapping[str, Sequence[store.Span]], start: datetime, until: datetime) -> list[_Ask]:
    """Return what to ask for, symbols that miss the same bars together."""
    groups: dict[_Ask, list[str]] = defaultdict(list)
    for symbol, spans in stored.items():
        reached, overlap = start, False
        for after, end in spans:
            if end <= start:
                continue
            if min(after, until) > reached:
                groups[_Ask((), reached, min(after, until), overlap, closes=after <= until)].append(symbol)
            reached, overlap = max(reached, end), True
        if reached < until:
            groups[_Ask((), reached, until, overlap, closes=False)].append(symbol)
    return [replace(ask, symbols=tuple(names)) for ask, names in groups.items()]


@dataclass(kw_only=True)
class _Intake:
    """One fetch as it goes on."""

    path: Path
    name: str
    plugin: Source
    origin: str
    delay: timedelta
    bar: str
    start: datetime
    conflict: store.Conflict
    quarantine: bool
    progress: Callable[[Progress], None]
    clock: Callable[[], datetime]
    wait: Callable[[float], None]
    found: dict[str, Fetched]
    failures: int = 0

    def run(self, asks: Sequence[_Ask]) -> None:
        todo = deque(asks)
        while todo:
            ask = todo.popleft()
            # How far each symbol is stored.
            reached = dict.fromkeys(ask.symbols, ask.after)
            try:
                self._ask(ask, reached)
            except UnavailableError as e:
                self._wait(e, ask)
                rest: dict[datetime, list[str]] = defaultdict(list)
                for symbol, ts in reached.items():
                    rest[ts].append(symbol)
                todo.extendleft(
                    replace(ask, symbols=tuple(names), after=ts, overlap=ask.overlap or ts > ask.after)
                    for ts, names in rest.items()
                    if ts < ask.until
                )

    def _ask(self, ask: _Ask, reached: dict[str, datetime]) -> None:
        start = ask.after - bar_length(self.bar) if ask.overlap else ask.after
        given = dict.fromkeys(ask.symbols, start)
        for symbol in ask.symbols:
            self.found[symbol].after = min(self.found[symbol].after or start, start)
        with plugin_call(self.name, f"fetching {', '.join(ask.symbols)}", kind="source"):
            pages = iter(self.plugin.fetch(ask.symbols, bar=self.bar, start=start, end=ask.until))
        while True:
            with plugin_call(self.name, f"fetching {', '.join(ask.symbols)}", kind="source"):
                page = next(pages, None)
            if page is None:
                break
            self._require_page(page, ask, given)
            if len(page):
                self._keep(page, ask, reached)
        if ask.closes:
            with store.transaction(self.path) as inside:
                spans = dict.fromkeys(ask.symbols, (ask.after, ask.until))
                store.add_fetched(inside, spans, origin=self.origin, bar=self.bar)

    def _require_page(self, page: pl.DataFrame, ask: _Ask, given: dict[str, datetime]) -> None:
        """Raise where a page is not what was asked for; move on `given`, the last ts of each symbol so far."""
        if not isinstance(page, pl.DataFrame) or page.schema != BAR_SCHEMA:
            what = dict(page.schema) if isinstance(page, pl.DataFrame) else type(page).__name__
            self._refuse(f"a page of {what}; expected a frame of {dict(BAR_SCHEMA)}")
        latest = self.clock() - self.delay
        for symbol, ts in page.select("symbol", "ts").iter_rows():
            if symbol not in given:
                self._refuse(f"a bar of {symbol!r}, which was not asked for")
            bar = f"the bar of {symbol} at {'no time' if ts is None else iso(ts)}"
            if ts is None or ts > latest:
                self._refuse(f"{bar}, which is not complete: it is {iso(latest)} by now, less its delay")
            if ts > ask.until or ts <= given[symbol]:
                self._refuse(
                    f"{bar}; expected times after {iso(given[symbol])} and up to {iso(ask.until)}, ascending from page "
                    "to page"
                )
            given[symbol] = ts

    def _refuse(self, what: str) -> NoReturn:
        raise PluginError(f"source {self.name!r} handed over {what}; nothing of that page is kept: mend the plugin")

    def _keep(self, page: pl.DataFrame, ask: _Ask, reached: dict[str, datetime]) -> None:
        """Store a page, and that it is fetched, in one transaction."""
        now, spans, written, aside = self.clock(), {}, {}, {}
        faults = self._faults(page)
        try:
            with store.transaction(self.path) as inside:
                for rows in page.partition_by("symbol", maintain_order=True):
                    symbol = rows["symbol"][0]
                    aside[symbol] = self._put_aside(inside, rows.join(faults, on=["symbol", "ts"]), symbol)
                    written[symbol] = store.write_bars(
                        inside,
                        rows.join(faults, on=["symbol", "ts"], how="anti"),
                        bar=self.bar,
                        delay=self.delay,
                        where=self.origin,
                        conflict=self.conflict,
                        known_at=now if self.conflict == "correct" else None,
                    )
                    spans[symbol] = (ask.after, max(rows["ts"][-1], ask.after))
                store.add_fetched(inside, spans, origin=self.origin, bar=self.bar)
        except DataError as e:
            raise DataError(
                f"{e} ({self._kept()}; a bar that the source restates is settled by --on-conflict: keep what is "
                "stored, or correct it by a revision known from now on)"
            ) from e
        self.failures = 0
        for symbol, counts in written.items():
            self.found[symbol].quarantined += aside[symbol]
            self._count(symbol, counts, page.filter(pl.col("symbol") == symbol)["ts"])
            reached[symbol] = spans[symbol][1]
            self.progress(Progress(symbol, self.start, ask.until, reached[symbol]))

    def _faults(self, page: pl.DataFrame) -> pl.DataFrame:
        """Return which bars break an invariant, one row a bar; refuse them unless they are to be put aside."""
        faults = check(page).group_by("symbol", "ts").agg(reason=pl.format("{}: {}", "check", "detail").str.join("; "))
        if len(faults) and not self.quarantine:
            first = faults.sort("ts", "symbol").row(0, named=True)
            raise DataError(
                f"{self.origin}: {len(faults)} of a page's {len(page)} bars are none, first {first['symbol']} at "
                f"{iso(first['ts'])}: {first['reason']} ({self._kept()}); put such bars aside with --quarantine, or "
                "stop before them with --end"
            )
        return faults

    def _put_aside(self, inside: store.Transaction, bad: pl.DataFrame, symbol: str) -> int:
        """Put bars that are none into quarantine, by their time; return how many are there for the first time."""
        if bad.is_empty():
            return 0
        rows = bad.select(
            number=pl.col("ts").dt.epoch("us"),
            kind=pl.lit("bad"),
            when=pl.col("ts").dt.to_string("%Y-%m-%dT%H:%M:%SZ"),
            text=pl.concat_str([pl.col(c).cast(pl.String).fill_null("null") for c in VALUES], separator=","),
            reason="reason",
        )
        # What a file's content is to its rows, the series is to its bars.
        series = hashlib.sha256("\0".join((self.origin, symbol, self.bar)).encode()).hexdigest()
        return store.write_quarantine(inside, rows, file=f"{self.origin}, {symbol} {self.bar}", sha256=series)

    def _count(self, symbol: str, counts: store.Counts, ts: pl.Series) -> None:
        found = self.found[symbol]
        found.added += counts.added
        found.present += counts.present
        found.corrected += counts.corrected
        found.kept += counts.kept
        found.first_ts = min(found.first_ts or ts[0], ts[0])
        found.last_ts = max(found.last_ts or ts[-1], ts[-1])

    def _wait(self, e: UnavailableError, ask: _Ask) -> None:
        """Wait before the next try, longer each time and as long as the source asks for; give up in the end."""
        self.failures += 1
        pause = max(2.0 ** (self.failures - 1), e.retry_after_s or 0.0)
        if self.failures >= TRIES:
            raise FoxflowError(f"{e}; given up after {TRIES} tries in a row ({self._kept()})") from e
        if pause > LONGEST_WAIT_S:
            raise FoxflowError(f"{e}; it asks to be left alone for {pause:,.0f} s ({self._kept()})") from e
        self.progress(Progress(ask.symbols[0], self.start, ask.until, ask.after, pause, str(e)))
        self.wait(pause)

    def _kept(self) -> str:
        added = sum(found.added for found in self.found.values())
        return (
            f"{added:,} bars of earlier pages are kept: the same command goes on from there"
            if added
            else "no bar was added"
        )
