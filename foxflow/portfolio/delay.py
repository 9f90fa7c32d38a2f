"""When the order of a decision has reached the market: the first bar that can fill it."""

from datetime import timedelta

import numpy as np
import polars as pl

from foxflow.bars import TS, bar_length, sessions_around
from foxflow.config import Backtest
from foxflow.errors import DataError
from foxflow.portfolio.prices import Counts


def due(times: pl.Series, execution: Backtest, *, bar: str | None, calendar: str | None) -> Counts:
    """Return, for a decision at each bar time, the number of the first bar that can fill it, `(n_times,)`.

    The next bar, `delay_bars` later; and with `delay_s` the first bar that opens (for fills at the close: that ends)
    no earlier than that many seconds after the decision, `delay_bars` later.

    Raises
    ------
    DataError
        `delay_s` without `bar` and `calendar`, which say when a bar opens.
    """
    number = np.arange(len(times))
    first = number + 1
    if execution.delay_s:
        if bar is None or calendar is None:
            raise DataError(
                f"delay_s = {execution.delay_s} needs the bar length and the calendar, which say when a bar opens; "
                f"got bar = {bar!r}, calendar = {calendar!r}"
            )
        at_end = execution.fill == "next_close"
        starts = (times if at_end else opens(times, bar=bar, calendar=calendar)).dt.timestamp("us").to_numpy()
        arrives = times.dt.timestamp("us").to_numpy() + round(execution.delay_s * 1e6)
        first = np.maximum(first, np.searchsorted(starts, arrives, side="left"))
    return (first + execution.delay_bars).astype(np.int64)


def opens(times: pl.Series, *, bar: str, calendar: str) -> pl.Series:
    """Return when each of the bars that end at these times (ascending) opens, ascending.

    A bar of a day opens with its session; of a longer span with the first session in it; any other its length before
    its end, but no earlier than its session, or the end of that session's lunch break.
    """
    if not len(times):
        return times
    known = sessions_around(calendar, times[0], times[-1])
    begins = known["open"]
    if bar == "1d":
        spans = times - timedelta(days=7)
        found = _newest(begins, times)
    elif bar.endswith(("d", "w")):
        spans = times - (timedelta(days=7) if bar.endswith("w") else bar_length(bar))
        at = begins.search_sorted(spans, side="left").clip(0, len(begins) - 1)
        found = begins.gather(at)
    else:
        spans = times - bar_length(bar)
        found = _newest(pl.concat([begins, known["break_end"].drop_nulls()]).sort(), times)
    frame = pl.DataFrame({"span": spans, "found": found, "before": times.shift(1)})
    # Where the calendar knows no session, a bar opens no earlier than its length before its end; and none before the
    # bar before it was complete.
    return frame.select(pl.max_horizontal("span", "found", "before").cast(TS)).to_series()


def _newest(starts: pl.Series, times: pl.Series) -> pl.Series:
    """Return the newest start before each time, null where there is none."""
    at = starts.search_sorted(times, side="left").cast(pl.Int64) - 1
    found = starts.gather(at.clip(0, len(starts) - 1))
    return pl.select(pl.when(at >= 0).then(found)).to_series()
