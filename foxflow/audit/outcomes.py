"""Attacks on labels: none is known at its ts, each starts at the fill and ends at its label_end."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from foxflow.audit.checks import Check, accuse
from foxflow.audit.corruption import CORRUPTIONS, Times, first_difference, shown, with_impulses
from foxflow.audit.samples import build
from foxflow.bars import bar_length
from foxflow.config import Config
from foxflow.dataset import UNKNOWN_END, Dataset, Floats, Series
from foxflow.errors import LeakageError

# Of a label; a rolling mean of squares keeps fewer digits than two opens divided.
TOLERANCE = {"forward_return": 1e-12, "forward_volatility": 1e-6}
MOST_ROWS = 200


def attack_labels(config: Config, bars: pl.DataFrame, when: Sequence[int]) -> list[Check]:
    """Return the checks that the labels of the samples withstood: against opens, impulses, and later bars.

    Parameters as in `samples.attack_features`.

    Raises
    ------
    LeakageError
        Naming the label, the first row, and the bar it should not read.
    """
    data = build(config, bars)
    name, horizon = config.label.name, config.label.horizon
    done = [_against_ends(data), *_against_opens(config, bars, data), _against_impulses(config, bars, data)]
    for how in ("cut", "noise", "null"):
        for moment in when:
            _require_known(data, build(config, CORRUPTIONS[how](bars, moment)), moment, how)
    done.append(Check("later bars: cut, noise, null", f"label {name}, horizon {horizon}", len(when)))
    return done


def ends(ts: Times, horizon: int) -> Times:
    """Return the ts of the bar at which a label of that horizon ends, `UNKNOWN_END` where it has not come: the oracle.

    A label of bar i is filled at the open of bar i + 1 and leaves at the open of bar i + 1 + horizon.
    """
    found = np.full(len(ts), UNKNOWN_END)
    found[: max(len(ts) - 1 - horizon, 0)] = ts[1 + horizon :]
    return found


def _against_ends(data: Dataset) -> Check:
    for s in data.series:
        expected, known = ends(s.ts, data.horizon), np.isfinite(s.label)
        wrong = np.flatnonzero(known & (s.label_end != expected))
        if len(wrong):
            i = int(wrong[0])
            held = "nothing" if expected[i] == UNKNOWN_END else shown(int(expected[i]))
            raise _accused(
                data,
                s,
                i,
                f"has label_end {shown(int(s.label_end[i])) if s.label_end[i] != UNKNOWN_END else 'unknown'}",
                f"{held}, the bar at whose open a position of {data.horizon} bar(s), filled at the next open, is left",
            )
    return Check("label_end from the bars' own times", f"label {data.label_name}", sum(len(s) for s in data.series))


def _against_opens(config: Config, bars: pl.DataFrame, data: Dataset) -> list[Check]:
    """Compare the labels that the audit knows with its own arithmetic on the opens."""
    if data.label_name not in TOLERANCE:
        return []
    opens = {
        str(symbol): rows["open"].to_numpy() for (symbol,), rows in bars.partition_by("symbol", as_dict=True).items()
    }
    n = 0
    for s in data.series:
        truth = _truth(config, opens[s.symbol], data.horizon)
        known, tolerance = np.isfinite(truth), TOLERANCE[data.label_name]
        wrong = (np.isfinite(s.label) != known) | (np.abs(s.label - truth) > tolerance * np.maximum(np.abs(truth), 1.0))
        if wrong.any():
            i = int(wrong.argmax())
            raise _accused(
                data,
                s,
                i,
                f"is {s.label[i]:.9g}{_shift(config, s.label, opens[s.symbol], data.horizon)}",
                f"{truth[i]:.9g}, from the opens of the next bar and of the bar at its label_end",
            )
        n += int(known.sum())
    return [Check("label from the opens", f"label {data.label_name}", n)]


def _truth(config: Config, opens: Floats, horizon: int) -> Floats:
    """Return the label of each bar from opens alone, NaN where it is not known."""
    truth = np.full(len(opens), np.nan)
    n = len(opens) - 1 - horizon
    if n <= 0:
        return truth
    positive = np.where(opens > 0, opens, np.nan)
    if config.label.name == "forward_return":
        truth[:n] = positive[1 + horizon :] / positive[1 : 1 + n] - 1
        return truth
    squares = np.lib.stride_tricks.sliding_window_view(np.diff(np.log(positive)) ** 2, horizon)
    day = 86_400.0
    length = day if config.data.bar.endswith(("d", "w")) else bar_length(config.data.bar).total_seconds()
    truth[:n] = np.log(np.maximum(np.sqrt(squares[1:].mean(axis=1)), 0.002 * math.sqrt(min(length / day, 1.0))))
    return truth


def _shift(config: Config, found: Floats, opens: Floats, horizon: int) -> str:
    """Return by how many bars, or to which horizon, the labels are off, where that explains all of them."""
    for bars_late in (-2, -1, 1, 2):
        moved = np.roll(_truth(config, opens, horizon), -bars_late)
        if _agree(found, moved):
            return f" (the label of {abs(bars_late)} bar(s) {'later' if bars_late > 0 else 'earlier'}: it is shifted)"
    for other in (horizon - 1, horizon + 1):
        if other >= 1 and _agree(found, _truth(config, opens, other)):
            return f" (the label of horizon {other})"
    return ""


def _agree(one: Floats, other: Floats) -> bool:
    both = np.isfinite(one) & np.isfinite(other)
    return bool(both.sum() > 2 and np.allclose(one[both], other[both], rtol=1e-6, atol=1e-9))


def _against_impulses(config: Config, bars: pl.DataFrame, data: Dataset) -> Check:
    """Move one bar before, at and after each of some rows, and see which labels move with it."""
    horizon = data.horizon
    step = 2 * (horizon + 4)
    rows = {
        s.symbol: np.arange(2, len(s) - horizon - 3, max(step, len(s) // MOST_ROWS))
        for s in data.series
        if len(s) > horizon + 5
    }
    is_own = data.label_name in TOLERANCE
    for offset in (-1, 0, 1, horizon + 1, horizon + 2):
        hits = {symbol: (at_rows + offset).tolist() for symbol, at_rows in rows.items()}
        other = {s.symbol: s.label for s in build(config, with_impulses(bars, hits)).series}
        for s in data.series:
            chosen = rows.get(s.symbol, np.empty(0, np.int64))
            before, after = s.label[chosen], other[s.symbol][chosen]
            known = np.isfinite(before)
            slack = TOLERANCE.get(data.label_name, 1e-9) * np.maximum(np.abs(before), 1.0)
            # A rolling sum keeps a last bit of what has left it.
            moved = known & ~(np.abs(before - after) <= slack)
            inside = 1 <= offset <= horizon + 1
            wrong = moved if not inside else known & ~moved & is_own
            if wrong.any():
                i = int(chosen[wrong.argmax()])
                verb = "does not read" if inside else "reads"
                raise _accused(
                    data,
                    s,
                    i,
                    f"{verb} the bar at {shown(int(s.ts[i + offset]))}, "
                    + ("its own" if offset == 0 else f"{abs(offset)} bar(s) {'later' if offset > 0 else 'earlier'}"),
                    f"it to read the bars from the next one, where it is filled, to its label_end {horizon + 1} bar(s) "
                    "later",
                )
    return Check("impulse at one bar", f"label {data.label_name}", 5 * sum(len(r) for r in rows.values()))


def _require_known(data: Dataset, other: Dataset, moment: int, how: str) -> None:
    """Raise where a label that ended by then moves, or one that had not ended is known without the bars it needs."""
    others = {s.symbol: s for s in other.series}
    for s in data.series:
        stop = int(np.searchsorted(s.ts, moment, side="right"))
        if not stop:
            continue
        found, ended = others[s.symbol], s.label_end[:stop] <= moment
        moved = first_difference([(s.symbol, s.ts[:stop][ended], s.label[:stop][ended], found.label[:stop][ended])])
        if moved is not None:
            raise _accused(
                data,
                s,
                int(np.searchsorted(s.ts, moved.ts)),
                f"is {moved.before:.9g}, and {moved.after:.9g} once the bars after {shown(moment)} are corrupted "
                f"({how}), though it ended before",
                "the same number to the bit",
            )
        early = np.flatnonzero(np.isfinite(found.label[:stop]) & ~ended & np.isfinite(s.label[:stop]))
        if how != "noise" and len(early):
            i = int(early[0])
            raise _accused(
                data,
                s,
                i,
                f"is known ({found.label[i]:.9g}) at {shown(moment)}",
                f"it not to be known before its label_end, {shown(int(s.label_end[i]))}",
            )


def _accused(data: Dataset, series: Series, row: int, seen: str, expected: str) -> LeakageError:
    return accuse(
        f"label {data.label_name!r} of {series.symbol} at {shown(int(series.ts[row]))} {seen}",
        expected,
        "mend the label's expression in labels, or what dataset.build makes of it",
    )
