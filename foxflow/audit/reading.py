"""Attacks on how stored bars become the experiment's: adjusted, joined, resampled, none of it by what came later."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl

from foxflow import adjustment, market, store
from foxflow.audit.checks import Check, accuse
from foxflow.audit.corruption import at, cut, first_difference, noise, shown, spread
from foxflow.audit.samples import MOST_SYMBOLS
from foxflow.bars import PRICES, instant
from foxflow.config import Config
from foxflow.errors import LeakageError
from foxflow.market import Market, Reading

VALUES = [*PRICES, "volume"]
MOST_STORED = 40_000


def attack(config: Config, pulled: Market, path: Path, *, n: int, in_part: bool) -> list[Check]:
    """Return the checks of `attack_reading` on the stored bars of an experiment, or on the first of some symbols.

    Raises
    ------
    LeakageError
        As `attack_reading`, and where there are other bars than the store lists.
    """
    try:
        return _attack(config, pulled, path, n=n, in_part=in_part)
    except LeakageError:
        fresh = market.pull(config, path)
        if fresh.first.equals(pulled.first):
            raise
        # Bars came in since the market was pulled: it is attacked as it is now.
        return _attack(config, fresh, path, n=n, in_part=in_part)


def _attack(config: Config, pulled: Market, path: Path, *, n: int, in_part: bool) -> list[Check]:
    if in_part and pulled.reading is not None and pulled.reading.series is None:
        symbols = pulled.first["symbol"].unique().sort()
        picked = symbols.gather(np.linspace(0, len(symbols) - 1, min(len(symbols), MOST_SYMBOLS)).astype(int)).to_list()
        pulled = replace(pulled, first=pulled.first.filter(pl.col("symbol").is_in(picked)))
    raw = stored_bars(config, pulled, path)
    return attack_reading(*(few(pulled, raw) if in_part else (pulled, raw)), n=n)


def stored_bars(config: Config, pulled: Market, path: Path) -> pl.DataFrame:
    """Return the raw first known bars that a market was made of.

    Raises
    ------
    LeakageError
        Where there are other bars than the store lists: some were made up, or left out.
    """
    name, symbols = config.data.stored_bar or config.data.bar, pulled.first["symbol"].unique().sort().to_list()
    listed = store.list_bars(path).filter(pl.col("bar") == store.bar_name(name))
    if config.futures is not None and pulled.reading is not None:
        contracts = pulled.reading.contracts["symbol"].unique().to_list()
        symbols = listed.filter(pl.col("symbol").is_in(contracts))["symbol"].sort().to_list()
    raw = store.read_first(path, bar=name, symbols=symbols)
    counts = dict(raw.group_by("symbol").len().iter_rows())
    for symbol, rows in listed.select("symbol", "rows").iter_rows():
        if symbol in counts and counts[symbol] != rows:
            raise accuse(
                f"{counts[symbol]} bars of {symbol} are read and the store holds {rows}",
                "every stored bar and no other: none is made up to fill a date",
                "mend store.read_first",
            )
    return raw.sort("symbol", "ts")


def few(pulled: Market, raw: pl.DataFrame) -> tuple[Market, pl.DataFrame]:
    """Return what is made of the first stored bars, of more than can be read again and again."""
    if pulled.reading is None or len(raw) <= MOST_STORED:
        return pulled, raw
    until = raw["ts"].sort()[MOST_STORED - 1]
    early = pl.col("ts") <= until
    past = replace(pulled.reading, until=until)
    return replace(pulled, first=pulled.first.filter(early), reading=past), raw.filter(early)


def moments(pulled: Market, raw: pl.DataFrame, *, n: int) -> list[int]:
    """Return the instants to cut at: spread over the bars, and right before the first splits and dividends."""
    times = np.unique(at(raw))
    when = set(spread(times, n, first=min(2, len(times) - 1)))
    dated = at(pulled.events.join(raw, on=["symbol", "ts"], how="semi").sort("ts"))
    for event in dated[:: max(len(dated) // n, 1)].tolist():
        before = np.searchsorted(times, event) - 1
        if before > 0:
            when.add(int(times[before]))
    return sorted(when - {int(times[-1])})


def attack_reading(pulled: Market, raw: pl.DataFrame, *, n: int) -> list[Check]:
    """Return the checks that the experiment's bars withstood.

    Parameters
    ----------
    raw
        The stored bars they are made of, sorted by (symbol, ts).
    n
        At how many instants, and before how many events: raw bars and events after each are taken away, or made others.

    Raises
    ------
    LeakageError
        Naming the step and the first bar that moves, or that is stamped before it was complete.
    """
    reading = pulled.reading
    if reading is None:
        return []
    made, _ = reading.make(raw)
    when = moments(pulled, raw, n=n)
    target = _named(reading)
    _require_equal(
        pulled.first,
        made,
        f"the experiment's bars are not what reading the stored ones gives ({target})",
        "the bars that Reading.make makes, nothing filled or moved afterwards",
        "mend market.pull",
    )
    done = [Check("bars from the stored ones", target, len(made))]
    if reading.series is None:
        done.append(_against_parts(reading, raw, made))
    for how in ("cut", "noise"):
        for moment in when:
            other = _bent(reading, raw, moment, how)
            until = pl.col("ts") <= instant(moment)
            _require_equal(
                made.filter(until),
                other.filter(until),
                f"bars up to {shown(moment)} are others once the stored bars and events after it are corrupted "
                f"({how}): {_guilty(reading, raw, moment)} reads what came later",
                "the same bars to the bit",
                "mend it, and stamp a bar with the instant it is complete",
            )
        done.append(Check(f"later stored bars and events: {how}", target, len(when)))
    return done


def _named(reading: Reading) -> str:
    resampled = f", resampled from {reading.data.stored_bar} to {reading.data.bar}" if reading.data.stored_bar else ""
    return ("futures joined" if reading.series is not None else "bars adjusted") + resampled


def _bent(reading: Reading, raw: pl.DataFrame, moment: int, how: str) -> pl.DataFrame:
    """Return the experiment's bars of another future."""
    known = _known_events(reading, moment)
    if how == "cut":
        # Right at the end of a stored bar, whatever bar it is part of may not be complete.
        past = replace(reading, events=reading.events.filter(known), until=instant(moment))
        if past.open_interest is not None:
            past = replace(past, open_interest=past.open_interest.filter(pl.col("ts") <= instant(moment)))
        return past.make(cut(raw, moment))[0]
    grown = pl.when(known | (pl.col("kind") != "split")).then("value").otherwise(pl.col("value") * 3.0)
    return replace(reading, events=reading.events.with_columns(value=grown)).make(noise(raw, moment, size=0.01))[0]


