"""Seeded bars with one planted effect, to see whether a model learns it and how near it comes to what can be known."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow.bars import BAR_SCHEMA, TS, bar_length

ORACLE_SCHEMA = pl.Schema(
    {"symbol": pl.String(), "ts": TS, "regime": pl.Int8(), "sign": pl.Int8(), "expected": pl.Float64()}
)
BAR, FIRST_TS = "1h", datetime(2000, 1, 1, tzinfo=UTC)
# No ordinary bar has more than 1.65 times the usual volume, no spike less than 6 times.
SPIKE_VOLUME = 10.0
# Volume spikes only on a bar that moves by this many standard deviations of the noise, so its direction is plain.
SPIKE_MOVE = 1.5

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Planted:
    """Bars (`BAR_SCHEMA`) and what is true of each (`ORACLE_SCHEMA`), row by row, sorted by (symbol, ts)."""

    bars: pl.DataFrame
    oracle: pl.DataFrame


def planted(
    *, seed: int, n_symbols: int, n_bars: int, kappa: float = 0.003, noise: float = 0.01, spike_every: float = 30.0
) -> Planted:
    """Return bars whose next return is `kappa * regime * sign` plus noise, and that expectation at every bar.

    The planted return is the label `forward_return` of horizon 1: at bar t
    `open[t+2] / open[t+1] - 1 = expected[t] + noise * e[t+1]` with `expected = kappa * regime * sign`. No forecast has
    a better information coefficient than `expected`, whose own is `kappa / sqrt(kappa**2 + noise**2)`.

    `sign` stands in the bar itself: +1 where its lower wick is the longer one (feature `range_position` above 0), -1
    where the upper one is. `regime` stands in the newest volume spike alone (feature `volume_ratio`): +1 if that bar
    rose, -1 if it fell (feature `return_1`), 0 before a symbol's first. So a model has to remember one bar until the
    next spike, and to multiply what it remembers by what it sees. Sign is independent of regime and both are as often
    +1 as -1: nothing linear in any of the bars forecasts the return.

    Parameters
    ----------
    seed
        Of numpy's default generator, the only source of randomness: e is standard normal, sign a fair coin, a spike
        comes by chance where `abs(e) >= 1.5`; all independent from bar to bar and symbol to symbol.
    kappa, noise
        Fractions per bar, `0 <= kappa <= noise <= 0.03`. A kappa of 0 plants nothing.
    spike_every
        Mean bars from spike to spike, 8 or more.

    Returns
    -------
    Hourly bars without a pause, each opening at the close before it, and the oracle, all of it known at `ts`.

    Raises
    ------
    ValueError
        On a number outside its limits.
    """
    _require(
        1 <= n_symbols <= 1000 and n_bars >= 1,
        f"{n_symbols} symbols of {n_bars} bars; expected 1 to 1,000 symbols and at least 1 bar",
    )
    _require(0 <= kappa <= noise <= 0.03, f"kappa = {kappa}, noise = {noise}; expected 0 <= kappa <= noise <= 0.03")
    _require(spike_every >= 8, f"spike_every = {spike_every}; expected at least 8 bars")
    random = np.random.default_rng(seed)
    # Every array below has this shape.
    shape = (n_symbols, n_bars)
    e = random.standard_normal(shape)
    sign = random.choice([-1.0, 1.0], shape)
    chance = 1.0 / (spike_every * math.erfc(SPIKE_MOVE / math.sqrt(2.0)))
    spike = (np.abs(e) >= SPIKE_MOVE) & (random.random(shape) < chance)
    regime = _held(np.where(spike, np.sign(e), 0.0))
    expected = kappa * regime * sign
    move = noise * e
    move[:, 1:] += expected[:, :-1]
    volume = 1e6 * np.exp(random.uniform(-0.5, 0.5, shape)) * np.where(spike, SPIKE_VOLUME, 1.0)
    wicks = noise * random.uniform(0.5, 1.5, shape), noise * random.uniform(0.0, 0.2, shape)
    prices = _prices(move, sign, *wicks)
    oracle = {"regime": regime, "sign": sign, "expected": expected}
    return Planted(_frame(prices | {"volume": volume}, BAR_SCHEMA), _frame(oracle, ORACLE_SCHEMA))


def _held(news: Floats) -> Floats:
    """Return the newest value that is not 0, up to and with each bar; 0 before the first."""
    newest = np.maximum.accumulate(np.where(news != 0, np.arange(news.shape[1]), 0), axis=1)
    held: Floats = np.take_along_axis(news, newest, axis=1)
    return held


def _prices(move: Floats, sign: Floats, long: Floats, short: Floats) -> dict[str, Floats]:
    """Return open, high, low and close of bars that move by `move`, with a long and a short wick; all fractions."""
    closes = 100.0 * np.cumprod(1.0 + move, axis=1)
    opens = np.concatenate([np.full((len(move), 1), 100.0), closes[:, :-1]], axis=1)
    # Longer than the body too, so that the close lies on the sign's side of the middle whichever way the bar moved.
    longer = long + 2.0 * np.abs(move)
    upper, lower = np.where(sign > 0, short, longer), np.where(sign > 0, longer, short)
    highs = np.maximum(opens, closes) + opens * upper
    lows = np.minimum(opens, closes) - opens * lower
    return {"open": opens, "high": highs, "low": lows, "close": closes}


def _frame(columns: dict[str, Floats], schema: pl.Schema) -> pl.DataFrame:
    n_symbols, n_bars = next(iter(columns.values())).shape
    last_ts = FIRST_TS + (n_bars - 1) * bar_length(BAR)
    ts = pl.datetime_range(FIRST_TS, last_ts, interval=BAR, time_unit="us", eager=True)
    symbols = np.repeat([f"S{i:03d}" for i in range(n_symbols)], n_bars)
    values = {name: column.ravel() for name, column in columns.items()}
    return pl.DataFrame({"symbol": symbols, "ts": pl.concat([ts] * n_symbols)} | values).cast(schema)


def _require(condition: bool, message: str) -> None:  # noqa: FBT001  (reads as assert does)
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)
