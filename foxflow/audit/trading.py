"""Attacks on positions and fills: what is decided at ts knows nothing later, and fills after it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl

from foxflow.audit.checks import Check, accuse
from foxflow.audit.corruption import Difference, Times, at, first_difference, noise, shown
from foxflow.audit.outcomes import ends
from foxflow.bars import PRICES, instant
from foxflow.config import Config
from foxflow.dataset import UNKNOWN_END
from foxflow.errors import LeakageError
from foxflow.market import Market
from foxflow.portfolio import Book
from foxflow.scoring import trading
from foxflow.training import FoldResult

# Small enough, and over bar times few enough, that no book is ruined by what an attack does to its bars.
SMALL = 0.03
FEW_BARS = 20
# Of a fill's price, which is worked out again from money.
PRICE_TOLERANCE = 1e-9


def attack_trading(config: Config, pulled: Market, results: Sequence[FoldResult]) -> list[Check]:
    """Return the checks that positions and fills withstood: later forecasts and bars corrupted, one open, one close.

    Raises
    ------
    LeakageError
        Naming the symbol and the first decision or fill that moves.
    """
    walk = [r for r in results if len(r.forecasts)]
    if not walk:
        return []
    times = np.unique(at(pl.concat([r.forecasts for r in walk])))
    # What is held after the last forecast is held for good, which may ruin a book.
    every = np.unique(at(pulled.first))
    last = int(every[min(int(np.searchsorted(every, times[-1])) + FEW_BARS, len(every) - 1)])
    pulled = replace(pulled, first=pulled.first.filter(pl.col("ts") <= instant(last)))
    shares = [0.1, 0.25, 0.4, 0.55, 0.7, 0.85]
    moments = sorted({int(times[int((len(times) - 1) * share)]) for share in shares})
    what = f"positions, [strategy] kind = {config.strategy.kind!r}"
    decided = trading.decide(config, pulled, walk).positions
    # From the latest on, so that what moves far before it is told from what reads the next bars.
    for moment in reversed(moments):
        other = trading.decide(config, pulled, [_other_forecasts(r, moment) for r in walk]).positions
        _require_same_positions(decided, other, moment, "forecasts")
        other = trading.decide(config, _other_bars(pulled, moment), walk).positions
        _require_same_positions(decided, other, moment, "bars")
    done = [
        Check("later forecasts and later fits: sign and size", what, len(moments)),
        Check("later bars: noise", what, len(moments)),
    ]
    return [*done, *_attack_book(_calm(config), pulled, walk, moments)]


def _calm(config: Config) -> Config:
    """Return the experiment with half of its cash left, so that no purchase is cut by what it costs when it fills."""
    return replace(config, strategy=config.strategy.within(0.5))


def _book(config: Config, pulled: Market, walk: Sequence[FoldResult]) -> Book:
    return trading.trade(config, pulled, trading.decide(config, pulled, walk))


def _attack_book(config: Config, pulled: Market, walk: Sequence[FoldResult], moments: Sequence[int]) -> list[Check]:
    base = _book(config, pulled, walk)
    endings = trading.decide(config, pulled, walk).endings
    done = [require_fills(config, pulled, base, endings=endings)]
    times = np.unique(at(pulled.first))
    chosen = moments[:: max(len(moments) - 1, 1)]
    for moment in chosen:
        until = int(times[min(int(np.searchsorted(times, moment)) + FEW_BARS, len(times) - 1)])
        other = _book(config, _other_bars(pulled, moment, until=until), walk)
        _require_same_positions(base.held, other.held, moment, "bars")
        _require_same_fills(base, other, moment, f"bars after {shown(moment)}")
        # A decision at ts may not be filled in its own bar, nor in those that it is delayed by.
        delayed = min(int(np.searchsorted(times, moment)) + config.backtest.delay_bars, len(times) - 1)
        other = _book(config, pulled, [_other_forecasts(r, moment - 1, until=until) for r in walk])
        _require_same_positions(base.held, other.held, moment - 1, "forecasts")
        _require_same_fills(base, other, int(times[delayed]), f"forecasts at {shown(moment)} and later")
    done += [
        Check("later bars: noise", "fills", len(chosen)),
        Check("forecasts at the fill's own bar", "fills", len(chosen)),
    ]
    return [*done, *_attack_fill_bars(config, pulled, walk, base)]


def _other_forecasts(result: FoldResult, moment: int, *, until: int | None = None) -> FoldResult:
    """Return the fold with other later forecasts, turned and of another size, its validation among them.

    Up to `until`, where it is said: trading all of them turned could ruin a book.
    """
    later = pl.col("ts") > instant(moment)
    if until is not None:
        later &= pl.col("ts") <= instant(until)
    turned = pl.when(later).then(-3.0 * pl.col("forecast") + 0.001).otherwise("forecast")
    validation = result.validation
    if result.cut > moment:
        validation = validation.with_columns(pl.col("forecast") * -3.0, pl.col("label") * 2.0)
    return replace(result, forecasts=result.forecasts.with_columns(forecast=turned), validation=validation)


def _other_bars(pulled: Market, moment: int, *, until: int | None = None) -> Market:
    """Return the market with other bars after a moment, or after it and up to another."""
    moved = noise(pulled.first, moment, size=SMALL)
    if until is not None:
        kept = pl.col("ts") > instant(until)
        moved = pl.concat([moved.filter(~kept), pulled.first.filter(kept)]).sort("symbol", "ts")
    return replace(pulled, first=moved)


def _require_same_positions(base: pl.DataFrame, other: pl.DataFrame, moment: int, what: str) -> None:
    """Raise where decisions (`symbol`, `ts`, `signal`, `position`) up to a time are others."""
    columns, until = ["signal", "position"], pl.col("ts") <= instant(moment)
    for (symbol,), rows in base.partition_by("symbol", as_dict=True).items():
        one, two = rows.filter(until), other.filter(pl.col("symbol") == symbol).filter(until)
        before, after = (f.select(pl.col(columns).cast(pl.Float64).fill_null(np.nan)).to_numpy() for f in (one, two))
        found = first_difference([(str(symbol), at(one), before, after)]) if len(one) == len(two) else None
        if found is not None or len(one) != len(two):
            seen = "rows of decisions" if found is None else columns[found.column]
            where = f"{symbol}" if found is None else f"{found.when} is {found.before:.9g} and {found.after:.9g}"
            raise accuse(
                f"the {seen} of {where} once {what} after {shown(moment)} are others: {_how(base, found, moment)}",
                "the same position to the bit, from forecasts up to its ts and what was known at its fold's cut",
                "mend signals, and choose thresholds on each fold's validation tail",
            )


def _how(base: pl.DataFrame, found: Difference | None, moment: int) -> str:
    """Return what such a leak is: only the newest decisions move where a bar ahead is read."""
    times = np.unique(at(base))
    newest = times[max(int(np.searchsorted(times, moment, side="right")) - 2, 0)]
    if found is not None and found.ts >= newest:
        return "a decision reads the bars right after it, or is filled before it is made"
    return "a threshold, size or limit was chosen on what came later"


def _require_same_fills(base: Book, other: Book, moment: int, what: str) -> None:
    values = ["shares", "price"]
    until = pl.col("ts") <= instant(moment)
    one, two = (b.fills.filter(until).sort("symbol", "ts", maintain_order=True) for b in (base, other))
    if len(one) == len(two) and one.select("symbol", "ts").equals(two.select("symbol", "ts")):
        stray = one.filter(pl.Series((one.select(values).to_numpy() != two.select(values).to_numpy()).any(axis=1)))
    else:
        stray = pl.concat(
            [one.join(two, on=["symbol", "ts"], how="anti"), two.join(one, on=["symbol", "ts"], how="anti")]
        )
    if len(stray):
        row = stray.sort("ts").row(0, named=True)
        raise accuse(
            f"the fill of {row['symbol']} in the bar at {row['ts']:%Y-%m-%dT%H:%M:%SZ} ({row['shares']:.6g} shares at "
            f"{row['price']:.6g}) is another once {what} are others",
            "a fill at a price of its own bar, decided by at least one bar and [backtest] delay_bars before",
            "mend portfolio: an order counted at ts is filled at the next bar",
        )


def _attack_fill_bars(config: Config, pulled: Market, walk: Sequence[FoldResult], base: Book) -> list[Check]:
    """Move the open of the bar that fills, then all that comes after its open: shares stay, and so does the price."""
    ordinary = base.fills.join(_rolled(pulled), on=["symbol", "ts"], how="anti")
    ticks = ordinary["ts"].unique().sort()
    if ticks.is_empty():
        return []
    chosen = sorted({int(len(ticks) * share) for share in (0.25, 0.75)})
    for tick in (ticks[i] for i in chosen):
        here = pl.col("ts") == tick
        higher = pulled.first.with_columns(
            pl.when(here).then(pl.col("open") * 1.001).otherwise("open").alias("open")
        ).with_columns(high=pl.max_horizontal(*PRICES), low=pl.min_horizontal(*PRICES))
        other = _book(config, replace(pulled, first=higher), walk)
        _require_equal_at(base, other, tick, "shares", "its open is a thousandth higher")
        if config.backtest.fill != "next_open":
            continue
        closes = pulled.first.with_columns(
            pl.when(here).then(pl.col("close") * 1.002).otherwise("close").alias("close")
        ).with_columns(high=pl.max_horizontal(*PRICES), low=pl.min_horizontal(*PRICES))
        other = _book(config, replace(pulled, first=closes), walk)
        for column in ("shares", "price"):
            _require_equal_at(base, other, tick, column, "its close is 20 bps higher")
    return [Check("open, and close, of the bar that fills", "shares and prices of fills", len(chosen))]


def _rolled(pulled: Market) -> pl.DataFrame:
    return pulled.rolls.select("symbol", "ts")


def _require_equal_at(base: Book, other: Book, tick: datetime, column: str, what: str) -> None:
    one, two = (b.fills.filter(pl.col("ts") == tick).sort("symbol", maintain_order=True) for b in (base, other))
    same = one["symbol"].equals(two["symbol"])
    wrong = ~np.isclose(one[column], two[column], rtol=1e-12, atol=0) if same else np.ones(1, bool)
    if wrong.any():
        row = (one if len(one) else two).row(int(wrong.argmax()) if same else 0, named=True)
        raise accuse(
            f"the {column} of the fill of {row['symbol']} in the bar at {shown(_micros(row['ts']))} move once {what}",
            "shares counted at ts from what was known then, and filled at the price that [backtest] fill says",
            "mend portfolio",
        )


def require_fills(config: Config, pulled: Market, book: Book, *, endings: pl.DataFrame | None = None) -> Check:
    """Return the check that every fill has the price that [backtest] says, in a bar after a decision.

    Parameters
    ----------
    book
        Of a strategy over the bars of `pulled.first`.
    endings
        `endings.ENDING_SCHEMA`: what is closed at an ending's price is not filled at a bar's.

    Raises
    ------
    LeakageError
        Naming the first fill that was not decided before its bar, or has another price.
    """
    fill = config.backtest.fill
    expression = {
        "next_open": pl.col("open"),
        "next_close": pl.col("close"),
        "next_mid": (pl.col("high") + pl.col("low")) / 2,
    }[fill]
    prices = pulled.first.select("symbol", "ts", expected=expression)
    decided = book.held.filter(pl.col("position").is_not_null()).select("symbol", "ts", decision=pl.col("ts"))
    rows = (
        book.fills.with_row_index("number")
        .join(prices, on=["symbol", "ts"], how="left", maintain_order="left")
        .sort("ts")
        .join_asof(decided.sort("ts"), on="ts", by="symbol", allow_exact_matches=False, check_sortedness=False)
        .sort("number")
    )
    undecided = rows.filter(pl.col("decision").is_null())
    if len(undecided):
        raise _fill_accused(undecided, "has no decision before it", "a decision at an earlier bar of its symbol")
    # What a symbol that ends is closed at stands in its ending, not in a bar.
    priced = rows.filter(pl.col("expected").is_not_null())
    if endings is not None:
        priced = priced.join(endings.drop_nulls("ts"), on=["symbol", "ts"], how="anti", maintain_order="left")
    if fill != "next_open":
        # A series of futures is rolled at the open, however its orders are filled.
        priced = priced.join(_rolled(pulled), on=["symbol", "ts"], how="anti", maintain_order="left")
    paid = pl.col("slippage") / pl.col("shares").abs() * pl.col("shares").sign()
    wrong = priced.filter(((pl.col("price") - paid) / pl.col("expected") - 1).abs() > PRICE_TOLERANCE)
    if len(wrong):
        row = wrong.row(0, named=True)
        price = f"{fill.replace('next_', 'the ')} of its bar, {row['expected']:.9g}, and costs"
        raise _fill_accused(wrong, f"is at {row['price']:.9g}", price)
    _require_delays(config, pulled, book)
    return Check(f"price and decision of every fill ({fill})", "fills", len(rows))


def _require_delays(config: Config, pulled: Market, book: Book) -> None:
    """Raise where a fill lies fewer bars after the decision that the book names than [backtest] says."""
    named = book.charges.filter(pl.col("decided_ts").is_not_null())
    times = np.unique(at(pulled.first))
    stamps = (named[c].dt.timestamp("us").to_numpy() for c in ("decided_ts", "ts"))
    decided, filled = (np.searchsorted(times, each) for each in stamps)
    early = np.flatnonzero(filled - decided < 1 + config.backtest.delay_bars)
    if len(early):
        rows = named[early.tolist()].join(book.fills.select("symbol", "ts", "shares"), on=["symbol", "ts"], how="left")
        lag = int((filled - decided)[early[0]])
        raise _fill_accused(
            rows,
            f"lies {lag} bar(s) after its decision at {shown(_micros(rows['decided_ts'][0]))}",
            f"at least {1 + config.backtest.delay_bars}, by [backtest] delay_bars = {config.backtest.delay_bars}",
        )


def _fill_accused(rows: pl.DataFrame, seen: str, expected: str) -> LeakageError:
    row = rows.row(0, named=True)
    return accuse(
        f"the fill of {row['symbol']} in the bar at {row['ts']:%Y-%m-%dT%H:%M:%SZ} ({row['shares']:.6g} shares) {seen}",
        expected,
        "mend portfolio: an order counted at ts is filled at the next bar",
    )


def timeline(config: Config, pulled: Market, results: Sequence[FoldResult], book: Book) -> dict[str, Any]:
    """Return one forecast's journey, times in UTC as ISO 8601: the first fill and all that it rests on.

    Keys: `symbol`, `fold`, `first_bar_ts`, `cut`, `train_label_end`, `data_cut` (the newest bar the forecast read),
    `decision_ts`, `order_ts` (with `[backtest] delay_s`), `fill_ts` (the end of the bar that fills), `fill_price`,
    `exit_ts` (the next fill the other way), `label_end`. Null where it did not come; empty where nothing was filled.

    Raises
    ------
    LeakageError
        Where one of them does not come before the next.
    """
    decided = book.held.filter(pl.col("position").is_not_null()).select("symbol", "ts", decision=pl.col("ts"))
    fills = book.fills.sort("ts").join_asof(
        decided.sort("ts"), on="ts", by="symbol", allow_exact_matches=False, check_sortedness=False
    )
    if fills.is_empty():
        return {}
    first = fills.row(0, named=True)
    symbol, filled = first["symbol"], _micros(first["ts"])
    if first["decision"] is None:
        raise _fill_accused(fills, "has no decision before it", "a decision at an earlier bar of its symbol")
    decision = _micros(first["decision"])
    of = next((r for r in results if _holds(r, symbol, decision)), None)
    own = at(pulled.first.filter(pl.col("symbol") == symbol).sort("ts"))
    newest = int(own[np.searchsorted(own, decision, side="right") - 1])
    end = ends(own, config.label.horizon)[np.searchsorted(own, newest)]
    back = fills.filter(
        pl.col("symbol") == symbol, pl.col("ts") > first["ts"], pl.col("shares").sign() == -np.sign(first["shares"])
    )
    order = decision + round(config.backtest.delay_s * 1e6)
    _require_order(symbol, {"decision": decision, "fill": filled})
    if of is not None:
        _require_order(symbol, {"training label end": of.train_end, "cut": of.cut + 1, "decision": decision + 1})
    if end != UNKNOWN_END and of is not None:
        _require_order(symbol, {"cut": of.cut, "label end": int(end)})
    return {
        "symbol": symbol,
        "fold": None if of is None else of.fold.number,
        "first_bar_ts": shown(int(own[0])),
        "train_label_end": None if of is None else shown(of.train_end),
        "cut": None if of is None else shown(of.cut),
        "data_cut": shown(newest),
        "decision_ts": shown(decision),
        "order_ts": shown(order),
        "fill_ts": shown(filled),
        "fill_price": float(first["price"]),
        "exit_ts": shown(_micros(back["ts"][0])) if len(back) else None,
        "label_end": None if end == UNKNOWN_END else shown(int(end)),
    }


def _holds(result: FoldResult, symbol: str, ts: int) -> bool:
    return bool(len(result.forecasts.filter(pl.col("symbol") == symbol, pl.col("ts") == instant(ts))))


def _require_order(symbol: str, steps: dict[str, int]) -> None:
    names: list[str] = list(steps)
    stamps: Times = np.array(list(steps.values()), dtype=np.int64)
    wrong = np.flatnonzero(np.diff(stamps) <= 0)
    if len(wrong):
        i = int(wrong[0])
        raise accuse(
            f"the {names[i]} of {symbol} is at {shown(int(stamps[i]))} and its {names[i + 1]} at "
            f"{shown(int(stamps[i + 1]))}",
            f"the {names[i]} first",
            "mend what puts them in this order",
        )


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6)
