"""The account, bar by bar, compiled: what is ordered, what of it is filled, what that costs and what is left.

Of bar i everything happens in this order: borrowed cash and shares are paid for, for the time since the bar before;
endings pay out; orders that have reached the market by then arrive; they are filled, sells before buys; what rolls is
sold and bought again; the account is marked at the closes; and decisions are made of it. numba loads with this module.
"""

from typing import NamedTuple

import numba
import numpy as np

from foxflow.dataset import Floats
from foxflow.portfolio.prices import Counts, Masks

# A fill below this share of the initial cash is no fill.
DUST = 1e-9
# How the walk may end.
DONE, RUINED, UNKNOWN_VOLUME, UNKNOWN_IMPACT, IMPACT_TOO_LARGE = range(5)
# A goal that calls back what was ordered before.
RECALL = np.inf


class Rates(NamedTuple):
    """Fractions of a value, but for `cash`, `per_share` and `minimum` (money) and `line`, a multiple of equity.

    `borrow` and `financing` are for a day; `line` is how much cash may be borrowed, `participation` the largest share
    of a bar's volume (infinite where none is set).
    """

    band: float
    cash: float
    half_spread: float
    fee: float
    per_share: float
    minimum: float
    borrow: float
    financing: float
    line: float
    participation: float


class Given(NamedTuple):
    """What the account meets, arrays `(n_times, n_symbols)` unless said otherwise.

    `fill`: the price before costs of an order filled at that bar, NaN where there is none; `target`: positions to hold
    from a bar on, NaN = leave alone; `exits`: decided even without a bar; `due (n_times,)`: the bar by which an order
    decided at a bar is in the market; `raw_shares`: shares as traded that day in one of the account's; `volume`: of a
    bar, in shares of the account, NaN = unknown; `impact`: the part of the price that the root of one share moves it
    by, as known at a bar; `days (n_times,)`: since the bar before.
    """

    fill: Floats
    open: Floats
    marked: Floats
    settled: Floats
    rolls: Masks
    has_bar: Masks
    target: Floats
    exits: Masks
    due: Counts
    raw_shares: Floats
    volume: Floats
    impact: Floats
    days: Floats


class Made(NamedTuple):
    """What came of it, arrays `(n_times, n_symbols)` unless said otherwise.

    `size`: shares filled at that bar, NaN = none; `slip`: the part of the price that half-spread and impact took;
    `fee`: money, all fees of the fill; `wanted`: shares that an order had left where the bar's volume did not have
    them, NaN = it had; `decided`: the bar at which either was decided, -1 = an ending; `held`, `equity (n_times,)`,
    `cash (n_times,)`: after the bar; `borrow`, `financing (n_times,)`: money; `rolled`: shares sold and bought again,
    0 = none; `roll_cost`: money; `goal`: share counts decided at that bar; `missed`: of a decision, the bars that its
    order waited without one of its symbol, 0 = none; `met`: the bar it then had, -1 = none came.
    """

    size: Floats
    slip: Floats
    fee: Floats
    decided: Counts
    held: Floats
    equity: Floats
    cash: Floats
    borrow: Floats
    financing: Floats
    rolled: Floats
    roll_cost: Floats
    goal: Floats
    missed: Counts
    met: Counts
    wanted: Floats


class State(NamedTuple):
    """What the account is in, `(n_symbols,)`.

    `left`: shares of the order in the market, NaN = none; `cause`: the bar it was decided at; `waits`: whether it has
    met no bar yet; `newest`: the bar of the newest decision, -1 = none; `void`: orders decided up to that bar are dead.
    """

    shares: Floats
    left: Floats
    cause: Counts
    waits: Masks
    newest: Counts
    void: Counts


@numba.njit(cache=True, error_model="numpy")
def charged(shares: float, price: float, raw_shares: float, rates: Rates) -> float:
    """Return the fees of a fill: `shares` positive, `price` as paid."""
    return max(shares * price * rates.fee + shares * raw_shares * rates.per_share, rates.minimum)


@numba.njit(cache=True, error_model="numpy")
def affordable(shares: float, cash: float, price: float, impact: float, raw_shares: float, rates: Rates) -> float:
    """Return how many of the shares the cash pays for, with all that buying them costs.

    With x the root of the shares, x² of them cost a x³ + b x², and where that holds too few fees the minimum besides.
    """
    slip = rates.half_spread + impact * np.sqrt(shares)
    paid = price * (1 + slip)
    if shares * paid + charged(shares, paid, raw_shares, rates) <= cash:
        return shares
    # The fees of the value and the shares, where they reach the minimum, else the minimum.
    per_share = rates.per_share * raw_shares
    found = _root(cash, price * impact * (1 + rates.fee), price * (1 + rates.half_spread) * (1 + rates.fee) + per_share)
    paid = price * (1 + rates.half_spread + impact * np.sqrt(found))
    if found * paid * rates.fee + found * per_share < rates.minimum:
        found = _root(cash - rates.minimum, price * impact, price * (1 + rates.half_spread))
    return min(shares, found)


