"""Attacks on features: whatever later bars become, a feature stays what it was."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np
import polars as pl

from foxflow import dataset, features
from foxflow.audit.checks import Check, accuse
from foxflow.audit.corruption import (
    CORRUPTIONS,
    Difference,
    Times,
    at,
    first_difference,
    holed,
    noise,
    shown,
    spread,
    with_impulses,
)
from foxflow.config import Config
from foxflow.dataset import Dataset, Floats
from foxflow.universe import EVERYTHING, Universe

# Attacked in the quick form: enough of any market to show a leak, and the same work for a large one.
MOST_SYMBOLS = 8
MOST_BARS = 4_000
MOMENTS = 3
FULL_MOMENTS = 50
# Where in a symbol's bars.
IMPULSES = (0.1, 0.4, 0.7, 0.95)


def build(
    config: Config,
    bars: pl.DataFrame,
    universe: Universe = EVERYTHING,
    delays: Mapping[str, timedelta] | None = None,
) -> Dataset:
    """Return the samples of adjusted bars as the experiment makes them; `delays` as in `Dataset`."""
    return dataset.build(
        bars,
        feature_names=config.features.names,
        label_name=config.label.name,
        horizon=config.label.horizon,
        bar=config.data.bar,
        universe=universe,
        delays=delays,
    )


def few(bars: pl.DataFrame) -> pl.DataFrame:
    """Return the first bars of some symbols, evenly chosen, of a market too large to be attacked again and again."""
    symbols = bars["symbol"].unique().sort()
    picked = symbols.gather(np.linspace(0, len(symbols) - 1, min(len(symbols), MOST_SYMBOLS)).astype(int))
    chosen = bars if len(picked) == len(symbols) else bars.filter(pl.col("symbol").is_in(picked.to_list()))
    times = chosen["ts"].unique().sort()
    return chosen if len(times) <= MOST_BARS else chosen.filter(pl.col("ts") <= times[MOST_BARS - 1])


def moments(config: Config, bars: pl.DataFrame, *, full: bool) -> list[int]:
    """Return the instants to attack at: in the warm-up of the features, before the last bar, and spread between."""
    half = max(features.lookback(config.features.names) // 2, 1)
    times = np.unique(at(bars))
    if len(times) < 3:
        return [int(t) for t in times[:1]]
    # What fills the warm-up from later bars, or from another symbol, shows itself only there.
    firsts = [at(rows) for rows in bars.partition_by("symbol")]
    starts = {int(own[min(half, len(own) - 1)]) for own in (firsts if full else firsts[:1])}
    between = spread(times, FULL_MOMENTS if full else MOMENTS, first=min(half + 1, len(times) - 1))
    return sorted({*starts, *between, int(times[-2])} - {int(times[-1])})


def attack_features(config: Config, bars: pl.DataFrame, when: Sequence[int]) -> list[Check]:
    """Return the checks that the features of the samples withstood.

    Parameters
    ----------
    bars
        Adjusted bars, sorted by (symbol, ts).
    when
        Instants (int64 us); what comes after each is corrupted in every way of `CORRUPTIONS`.

    Raises
    ------
    LeakageError
        Naming the features that moved and the first bar at which they did.
    """
    base, names = build(config, bars), ", ".join(config.features.names)
    done = []
    for how in CORRUPTIONS:
        for moment in when:
            _require_unmoved(config, base, bars, moment, how)
        done.append(Check(f"later bars: {how}", f"features {names}", len(when)))
    for moment in when:
        poor = holed(bars, moment)
        _require_unmoved(config, build(config, poor), poor, moment, "noise")
    done.append(Check("later bars: noise behind a hole", f"features {names}", len(when)))
    return done


def attack_impulses(config: Config, bars: pl.DataFrame) -> list[Check]:
    """Return the check that features withstood one bar of one symbol at a time being half as high again.

    Its note says how far on a feature moved by more than rounding, and how far back features say that they read.

    Raises
    ------
    LeakageError
        Naming the feature that moved before the bar did.
    """
    base, farthest, n = build(config, bars), 0, 0
    for series in base.series[:MOST_SYMBOLS]:
        for row in sorted({int(len(series) * share) for share in IMPULSES}):
            other = build(config, with_impulses(bars, {series.symbol: [row]}))
            moment = int(series.ts[row])
            found = first_difference(earlier(base, other, "features", until=moment - 1))
            if found is not None:
                raise accuse(
                    f"feature {base.feature_names[found.column]!r} of {found.when} moves from {found.before:.9g} to "
                    f"{found.after:.9g} with the later bar of {series.symbol} at {shown(moment)}",
                    "no feature to move before the bar does",
                    "mend the feature's expression, or what dataset.build makes of it",
                )
            own = next(s for s in other.series if s.symbol == series.symbol)
            slack = 1e-6 * np.maximum(np.abs(series.features), 1.0)
            moved = np.flatnonzero((np.abs(own.features - series.features) > slack).any(axis=1))
            farthest, n = max([farthest, *(moved - row).tolist()]), n + 1
    note = f"moved up to {farthest} bar(s) on; the lookback is {base.lookback}, the bar itself among them"
    return [Check("impulse at one bar of one symbol", f"features {', '.join(config.features.names)}", n, note)]


def _require_unmoved(config: Config, base: Dataset, bars: pl.DataFrame, moment: int, how: str) -> None:
    other = build(config, CORRUPTIONS[how](bars, moment))
    pairs = earlier(base, other, "features", until=moment)
    found = first_difference(pairs)
    if found is None:
        return
    name = base.feature_names[found.column]
    twin = " (it is a function of the label)" if _follows_label(base, found.column) else ""
    moved = [
        each
        for i, each in enumerate(base.feature_names)
        if each != name and first_difference((s, ts, a[:, i], b[:, i]) for s, ts, a, b in pairs)
    ]
    also = f"; so do {', '.join(moved)}" if moved else ""
    raise accuse(
        f"feature {name!r}{twin} of {found.when} is {found.before:.9g}, and {found.after:.9g} once the bars after "
        f"{shown(moment)} are corrupted ({how}): {_guilty(config, bars, found, moment)} reads a later bar{also}",
        "the same number to the bit, made of bars up to its own ts",
        "mend the feature: no negative shift, centred window, backward fill, or statistic of the whole series or of "
        "the label",
    )


def _guilty(config: Config, bars: pl.DataFrame, found: Difference, moment: int) -> str:
    """Return what reads later bars: the feature's expression, or what is made of it afterwards."""
    name = config.features.names[found.column]
    one, other = (features.compute(rows, [name]) for rows in (bars, noise(bars, moment)))
    before, after = (
        float("nan" if value is None else value)
        for value in (f.filter(pl.col("symbol") == found.symbol)[name][found.row] for f in (one, other))
    )
    return "dataset.build" if before == after or np.isnan([before, after]).all() else "its expression"


