"""A file as it was read, before its columns have a meaning."""

from dataclasses import dataclass, replace
from typing import NoReturn

import polars as pl

from foxflow.errors import DataError


@dataclass(frozen=True)
class Table:
    """A file's columns, and how a message names a row.

    Attributes
    ----------
    frame
        Text columns (CSV) or typed ones (Parquet).
    unit
        What a row is called: `line` or `row`.
    numbers
        `(n_rows,)`: the number of each row in the file.
    """

    file: str
    frame: pl.DataFrame
    unit: str
    numbers: pl.Series

    def filter(self, keep: pl.Series) -> "Table":
        """Return the rows to keep, with their numbers in the file."""
        return replace(self, frame=self.frame.filter(keep), numbers=self.numbers.filter(keep))

    def refuse(self, what: str) -> NoReturn:
        """Raise a DataError about the whole file."""
        raise DataError(f"{self.file}: {what}")

    def refuse_where(self, bad: pl.Series, values: pl.Series, what: str) -> None:
        """Raise a DataError about the first row that is `bad`, if any; `{}` in `what` becomes its value."""
        rows = bad.fill_null(value=True).arg_true()
        if len(rows):
            first, value = self.numbers[rows[0]], values[rows[0]]
            more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
            text = what.replace("{}", "(empty)" if value is None else repr(str(value)))
            raise DataError(f"{self.file}, {self.unit} {first}{more}: {text}")
