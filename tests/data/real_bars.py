"""Bars of `shared/data/real`, read by a few lines a layout that know nothing of the importer; skipped where absent."""

import gzip
import io
import zipfile
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest

from foxflow.bars import BAR_SCHEMA, bar_length, session_closes

REAL = Path(__file__).parents[3] / "shared/data/real"
needs_real = pytest.mark.skipif(not REAL.exists(), reason="needs shared/data/real beside the repository")
PRICES = ["open", "high", "low", "close"]


def daily(table: pl.DataFrame, *, symbol: str, calendar: str = "XNYS") -> pl.DataFrame:
    """Return bars of `session` (Date), prices and volume; a session that the calendar lacks ends at 21:00 UTC."""
    closes = session_closes(calendar, table["session"].min(), table["session"].max())
    midnight = pl.col("session").cast(pl.Datetime("us", "UTC"))
    joined = table.join(closes, on="session", how="left").with_columns(
        pl.col("ts").fill_null(midnight + timedelta(hours=21))
    )
    return finished(joined, symbol=symbol)


def finished(table: pl.DataFrame, *, symbol: str) -> pl.DataFrame:
    """Return `table` as bars; without a column of volumes they are unknown."""
    if "volume" not in table.columns:
        table = table.with_columns(volume=pl.lit(None, dtype=pl.Float64))
    typed = table.with_columns(pl.lit(symbol).alias("symbol")).select(BAR_SCHEMA.names()).cast(BAR_SCHEMA)
    return typed.sort("ts")


def zipped(path: str) -> dict[str, pl.DataFrame]:
    """Return the headerless tables of a zip by the name of the member."""
    with zipfile.ZipFile(REAL / path) as archive:
        return {
            name: pl.read_csv(archive.read(name), has_header=False, infer_schema_length=None)
            for name in archive.namelist()
        }


def lean(path: str, *, bar: str, tz: str, scale: float = 1.0, day: date | None = None) -> dict[str, pl.DataFrame]:
    """Return LEAN bars stamped at their open in `tz`: `YYYYMMDD HH:MM`, or milliseconds since midnight of `day`."""
    out = {}
    for name, table in zipped(path).items():
        first = table.columns[0]
        if day is None:
            opened = pl.col(first).cast(pl.String).str.to_datetime("%Y%m%d %H:%M", time_unit="us")
        else:
            opened = pl.lit(day).cast(pl.Datetime("us")) + pl.duration(milliseconds=first)
        local = opened.cast(pl.Datetime("us")).dt.replace_time_zone(tz, ambiguous="earliest", non_existent="null")
        columns = dict(zip(table.columns[1:6], [*PRICES, "volume"], strict=False))
        values = [(pl.col(c).cast(pl.Float64) * (scale if n != "volume" else 1)).alias(n) for c, n in columns.items()]
        ready = table.select((local.dt.convert_time_zone("UTC") + bar_length(bar)).alias("ts"), *values)
        out[name] = finished(ready.drop_nulls("ts"), symbol=name.split(".")[0])
    return out


def lean_quotes(path: str, *, tz: str) -> pl.DataFrame:
    """Return the bid bars of LEAN hourly quotes, whose sizes are no volume."""
    (table,) = zipped(path).values()
    stamp, *bid = table.columns[:5]
    opened = pl.col(stamp).str.to_datetime("%Y%m%d %H:%M", time_unit="us").dt.replace_time_zone(tz)
    prices = [pl.col(c).cast(pl.Float64).alias(p) for c, p in zip(bid, PRICES, strict=True)]
    return finished(
        table.select((opened.dt.convert_time_zone("UTC") + timedelta(hours=1)).alias("ts"), *prices), symbol="EURUSD"
    )


def lean_daily(path: str, *, symbol: str, scale: float = 1e-4) -> pl.DataFrame:
    """Return LEAN's daily bars of a US equity at the closes of its sessions."""
    (table,) = zipped(path).values()
    names = ["session", *PRICES, "volume"]
    named = table.rename(dict(zip(table.columns[:6], names, strict=True))).select(names)
    day = pl.col("session").str.slice(0, 8).str.to_date("%Y%m%d")
    return daily(named.with_columns(day, *(pl.col(p) * scale for p in PRICES)), symbol=symbol)


def csv_daily(path: str, *, symbol: str, fmt: str = "%Y-%m-%d", calendar: str = "XNYS") -> pl.DataFrame:
    """Return the daily bars of a CSV with a header."""
    content = (REAL / path).read_bytes()
    table = pl.read_csv(
        io.BytesIO(gzip.decompress(content) if path.endswith(".gz") else content), infer_schema_length=None
    )
    table = table.rename({c: c.strip().lower() for c in table.columns})
    day = pl.col("date").cast(pl.String).str.slice(0, 10).str.to_date(fmt)
    return daily(table.with_columns(session=day).drop_nulls(PRICES), symbol=symbol, calendar=calendar)


