"""From a file's columns to rows of time, symbol, prices and volume: what a row does not bear out becomes a fault."""

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from foxflow.bars import PRICES, SYMBOL, SYMBOL_WORDS
from foxflow.errors import DataError, unknown
from foxflow.sources import dates, numbers
from foxflow.sources.chunks import FAULT_SCHEMA, Chunk, Opened
from foxflow.sources.dates import Form
from foxflow.sources.numbers import Style
from foxflow.sources.roles import Roles
from foxflow.sources.table import Table

# More is no bad row here and there: the file was not understood.
MOST_FAULTS = 200_000
_SHOWN = 200
# From here on not every whole number has a float of its own.
_EXACT = float(2**53)
_STRANGE = "time {} is none, or not written as the file's other times"


@dataclass(frozen=True)
class Rows:
    """Rows of a chunk.

    Attributes
    ----------
    frame
        `number` (Int64), `symbol`, `time` (Date, or Datetime in microseconds, in UTC where the file says so), prices
        and volume (Float64; a volume may be null).
    faults
        Rows that are none (`FAULT_SCHEMA`).
    """

    frame: pl.DataFrame
    faults: pl.DataFrame
    n_bytes: int


@dataclass
class Understanding:
    """What the first rows settled, and what was found on the way."""

    style: Style | None = None
    form: Form | None = None
    symbols: set[str] = field(default_factory=set)
    n_faults: int = 0
    n_mended_by_adjusted: int = 0
    n_unknown_volumes: int = 0
    n_inexact_volumes: int = 0
    has_negative: bool = False
    example: str | None = None
    clock_digits: int | None = None
    notes: list[str] = field(default_factory=list)


def read(
    opened: Opened,
    roles: Roles,
    seen: Understanding,
    *,
    symbol: str | None,
    date_format: str | None,
    day: str | None,
    decimal: str | None,
    divisor: float,
) -> Iterator[Rows]:
    """Yield the rows of a file, and note in `seen` what was understood.

    Raises
    ------
    DataError
        When times or numbers fit two forms, a symbol asked for is absent, or there are too many faults.
    """
    if symbol is not None and SYMBOL.fullmatch(symbol) is None:
        raise DataError(f"{opened.file}: --symbol {symbol!r}; expected {SYMBOL_WORDS}")
    for chunk in opened.chunks:
        table = Table(opened.file, chunk.frame, opened.unit, chunk.numbers)
        faults = [chunk.faults]
        seen.notes += chunk.notes
        values, reasons = _values(table, roles, seen, decimal=decimal, divisor=divisor)
        nothing = _says_nothing(values, reasons)
        written = table.frame[str(roles.positions["ts"])]
        if isinstance(written.dtype, pl.Date | pl.Datetime) and "clock" not in roles.positions:
            time, times, untimely = written, *_typed(table, written, seen)
        else:
            time = _time(table, roles, opened, seen)
            if seen.form is None:
                known = ~nothing & _has_digits(time)
                if not known.any():
                    raise DataError(f"{opened.file} has no row with a time and prices; expected at least one bar")
                seen.example = time.filter(known)[0]
                seen.form = dates.settle(table.filter(known), time.filter(known), declared=date_format, day=day)
            times, untimely = dates.parse(time, seen.form)
        symbols, unnamed = _symbols(table, roles, opened, symbol, seen)
        frame = pl.DataFrame({"number": chunk.numbers, "symbol": symbols, "time": times, **values})
        reason = pl.select(
            pl.coalesce(
                _why(nothing, lambda: pl.lit("no prices")),
                _why(untimely, lambda time=time: pl.format(_STRANGE, time.cast(pl.String).fill_null("(empty)"))),  # type: ignore[misc]
                unnamed,
                *reasons.values(),
                _broken(frame),
                _zero(frame, seen),
            )
        ).to_series()
        bad = reason.is_not_null()
        if bad.any():
            seen.n_mended_by_adjusted += _mended(table, frame, roles, seen, reason)
            kind = pl.select(
                pl.when(nothing & (~untimely | time.is_null()))
                .then(pl.lit("blank"))
                .when(time.cast(pl.String).str.contains(r"^[^\d]*\pL[^\d]*$"))
                .then(pl.lit("words"))
                .otherwise(pl.lit("bad"))
            ).to_series()
            faults.append(_faults(table, time, kind, reason, bad))
        if symbol is not None and roles.positions.get("symbol") is not None:
            # Rows of other symbols are none of this import, faulty or not.
            keep = (symbols == symbol).fill_null(value=True)
            faults[-1:] = [faults[-1].filter(pl.col("number").is_in(chunk.numbers.filter(keep).implode()))]
            bad |= symbols != symbol
        found = pl.concat(faults)
        seen.n_faults += len(found)
        if seen.n_faults > MOST_FAULTS:
            first = found.row(0, named=True)
            raise DataError(
                f"{opened.file}: more than {MOST_FAULTS:,} rows are no bars, the last of them {opened.unit} "
                f"{first['number']}: {first['reason']}; the file is not what it was taken for"
            )
        kept = frame.filter(~bad)
        seen.n_unknown_volumes += kept["volume"].null_count()
        seen.n_inexact_volumes += int((kept["volume"] >= _EXACT).sum())
        yield Rows(kept, found, chunk.n_bytes)
    if symbol is not None and "symbol" in roles.positions and symbol not in seen.symbols:
        raise DataError(f"{opened.file}: {unknown('symbol', symbol, seen.symbols)}")


def _values(
    table: Table, roles: Roles, seen: Understanding, *, decimal: str | None, divisor: float
) -> tuple[dict[str, pl.Series], dict[str, pl.Series]]:
    """Return prices and volume as Float64, and for each why a row has no such number (null where it has one)."""
    columns = {p: table.frame[str(roles.positions[p])] for p in (*PRICES, "volume") if p in roles.positions}
    for role, column in columns.items():
        if column.dtype != pl.String and not column.dtype.is_numeric():
            table.refuse(f"column {role} is {column.dtype}; expected numbers")
    texts = [c for c in columns.values() if c.dtype == pl.String]
    if texts and seen.style is None:
        seen.style = numbers.settle(table, texts, decimal=decimal)
    values: dict[str, pl.Series] = {}
    reasons: dict[str, pl.Series] = {}
    for role in (*PRICES, "volume"):
        if role not in columns:
            values[role] = pl.repeat(None, len(table.frame), dtype=pl.Float64, eager=True)
            reasons[role] = _why(values[role].is_not_null(), lambda: pl.lit(""))
            continue
        column = columns[role]
        if column.dtype == pl.String:
            assert seen.style is not None
            value, wrong = numbers.parse(column, seen.style)
        else:
            value = column.cast(pl.Float64)
            wrong = value.is_infinite().fill_null(value=False)
            value = value.fill_nan(None)
        empty = value.is_null() & ~wrong & (role != "volume")
        reasons[role] = _why(
            wrong | empty,
            lambda role=role, empty=empty, column=column: (
                pl.when(empty)  # type: ignore[misc]
                .then(pl.format(f"{role} is empty{{}}", _quoted(column)))
                .otherwise(pl.format(f"{role} {{}} is no number", column.cast(pl.String).fill_null("")))
            ),
        )
        values[role] = value / divisor if role != "volume" and divisor != 1 else value
    return values, reasons


def _time(table: Table, roles: Roles, opened: Opened, seen: Understanding) -> pl.Series:
    """Return the times as text, a date and a time of day joined."""
    text = _written(table, table.frame[str(roles.positions["ts"])])
    if "clock" not in roles.positions:
        return text
    clock = _written(table, table.frame[str(roles.positions["clock"])]).str.strip_chars()
    if clock.str.contains(r"^\d+$").all():
        # Written as a number, 9:30 has lost its leading zero.
        if seen.clock_digits is None:
            seen.clock_digits = _clock_digits(table, roles, opened, clock)
        clock = clock.str.zfill(seen.clock_digits)
        if seen.clock_digits == 2:
            clock += ":00"
        clock = clock.str.replace(r"^(\d\d)(\d\d)(\d\d)?$", "${1}:${2}:${3}").str.strip_suffix(":")
    return text.str.strip_chars().str.replace(r"[ T]00:00(:00(\.0+)?)?$", "") + " " + clock