def _known_events(reading: Reading, moment: int) -> pl.Expr:
    """Return which events have taken effect: one is dated by its session's close, and counts from its open."""
    ahead = timedelta(0) if reading.stored.endswith("d") else timedelta(days=1)
    return pl.col("ts") <= instant(moment) + ahead


def _dated_by(reading: Reading) -> str | None:
    """Return the calendar that `Reading.make` dates events by."""
    return None if reading.stored.endswith("d") else reading.data.calendar


def _guilty(reading: Reading, raw: pl.DataFrame, moment: int) -> str:
    if reading.series is not None:
        return "futures.continuous" + (", or resample.resample," if reading.data.stored_bar else "")
    calendar = _dated_by(reading)
    whole = adjustment.adjust(raw, reading.events, calendar=calendar)
    known = reading.events.filter(_known_events(reading, moment))
    past = adjustment.adjust(cut(raw, moment), known, calendar=calendar)
    if not cut(whole, moment).select(VALUES).equals(past.select(VALUES)):
        return "adjustment.adjust"
    return "resample.resample" if reading.data.stored_bar else "Reading.make"


def _against_parts(reading: Reading, raw: pl.DataFrame, made: pl.DataFrame) -> Check:
    """Hold every bar against the stored ones up to its ts: there is one since the bar before, and it closes with it."""
    adjusted = adjustment.adjust(raw, reading.events, calendar=_dated_by(reading)).select("symbol", "ts", "close")
    parts = (
        raw.select("symbol", "ts", part_ts="ts")
        .join(adjusted, on=["symbol", "ts"], how="left", maintain_order="left")
        .rename({"close": "part_close"})
        .sort("ts")
    )
    held = (
        made.sort("ts")
        .join_asof(parts, on="ts", by="symbol", check_sortedness=False)
        .sort("symbol", "ts")
        .with_columns(previous=pl.col("ts").shift(1).over("symbol", order_by="ts"))
    )
    empty = held.filter(pl.col("part_ts").is_null() | (pl.col("part_ts") <= pl.col("previous")))
    if len(empty):
        raise _of_row(
            empty,
            "there is no stored bar since the bar before it",
            "a bar only where one was stored",
            "made up, or labelled at its start",
        )
    wrong = held.filter(pl.col("close") != pl.col("part_close"))
    if len(wrong):
        row = wrong.row(0, named=True)
        raise _of_row(
            wrong,
            f"it closes at {row['close']:.9g}, and the newest stored bar up to then, at "
            f"{row['part_ts']:%Y-%m-%dT%H:%M:%SZ}, at {row['part_close']:.9g}",
            "a bar stamped with the instant its last part is complete, and made of no other part",
            "labelled at its start, or read a later bar",
        )
    return Check("last stored bar of each bar", _named(reading), len(held))


def _of_row(rows: pl.DataFrame, seen: str, expected: str, what: str) -> LeakageError:
    row = rows.sort("ts").row(0, named=True)
    return accuse(
        f"bar of {row['symbol']} at {row['ts']:%Y-%m-%dT%H:%M:%SZ}: {seen}",
        expected,
        f"mend adjustment.adjust or resample.resample: a bar was {what}",
    )


def _require_equal(base: pl.DataFrame, other: pl.DataFrame, seen: str, expected: str, remedy: str) -> None:
    """Raise LeakageError where two frames of bars, sorted, are not equal to the bit, naming the first that is not."""
    for one, two, verb in ((base, other, "is gone"), (other, base, "is new")):
        stray = one.join(two, on=["symbol", "ts"], how="anti").sort("ts")
        if len(stray):
            raise accuse(f"{seen}; {stray['symbol'][0]} at {shown(int(at(stray)[0]))} {verb}", expected, remedy)
    pairs = [
        (symbol, at(rows), rows.select(VALUES).to_numpy(), others.select(VALUES).to_numpy())
        for (symbol, rows), others in zip(_by_symbol(base), (rows for _, rows in _by_symbol(other)), strict=True)
    ]
    found = first_difference(pairs)
    if found is not None:
        raise accuse(
            f"{seen}; {VALUES[found.column]} of {found.when} is {found.before:.9g} and becomes {found.after:.9g}",
            expected,
            remedy,
        )


def _by_symbol(bars: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    parts = bars.sort("symbol", "ts").partition_by("symbol", as_dict=True, maintain_order=True)
    return [(str(symbol), rows) for (symbol,), rows in parts.items()]
