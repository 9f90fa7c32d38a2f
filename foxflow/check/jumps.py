"""Jumps of the price: splits that nobody recorded, factors of 100, blocks in another unit, and real moves.

Size alone decides nothing: AAPL halved on 2000-06-21 by a split and on 2000-09-29 by a warning. What is weighed is said
in `_is_split`; the measured cases are in docs/decisions/0010.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from foxflow.check.tape import Floats, Ints, Mask, Tape, between, finding

# New shares per old, and the reverse, as companies choose them.
SIMPLE = (*range(2, 11), 12, 15, 20, 25, 30, 40, 50, 100, 5 / 4, 4 / 3, 3 / 2, 5 / 3, 5 / 2, 7 / 2)
# Bars before and after a jump that tell what is usual.
AROUND, AFTER, FEWEST = 20, 10, 5
# Logarithms: below 18 % a split cannot be told from a move, at 40 % a move is worth a look, and a factor of 5 overnight
# is no market.
SMALLEST, LARGE, IMPOSSIBLE, RUIN = 0.2, 0.336, math.log(5), math.log(50)
SMALLEST_NAMED = math.log(1.45)
UNIT, UNIT_WIDTH = math.log(100), 0.25
LONGEST_BLOCK = 250
# A jump of so few of the steps its prices are rounded to says nothing.
COARSE = 3
# Moves of at least this size are kept of every symbol, to see whether the others moved too.
SHARED = 0.1


@dataclass(frozen=True, kw_only=True)
class Jump:
    """An overnight move of a symbol, and all that its judgement needs, so that the bars can be let go.

    `gap` and `move` are logarithms of open and close over the close before, recorded events taken out. `usual` is the
    symbol's usual overnight move, `money` the value traded over its usual value on the day, `unrest` the ranges of the
    bars after over those before, `level` the move of the median close; NaN where nothing tells. `ticks` is the move in
    the coarsest step of its prices. `at` counts sessions.
    """

    symbol: str
    at: int
    ts: int
    day: str
    before: float
    open: float
    close: float
    gap: float
    move: float
    usual: float
    money: float
    unrest: float
    level: float
    ticks: float
    is_untraded: bool


@dataclass(frozen=True)
class Block:
    """Bars in another unit: the jump into them, the jump back, and the last bar between."""

    jump: Jump
    back: Jump
    last_ts: int
    last_day: str


@dataclass
class Moves:
    """Large moves of every symbol seen, and the spans of their bars: what the market did while one symbol jumped."""

    ts: list[Ints] = field(default_factory=list)
    size: list[Floats] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(self, days: Tape) -> None:
        """Remember a symbol's large moves."""
        gap = _log(days.open[1:], _expected(days))
        big = np.flatnonzero(np.abs(gap) >= SHARED)
        self.ts.append(days.ts[1:][big])
        self.size.append(gap[big])
        self.spans.append((int(days.ts[0]), int(days.ts[-1])))

    def share(self, ts: int, gap: float) -> float:
        """Return the share of the other symbols of that day that moved the same way, at least half as far."""
        day = 43_200_000_000
        others = sum(first <= ts <= last for first, last in self.spans) - 1
        if others < 2:
            return 0.0
        along = sum(
            bool(((np.abs(t - ts) < day) & (s * np.sign(gap) >= abs(gap) / 2)).any())
            for t, s in zip(self.ts, self.size, strict=True)
        )
        return (along - 1) / others


def jumps(tape: Tape) -> tuple[list[pl.DataFrame], list[Jump | Block]]:
    """Return what a symbol's own bars decide, and the jumps that are judged once all symbols' moves are known."""
    torn = _is_torn(tape)
    days = (tape.select(~torn) if torn.any() else tape).by_session()
    return [*_torn(tape, torn), *_unseen_splits(days)], list(_paired(days, _candidates(days)))


def judged(jump: Jump | Block, moves: Moves) -> Iterator[pl.DataFrame]:
    """Yield what a jump is: severe where a real move is not believable."""
    if isinstance(jump, Block):
        yield _block(jump)
    elif jump.ticks > COARSE:
        yield from _judged(jump, moves)


def _candidates(days: Tape) -> list[Jump]:
    if len(days) < 2:
        return []
    before = _expected(days)
    gap, move = _log(days.open[1:], before), _log(days.close[1:], before)
    large = (np.abs(gap) >= SMALLEST) | (np.abs(move) >= LARGE)
    unseen = _is_unseen(days)[1:]
    return [_measured(days, int(i) + 1, float(gap[i]), float(move[i])) for i in np.flatnonzero(large & ~unseen)]


def _expected(days: Tape) -> Floats:
    """Return, for every bar but the first, the close before as recorded splits and dividends make it."""
    return (days.close[:-1] - days.dividend[1:]) / days.split[1:]


def _log(price: Floats, before: Floats) -> Floats:
    sound = (price > 0) & (before > 0)
    return np.log(np.where(sound, price, 1.0)) - np.log(np.where(sound, before, 1.0))


