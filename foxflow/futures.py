"""Continuous series of futures, built on reading from bars kept contract by contract.

Which contract a session holds is decided at the close of the session before, with what was known then, takes effect
with the session's first bar, and never goes back to an earlier expiry. Prices are adjusted forward from the first bar:
the first contract stays as it traded, and each later one is moved by the gap at its roll. So a later roll changes no
earlier value, and every return of the series is a return of the contract that was held.

Classical back-adjustment keeps the newest contract as it trades and moves all others at each roll. With ratios its
returns are the same; its past prices are not, for they change every quarter by gaps that nobody knew at the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.bars import BAR_SCHEMA, PRICES, SYMBOL, TS, iso, sessions_around
from foxflow.errors import DataError, unknown

Roll = Literal["volume", "open_interest", "calendar"]
Adjust = Literal["ratio", "difference", "none"]
ROLLS = ("volume", "open_interest", "calendar")
ADJUSTMENTS = ("ratio", "difference", "none")

# `expiry` is the last day of trading, the date of a session; `multiplier` is money per point of price.
CONTRACT_SCHEMA = pl.Schema(
    {"root": pl.String(), "symbol": pl.String(), "expiry": pl.Date(), "multiplier": pl.Float64()}
)
# A row says what was known from `known_at` on; a change, as of an expiry that was moved, is a row with a later one.
CONTRACT_REVISION_SCHEMA = pl.Schema({**CONTRACT_SCHEMA, "known_at": TS})
# `ts` is the instant from which the figure was known, which is the morning after the session it counts.
OPEN_INTEREST_SCHEMA = pl.Schema({"symbol": pl.String(), "ts": TS, "open_interest": pl.Float64()})
# `ts` is the first bar of the new contract; the prices are the closes of both at `priced_at`.
ROLL_SCHEMA = pl.Schema(
    {
        "symbol": pl.String(),
        "ts": TS,
        "old": pl.String(),
        "new": pl.String(),
        "old_price": pl.Float64(),
        "new_price": pl.Float64(),
        "priced_at": TS,
    }
)
# A gap taken from older prices would be a guess.
PRICED_WITHIN_SESSIONS = 5

_NOTHING = -1


@dataclass(frozen=True)
class Continuous:
    """A continuous series: `bars` (`BAR_SCHEMA`, its symbol the root) and its `rolls` (`ROLL_SCHEMA`)."""

    bars: pl.DataFrame
    rolls: pl.DataFrame


def continuous(
    bars: pl.DataFrame,
    contracts: pl.DataFrame,
    *,
    root: str,
    calendar: str,
    roll: Roll,
    adjust: Adjust,
    days_before: int | None = None,
    open_interest: pl.DataFrame | None = None,
    latest: pl.DataFrame | None = None,
) -> Continuous:
    """Return the continuous series of a root.

    Parameters
    ----------
    bars
        Raw bars (`BAR_SCHEMA`) of the root's contracts; other symbols are left out.
    contracts
        `CONTRACT_SCHEMA`.
    calendar
        The exchange whose sessions decide.
    roll
        `volume`: to the later contract that traded most, once it traded more in a session than the one held.
        `open_interest`: the same by the newest figure known at the session's close. Both leave a contract at its
        expiry at the latest, and both need a session to decide from, so the series starts with the second one.
        `calendar`: always the nearest expiry that is at least `days_before` sessions away.
    adjust
        `ratio`: prices of a later contract times the product of old over new price at the rolls before; returns are
        those of the contract held. `difference`: plus the sum of old less new price; moves in points are those of the
        contract held, and prices may be negative. `none`: as traded, with the gap in the roll's return.
    days_before
        Sessions between the last one held and the expiry, with `roll = "calendar"` only; 0 holds it to its last day.
    open_interest
        `OPEN_INTEREST_SCHEMA`, with `roll = "open_interest"` only.
    latest
        `CONTRACT_SCHEMA` as it is known by now, where that may be more than `contracts` say: a bar after a contract's
        expiry is then left out where the expiry was moved later, for by `contracts` nobody held it.

    Raises
    ------
    DataError
        On options that don't fit, a root without contracts or bars, a bar after its contract's expiry, an unknown
        volume where volume decides, a roll whose two contracts have no bar in common shortly before, and with `ratio` a
        price that is not positive.

    Notes
    -----
    The gap is that of the newest bar that both contracts have, at most `PRICED_WITHIN_SESSIONS` sessions back. The
    volume is that of the contract held. Nothing is made up where that one has no bar.
    """
    _require_options(roll, adjust, days_before, open_interest)
    chain = _chain(require_contracts(contracts), root)
    table = bars.join(chain.select("symbol", "expiry", "number"), on="symbol", how="inner").sort("ts", "number")
    if table.is_empty():
        raise DataError(
            f"no bars of a contract of {root} ({', '.join(chain['symbol'])}); import them under these symbols"
        )
    first, last = table["ts"][0], table["ts"][-1]
    # The calendar has to reach any expiry that counts, whatever the newest bar.
    ahead = timedelta(0) if days_before is None else timedelta(days=30 + 2 * days_before)
    known = sessions_around(calendar, first, last + ahead)
    closes = known["close"]
    table = table.with_columns(session=closes.search_sorted(table["ts"], side="left").cast(pl.Int64))
    table = _unexpired(table, known["session"], contracts if latest is None else latest)
    present = table["session"].unique().sort().to_numpy()
    dates = known["session"].gather(present).to_list()
    if roll == "calendar":
        held = _nearest(chain["expiry"].to_list(), known["session"], present, days_before or 0)
    else:
        weight = (
            _volumes(table, present, len(chain))
            if open_interest is None
            else _interests(open_interest, chain, closes.gather(present))
        )
        held = _heaviest(weight, chain["expiry"].to_list(), dates)
    chosen = pl.DataFrame({"session": present, "number": held}, schema={"session": pl.Int64, "number": pl.Int64})
    series = table.join(chosen, on=["session", "number"], how="semi", maintain_order="left")
    rolls = _priced(series, table, closes, root)
    return Continuous(_adjusted(series, rolls, root, adjust), rolls)


def require_contracts(contracts: pl.DataFrame, *, where: str = "contracts") -> pl.DataFrame:
    """Return contracts sorted by (root, expiry) if each is named once and no two of a root expire on one day."""
    if contracts.schema != CONTRACT_SCHEMA:
        raise DataError(f"{where}: columns {dict(contracts.schema)}; expected {dict(CONTRACT_SCHEMA)}")
    rows = contracts.sort("root", "expiry", "symbol")
    named = pl.col("symbol").str.contains(rf"^(?:{SYMBOL.pattern})$") & pl.col("root").str.contains(
        rf"^(?:{SYMBOL.pattern})$"
    )
    for fault, what in (
        (~(named & pl.col("expiry").is_not_null()).fill_null(False), "expected a root, a symbol and an expiry"),
        (
            pl.col("multiplier").is_not_null() & ~((pl.col("multiplier") > 0) & pl.col("multiplier").is_finite()),
            "expected a positive multiplier, or none",
        ),
        (pl.col("symbol").is_duplicated(), "expected each symbol once"),
        (pl.col("symbol").is_in(pl.col("root").unique().implode()), "a root names the series and can't be a contract"),
        (pl.struct("root", "expiry").is_duplicated(), "expected one contract of a root to expire on a day"),
    ):
        bad = rows.filter(fault)
        if len(bad):
            raise DataError(f"{where}: {len(bad)} bad contract(s), first {bad.row(0)}; {what}: mend the row(s)")
    return rows


def require_open_interest(figures: pl.DataFrame, *, where: str = "open interest") -> pl.DataFrame:
    """Return figures of open interest sorted by (symbol, ts) if each is a number of contracts and stands once."""
    if figures.schema != OPEN_INTEREST_SCHEMA:
        raise DataError(f"{where}: columns {dict(figures.schema)}; expected {dict(OPEN_INTEREST_SCHEMA)}")
    rows = figures.sort("symbol", "ts")
    sound = (pl.col("open_interest") >= 0) & pl.col("open_interest").is_finite() & pl.col("ts").is_not_null()
    bad = rows.filter(~(sound & ~pl.struct("symbol", "ts").is_duplicated()).fill_null(False))
    if len(bad):
        raise DataError(
            f"{where}: {len(bad)} bad figure(s), first {bad.row(0)}; expected 0 or more contracts, one figure of a "
            "symbol and time: mend the row(s)"
        )
    return rows


def known_contracts(revisions: pl.DataFrame, *, at: datetime | None = None) -> pl.DataFrame:
    """Return contracts (`CONTRACT_SCHEMA`) as they were known at an instant, or by default as each was known first.

    A contract that nobody knew by then is as it was known first: its bars are not there before it is.
    """
    rows = revisions.sort("symbol", "known_at")
    is_first = pl.col("known_at") == pl.col("known_at").min().over("symbol")
    known = rows.filter(is_first if at is None else is_first | (pl.col("known_at") <= at))
    return (
        known.unique("symbol", keep="last", maintain_order=True).select(CONTRACT_SCHEMA.names()).sort("root", "expiry")
    )


def _require_options(roll: str, adjust: str, days_before: int | None, open_interest: pl.DataFrame | None) -> None:
    for name, value, choices in (("roll", roll, ROLLS), ("adjust", adjust, ADJUSTMENTS)):
        if value not in choices:
            raise DataError(f"{name} = {value!r}; expected one of {', '.join(choices)}")
    for name, given, needed, wanted in (
        ("days_before", days_before is not None, roll == "calendar", "a number of sessions"),
        ("open_interest", open_interest is not None, roll == "open_interest", "a table of it"),
    ):
        if given and not needed:
            raise DataError(f"{name} has no effect with roll = {roll!r}; remove it")
        if needed and not given:
            raise DataError(f"{name} is missing and roll = {roll!r} needs it; give {wanted}")
    if days_before is not None and days_before < 0:
        raise DataError(f"days_before = {days_before}; expected 0 or more sessions")


def _chain(contracts: pl.DataFrame, root: str) -> pl.DataFrame:
    """Return the contracts of a root with their `number` in order of expiry."""
    chain = contracts.filter(pl.col("root") == root)
    if chain.is_empty():
        raise DataError(f"{unknown('root', root, contracts['root'].unique().sort().to_list())}; import its contracts")
    return chain.with_columns(number=pl.int_range(pl.len(), dtype=pl.Int64))


def _unexpired(table: pl.DataFrame, sessions: pl.Series, latest: pl.DataFrame) -> pl.DataFrame:
    """Return the bars up to each contract's expiry; refuse those after the one that is known by now."""
    dated = table.with_columns(date=sessions.gather(table["session"])).join(
        latest.select("symbol", by_now="expiry"), on="symbol", how="left", maintain_order="left"
    )
    late = dated.filter(pl.col("date") > pl.max_horizontal("expiry", "by_now"))
    if len(late):
        first = late.row(0, named=True)
        raise DataError(
            f"{len(late)} bar(s) after their contract's expiry, first {first['symbol']} at {iso(first['ts'])}, in the "
            f"session of {first['date']}, with expiry {first['expiry']}; mend the expiry, the bar or the calendar"
        )
    return dated.filter(pl.col("date") <= pl.col("expiry")).drop("date", "by_now")


