"""From dates and local times to instants in UTC: sessions of an exchange, ends of days, clocks that go back."""

import zoneinfo
from dataclasses import dataclass, field
from datetime import date, timedelta

import polars as pl

from foxflow.bars import TS
from foxflow.errors import DataError
from foxflow.sources.times import sessions_of_years

_DAY = timedelta(days=1)


@dataclass
class Clock:
    """Turns the times of a file into instants, chunk by chunk, and keeps those that only their neighbours can place.

    Attributes
    ----------
    calendar
        Exchange whose session a date means.
    tz
        Zone of dates without a calendar and of local times.
    twice
        Rows whose local time comes twice in the zone, in file order (columns as given, without an instant).
    """

    file: str
    unit: str
    calendar: str | None
    tz: str | None
    # Length and stamp of bars of several days, whose date is their first or their last.
    days: int = 1
    stamp: str | None = None
    twice: list[pl.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.tz is not None and self.tz not in zoneinfo.available_timezones():
            raise DataError(f"{self.file}: --tz {self.tz!r}; expected a zone name, as in America/New_York or UTC")

    def place(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return rows with the instant each time names as `ts`, and `number`, `reason` of those that none fits."""
        kind = frame.schema["time"]
        if not len(frame):
            return frame.select(pl.all().exclude("time"), pl.lit(None, TS).alias("ts")), _none()
        if kind == pl.Date:
            at = self._closes(frame["time"])
            what = f"is no session of {self.calendar}" if self.calendar else f"has no midnight in {self.tz}"
        elif kind == TS:
            return frame.rename({"time": "ts"}), _none()
        elif self.tz is None:
            # Only for what can be found without the zone that will be asked for.
            return frame.with_columns(ts=pl.col("time").dt.replace_time_zone("UTC")).drop("time"), _none()
        else:
            at = frame["time"].dt.replace_time_zone(self.tz, ambiguous="null", non_existent="null")
            if at.null_count():
                first = frame["time"].dt.replace_time_zone(self.tz, ambiguous="earliest", non_existent="null")
                again = at.is_null() & first.is_not_null()
                if again.any():
                    self.twice.append(frame.filter(again))
                frame, at = frame.filter(~again), at.filter(~again)
            at = at.dt.convert_time_zone("UTC")
            what = f"does not exist in {self.tz}, where clocks go forward over it; name another --tz or write UTC"
        placed = frame.with_columns(ts=at.cast(TS))
        lost = placed.filter(pl.col("ts").is_null())
        shown = pl.col("time").dt.to_string("%Y-%m-%d" if kind == pl.Date else "%Y-%m-%d %H:%M:%S")
        reasons = lost.select("number", reason=pl.format("{} " + what, shown))
        return placed.filter(pl.col("ts").is_not_null()).drop("time"), reasons

    def resolve(self, *, newest_first: bool) -> pl.DataFrame:
        """Return the rows of hours that clocks repeat, placed by their order in the file.

        Raises
        ------
        DataError
            Where the order does not tell which of the two hours is meant.
        """
        if not self.twice:
            return pl.DataFrame()
        rows = pl.concat(self.twice)
        rows = rows.with_columns(day=pl.col("time").dt.date())
        parts = []
        for group in rows.partition_by("symbol", "day", maintain_order=True):
            ordered = group.reverse() if newest_first else group
            back = (ordered["time"].diff() <= timedelta(0)).fill_null(value=False)
            if back.sum() != 1:
                first = group.row(0, named=True)
                raise DataError(
                    f"{self.file}, {self.unit} {first['number']}: '{first['time']:%Y-%m-%d %H:%M:%S}' comes twice in "
                    "the zone "
                    f"{self.tz}, where clocks go back over it, and the order of the rows does not tell which is meant; "
                    "write times with their offset, or in UTC"
                )
            later = back.cum_sum() == 1
            local = ordered["time"].dt
            at = pl.select(
                pl.when(later)
                .then(local.replace_time_zone(self.tz, ambiguous="latest"))
                .otherwise(local.replace_time_zone(self.tz, ambiguous="earliest"))
            ).to_series()
            parts.append(ordered.with_columns(ts=at.dt.convert_time_zone("UTC").cast(TS)).drop("day", "time"))
        return pl.concat(parts)

    def _closes(self, days: pl.Series) -> pl.Series:
        if self.calendar is not None:
            return _session_ends(days, self.calendar, self.days, self.stamp, file=self.file)
        # A day is complete when it is over in its zone, whatever hour trading ended.
        ends = days if self.days > 1 and self.stamp == "close" else days.dt.offset_by(f"{self.days - 1}d")
        midnight = ends.dt.offset_by("1d").cast(pl.Datetime("us"))
        tz = self.tz or "UTC"
        return midnight.dt.replace_time_zone(tz, ambiguous="earliest", non_existent="null").dt.convert_time_zone("UTC")


def _session_ends(days: pl.Series, calendar: str, n_days: int, stamp: str | None, *, file: str) -> pl.Series:
    first, last = days.min(), days.max()
    assert isinstance(first, date)
    assert isinstance(last, date)
    try:
        sessions = sessions_of_years(calendar, first, last + _DAY * (n_days - 1))
    except DataError as e:
        raise DataError(f"{file}: {e}") from e
    if n_days == 1 or stamp == "close":
        return pl.DataFrame({"session": days}).join(sessions, on="session", how="left", maintain_order="left")["ts"]
    # A bar of several days that is named by its first is complete with the last session before the next.
    wanted = pl.DataFrame({"last": days.dt.offset_by(f"{n_days - 1}d"), "first": days}).with_row_index()
    joined = wanted.sort("last").join_asof(sessions.sort("session"), left_on="last", right_on="session").sort("index")
    return joined.select(pl.when(pl.col("session") >= pl.col("first")).then("ts")).to_series()


def _none() -> pl.DataFrame:
    return pl.DataFrame(schema={"number": pl.Int64(), "reason": pl.String()})
