"""The state a model carries from bar to bar: how old it is at a forecast, and whether its age changes the forecast.

A fold's stream starts from a zero state `warmup_bars` bars before the cut (at its first bar where a symbol has fewer).
The age of a forecast's state counts the symbol's bars since that warm-up: the first bar after it has age 0. A model
whose forecasts change with the age of its state would be judged on states that a live trader, who starts afresh with
each release, does not have.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.dataset import Dataset, Floats
from foxflow.errors import PluginError

BANDS = ((0, 50), (50, 250), (250, None))
"""Ages in bars, from the first, which is in it, to the second, which is not."""
BAND_NAMES = ("0-49", "50-249", "250 and over")
GAP_LIMIT = 0.05
# As long as the youngest band, where a re-warmed state differs most from one that was carried.
BLOCK_BARS = 50
MOST_BLOCKS = 24
# A scaled label varies by 1: what differs by less is rounding, as in a fit that learned nothing and says one number.
ROUNDING = 1e-9

Forecast = Callable[[Dataset], tuple[Floats, ...]]


def ages(
    forecasts: pl.DataFrame, bars: pl.DataFrame, *, cuts: Mapping[int, int], warmup_bars: int
) -> NDArray[np.int64]:
    """Return the age of each forecast's state, in bars of its symbol, in the order of `forecasts`.

    Parameters
    ----------
    forecasts
        With `symbol`, `ts` and `fold`.
    bars
        With `symbol` and `ts`, each symbol from its first stored bar on.
    cuts
        The cut of each fold, in microseconds.
    """
    times = {symbol: _micros(rows) for (symbol,), rows in bars.partition_by("symbol", as_dict=True).items()}
    symbols, ts = forecasts["symbol"].to_numpy(), _micros(forecasts)
    cut = np.array([cuts[fold] for fold in forecasts["fold"]], dtype=np.int64)
    found = np.empty(len(forecasts), dtype=np.int64)
    for symbol in np.unique(symbols):
        own, at = np.sort(times[symbol]), symbols == symbol
        # A symbol with fewer bars before the cut is still warming up after it.
        warm = np.maximum(np.searchsorted(own, cut[at], side="right"), warmup_bars)
        found[at] = np.searchsorted(own, ts[at]) - warm
    return found


def _micros(rows: pl.DataFrame) -> NDArray[np.int64]:
    return rows["ts"].dt.timestamp("us").to_numpy()


def gap(forecast: Forecast, data: Dataset, *, warmup_bars: int) -> float:
    """Return how far forecasts of a re-warmed state lie from those of the state carried since each first bar.

    Root mean square difference over the standard deviation of the carried forecasts, on the same bars of all symbols:
    at most `MOST_BLOCKS` blocks of `BLOCK_BARS` bars, evenly spaced, each streamed from a zero state `warmup_bars`
    bars before it. NaN where no symbol is long enough for a block.

    Parameters
    ----------
    data
        Scaled, up to the cut; no label is read.
    """
    blocks = list(_blocks(data, warmup_bars))
    if not blocks:
        return float("nan")
    spaced = np.linspace(0, len(blocks) - 1, min(len(blocks), MOST_BLOCKS)).round().astype(int)
    chosen = [blocks[i] for i in spaced]
    # Of a large universe only the symbols that hold a block are carried.
    held = sorted({number for number, _ in chosen})
    series = dict(zip(held, (data.series[n] for n in held), strict=True))
    whole = dict(zip(held, forecast(replace(data, series=tuple(series.values()))), strict=True))
    short = tuple(series[n].slice(start - warmup_bars, start + BLOCK_BARS) for n, start in chosen)
    valid = np.concatenate([s.valid[warmup_bars:] for s in short])
    again = np.concatenate([f[warmup_bars:] for f in forecast(replace(data, series=short))])[valid]
    carried = np.concatenate([whole[n][start : start + BLOCK_BARS] for n, start in chosen])[valid]
    if not valid.any():
        return float("nan")
    difference, spread = float(np.sqrt(np.square(again - carried).mean())), float(carried.std())
    if difference <= ROUNDING:
        return 0.0
    return difference / spread if spread > 0 else math.inf


def _blocks(data: Dataset, warmup_bars: int) -> Iterator[tuple[int, int]]:
    """Yield series and first bar of each block that a symbol could be forecast on, counted back from its last bar."""
    for number, series in enumerate(data.series):
        first = data.lookback - 1 + warmup_bars
        yield from ((number, start) for start in range(len(series) - BLOCK_BARS, first - 1, -BLOCK_BARS))


def require_warm(forecast: Forecast, data: Dataset, *, warmup_bars: int, where: str) -> float:
    """Return the `gap`; raise PluginError where it passes `GAP_LIMIT`: the model remembers longer than it warms up."""
    found = gap(forecast, data, warmup_bars=warmup_bars)
    if found > GAP_LIMIT:
        raise PluginError(
            f"{where}: forecasts from a state re-warmed over {warmup_bars} bars differ from those of the carried state "
            f"by {found:.3f} of their standard deviation; expected at most {GAP_LIMIT}: raise [model] warmup_bars, or "
            "shorten the model's memory; where it should remember nothing, it may read later bars: `foxflow audit` says"
        )
    return found
