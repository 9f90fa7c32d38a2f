"""What a file leaves open is asked for, all at once; what contradicts itself is refused with its place."""

from datetime import timedelta
from pathlib import Path

import polars as pl

from foxflow.bars import bar_length, zone_of
from foxflow.errors import DataError
from foxflow.sources.chunks import Opened
from foxflow.sources.forms import Form
from foxflow.sources.options import Options
from foxflow.sources.roles import Roles
from foxflow.sources.staging import Order, Repeats, batches, place_of, step_of
from foxflow.sources.understanding import Understanding

_DAY_US = 86_400_000_000
# So many multiples of a longer length are no accident of bars without trades.
ENOUGH_GAPS = 20


def missing(
    opened: Opened,
    roles: Roles,
    seen: Understanding,
    options: Options,
    *,
    stamp: str | None,
    tz: str | None,
    gaps: dict[int, int],
    repeats: Repeats,
) -> list[str]:
    """Return what has to be said of the file before it means anything: each with its reason and option.

    Raises
    ------
    DataError
        On an option that has no effect on this file.
    """
    form = seen.form
    assert form is not None
    asked = []
    if options.date is not None and form.date != "day-ms":
        raise DataError(f"{opened.file}: --date {options.date} has no effect on times that have a date; leave it out")
    if "symbol" not in roles.positions and options.symbol is None and opened.symbol is None:
        asked.append("no column symbol or ticker says whose bars these are; name it with --symbol")
    if seen.kind == "date":
        return asked + _of_dates(opened, seen, options, stamp=stamp, tz=tz, gaps=gaps)
    if stamp is None:
        asked.append("say whether the times are a bar's open or its close, --stamp open|close")
    if form.kind == "utc" and options.tz not in (None, "UTC"):
        raise DataError(f"{opened.file}: --tz {options.tz} has no effect on times with an offset; leave it out")
    if form.kind == "local" and tz is None:
        words = (
            f"times such as {seen.example!r} have no offset and name no zone; name it, as in --tz America/New_York or "
            "--tz UTC"
        )
        if repeats.conflicts:
            words += " (an hour that comes twice is what a zone makes where its clocks go back)"
        asked.append(words)
    return asked


def _of_dates(
    opened: Opened, seen: Understanding, options: Options, *, stamp: str | None, tz: str | None, gaps: dict[int, int]
) -> list[str]:
    asked = []
    if options.bar is not None and not options.bar.endswith("d"):
        raise DataError(
            f"{opened.file}: the times are dates without a time of day, which cannot place bars of {options.bar}; "
            "use --bar 1d"
        )
    n_days = int(options.bar[:-1]) if options.bar is not None else 1
    if options.calendar is not None and options.tz is not None and seen.day_zone is None:
        # Sessions have the zone of their exchange; to name it too contradicts nothing.
        zone = zone_of(options.calendar)
        if options.tz != zone:
            raise DataError(
                f"{opened.file}: --tz {options.tz} beside --calendar {options.calendar} of {zone}; leave --tz out"
            )
    if options.calendar is None and tz is None:
        asked.append(
            "dates do not say when a bar was complete: name the exchange whose sessions they are, as in --calendar "
            "XNYS, or the zone whose days they are, as in --tz America/New_York"
        )
    usual = max(gaps, key=lambda gap: (gaps[gap], -gap), default=_DAY_US)
    if options.bar is None and usual > 4.5 * _DAY_US:
        days = round(usual / _DAY_US)
        asked.append(f"most dates are {days} days apart; say how long a bar is, as in --bar {days}d")
    if n_days > 1 and stamp is None:
        asked.append(f"say whether a date is the first or the last day of its {n_days}, --stamp open|close")
    return asked


def conflicts(opened: Opened, repeats: Repeats, *, tz: str | None, day_tz: str | None, form: Form) -> list[str]:
    """Return what is to be said of rows of one symbol and time that differ where no rule decides."""
    if not repeats.n_conflicts:
        return []
    first = repeats.conflicts[0]
    where = place_of(first, opened.unit, tz=day_tz)
    if form.kind == "local" and tz is None:
        where = where.replace("Z)", ")")
    hint = (
        f"; where the times are not {tz} but local, name their zone with --tz"
        if form.kind == "local" and tz is not None
        else ""
    )
    others = f", and {repeats.n_conflicts - 1} more such" if repeats.n_conflicts > 1 else ""
    words = (
        f"{where} are duplicates with different values{others}: mend the file, or say which "
        f"is right with --keep first|last{hint}"
    )
    return [words]


