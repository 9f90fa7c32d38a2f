"""What a book is filled and marked at, and what is known of costs by then, as arrays over bar times and symbols."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.config import Backtest, Costs
from foxflow.dataset import Floats
from foxflow.endings import ENDING_SCHEMA
from foxflow.errors import DataError
from foxflow.signals import to_wide

Masks = NDArray[np.bool_]
Counts = NDArray[np.int64]

# Over how many of a symbol's newest bars its volatility and volume are taken for the impact of an order.
TRAILING_BARS = 20
# Stands for an impact that a bar leaves unknown, as NaN stands for no bar.
UNKNOWN = -1.0


@dataclass(frozen=True)
class Prices:
    """Arrays `(n_times, n_symbols)`, NaN where a symbol has no bar, unless said otherwise.

    `fill`: what an order is filled at before costs; `marked`: the last close carried forward, and a symbol's first one
    before it (nothing is held there); `settled`: what a symbol that ends is closed at, NaN where none does; `rolls`:
    whether a series goes over to another contract at the open of this bar; `raw_shares`: shares as traded that day in
    one of the account's, carried forward, and `volume`, in shares of the account (ones and empty where no cost needs
    them); `impact`: the part of the price that the root of one share moves it by, known at this bar, carried forward;
    `days (n_times,)`: since the bar before.
    """

    times: pl.Series
    symbols: pl.Series
    fill: Floats
    open: Floats
    close: Floats
    marked: Floats
    settled: Floats
    rolls: Masks
    raw_shares: Floats
    volume: Floats
    impact: Floats
    days: Floats

    @property
    def paid(self) -> Floats:
        """The price before costs of whatever is filled at a bar, endings among it."""
        return np.where(np.isfinite(self.settled), self.settled, self.fill)


def prices(
    bars: pl.DataFrame,
    *,
    decided: pl.Series,
    execution: Backtest,
    costs: Costs,
    endings: pl.DataFrame | None,
    rolls: pl.DataFrame | None,
    factors: pl.DataFrame | None,
) -> Prices:
    """Return the prices from the first decision on; parameters as of `portfolio.run`, `decided` when it decides.

    Raises
    ------
    DataError
        On a price that is not positive, and on a bar without its factor where costs need one.
    """
    since = decided.min()
    known = _with_costs(bars.sort("symbol", "ts"), costs, factors, execution)
    bars = known.filter(pl.col("ts") >= since)
    ends = ENDING_SCHEMA.to_frame() if endings is None else endings.filter(pl.col("ts") >= since)
    # An exit or an ending may come at the bar time of a symbol that is not traded.
    times, symbols = pl.concat([bars["ts"], ends["ts"], decided]).unique().sort(), bars["symbol"].unique().sort()
    mid = execution.fill == "next_mid"
    _require_positive(bars, ("open", "close", "low") if mid else ("open", "close"))
    open_, close = (to_wide(bars, c, times, symbols) for c in ("open", "close"))
    if mid:
        fill = (to_wide(bars, "high", times, symbols) + to_wide(bars, "low", times, symbols)) / 2
    else:
        fill = open_ if execution.fill == "next_open" else close
    settled = to_wide(ends.filter(pl.col("symbol").is_in(symbols.to_list())), "price", times, symbols)
    rolled = np.zeros(open_.shape, bool)
    for symbol, ts in rolls.select("symbol", "ts").iter_rows() if rolls is not None else ():
        if ts >= since and symbol in symbols:
            of = symbols.search_sorted(symbol)
            at = np.flatnonzero((times >= ts).to_numpy() & np.isfinite(open_[:, of]))
            rolled[at[:1], of] = True
    ones = np.ones(open_.shape)
    return Prices(
        times,
        symbols,
        fill,
        open_,
        close,
        marked=carried(close),
        settled=settled,
        rolls=rolled,
        raw_shares=carried(to_wide(bars, "raw_shares", times, symbols)) if costs.need_raw_shares else ones,
        volume=to_wide(bars, "account_volume", times, symbols) if costs.need_raw_shares else np.empty((0, 0)),
        impact=_known(to_wide(bars, "impact", times, symbols)) if costs.impact else np.zeros(open_.shape),
        days=np.diff(times.dt.timestamp("us").to_numpy(), prepend=0) / 86_400e6,
    )


def _require_positive(bars: pl.DataFrame, columns: tuple[str, ...]) -> None:
    bad = bars.filter(pl.any_horizontal(pl.col(c) <= 0 for c in columns))
    if len(bad):
        first = bad.sort("ts").row(0, named=True)
        named = ", ".join(f"{c} {first[c]}" for c in columns)
        raise DataError(
            f"{first['symbol']} at {first['ts']:%Y-%m-%d %H:%M}Z: {named}; a price that is not positive cannot be "
            "traded as a fraction of equity: leave it out of [data] symbols"
        )


def _with_costs(bars: pl.DataFrame, costs: Costs, factors: pl.DataFrame | None, execution: Backtest) -> pl.DataFrame:
    """Return the bars with `raw_shares`, `account_volume` and, where it costs, `impact` as known at their ts."""
    if factors is None:
        bars = bars.with_columns(raw_shares=pl.lit(1.0), account_volume="volume")
    else:
        shares = "shares_at_open" if execution.fill == "next_open" else "shares_at_close"
        joined = bars.join(factors, on=["symbol", "ts"], how="left", maintain_order="left")
        lost = joined.filter(pl.any_horizontal(pl.col(c).is_null() for c in (shares, "volume_factor")))
        if len(lost) and costs.need_raw_shares:
            raise DataError(
                f"{len(lost)} bar(s) without a factor from their prices to those of the day, first "
                f"{lost['symbol'][0]} at {lost['ts'][0]:%Y-%m-%d %H:%M}Z; give the factors of all bars"
            )
        bars = joined.with_columns(raw_shares=shares, account_volume=pl.col("volume") * pl.col("volume_factor"))
    if not costs.impact:
        return bars
    known = []
    for own in bars.partition_by("symbol", maintain_order=True):
        close, volume = (own[c].cast(pl.Float64).fill_null(np.nan).to_numpy() for c in ("close", "account_volume"))
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = np.r_[np.nan, trailing_mean(np.diff(np.log(close)) ** 2)]
            impact = costs.impact * np.sqrt(variance / trailing_mean(volume))
        # One return has no spread, and where nothing is traded there is no price for more.
        impact[:2] = np.nan
        known.append(own.with_columns(impact=pl.Series(np.where(np.isfinite(impact), impact, UNKNOWN))))
    return pl.concat(known)


def trailing_mean(values: Floats) -> Floats:
    """Return the mean of the newest `TRAILING_BARS` values at each, of fewer where there are no more.

    Each window is summed anew: a running sum would keep rounding errors of values long gone.
    """
    if not len(values):
        return values
    windows = np.lib.stride_tricks.sliding_window_view(np.r_[np.zeros(TRAILING_BARS - 1), values], TRAILING_BARS)
    return np.asarray(windows.sum(axis=1) / np.minimum(np.arange(1, len(values) + 1), TRAILING_BARS))


def carried(wide: Floats) -> Floats:
    """Return a column's last value carried forward, and its first one carried back before it."""
    frame = pl.DataFrame(wide).select(pl.all().fill_nan(None).forward_fill().backward_fill())
    return frame.to_numpy()


def _known(impact: Floats) -> Floats:
    """Return the impact at a symbol's newest bar; what was not known at that bar is NaN."""
    newest = pl.DataFrame(impact).select(pl.all().fill_nan(None).forward_fill().fill_null(UNKNOWN)).to_numpy()
    return np.where(newest == UNKNOWN, np.nan, newest)