def _measured(days: Tape, at: int, gap: float, move: float) -> Jump:
    first = max(1, at - AROUND)
    gaps = np.abs(_log(days.open[first:at], days.close[first - 1 : at - 1]))
    span = slice(max(0, at - AROUND), at + AFTER + 1)
    ranges = _log(days.high[span], days.low[span])
    # What no market is worth may be more than a float holds.
    with np.errstate(over="ignore"):
        value = days.close[span] * days.volume[span]
    here = at - span.start
    levels = days.close[max(0, at - AFTER) : at], days.close[at : at + AFTER]
    level = _ratio(_median(levels[1]), _median(levels[0]))
    steps = np.array([days.open[at] - days.close[at - 1], days.close[at] - days.close[at - 1]])
    around = slice(at - 1, at + 1)
    return Jump(
        symbol=days.symbol,
        at=at,
        ts=int(days.ts[at]),
        day=days.day(at),
        before=float(days.close[at - 1]),
        open=float(days.open[at]),
        close=float(days.close[at]),
        gap=gap,
        move=move,
        usual=1.4826 * _median(gaps) if len(gaps) >= FEWEST else math.nan,
        money=_ratio(float(value[here]), _median(value[:here])),
        unrest=_ratio(_median(ranges[here + 1 :]), _median(ranges[:here])),
        level=math.log(level) if level > 0 else math.nan,
        ticks=float(np.abs(steps).max() / _tick(np.append(days.close[first - 1 : at + 1], days.open[at]))),
        is_untraded=bool((days.volume[around] == 0).all() and (days.high[around] == days.low[around]).all()),
    )


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan


def _ratio(value: float, usual: float) -> float:
    return value / usual if usual > 0 else math.nan


def _tick(prices: Floats) -> float:
    """Return the coarsest decimal step that all prices are multiples of."""
    for digits in range(7):
        scaled = prices * 10.0**digits
        if (np.abs(scaled - np.round(scaled)) <= np.maximum(1e-6, 1e-6 * np.abs(scaled))).all():
            return 10.0**-digits
    return 1e-7


def _nearest(gap: float) -> tuple[float, float]:
    """Return the simple ratio nearest to a fall by `gap` (new shares per old), and how far off it is."""
    sign = -1.0 if gap < 0 else 1.0
    best = min(SIMPLE, key=lambda r: abs(math.log(r) - abs(gap)))
    return (best if sign < 0 else 1 / best), abs(math.log(best) - abs(gap))


def _is_split(jump: Jump) -> bool:
    """Return whether a jump looks like a split and not like news.

    It does when the open lies near a simple ratio for what this symbol's opens usually do, the level stays, the value
    traded is no more than usual by half as much again (news brings four times and more, a split the usual), and the
    days after are no wilder than the days before. Without volume and without ranges nothing speaks for a split.
    """
    _, off = _nearest(jump.gap)
    # Simple ratios below 3:2 lie so close together that nearly every fall is near one.
    near = off <= max(0.03, min(2.5 * jump.usual, 0.1)) and abs(jump.gap) >= SMALLEST_NAMED
    # Never true where too few bars tell what is usual.
    out_of_habit = abs(jump.gap) >= 6 * jump.usual
    holds = math.isnan(jump.level) or (jump.level * jump.gap > 0 and abs(jump.level) >= abs(jump.gap) / 2)
    told = not (math.isnan(jump.money) and math.isnan(jump.unrest))
    calm = not jump.money > 2.0 and not jump.unrest > 3.0
    return near and out_of_habit and holds and told and calm


def _is_impossible(jump: Jump) -> bool:
    """Return whether no market moves so: a factor of 5 up, or down without the turnover of a crash, or of 50 down."""
    excused = jump.gap < 0 and jump.money > 5 and jump.gap > -RUIN
    return abs(jump.gap) >= IMPOSSIBLE and not excused


def _paired(days: Tape, found: Sequence[Jump]) -> Iterator[Jump | Block]:
    """Yield jumps, and in place of two that undo each other the block of bars between them."""
    used: set[int] = set()
    for n, jump in enumerate(found):
        if n in used:
            continue
        later = (m for m in range(n + 1, min(n + 4, len(found))) if m not in used and _is_back(jump, found[m]))
        back = next(later, None)
        if back is None:
            yield jump
            continue
        used.add(back)
        last = found[back].at - 1
        yield Block(jump, found[back], int(days.ts[last]), days.day(last))


def _is_back(jump: Jump, back: Jump) -> bool:
    usual = 0.0 if math.isnan(jump.usual) else jump.usual
    opposite = abs(jump.gap + back.gap) <= max(0.05, 3 * usual, 0.1 * abs(jump.gap))
    strong = abs(jump.gap) >= max(math.log(1.8), 6 * usual) and min(jump.ticks, back.ticks) > COARSE
    # The bars between are in the other unit with their closes too, else it is one wild bar.
    inside = math.log(back.before) - math.log(jump.before) if min(back.before, jump.before) > 0 else math.nan
    whole = abs(inside - jump.gap) <= 0.5 * abs(jump.gap)
    return opposite and strong and whole and back.at - jump.at <= LONGEST_BLOCK