def _volumes(table: pl.DataFrame, present: NDArray[np.int64], n_contracts: int) -> NDArray[np.float64]:
    """Return the volume of each session and contract, 0 where it has no bar: `(n_sessions, n_contracts)`."""
    unknown_volume = table.filter(pl.col("volume").is_null())
    if len(unknown_volume):
        first = unknown_volume.row(0, named=True)
        raise DataError(
            f"{len(unknown_volume)} bar(s) of unknown volume, first {first['symbol']} at {iso(first['ts'])}, which "
            "can't decide a roll; use roll = 'calendar'"
        )
    sums = table.group_by("session", "number").agg(pl.col("volume").sum())
    found = np.zeros((len(present), n_contracts))
    found[np.searchsorted(present, sums["session"].to_numpy()), sums["number"].to_numpy()] = sums["volume"].to_numpy()
    return found


def _interests(figures: pl.DataFrame, chain: pl.DataFrame, closes: pl.Series) -> NDArray[np.float64]:
    """Return the newest open interest of each contract known at each close, 0 before the first one."""
    figures = require_open_interest(figures)
    if figures.join(chain, on="symbol", how="semi").is_empty():
        raise DataError(
            f"no open interest of a contract of {chain['root'][0]} is recorded; record it with `foxflow bars contracts "
            "--open-interest FILE`, or use another roll"
        )
    found = np.zeros((len(closes), len(chain)))
    for number, symbol in enumerate(chain["symbol"]):
        own = figures.filter(pl.col("symbol") == symbol)
        at = own["ts"].search_sorted(closes, side="right").cast(pl.Int64).to_numpy() - 1
        has = at >= 0
        found[has, number] = own["open_interest"].to_numpy()[at[has]]
    return found


