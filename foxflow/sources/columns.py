"""From a table's columns to symbols, texts and numbers: names matched exactly, values strict, each refusal placed."""

import polars as pl

from foxflow.bars import SYMBOL, SYMBOL_WORDS
from foxflow.sources.table import Table

TIMES = ("ts", "timestamp", "datetime", "date", "time")
SYMBOLS = ("symbol", "ticker")
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def column_of(table: Table, names: tuple[str, ...]) -> str:
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


def symbols_of(table: Table) -> pl.Series:
    """Return each row's symbol."""
    symbols = texts_of(table, column_of(table, SYMBOLS))
    table.refuse_where(
        ~symbols.str.contains(f"^(?:{SYMBOL.pattern})$"),
        symbols,
        "symbol {}; expected " + SYMBOL_WORDS,
    )
    return symbols


def texts_of(table: Table, column: str) -> pl.Series:
    """Return a column of text."""
    values = table.frame[column]
    if isinstance(values.dtype, pl.Categorical | pl.Enum):
        values = values.cast(pl.String)
    if values.dtype != pl.String:
        table.refuse(f"column {column} is {values.dtype}; expected text")
    return values


def numbers_of(table: Table, column: str) -> pl.Series:
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


def refuse_repeated(table: Table, rows: pl.DataFrame, key: tuple[str, ...]) -> None:
    """Refuse rows of one key, naming the first two."""
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
