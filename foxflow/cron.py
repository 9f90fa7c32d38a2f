"""When a cron line of five fields fires in a time zone: exactly when Prefect's own schedule does.

The clock on the wall is what a line speaks of. A wall time that a zone skips in spring is moved forward by what was
skipped; one that comes twice in autumn fires the first time. Where both the day of the month and the day of the week
are restricted, either is enough, whatever a field starts with.
"""

import difflib
import heapq
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
"""Each field's name, lowest and highest value; 0 and 7 are Sunday."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES = {"month": {name: i + 1 for i, name in enumerate(MONTHS)}, "day of week": {n: i for i, n in enumerate(DAYS)}}


def require(line: str) -> str:
    """Return the cron line if every cron reads it alike, so far as its grammar goes.

    Raises
    ------
    ValueError
        On another number of fields, a value out of its range, what one cron reads in one way and another in another
        (`fri-mon`, `5/15`, `L`, `#`, `?`, `@daily`, a range of one value), and a day that never comes.
    """
    parts = line.split()
    if len(parts) != len(FIELDS):
        raise ValueError(
            f"cron = {line!r} has {len(parts)} field(s); expected five: minute, hour, day of month, month, day of "
            "week, as in '0 22 * * 1-5'"
        )
    values = [
        {value for item in part.split(",") for value in _item(line, item, name, low, high, is_alone=item == part)}
        for part, (name, low, high) in zip(parts, FIELDS, strict=True)
    ]
    days, weekdays = values[2], {value % 7 for value in values[4]}
    for part, other, is_full in ((parts[2], parts[4], len(days) == 31), (parts[4], parts[2], len(weekdays) == 7)):
        if is_full and "*" not in (part, other):
            raise ValueError(
                f"cron = {line!r}: {part!r} is every day, and crons differ on whether {other!r} then restricts it; "
                "expected * where every day is meant: write that"
            )
    try:
        for alone in _alone(line):
            next(CronSim(alone, datetime(2000, 1, 1)))  # noqa: DTZ001  (a wall's clock has no zone)
    except (CronSimError, StopIteration) as e:
        raise ValueError(f"cron = {line!r} names a day that never comes; expected one that does: change it") from e
    if {2, 3} <= values[3] and any(_jumps_over(values[2], n_days) for n_days in (28, 29)):
        raise ValueError(
            f"cron = {line!r} names the first days of March and days that February has not; Prefect 3.9 then leaves "
            "out the first of them, so that night and backtest would differ; expected days that every month has: "
            "name days up to 28"
        )
    return line


def require_zone(name: str) -> str:
    """Return the name of a time zone if it is one, ValueError naming the nearest where it is none."""
    known = zoneinfo.available_timezones()
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(
            f"time_zone = {name!r}; expected an IANA name, as in 'America/New_York', 'Europe/London' or 'UTC'{hint}"
        )
    return name


def next_fire(line: str, time_zone: str, *, at: datetime) -> datetime:
    """Return the first fire at or after an instant, in UTC."""
    zone = zoneinfo.ZoneInfo(time_zone)
    # What was skipped within the last day fires at or after `at`, though its wall time lies before that of `at`.
    wall = min(_wall(at, zone), at.astimezone(UTC).replace(tzinfo=None) + _offset(at - timedelta(days=1), zone))
    found: datetime | None = None
    for time in _walls(line, wall - timedelta(seconds=1)):
        fire = time.replace(tzinfo=zone).astimezone(UTC)
        if fire >= at and (found is None or fire < found):
            found = fire
        # The same time by the new clock: nothing after it on the wall fires before.
        if found is not None and min(fire, time.replace(tzinfo=zone, fold=1).astimezone(UTC)) >= found:
            break
    assert found is not None, f"{line!r} never fires"
    return found


def _item(line: str, item: str, name: str, low: int, high: int, *, is_alone: bool) -> range:
    """Return the values of one item of a field, or raise ValueError saying what to write instead."""
    where = f"cron = {line!r}: {item!r} as {name}"
    values, slash, step = item.partition("/")
    texts = values.split("-", 1)
    if values == "*":
        if not slash and not is_alone:
            raise ValueError(f"{where} leaves the rest of its list without effect; expected one of them: remove others")
        first, last = low, high
    else:
        found = [_value(text, name, low, high) for text in texts]
        if min(found) < low:
            names = f", or {', '.join(_NAMES[name])}" if name in _NAMES else ""
            raise ValueError(f"{where} is not {low} to {high}{names}; expected *, a value, a range or a step: mend it")
        first, last = found[0], found[-1]
        if len(found) == 2 and first >= last:
            raise ValueError(f"{where} is a range that does not rise; expected the lower value first: write a list")
        if slash and len(found) == 1:
            raise ValueError(f"{where} is a step without a range; expected one, as in */15 or 5-59/15: write it")
    if slash and not (step.isascii() and step.isdigit() and 1 <= int(step) <= last - first):
        raise ValueError(f"{where} has the step {step!r}; expected 1 to {last - first}: mend it")
    return range(first, last + 1, int(step) if slash else 1)


def _value(text: str, name: str, low: int, high: int) -> int:
    """Return the value a text stands for, -1 for none."""
    if text.lower() in _NAMES.get(name, {}):
        return _NAMES[name][text.lower()]
    return int(text) if text.isascii() and text.isdigit() and low <= int(text) <= high else -1


def _jumps_over(days: set[int], n_days: int) -> bool:
    """Return whether Prefect goes from a February of `n_days` past days of March that are named.

    From the day after the last one named it counts on to the next day named, as if that month had it.
    """
    within, beyond = [d for d in days if d <= n_days], [d for d in days if d > n_days]
    if not (within and beyond) or max(within) == n_days:
        return False
    return min(within) < min(beyond) - n_days


def _alone(line: str) -> tuple[str, ...]:
    """Return the lines whose fires together are those of `line`, each with at most one restricted kind of day."""
    minute, hour, day, month, weekday = line.split()
    if "*" in (day, weekday):
        return (line,)
    return f"{minute} {hour} {day} {month} *", f"{minute} {hour} * {month} {weekday}"


def _walls(line: str, after: datetime) -> Iterator[datetime]:
    """Yield the wall times of a line after one, in order; one of two lines may come twice."""
    return heapq.merge(*(CronSim(alone, after) for alone in _alone(line)))


def _wall(at: datetime, zone: zoneinfo.ZoneInfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)


def _offset(at: datetime, zone: zoneinfo.ZoneInfo) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset
