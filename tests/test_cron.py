"""A schedule fires exactly when Prefect's own does: it is the oracle of every line, zone and year here."""

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect.server.schemas.schedules import CronSchedule

from foxflow import cron

TEN_YEARS = (datetime(2014, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC))
LINES = [
    "0 22 * * 1-5",
    "30 2 * * *",
    "30 1 * * SUN",
    "0 0 * * *",
    "59 23 28-31 * *",
    "0 6 1,15 * fri",
    "15 1 */2 * mon",
    "0 12 1-30 * 2",
    "0 12 13 * */2",
    "5 2 29 2 *",
    "0 9 * jan,jul-sep/2 MON-wed",
    "0 3 * 3,10,11 0,7",
]
# Both changes of each zone, and a day that a whole island slept through.
CHANGES = [
    ("America/New_York", "2024-03-10"),
    ("America/New_York", "2024-11-03"),
    ("America/New_York", "2007-03-11"),
    ("Europe/London", "2024-03-31"),
    ("Europe/London", "2024-10-27"),
    ("Australia/Lord_Howe", "2024-04-07"),
    ("Australia/Lord_Howe", "2024-10-06"),
    ("Pacific/Apia", "2011-12-30"),
]


def prefect(line: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Return Prefect's fires from `start` to `end`; it gives no more than a thousand at a time."""
    schedule, found = CronSchedule(cron=line, timezone=zone), list[datetime]()
    while True:
        some = [d.astimezone(UTC) for d in asyncio.run(schedule.get_dates(n=900, start=start, end=end))]
        found += some
        if len(some) < 900:
            return found
        start = some[-1] + timedelta(microseconds=1)


def ours(line: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    found, at = list[datetime](), start
    while (fire := cron.next_fire(line, zone, at=at)) <= end:
        found.append(fire)
        at = fire + timedelta(microseconds=1)
    return found


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/London"])
@pytest.mark.parametrize("line", LINES)
def test_ten_years_of_fires_are_those_of_prefect(line: str, zone: str) -> None:
    assert ours(cron.require(line), zone, *TEN_YEARS) == prefect(line, zone, *TEN_YEARS)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize("line", ["*/15 * * * *", "*/20 0-3 * * *", "45 1-2 * * *", "0 * * * *", "30 2 * * sun,sat"])
def test_fires_around_a_change_of_the_clocks_are_those_of_prefect(line: str, zone: str, day: str) -> None:
    middle = datetime.fromisoformat(day).replace(tzinfo=UTC)
    span = middle - timedelta(days=2), middle + timedelta(days=3)
    assert ours(line, zone, *span) == prefect(line, zone, *span)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_the_next_fire_is_prefects_from_every_quarter_of_an_hour_around_a_change(zone: str, day: str) -> None:
    at = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=16)
    # 20 minutes and 40 s: from whole minutes and others.
    for _ in range(120):
        for line in ("30 2 * * *", "*/25 * * * *"):
            theirs = asyncio.run(CronSchedule(cron=line, timezone=zone).get_dates(n=1, start=at))
            assert [cron.next_fire(line, zone, at=at)] == [d.astimezone(UTC) for d in theirs]
        at += timedelta(seconds=1240)


def test_what_spring_skips_fires_an_hour_later_and_what_autumn_repeats_fires_once() -> None:
    new_york = ZoneInfo("America/New_York")
    spring = ours("30 2 * * *", "America/New_York", datetime(2024, 3, 9, tzinfo=UTC), datetime(2024, 3, 12, tzinfo=UTC))
    assert spring == [datetime(2024, 3, 9, 7, 30, tzinfo=UTC), datetime(2024, 3, 10, 7, 30, tzinfo=UTC),
                      datetime(2024, 3, 11, 6, 30, tzinfo=UTC)]  # fmt: skip
    assert spring[1].astimezone(new_york).hour == 3
    autumn = ours(
        "30 1 * * *", "America/New_York", datetime(2024, 11, 3, tzinfo=UTC), datetime(2024, 11, 4, tzinfo=UTC)
    )
    assert autumn == [datetime(2024, 11, 3, 5, 30, tzinfo=UTC)]


def test_a_fire_at_the_very_instant_counts_and_one_a_microsecond_earlier_does_not() -> None:
    fire = datetime(2024, 6, 3, 22, tzinfo=UTC)
    assert cron.next_fire("0 22 * * 1-5", "UTC", at=fire) == fire
    assert cron.next_fire("0 22 * * 1-5", "UTC", at=fire + timedelta(microseconds=1)) == fire + timedelta(days=1)


def items(low: int, high: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    def name(value: int) -> str:
        return names[(value - low) % len(names)] if names and value % 2 else str(value)

    values = st.integers(low, high)
    pairs = st.tuples(values, values).map(sorted).filter(lambda p: p[0] < p[1])
    ranges = pairs.map(lambda p: f"{p[0]}-{p[1]}")
    steps = pairs.flatmap(lambda p: st.integers(1, p[1] - p[0]).map(lambda n: f"{p[0]}-{p[1]}/{n}"))
    stars = st.integers(1, high - low).map(lambda n: f"*/{n}")
    some = st.lists(st.one_of(values.map(name), ranges, steps, stars), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), some)


CRON_LINES = st.tuples(
    items(0, 59), items(0, 23), items(1, 31), items(1, 12, cron.MONTHS), items(0, 7, cron.DAYS)
).map(" ".join)  # fmt: skip


def is_accepted(line: str) -> bool:
    try:
        cron.require(line)
    except ValueError as e:
        if not any(reason in str(e) for reason in ("never comes", "the first days of March", "is every day")):
            raise
        return False
    return True


@given(
    line=CRON_LINES,
    zone=st.sampled_from(["UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "Asia/Kolkata"]),
    start=st.integers(0, 40 * 365 * 86_400).map(lambda s: datetime(1990, 1, 1, tzinfo=UTC) + timedelta(seconds=s)),
)
@settings(max_examples=200, deadline=None)
def test_any_line_fires_when_prefect_does(line: str, zone: str, start: datetime) -> None:
    if not is_accepted(line):
        return
    schedule = CronSchedule(cron=line, timezone=zone)
    theirs = [d.astimezone(UTC) for d in asyncio.run(schedule.get_dates(n=20, start=start))]
    assert ours(line, zone, start, theirs[-1]) == theirs


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 22 * *", "has 4 field"),
        ("0 0 22 * * 1-5", "has 6 field"),
        ("", "has 0 field"),
        ("@daily", "has 1 field"),
        ("0 24 * * *", "'24' as hour is not 0 to 23"),
        ("60 * * * *", "'60' as minute is not 0 to 59"),
        ("0 0 0 * *", "'0' as day of month is not 1 to 31"),
        ("0 0 * 13 *", "'13' as month is not 1 to 12, or jan, feb"),
        ("0 0 * * 8", "'8' as day of week is not 0 to 7, or sun, mon"),
        ("0 0 * * L", "'L' as day of week is not"),
        ("0 0 * * fri#2", "'fri#2' as day of week is not"),
        ("0 0 ? * 1", r"'\?' as day of month is not"),
        ("0 0 ² * 1", "'²' as day of month is not"),
        ("0 0 * * fri-mon", "a range that does not rise"),
        ("* * */4 * */1", "is every day, and crons differ"),
        ("0 0 1-31 * mon", "is every day, and crons differ"),
        ("0-0 0 * * *", "a range that does not rise"),
        ("5/15 * * * *", "a step without a range"),
        ("*/0 * * * *", "has the step '0'; expected 1 to 59"),
        ("*/70 * * * *", "has the step '70'; expected 1 to 59"),
        ("*,5 * * * *", "leaves the rest of its list without effect"),
        ("0 0 1,,2 * *", "'' as day of month is not"),
        ("0 0 31 2,4 *", "names a day that never comes"),
        ("0 0 30 2 mon", "names a day that never comes"),
        ("0 0 1,31 * *", "names the first days of March and days that February has not"),
        ("0 0 */3 * *", "names the first days of March"),
        ("0 0 */10 2-3 mon", "names the first days of March"),
    ],
)
def test_a_line_that_crons_read_differently_or_not_at_all_is_refused(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cron.require(line)


@pytest.mark.parametrize("zone", ["America/New_york", "Nowhere", "", "../etc/passwd", "+05:00"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="expected an IANA name"):
        cron.require_zone(zone)


def test_the_nearest_zone_is_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'America/New_York'"):
        cron.require_zone("America/New_york")


def test_prefect_leaves_out_a_first_of_march_in_the_lines_that_are_refused_for_it() -> None:
    february, april = datetime(2023, 2, 1, tzinfo=UTC), datetime(2023, 4, 2, tzinfo=UTC)
    assert [d.date().isoformat() for d in prefect("0 0 1,31 * *", "UTC", february, april)] == [
        "2023-02-01", "2023-03-31", "2023-04-01",
    ]  # fmt: skip


@given(
    days=st.sets(st.integers(1, 31), min_size=1, max_size=5),
    months=st.sampled_from(["*", "2", "3", "1,3", "2-3", "*/2"]),
    weekday=st.sampled_from(["*", "wed"]),
    year=st.sampled_from([2023, 2024]),
)
@settings(max_examples=150, deadline=None)
def test_every_list_of_days_that_is_accepted_fires_when_prefect_does(
    days: set[int], months: str, weekday: str, year: int
) -> None:
    line = f"30 5 {','.join(map(str, sorted(days)))} {months} {weekday}"
    if not is_accepted(line):
        return
    span = datetime(year, 1, 1, tzinfo=UTC), datetime(year, 12, 31, tzinfo=UTC)
    assert ours(line, "UTC", *span) == prefect(line, "UTC", *span)