@numba.njit(cache=True, error_model="numpy")
def _root(cash: float, a: float, b: float) -> float:
    """Return x² where a x³ + b x² is the cash: it ascends, so Newton's steps come down to it from the root of b x²."""
    if cash <= 0:
        return 0.0
    if a == 0:
        return cash / b
    x = np.sqrt(cash / b)
    for _ in range(100):
        before = x
        x -= (a * x**3 + b * x**2 - cash) / (3 * a * x**2 + 2 * b * x)
        if not abs(x - before) > 1e-16 * x:
            break
    found: float = x * x
    return found


@numba.njit(cache=True, error_model="numpy")
def _carry(i: int, cash: float, given: Given, state: State, made: Made, rates: Rates) -> float:
    """Return the cash after what was borrowed since the bar before is paid for."""
    short = -(np.minimum(state.shares, 0.0) * given.marked[i - 1]).sum()
    made.borrow[i] = rates.borrow * given.days[i] * short
    made.financing[i] = rates.financing * given.days[i] * max(-cash, 0.0)
    left: float = cash - made.borrow[i] - made.financing[i]
    return left


@numba.njit(cache=True, error_model="numpy")
def _settle(i: int, cash: float, given: Given, state: State, made: Made, rates: Rates) -> float:
    """Return the cash after endings have paid out; they cancel whatever was ordered."""
    for j in range(len(state.shares)):
        if not np.isfinite(given.settled[i, j]):
            continue
        held = state.shares[j]
        if held != 0:
            price = given.settled[i, j] * (1 - rates.half_spread * np.sign(held))
            fee = charged(abs(held), price, given.raw_shares[i, j], rates)
            cash += held * price - fee
            made.size[i, j], made.slip[i, j], made.fee[i, j] = -held, rates.half_spread, fee
            state.shares[j] = 0.0
        if state.waits[j]:
            made.missed[state.cause[j], j] = i - given.due[state.cause[j]]
        state.left[j], state.waits[j] = np.nan, False
        state.newest[j], state.void[j] = -1, i - 1
    return cash


@numba.njit(cache=True, error_model="numpy")
def _arrive(i: int, first: int, given: Given, state: State, made: Made) -> int:
    """Put orders that reach the market by bar i in place of older ones; return the first decision still under way."""
    while first < i and given.due[first] <= i:
        for j in range(len(state.shares)):
            goal = made.goal[first, j]
            if np.isnan(goal) or first <= state.void[j]:
                continue
            if state.waits[j]:
                made.missed[state.cause[j], j] = i - given.due[state.cause[j]]
            state.left[j], state.waits[j] = np.nan, False
            if goal != RECALL and goal != state.shares[j]:
                state.left[j], state.cause[j], state.waits[j] = goal - state.shares[j], first, True
        first += 1
    return first


@numba.njit(cache=True, error_model="numpy")
def _meet(i: int, given: Given, state: State, made: Made) -> None:
    """Note which orders meet their first bar, and how late that is."""
    for j in range(len(state.shares)):
        if state.waits[j] and np.isfinite(given.fill[i, j]):
            late = i - given.due[state.cause[j]]
            if late > 0:
                made.missed[state.cause[j], j], made.met[state.cause[j], j] = late, i
            state.waits[j] = False


@numba.njit(cache=True, error_model="numpy")
def _fill(
    i: int, side: float, cash: float, given: Given, state: State, made: Made, rates: Rates
) -> tuple[int, int, float]:
    """Fill the orders of a side in the order of the symbols; return how that ended, at which, and the cash then."""
    line = rates.line * (made.equity[i - 1] if i else rates.cash)
    for j in range(len(state.shares)):
        if not state.left[j] * side > 0 or not np.isfinite(given.fill[i, j]):
            continue
        price, impact, shares = given.fill[i, j], given.impact[state.cause[j], j], abs(state.left[j])
        if np.isnan(impact):
            return UNKNOWN_IMPACT, j, cash
        if rates.participation != np.inf:
            most = rates.participation * given.volume[i, j]
            if np.isnan(most):
                return UNKNOWN_VOLUME, j, cash
            if most < shares:
                made.wanted[i, j], made.decided[i, j] = state.left[j], state.cause[j]
                shares = most
        if side > 0:
            shares = affordable(shares, max(cash + line, 0.0), price, impact, given.raw_shares[i, j], rates)
        slip = rates.half_spread + impact * np.sqrt(shares)
        if not slip < 1:
            return IMPACT_TOO_LARGE, j, cash
        paid = price * (1 + slip * side)
        # What rounding left of the cash buys nothing: vectorbt would reject an order of that size.
        if shares * paid < DUST * rates.cash:
            continue
        fee = charged(shares, paid, given.raw_shares[i, j], rates)
        cash -= side * shares * paid + fee
        made.size[i, j], made.slip[i, j], made.fee[i, j] = side * shares, slip, fee
        made.decided[i, j] = state.cause[j]
        state.shares[j] += side * shares
        state.left[j] -= side * shares
    return DONE, 0, cash