def _heaviest(weight: NDArray[np.float64], expiries: Sequence[date], dates: Sequence[date]) -> NDArray[np.int64]:
    """Return the contract each session holds, decided by the weights of the session before; `_NOTHING` at first."""
    held = np.full(len(dates), _NOTHING)
    furthest = _NOTHING
    for i in range(1, len(dates)):
        own = weight[i - 1]
        live = [k for k in range(furthest + 1, len(expiries)) if expiries[k] >= dates[i] and own[k] > 0]
        # Of equals the nearest.
        best = max(live, key=lambda k: (own[k], -k), default=_NOTHING)
        has_current = furthest != _NOTHING and expiries[furthest] >= dates[i]
        if best != _NOTHING and (not has_current or own[best] > own[furthest]):
            furthest, has_current = best, True
        held[i] = furthest if has_current else _NOTHING
    return held


def _nearest(
    expiries: Sequence[date], sessions: pl.Series, present: NDArray[np.int64], days_before: int
) -> NDArray[np.int64]:
    """Return the contract each session holds: the nearest expiry at least `days_before` sessions away."""
    # The number of the expiry's session, or of the last one before it; past the calendar's end it is far enough.
    last = sessions.search_sorted(pl.Series(expiries), side="right").cast(pl.Int64).to_numpy() - 1
    found = np.searchsorted(last, present + days_before, side="left")
    return np.where(found < len(expiries), found, _NOTHING)