def refuse_faults(opened: Opened, bad: pl.DataFrame, seen: Understanding, roles: Roles, *, n_rows: int) -> None:
    """Refuse a file with rows that are no bars: how many, the first, and what would help."""
    first = bad.row(0, named=True)
    when = f" ({first['when']})" if first["when"] else ""
    last = bad.row(-1, named=True)
    span = f", the last {opened.unit} {last['number']}" + (f" ({last['when']})" if last["when"] else "")
    words = (
        f"{opened.file}, {opened.unit} {first['number']}{when}: {first['reason']}; {len(bad)} of "
        f"{n_rows + len(bad)} rows are bad bar(s){span if len(bad) > 1 else ''}"
    )
    if seen.n_mended_by_adjusted and roles.adjusted is not None:
        name = opened.names[roles.adjusted]
        raise DataError(
            f"{words}: with {name!r} as the close {seen.n_mended_by_adjusted} of them are sound, so close is not "
            "adjusted "
            f'as open, high and low are; take it with --columns close="{name}", or fetch prices as traded'
        )
    raise DataError(f"{words}: mend or remove them, or put them aside with --quarantine")


def spacing(opened: Opened, path: Path, order: Order, kind: str, *, given: str | None) -> str:
    """Return the length of a bar: the given one, if the gaps between bars bear it out, else the one they show.

    Raises
    ------
    DataError
        When the gaps fit no length, or another one than was given.
    """
    smallest, usual, step = step_of(order.gaps)
    if kind == "date":
        bar = given or "1d"
        length = bar_length(bar) // timedelta(microseconds=1)
        # Days of a week move with holidays, and hours with the clock.
        if smallest is not None and length > _DAY_US and smallest < 0.6 * length:
            raise _closer(opened, path, smallest, bar)
        if smallest is not None and sum(order.gaps.values()) >= ENOUGH_GAPS and smallest > 4.5 * length:
            raise DataError(
                f"{opened.file}: no two dates are closer than {timedelta(microseconds=smallest)}, more than a bar of "
                f"{bar}; give the length the bars have with --bar"
            )
        return bar
    if given is not None:
        length = bar_length(given) // timedelta(microseconds=1)
        if smallest is not None and smallest < length:
            raise _closer(opened, path, smallest, given)
        n_gaps = sum(order.gaps.values())
        if step is not None and step > length and n_gaps >= ENOUGH_GAPS and step < _DAY_US:
            raise DataError(
                f"{opened.file}: all {n_gaps} gaps between bars are multiples of {timedelta(microseconds=step)}, "
                f"more than a bar of {given}; give the length the bars have with --bar"
            )
        return given
    if smallest is None or usual is None or step is None:
        raise DataError(
            f"{opened.file}: one bar a symbol does not tell how long a bar is; say it with --bar, as in --bar 1m"
        )
    dominates = order.gaps[usual] * 2 >= sum(order.gaps.values()) and usual % 1_000_000 == 0
    # Where most bars are farther apart than a few, those few are off, or the others are longer.
    if smallest == step and (usual == smallest or not dominates):
        return _name(smallest, opened)
    if dominates:
        off = smallest if smallest < usual else next(gap for gap in sorted(order.gaps) if gap % usual)
        raise _closer(opened, path, off, _name(usual, opened))
    raise DataError(
        f"{opened.file}: the gaps between bars have no common length ({timedelta(microseconds=smallest)} to "
        f"{timedelta(microseconds=max(order.gaps))}), as between bars of equal volume or value; only bars of equal "
        "time can be imported: resample them, or give their --bar"
    )


def _name(gap: int, opened: Opened) -> str:
    seconds, rest = divmod(gap, 1_000_000)
    if rest:
        raise DataError(f"{opened.file}: bars of {gap / 1e6} seconds; expected whole seconds")
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    raise AssertionError(gap)


def _closer(opened: Opened, path: Path, gap: int, bar: str) -> DataError:
    """Return the error for a bar that comes off the grid of the others, with its place."""
    before = None
    for frame in batches(path):
        rows = frame if before is None else pl.concat([before, frame])
        steps = rows.with_columns(gap=pl.col("ts").diff().over("symbol", order_by="ts").dt.total_microseconds())
        found = steps.filter(pl.col("gap") == gap)
        if len(found):
            row = found.row(0, named=True)
            return DataError(
                f"{opened.file}, {opened.unit} {row['number']}, {row['symbol']} at {row['ts']:%Y-%m-%d %H:%M:%S}Z is "
                f"{timedelta(microseconds=gap)} after the bar before it, "
                f"{'less than' if gap < bar_length(bar) // timedelta(microseconds=1) else 'no multiple of'} a bar of "
                f"{bar}; mend the time, or give the length the bars have with --bar"
                f"{', or the zone whose midnights these are with --tz' if bar.endswith('d') else ''}"
            )
        before = frame.tail(1)
    raise AssertionError(gap)
