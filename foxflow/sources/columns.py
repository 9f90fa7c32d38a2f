"""From a file's columns to bars or events: names matched exactly, numbers and symbols strict, each refusal placed."""

import polars as pl

from foxflow.bars import BAR_SCHEMA, EVENT_KINDS, EVENT_SCHEMA, PRICES, SYMBOL, check, require
from foxflow.errors import DataError, unknown
from foxflow.sources.table import Table
from foxflow.sources.times import closes, instants

TIMES = ("ts", "timestamp", "datetime", "date", "time")
SYMBOLS = ("symbol", "ticker")
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def to_bars(
    table: Table, *, bar: str, symbol: str | None, stamp: str | None, tz: str | None, calendar: str | None
) -> pl.DataFrame:
    """Return the bars of a table, sorted by (symbol, ts); the options are those of `sources.read`."""
    time = _column(table, TIMES)
    columns = {name: _column(table, (name,)) for name in (*PRICES, "volume")}
    table, symbols = _symbols(table, symbol)
    values = {name: _numbers(table, column) for name, column in columns.items()}
    # Last, because a calendar takes a second and a fault in a number should not wait for it.
    ts = instants(table, time, symbols, bar=bar, stamp=stamp, tz=tz, calendar=calendar)
    bars = pl.DataFrame({"symbol": symbols, "ts": ts, **values}, schema=BAR_SCHEMA)
    _refuse_repeated(table, bars, ("symbol", "ts"))
    try:
        return require(bars, where=table.file)
    except DataError as e:
        first = check(bars).row(0, named=True)
        row = ((bars["symbol"] == first["symbol"]) & (bars["ts"] == first["ts"])).arg_max() or 0
        raise DataError(f"{e} (the first is {table.unit} {table.numbers[row]})") from e


def to_events(table: Table, *, calendar: str) -> pl.DataFrame:
    """Return the splits and dividends of a table, sorted by (symbol, ts); see `sources.read_events`."""
    session, kind, value = (_column(table, names) for names in (("session", *TIMES), ("kind",), ("value",)))
    table, symbols = _symbols(table, None)
    kinds, values = _texts(table, kind), _numbers(table, value)
    table.refuse_where(~kinds.is_in(EVENT_KINDS), kinds, "kind {}; expected split or dividend")
    table.refuse_where(values <= 0, values, "value {}; expected new shares per old share, or money per share")
    ts = closes(table, session, calendar=calendar)
    events = pl.DataFrame({"symbol": symbols, "ts": ts, "kind": kinds, "value": values}, schema=EVENT_SCHEMA)
    _refuse_repeated(table, events, ("symbol", "ts", "kind"))
    return events.sort("symbol", "ts", "kind")


def _column(table: Table, names: tuple[str, ...]) -> str:
    """Return the one column called by one of the names, in any case; `Adj Close` is another name than `close`."""
    found = [column for column in table.frame.columns if column.strip().lower() in names]
    if len(found) > 1:
        table.refuse(f"columns {', '.join(found)}; expected one of {', '.join(names)}: rename or remove the others")
    if not found:
        table.refuse(
            f"no column {' or '.join(names)} among {', '.join(map(repr, table.frame.columns))[:300]}; give the column "
            "that name in the header line"
        )
    return found[0]


def _symbols(table: Table, symbol: str | None) -> tuple[Table, pl.Series]:
    """Return the rows of the symbol asked for, or all, and each one's symbol."""
    if symbol is not None and SYMBOL.fullmatch(symbol) is None:
        table.refuse(f"--symbol {symbol!r}; expected letters, digits and . _ / = ^ -, at most 64")
    if not any(column.strip().lower() in SYMBOLS for column in table.frame.columns):
        if symbol is None:
            table.refuse(f"no column {' or '.join(SYMBOLS)} says whose bars these are; name it with --symbol")
        return table, pl.repeat(symbol, len(table.frame), dtype=pl.String, eager=True)
    symbols = _texts(table, _column(table, SYMBOLS))
    table.refuse_where(
        ~symbols.str.contains(f"^(?:{SYMBOL.pattern})$"),
        symbols,
        "symbol {}; expected letters, digits and . _ / = ^ -, at most 64",
    )
    if symbol is None:
        return table, symbols
    if symbol not in symbols:
        table.refuse(unknown("symbol", symbol, symbols.unique()))
    return table.filter(symbols == symbol), symbols.filter(symbols == symbol)


def _texts(table: Table, column: str) -> pl.Series:
    values = table.frame[column]
    if isinstance(values.dtype, pl.Categorical | pl.Enum):
        values = values.cast(pl.String)
    if values.dtype != pl.String:
        table.refuse(f"column {column} is {values.dtype}; expected text")
    return values


def _numbers(table: Table, column: str) -> pl.Series:
    """Return a column as floats: decimal points, no thousands separators, no units, no gaps."""
    values = table.frame[column]
    if values.dtype == pl.String:
        what = f"{column} {{}}; expected a number such as 1234.5: a decimal point, no thousands separator, no unit"
        table.refuse_where(~values.str.contains(_NUMBER), values, what)
    elif not values.dtype.is_numeric():
        table.refuse(f"column {column} is {values.dtype}; expected numbers")
    floats = values.cast(pl.Float64, strict=False)
    table.refuse_where(~floats.is_finite(), values, f"{column} {{}}; expected a finite number")
    return floats


def _refuse_repeated(table: Table, rows: pl.DataFrame, key: tuple[str, ...]) -> None:
    repeated = rows.select(key).with_columns(number=table.numbers).filter(rows.select(key).is_duplicated())
    if len(repeated):
        first = repeated.filter(pl.struct(key) == pl.struct(key).first())
        what = " ".join(
            f"{value:%Y-%m-%d %H:%M}Z" if name == "ts" else value
            for name, value in zip(key, first.row(0), strict=False)
        )
        table.refuse(
            f"{table.unit}s {' and '.join(map(str, first['number']))} are duplicates, the same {' and '.join(key)} "
            f"({what}); {len(repeated)} {table.unit}s repeat another in all: keep one of each"
        )