def _block(block: Block) -> pl.DataFrame:
    jump, back = block.jump, block.back
    check = "unit jump" if _is_unit(jump.gap) else "split block"
    detail = (
        f"prices of {jump.day} to {block.last_day} are those before and after {_times(jump.gap)} "
        f"({jump.before:g}, then {jump.open:g}, then {back.open:g}): "
        + ("another unit" if check == "unit jump" else "a split applied to them alone, or another unit")
    )
    ends = jump.ts, block.last_ts
    return between(jump.symbol, ends, check, "severe", detail, count=back.at - jump.at)


def _judged(jump: Jump, moves: Moves) -> Iterator[pl.DataFrame]:
    shared = moves.share(jump.ts, jump.gap)
    where = f"close {jump.before:g} then open {jump.open:g}, {_times(jump.gap)}"
    real = f"close {jump.close:g}: a real move, or an event that is not recorded"
    if _is_unit(jump.gap):
        what = "another unit from here on, as pence for pounds, or another instrument"
        yield _row(jump, "unit jump", "severe", f"{where}: {what}")
    elif shared >= 0.5:
        yield _row(jump, "jump", "warning", f"{where}; {shared:.0%} of the other symbols moved along")
    elif jump.is_untraded:
        what = "the price changed while nobody traded: a split that is not recorded, or another unit"
        yield _row(jump, "possible split", "severe", f"{where}; {what}")
    elif _is_split(jump) or _is_impossible(jump):
        what = f"may be {_named(jump.gap)} that is not recorded"
        yield _row(jump, "possible split", "severe", f"{where}: {what}; {_evidence(jump)}")
    elif abs(jump.gap) >= 6 * jump.usual or max(abs(jump.gap), abs(jump.move)) >= LARGE:
        yield _row(jump, "jump", "warning", f"{where}, {real}; {_evidence(jump)}")


def _row(jump: Jump, check: str, severity: str, detail: str) -> pl.DataFrame:
    return between(jump.symbol, (jump.ts, jump.ts), check, severity, detail, count=1)


def _is_unit(gap: float) -> bool:
    return abs(abs(gap) - UNIT) <= UNIT_WIDTH or abs(abs(gap) - 1.5 * UNIT) <= UNIT_WIDTH


def _times(gap: float) -> str:
    """Return a logarithm as the factor it is; beyond e^700 numbers end."""
    factor = math.exp(min(abs(gap), 700.0))
    return f"times {factor:.4g}" if gap >= 0 else f"divided by {factor:.4g}"


def _named(gap: float) -> str:
    ratio, off = _nearest(gap)
    if off > 0.1:
        return f"a split or merger of shares, prices {_times(gap)},"
    return f"a split of {ratio:.3g} for 1" if gap < 0 else f"a reverse split of 1 for {1 / ratio:.3g}"


def _evidence(jump: Jump) -> str:
    said = [
        f"value traded {jump.money:.2g} times the usual" if not math.isnan(jump.money) else "volume tells nothing",
        f"ranges after it {jump.unrest:.2g} times those before" if not math.isnan(jump.unrest) else "",
    ]
    return ", ".join(s for s in said if s)


def _is_unseen(days: Tape) -> Mask:
    """Return where a split is recorded that the prices do not show."""
    out = np.zeros(len(days), bool)
    at = np.flatnonzero(np.abs(np.log(np.where(days.split > 0, days.split, 1.0))) >= SMALLEST)
    at = at[at > 0]
    raw = _log(days.open[at], days.close[at - 1])
    out[at] = np.abs(raw) < np.abs(raw + np.log(days.split[at]))
    return out


def _unseen_splits(days: Tape) -> Iterator[pl.DataFrame]:
    for at in np.flatnonzero(_is_unseen(days)):
        detail = (
            f"a split of {days.split[at]:g} is recorded, but close {days.close[at - 1]:g} is followed by open "
            f"{days.open[at]:g}: the bars look adjusted already, or the date is wrong"
        )
        yield finding(days, (at, at), "split not in prices", "severe", detail, count=1)


def _is_torn(tape: Tape) -> Mask:
    """Return where one price of a bar is 100 times another: some of its columns are in another unit."""
    return np.abs(np.abs(_log(tape.high, tape.low)) - UNIT) <= UNIT_WIDTH


def _torn(tape: Tape, torn: Mask) -> Iterator[pl.DataFrame]:
    at = np.flatnonzero(torn)
    if len(at):
        low, high = float(tape.low[at[0]]), float(tape.high[at[0]])
        factor = _times(math.log(high) - math.log(low))
        detail = f"low {low:g} and high {high:g} in one bar, {factor}: two units in one row"
        yield finding(tape, (at[0], at[-1]), "unit jump", "severe", detail, count=len(at))