def _priced(series: pl.DataFrame, table: pl.DataFrame, closes: pl.Series, root: str) -> pl.DataFrame:
    """Return the rolls of a series with the newest prices that both contracts had at the close before."""
    starts = series.filter(pl.col("number") != pl.col("number").shift(1)).select("symbol", "ts", "session")
    before = series["symbol"].shift(1).filter(series["number"] != series["number"].shift(1))
    of = {symbol: own for (symbol,), own in table.partition_by("symbol", as_dict=True).items()}
    rows = []
    for (new, ts, session), old in zip(starts.iter_rows(), before, strict=True):
        past = of[old].filter(pl.col("ts") <= closes[session - 1]).select("ts", "session", "close")
        both = past.join(of[new].select("ts", close_new="close"), on="ts").sort("ts")
        if both.is_empty() or both["session"][-1] < session - PRICED_WITHIN_SESSIONS:
            newest = iso(both["ts"][-1]) if len(both) else "never"
            raise DataError(
                f"{root} rolls from {old} to {new} with the bar of {iso(ts)}, and the newest bar both have before it "
                f"is of {newest}; expected one in the {PRICED_WITHIN_SESSIONS} sessions before: import their bars"
            )
        rows.append((root, ts, old, new, both["close"][-1], both["close_new"][-1], both["ts"][-1]))
    return pl.DataFrame(rows, schema=ROLL_SCHEMA, orient="row")


def _adjusted(series: pl.DataFrame, rolls: pl.DataFrame, root: str, adjust: Adjust) -> pl.DataFrame:
    plain = series.select(BAR_SCHEMA.names()).with_columns(symbol=pl.lit(root)).cast(BAR_SCHEMA)
    if adjust == "none":
        return plain
    if adjust == "ratio":
        _refuse_not_positive(series, rolls)
        steps = np.cumprod(np.r_[1.0, rolls["old_price"].to_numpy() / rolls["new_price"].to_numpy()])
    else:
        steps = np.cumsum(np.r_[0.0, rolls["old_price"].to_numpy() - rolls["new_price"].to_numpy()])
    # The number of rolls at or before each bar.
    step = pl.Series("step", steps[rolls["ts"].search_sorted(series["ts"], side="right").to_numpy()])
    moved = (pl.col(c) * step if adjust == "ratio" else pl.col(c) + step for c in PRICES)
    return plain.with_columns(*moved)


def _refuse_not_positive(series: pl.DataFrame, rolls: pl.DataFrame) -> None:
    lowest = pl.min_horizontal(PRICES)
    bad = series.filter(lowest <= 0).select("symbol", "ts", price=lowest)
    for symbol, price in (("old", "old_price"), ("new", "new_price")):
        gap = rolls.filter(pl.col(price) <= 0).select(symbol=symbol, ts="priced_at", price=price)
        bad = pl.concat([bad, gap])
    if len(bad):
        first = bad.sort("ts").row(0, named=True)
        raise DataError(
            f"{first['symbol']} at {iso(first['ts'])} has the price {first['price']}, and adjust = 'ratio' needs "
            "positive ones; use adjust = 'difference'"
        )