def _clock_digits(table: Table, roles: Roles, opened: Opened, clock: pl.Series) -> int:
    """Return how many digits a time of day has that is written as a number: hours, or with minutes, or seconds too."""
    longest = int(clock.str.len_chars().max() or 0)  # type: ignore[arg-type]
    if longest > 2:
        return 4 if longest <= 4 else 6
    if bool((clock.cast(pl.Int64) > 24).any()):
        return 4
    name = opened.names[roles.positions["clock"]] if opened.names else ""
    if "hour" not in name.lower():
        table.refuse(f"times of day such as {clock[0]!r} may be hours or minutes; write them as in 09:30")
    return 2


def _typed(table: Table, column: pl.Series, seen: Understanding) -> tuple[pl.Series, pl.Series]:
    """Return times that are typed as such, in microseconds, and where there is none."""
    if column.dtype == pl.Date:
        seen.form = seen.form or Form("date", "typed")
        return column, column.is_null()
    assert isinstance(column.dtype, pl.Datetime)
    us = column.dt.cast_time_unit("us")
    seen.example = seen.example or next((str(v) for v in column.drop_nulls().head(1)), None)
    table.refuse_where(
        (us.dt.cast_time_unit("ns") != column.dt.cast_time_unit("ns")).fill_null(value=False),
        column,
        "time {} is finer than a microsecond; round it",
    )
    if seen.form is None:
        # Bars that all start at midnight, in the zone they are written in, are days.
        midnight = bool((us.dt.time() == dt.time(0)).all())
        seen.form = Form("date" if midnight else "local" if column.dtype.time_zone is None else "utc", "typed")
    if seen.form.kind == "date":
        off = (us.dt.time() != dt.time(0)).fill_null(value=False)
        return pl.select(pl.when(~off).then(us.dt.date())).to_series(), us.is_null() | off
    return us.dt.convert_time_zone("UTC") if seen.form.kind == "utc" else us, us.is_null()


def _written(table: Table, column: pl.Series) -> pl.Series:
    kind = column.dtype
    if kind == pl.String or kind.is_integer():
        return column.cast(pl.String)
    if kind.is_float():
        whole = (column == column.floor()).fill_null(value=True).all()
        return column.cast(pl.Int64, strict=False).cast(pl.String) if whole else column.cast(pl.String)
    if kind == pl.Date:
        return column.dt.to_string("%Y-%m-%d")
    if kind == pl.Time:
        return column.dt.to_string("%H:%M:%S%.f")
    if not isinstance(kind, pl.Datetime | pl.Categorical | pl.Enum):
        table.refuse(f"the column of times is {kind}; expected dates, times, text or numbers of an epoch")
    return column.dt.to_string("%Y-%m-%d %H:%M:%S%.f") if isinstance(kind, pl.Datetime) else column.cast(pl.String)


def _symbols(
    table: Table, roles: Roles, opened: Opened, symbol: str | None, seen: Understanding
) -> tuple[pl.Series, pl.Series]:
    """Return each row's symbol (null where none is known), and why it is none."""
    n = len(table.frame)
    none = pl.repeat(None, n, dtype=pl.String, eager=True)
    position = roles.positions.get("symbol")
    if position is None:
        # Without a name rows are still compared, so that their faults are told together with what is asked for.
        return pl.repeat(symbol or opened.symbol or "?", n, dtype=pl.String, eager=True), none
    texts = table.frame[str(position)]
    if isinstance(texts.dtype, pl.Categorical | pl.Enum):
        texts = texts.cast(pl.String)
    if texts.dtype != pl.String:
        table.refuse(f"column symbol is {texts.dtype}; expected text")
    names = texts.unique()
    if names.str.contains(r"^\s|\s$").any():
        texts = texts.str.strip_chars()
        names = texts.unique()
    seen.symbols |= set(names.drop_nulls())
    wrong = [name for name in names if name is None or re.fullmatch(SYMBOL, name) is None]
    if not wrong:
        return texts, none
    bad = ~texts.str.contains(f"^(?:{SYMBOL.pattern})$").fill_null(value=False)
    expected = f"symbol {{}}; expected {SYMBOL_WORDS}"
    return texts, _why(bad, lambda: pl.format(expected, texts.fill_null("(empty)")))