@numba.njit(cache=True, error_model="numpy")
def _roll(
    i: int,
    cash: float,
    before: Floats,
    at_open: bool,
    given: Given,
    state: State,
    made: Made,
    rates: Rates,
) -> tuple[int, int, float]:
    """Sell and buy again what rolls, of orders filled at the open only what they leave; return as `_fill` does."""
    for j in range(len(before)):
        if not given.rolls[i, j] or before[j] == 0 or (at_open and before[j] * state.shares[j] <= 0):
            continue
        rolled = min(abs(before[j]), abs(state.shares[j])) if at_open else abs(before[j])
        impact = given.impact[i - 1, j]
        if np.isnan(impact):
            return UNKNOWN_IMPACT, j, cash
        slip = rates.half_spread + impact * np.sqrt(rolled)
        if not slip < 1:
            return IMPACT_TOO_LARGE, j, cash
        price, side = given.open[i, j], np.sign(before[j])
        # Each contract has its own count of shares; a short buys the old one back and sells the new one.
        cost = 2 * rolled * price * slip
        cost += charged(rolled, price * (1 - side * slip), given.raw_shares[i - 1, j], rates)
        cost += charged(rolled, price * (1 + side * slip), given.raw_shares[i, j], rates)
        made.rolled[i, j], made.roll_cost[i, j] = side * rolled, cost
        cash -= cost
    return DONE, 0, cash


@numba.njit(cache=True, error_model="numpy")
def _decide(i: int, first: int, given: Given, state: State, made: Made, rates: Rates) -> None:
    """Set the share counts to reach, from the equity and the closes of bar i, where they are outside the band."""
    equity = made.equity[i]
    for j in range(len(state.shares)):
        target, price = given.target[i, j], given.marked[i, j]
        if not (given.exits[i, j] or (given.has_bar[i, j] and np.isfinite(target))):
            continue
        # What an order on its way will make of it counts as held.
        held, newest = state.shares[j], state.newest[j]
        is_under_way = newest >= first
        if is_under_way and made.goal[newest, j] != RECALL:
            held = made.goal[newest, j]
        # A target of zero closes what is left, however little it is.
        if abs(target - held * price / equity) > rates.band or (target == 0 and held != 0):
            made.goal[i, j] = target * equity / price
            state.newest[j] = i
        elif not is_under_way and state.left[j] != 0 and not np.isnan(state.left[j]):
            made.goal[i, j] = RECALL
            state.newest[j] = i


@numba.njit(cache=True, error_model="numpy")
def walk(given: Given, made: Made, state: State, rates: Rates, at_open: bool) -> tuple[int, int, int]:
    """Walk all bars and write into `made`; return how it ended (`DONE` or what went wrong), at which bar and symbol."""
    n_times, n_symbols = given.target.shape
    cash, first = rates.cash, 0
    for i in range(n_times):
        if i:
            cash = _carry(i, cash, given, state, made, rates)
        cash = _settle(i, cash, given, state, made, rates)
        first = _arrive(i, first, given, state, made)
        before = state.shares.copy()
        _meet(i, given, state, made)
        for side in (-1.0, 1.0):
            status, j, cash = _fill(i, side, cash, given, state, made, rates)
            if status != DONE:
                return status, i, j
        status, j, cash = _roll(i, cash, before, at_open, given, state, made, rates)
        if status != DONE:
            return status, i, j
        made.cash[i], made.held[i] = cash, state.shares
        made.equity[i] = cash + (state.shares * given.marked[i]).sum()
        if not made.equity[i] > 0:
            return RUINED, i, 0
        _decide(i, first, given, state, made, rates)
    for j in range(n_symbols):
        if state.waits[j]:
            made.missed[state.cause[j], j] = n_times - given.due[state.cause[j]]
    return DONE, n_times, 0
