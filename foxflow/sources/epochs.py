"""Times written as numbers: seconds and their parts since 1970, Excel's days, milliseconds since midnight."""

import polars as pl

from foxflow.sources.forms import Form, Kind
from foxflow.sources.table import Table

_PER_SECOND = {"epoch-s": 1, "epoch-ms": 10**3, "epoch-us": 10**6, "epoch-ns": 10**9}
# Excel counts days from here, as if 1900 had been a leap year; from 1970 to 2119, so that a count is no plain number.
_EXCEL_ZERO_DAYS, _EXCEL = 25_569, (25_569, 80_400)


def settle(table: Table, text: pl.Series, *, declared: str | None, day: str | None) -> Form | None:
    """Return what numbers count, by their size or as declared; None where they are dates without separators.

    Raises
    ------
    DataError
        On numbers that are no time of any kind, and milliseconds since midnight without their day.
    """
    value = text.cast(pl.Float64, strict=False)
    whole = text.str.split(".").list.first()
    digits = whole.str.len_chars()
    if (
        declared is None
        and (digits.is_in([8, 12, 14])).all()
        and whole.str.contains(
            r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])([0-5]\d){1,2})?$"
        ).all()
    ):
        return None
    if declared == "day-ms" or (
        declared is None and bool((value < 86_400_000).all()) and not value.is_between(*_EXCEL).all()
    ):
        if day is None:
            table.refuse(
                f"the times, the first {text[0]!r}, are milliseconds since midnight at the most, without a date; "
                "give the day of the file with --date 2024-03-14 --date-format day-ms, or another --date-format"
            )
        return Form("local", "day-ms", day=day)
    if declared == "excel" or (declared is None and bool(value.is_between(*_EXCEL).all())):
        kind: Kind = "date" if bool((value == value.floor()).all()) else "local"
        return Form(kind, "excel", notes=(f"times such as {text[0]} are day numbers of Excel",))
    if declared is not None:
        return Form("utc", declared)
    units = units_of(text)
    table.refuse_where(
        units.is_null(), text, "time {} is no date, and too small for an epoch; say what it is with --date-format"
    )
    changed = units != units.shift(1)
    notes = [
        f"{table.unit} {table.numbers[row]}: epoch changes from {units[row - 1][6:]} to {units[row][6:]}"
        for row in changed.fill_null(value=False).arg_true().head(5)
    ]
    return Form("utc", "epoch", notes=tuple(notes))


def parse(text: pl.Series, form: Form) -> tuple[pl.Series, pl.Series]:
    """Return times (Date; or Datetime in microseconds, UTC for an epoch), and where a text is none of them."""
    whole, fraction = text.cast(pl.Int64, strict=False), pl.repeat("0", len(text), eager=True)
    sound = (whole >= 0).fill_null(value=False)
    if whole.null_count():
        whole = text.str.extract(r"^(\d+)").cast(pl.Int64, strict=False)
        fraction = text.str.extract(r"^\d+\.(\d+)$").fill_null("0")
        sound = text.str.contains(r"^\d+(\.\d+)?$").fill_null(value=False)
    if form.date == "excel":
        days = text.cast(pl.Float64, strict=False)
        sound &= days.is_between(1, 2_958_465).fill_null(value=False)
        if form.kind == "date":
            return kept_where(sound, (days - _EXCEL_ZERO_DAYS).cast(pl.Int32, strict=False)).cast(pl.Date), ~sound
        # A day number has eleven digits at the most: a millisecond is what it can tell.
        us = ((days - _EXCEL_ZERO_DAYS) * 86_400_000).round().cast(pl.Int64, strict=False) * 1000
        return kept_where(sound, us).cast(pl.Datetime("us")), ~sound
    if form.date == "day-ms":
        sound &= (whole < 86_400_000).fill_null(value=False)
        start = pl.Series([form.day]).str.to_date("%Y-%m-%d").cast(pl.Datetime("us")).dt.epoch("us")[0]
        return kept_where(sound, start + whole * 1000).cast(pl.Datetime("us")), ~sound
    units = units_of(text) if form.date == "epoch" else pl.repeat(form.date, len(text), eager=True)
    per = units.replace_strict(_PER_SECOND, default=None, return_dtype=pl.Int64)
    # Seconds may have decimals; nanoseconds that are no whole microseconds cannot be kept.
    us = pl.select(pl.when(per == 10**9).then(whole // 1000).otherwise(whole * (10**6 // per))).to_series()
    part = fraction.str.slice(0, 6).str.pad_end(6, "0").cast(pl.Int64, strict=False)
    us = pl.select(pl.when(per == 1).then(us + part).otherwise(us)).to_series()
    sound &= per.is_not_null() & ((per != 10**9) | (whole % 1000 == 0)) & ((per == 1) | fraction.str.contains("^0*$"))
    return kept_where(sound, us).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"), ~sound


def units_of(text: pl.Series) -> pl.Series:
    """Return the unit of each epoch by its size: no two units fit dates of 1973 to 5138 at once."""
    size = text.cast(pl.Int64, strict=False)
    if size.null_count():
        size = text.str.extract(r"^(\d+)(?:\.\d*)?$").cast(pl.Int64, strict=False)
    return pl.select(
        pl.when(size >= 10**17)
        .then(pl.lit("epoch-ns"))
        .when(size >= 10**14)
        .then(pl.lit("epoch-us"))
        .when(size >= 10**11)
        .then(pl.lit("epoch-ms"))
        .when(size >= 10**8)
        .then(pl.lit("epoch-s"))
    ).to_series()


def kept_where(keep: pl.Series, values: pl.Series) -> pl.Series:
    """Return values where `keep` holds, else null."""
    return pl.select(pl.when(keep).then(values)).to_series()
