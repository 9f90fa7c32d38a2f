"""Columns without names: taken for bars only where the numbers themselves bear it out, else asked about."""

from collections.abc import Sequence

import polars as pl

from foxflow.errors import DataError
from foxflow.sources import dates, epochs, numbers
from foxflow.sources.table import Table

# With fewer rows, what fits may fit by accident.
_ENOUGH = 10
_BINANCE = ("open time", "open", "high", "low", "close", "volume", "-", "-", "-", "-", "-", "-")


def names_of(table: Table, *, decimal: str | None, foreign: Sequence[str] = ()) -> tuple[tuple[str, ...], str]:
    """Return names for the columns of a file that has none, and the evidence for them in words.

    A time comes first (its time of day may be the second column), then open, high, low and close: high and low must
    bound the others in every row, and each open must lie nearer to the close before it than each close to the open
    before it. One column that is left is the volume; of twelve columns with two times, the sixth, as Binance writes.

    Raises
    ------
    DataError
        Where that does not hold, or other columns are left: showing the first row and how to name its fields.
    """
    frame = table.frame
    width = frame.width
    at = 2 if width > 6 and _is_clock(frame["1"]) else 1
    is_binance = width == 12 and _is_close_time(frame)
    left = width - at - 4
    shown = ", ".join(str(v) for v in frame.row(0))[:160]
    missing = f"the header {', '.join(foreign)} has no word that is known" if foreign else "no header names the columns"
    ask = (
        f"{table.file}, {table.unit} {table.numbers[0]}: {missing} ({shown}); name each by its "
        f"position, as in --columns {','.join(['date', 'time'][:at] if at == 2 else ['ts'])},open,high,low,close,volume"
        f"{',-' * max(0, left - 1)}"
    )
    if left < 1 or (left > 1 and not is_binance):
        what = "no column is left for a volume" if left < 1 else f"{left} columns are left, and any may be the volume"
        raise DataError(f"{ask}: {what} (volume=none says that there is none)")
    texts = [frame[str(p)] for p in range(at, at + 5)]
    style = numbers.settle(table, texts, decimal=decimal)
    prices = pl.DataFrame({name: numbers.parse(t, style)[0] for name, t in zip("ohlc", texts, strict=False)})
    rows = prices.drop_nulls()
    if len(rows) < _ENOUGH:
        raise DataError(f"{ask}: {len(rows)} row(s) are too few to tell")
    bounded = rows.select(
        ((pl.col("h") >= pl.max_horizontal("o", "l", "c")) & (pl.col("l") <= pl.min_horizontal("o", "h", "c"))).all()
    ).item()
    if not bounded:
        raise DataError(f"{ask}: the fields after the time are not open, high, low and close")
    if _is_newest_first(table.filter(pl.Series(prices.select(pl.all_horizontal(pl.all().is_not_null())).to_series()))):
        rows = rows.reverse()
    follows, reversed_ = rows.select(
        (pl.col("o") - pl.col("c").shift(1)).abs().sum().alias("follows"),
        (pl.col("c") - pl.col("o").shift(1)).abs().sum().alias("reversed"),
    ).row(0)
    if not follows < 0.9 * reversed_:
        raise DataError(f"{ask}: nothing tells the open from the close")
    names = (
        _BINANCE
        if is_binance
        else (*(("date", "time") if at == 2 else ("ts",)), "open", "high", "low", "close", "volume")
    )
    taken = ", ".join(n for n in names if n != "-")
    why = missing if foreign else "no header"
    words = (
        f"{why}: columns taken as {taken}, which the prices bear out (every high and low "
        "bounds its bar, opens follow closes)"
    )
    return names, words


def _is_clock(text: pl.Series) -> bool:
    return bool(text.str.contains(r"^\d{1,2}:\d{2}(:\d{2})?$").fill_null(value=False).all())


def _is_close_time(frame: pl.DataFrame) -> bool:
    """Return whether the seventh of twelve columns is an epoch after the first, as where Binance closes a bar."""
    opened, closed = (frame[p].cast(pl.Int64, strict=False) for p in ("0", "6"))
    if opened.null_count() or closed.null_count():
        return False
    return bool(epochs.units_of(frame["0"]).is_not_null().all() and (closed > opened).all())


def _is_newest_first(table: Table) -> bool:
    text = table.frame["0"]
    if "1" in table.frame.columns and _is_clock(table.frame["1"]):
        text = text + " " + table.frame["1"]
    try:
        form = dates.settle(table, text, declared=None, day="2000-01-01")
    except DataError:
        return False
    times = dates.parse(text, form)[0].drop_nulls()
    return len(times) > 1 and bool(times[0] > times[-1])