def wiki() -> pl.DataFrame:
    """Return the five stocks of Quandl's WIKI, raw."""
    table = pl.read_csv(gzip.decompress((REAL / "wiki_stocks_daily/stocks.csv.gz").read_bytes()))
    table = table.rename({c: c.lower() for c in table.columns}).with_columns(session=pl.col("date").str.to_date())
    parts = [daily(rows, symbol=str(ticker)) for (ticker,), rows in table.partition_by("ticker", as_dict=True).items()]
    return pl.concat(parts).sort("symbol", "ts")


def yahoo(name: str, *, hours: float | None = None) -> pl.DataFrame:
    """Return bars of a Yahoo file: `ts` is 16:30 UTC of the session, or the stamp and `hours` where bars are that long."""
    table = pl.read_csv(REAL / f"yahoo_bad_yfinance/{name}.csv", infer_schema_length=None)
    table = table.rename({c: c.lower() for c in table.columns})
    stamp = pl.col("date" if "date" in table.columns else "datetime")
    if hours is None:
        ts = stamp.str.slice(0, 10).str.to_datetime("%Y-%m-%d", time_unit="us").dt.replace_time_zone("UTC")
        ts = ts + timedelta(hours=16.5)
    else:
        ts = stamp.str.to_datetime("%Y-%m-%d %H:%M:%S%z", time_unit="us") + timedelta(hours=hours)
    return finished(table.with_columns(ts.alias("ts")).drop_nulls(PRICES), symbol=name.split("-1", maxsplit=1)[0])


def stamped(
    path: str, *, symbol: str, names: list[str], fmt: str, tz: str, add: timedelta, **options: object
) -> pl.DataFrame:
    """Return the bars of a CSV whose columns are `names`, `stamp` among them: local times in `tz`, `add` before `ts`."""
    content = (REAL / path).read_bytes()
    content = gzip.decompress(content) if path.endswith(".gz") else content
    table = pl.read_csv(io.BytesIO(content), new_columns=names, infer_schema_length=None, **options)
    if "time" in names:
        table = table.with_columns(stamp=pl.col("stamp") + " " + pl.col("time"))
    stamp = (
        pl.col("stamp").cast(pl.String).str.slice(0, 19).str.to_datetime(fmt, time_unit="us").dt.replace_time_zone(tz)
    )
    return finished(table.with_columns((stamp.dt.convert_time_zone("UTC") + add).alias("ts")), symbol=symbol)


MINUTE = timedelta(minutes=1)
NOTHING = timedelta(0)


def ninjatrader(month: str) -> pl.DataFrame:
    """Return SPY minutes of 2011, extended hours among them, stamped at the close in UTC."""
    return stamped(
        f"spy_minute_ninjatrader/nt-spy-minute-2011{month}.csv", symbol="SPY", names=["stamp", *PRICES, "volume"],
        fmt="%Y%m%d %H%M%S", tz="UTC", add=NOTHING, separator=";", has_header=False,
    )  # fmt: skip


def fut6e() -> pl.DataFrame:
    """Return minutes of the Euro future 6EH4, stamped at the close in UTC."""
    return stamped(
        "fut6e_minute_nautilus/6EH4.XCME_1min_bars_20240101_20240131.csv.gz", symbol="6EH4",
        names=["stamp", *PRICES, "volume"], fmt="%Y-%m-%d %H:%M:%S", tz="UTC", add=NOTHING,
    )  # fmt: skip


def btcperp() -> pl.DataFrame:
    """Return minutes of BTC-PERP, stamped at the open in UTC."""
    return stamped(
        "btcperp_minute_ftx/btc-perp-20211231-20220201_1m.csv", symbol="BTC-PERP",
        names=["stamp", *PRICES, "volume"], fmt="%Y-%m-%d %H:%M:%S", tz="UTC", add=MINUTE,
    )  # fmt: skip


def gbpusd() -> pl.DataFrame:
    """Return minutes of GBPUSD bids."""
    path = REAL / "fx_minute_fxcm/gbpusd-m1-bid-2012.csv"
    table = pl.read_csv(path).rename({"timestamp": "stamp"})
    ts = pl.col("stamp").str.to_datetime("%Y-%m-%d %H:%M:%S%z", time_unit="us") + MINUTE
    return finished(table.with_columns(ts.alias("ts")), symbol="GBPUSD")


def fesx() -> pl.DataFrame:
    """Return minutes of the Euro Stoxx 50 future in 2006, stamped at the close in Berlin."""
    return stamped(
        "fesx_minute_2006_backtrader/2006-01-02-volume-min-001.txt", symbol="FESX",
        names=["stamp", "time", *PRICES, "volume", "interest"], fmt="%Y-%m-%d %H:%M:%S", tz="Europe/Berlin",
        add=NOTHING, has_header=False, skip_rows=1,
    )  # fmt: skip