def _broken(frame: pl.DataFrame) -> pl.Series:
    """Return which invariant of a bar a row breaks, in words."""
    o, h, l, c = (pl.col(p) for p in PRICES)
    others = pl.max_horizontal(o, l, c), pl.min_horizontal(o, h, c)
    sound = (h >= others[0]) & (l <= others[1]) & (pl.col("volume") >= 0).fill_null(value=True)
    if frame.select(sound.fill_null(value=True).all()).item():
        return _why(pl.repeat(value=False, n=len(frame), eager=True), lambda: pl.lit(""))
    say = pl.format("open {} high {} low {} close {}", o, h, l, c)
    return frame.select(
        pl.when(c > h)
        .then(pl.format("close above the high: {}", say))
        .when(c < l)
        .then(pl.format("close below the low: {}", say))
        .when(o > h)
        .then(pl.format("open above the high: {}", say))
        .when(o < l)
        .then(pl.format("open below the low: {}", say))
        .when((h < others[0]) | (l > others[1]))
        .then(pl.format("high below the low: {}", say))
        .when(pl.col("volume") < 0)
        .then(pl.format("negative volume {}", "volume"))
    ).to_series()


def _zero(frame: pl.DataFrame, seen: Understanding) -> pl.Series:
    """Return which rows have a price of zero, where no price of the file so far is below it: none was traded there."""
    low = frame["low"]
    seen.has_negative = seen.has_negative or bool((low < 0).any())
    zero = pl.repeat(value=False, n=len(frame), eager=True) if seen.has_negative else (low == 0).fill_null(value=False)
    return _why(zero, lambda: pl.lit("a price of zero"))


def _mended(table: Table, frame: pl.DataFrame, roles: Roles, seen: Understanding, reason: pl.Series) -> int:
    """Return how many bars that break an invariant would not, were the adjusted close their close."""
    broken = reason.str.contains("^(close|open|high) (above|below)").fill_null(value=False)
    if roles.adjusted is None or not broken.any():
        return 0
    column = table.frame[str(roles.adjusted)]
    value = numbers.parse(column, seen.style or Style())[0] if column.dtype == pl.String else column.cast(pl.Float64)
    fits = _broken(frame.with_columns(close=value)).is_null() & value.is_not_null()
    return int((fits & broken).sum())


def _faults(table: Table, time: pl.Series, kind: pl.Series, reason: pl.Series, bad: pl.Series) -> pl.DataFrame:
    columns: Mapping[str, pl.Series] = {"number": table.numbers, "kind": kind, "when": time, "reason": reason}
    texts = pl.concat_str([pl.col(c).cast(pl.String).fill_null("") for c in table.frame.columns], separator=",")
    text = table.frame.filter(bad).select(texts.str.slice(0, _SHOWN)).to_series()
    return pl.DataFrame(columns).filter(bad).with_columns(text=text).select(FAULT_SCHEMA.names()).cast(FAULT_SCHEMA)


def _why(mask: pl.Series, words: Callable[[], pl.Expr]) -> pl.Series:
    """Return the words where the mask holds, else null; nothing is worded where nothing is wrong."""
    if not mask.any():
        return pl.repeat(None, len(mask), dtype=pl.String, eager=True)
    return pl.select(pl.when(mask).then(words())).to_series()


def _quoted(column: pl.Series) -> pl.Series:
    """Return the word that stands for nothing, in quotes; empty where nothing is written."""
    text = column.cast(pl.String).fill_null("")
    return pl.select(pl.when(text == "").then(pl.lit("")).otherwise(pl.format(" ({})", text))).to_series()


def _has_digits(text: pl.Series) -> pl.Series:
    return text.str.contains(r"\d").fill_null(value=False)


def _says_nothing(values: Mapping[str, pl.Series], reasons: Mapping[str, pl.Series]) -> pl.Series:
    """Return where a row has no price, and no volume or none that was traded."""
    empty = (values["volume"].fill_null(0) == 0) & reasons["volume"].is_null()
    for price in PRICES:
        empty &= values[price].is_null() & (
            reasons[price].is_null() | reasons[price].str.contains(" is empty", literal=True)
        )
    return empty


def as_chunk(frame: pl.DataFrame, first: int, *, n_bytes: int = 0) -> Chunk:
    """Return typed columns as a chunk whose rows are numbered from `first`."""
    renamed = frame.rename({name: str(p) for p, name in enumerate(frame.columns)})
    return Chunk(renamed, pl.int_range(first, first + len(frame), eager=True), n_bytes=n_bytes)
