"""From a file's columns to rows of time, symbol, prices and volume: what a row does not bear out becomes a fault."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from foxflow.bars import PRICES, SYMBOL, SYMBOL_WORDS, TS
from foxflow.errors import DataError, unknown
from foxflow.sources import numbers
from foxflow.sources.chunks import FAULT_SCHEMA, Chunk, Opened
from foxflow.sources.numbers import Style
from foxflow.sources.roles import Roles
from foxflow.sources.stamps import days_of, times_of
from foxflow.sources.table import Table
from foxflow.sources.understanding import Understanding

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
    zone: Callable[[], str | None],
) -> Iterator[Rows]:
    """Yield the rows of a file, and note in `seen` what was understood.

    `zone`: gives the zone whose midnights are days, where one is known.

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
        time, times, untimely = times_of(table, roles, opened, seen, nothing, date_format=date_format, day=day)
        if times.dtype == TS:
            times, untimely = days_of(times, untimely, seen, zone)
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