def earlier(one: Dataset, other: Dataset, array: str, *, until: int) -> list[tuple[str, Times, Floats, Floats]]:
    """Return both datasets' arrays of that name up to a time, symbol by symbol, for `first_difference`."""
    others = {s.symbol: s for s in other.series}
    pairs = []
    for s in one.series:
        stop = int(np.searchsorted(s.ts, until, side="right"))
        if not stop:
            continue
        same = others.get(s.symbol)
        if same is None or not np.array_equal(same.ts[:stop], s.ts[:stop]):
            raise accuse(
                f"the samples of {s.symbol} up to {shown(until)} are other rows when later bars are others",
                "a row for each bar, whatever comes later",
                "mend dataset.build",
            )
        pairs.append((s.symbol, s.ts[:stop], getattr(s, array)[:stop], getattr(same, array)[:stop]))
    return pairs


def _follows_label(data: Dataset, column: int) -> bool:
    """Return whether a feature puts the rows in the label's own order, or in the reverse."""
    rows = [(s.features[:, column], s.label) for s in data.series]
    feature, label = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    both = np.isfinite(feature) & np.isfinite(label)
    if both.sum() < 10:
        return False
    one, other = (np.argsort(np.argsort(x[both])).astype(np.float64) for x in (feature, label))
    one, other = one - one.mean(), other - other.mean()
    return bool(abs(one @ other) > 0.99 * np.sqrt((one @ one) * (other @ other)))
