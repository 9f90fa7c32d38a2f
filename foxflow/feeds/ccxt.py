"""Candles of some hundred crypto exchanges, through the library ccxt; `pip install 'foxflow[ccxt]'`."""

import difflib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar
from urllib.parse import urlsplit

import polars as pl

from foxflow.bars import BAR_SCHEMA, bar_length
from foxflow.errors import ConfigError, DataError, PluginError, UnavailableError

# An exchange adds the last trades to a candle shortly after its end.
_SETTLES = timedelta(seconds=5)
# Where an exchange does not say how many candles it gives at most.
_PAGE = 100
_CANDLE = ("ts", "open", "high", "low", "close", "volume")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Which exchange, and how it is asked.

    `exchange`: its name in ccxt, as in binance. `page`: candles a request (the exchange's own limit where not given).
    `delay_s`: how long after its end a candle is known. `timeout_s`: how long an answer may take. `url`: a gateway that
    stands in for the exchange's own hosts. `key_variable`, `secret_variable`, `password_variable`: the environment
    variables that hold an account's key, for exchanges that give candles to members only.
    """

    exchange: str
    page: int | None = None
    delay_s: float = 0.0
    timeout_s: float = 20.0
    url: str | None = None
    key_variable: str | None = None
    secret_variable: str | None = None
    password_variable: str | None = None

    def __post_init__(self) -> None:
        for fault, message in (
            (self.page is not None and self.page < 1, f"page = {self.page}; expected at least 1 candle"),
            (self.delay_s < 0, f"delay_s = {self.delay_s}; expected 0 or more seconds"),
            (self.timeout_s <= 0, f"timeout_s = {self.timeout_s}; expected more than 0 seconds"),
            (
                self.url is not None and urlsplit(self.url).scheme not in ("http", "https"),
                f"url = {self.url!r}; expected an address that begins with http:// or https://",
            ),
        ):
            if fault:
                raise ValueError(message)
        for name in ("key_variable", "secret_variable", "password_variable"):
            value = getattr(self, name)
            # The value is not shown: whoever mistook the option gave the key itself.
            if value is not None and _ENVIRONMENT.fullmatch(value) is None:
                raise ValueError(f"{name} is no name of an environment variable; give the name, never the key itself")


class Ccxt:
    """Candles of a crypto exchange by ccxt's names: `BTC/USDT` is traded at the spot, `BTC/USDT:USDT` a perpetual.

    Prices and volume are the exchange's own, volume in units of the first currency. A time without a trade has no
    candle at some exchanges and a flat one without volume at others; both are stored as they come.
    """

    name: ClassVar[str] = "ccxt"
    Parameters: ClassVar[type[Exchange]] = Exchange

    def __init__(self, parameters: Exchange) -> None:
        self._parameters = parameters

    @property
    def origin(self) -> str:
        """Library and exchange."""
        return f"ccxt {self._parameters.exchange}"

    @property
    def delay(self) -> timedelta:
        """As the user declares it."""
        return timedelta(seconds=self._parameters.delay_s)

    def fetch(self, symbols: Sequence[str], *, bar: str, start: datetime, end: datetime) -> Iterator[pl.DataFrame]:
        """Yield the candles, one page of one symbol at a time; see `foxflow.feeds.Source`."""
        exchange = _Connection(self._parameters)
        try:
            exchange.require(symbols, bar)
            for symbol in symbols:
                yield from exchange.pages(symbol, bar, start=start, end=end)
        finally:
            exchange.close()


class _Connection:
    """An exchange of ccxt, whose errors are one line of ours."""

    def __init__(self, parameters: Exchange) -> None:
        try:
            import ccxt
        except ImportError as e:
            raise PluginError(f"source 'ccxt' needs the library ccxt ({e}); pip install 'foxflow[ccxt]'") from e
        self._ccxt = ccxt
        self._parameters = parameters
        if parameters.exchange not in ccxt.exchanges:
            raise ConfigError(f"[ccxt] exchange: {_unknown(parameters.exchange, ccxt.exchanges, 'exchanges of ccxt')}")
        keys = _keys(parameters)
        self._secrets = list(keys.values())
        settings = {
            "enableRateLimit": True,
            "enableLastJsonResponse": True,
            "enableLastResponseHeaders": True,
            "timeout": round(parameters.timeout_s * 1000),
            **keys,
        }
        self._exchange = getattr(ccxt, parameters.exchange)(settings)
        # Its debug lines hold the headers of every request, and so the key.
        self._exchange.logger = logging.Logger("ccxt", level=logging.CRITICAL + 1)
        if parameters.url is not None:
            self._exchange.urls["api"] = _moved(self._exchange.urls["api"], parameters.url.rstrip("/"))

    def close(self) -> None:
        """Let go of its connections."""
        self._exchange.close()

    def require(self, symbols: Sequence[str], bar: str) -> None:
        """Raise where the exchange has no candles of that length, or no such symbol."""
        name, lengths = self._parameters.exchange, list(self._exchange.timeframes or {})
        if self._exchange.has.get("fetchOHLCV") is not True:
            raise DataError(f"{name} gives no candles of its own; choose another exchange")
        if bar not in lengths:
            raise DataError(f"{name} has no candles of {bar}; it has {', '.join(lengths)}")
        self._call("its list of symbols", "load_markets")
        for symbol in symbols:
            if symbol not in self._exchange.markets:
                raise DataError(f"{name}: symbol {_unknown(symbol, self._exchange.markets, 'symbols')}")

    def pages(self, symbol: str, bar: str, *, start: datetime, end: datetime) -> Iterator[pl.DataFrame]:
        """Yield the complete candles with `start < ts <= end`, a page an answer."""
        length = bar_length(bar)
        limit = self._limit(symbol)
        # On the grid of the opens; a candle that opened before is asked for with them, and left out again.
        since = _floor(start - length, length)
        while since + length <= end:
            what = f"{symbol} {bar} from {since:%Y-%m-%d %H:%M}Z"
            rows = self._call(what, "fetch_ohlcv", symbol, bar, round(since.timestamp() * 1000), limit)
            page = self._page(rows, symbol, length).filter(pl.col("ts") - length >= since)
            complete = page.filter(pl.col("ts") <= min(end, self._now() - _SETTLES))
            yield complete.filter(pl.col("ts") > start)
            if len(complete) < len(page):
                return
            # An answer without a candle may speak of the time that a full page spans and no more: some exchanges count
            # from `since`, others from the first candle there is.
            since = page["ts"][-1] if len(page) else since + limit * length

    def _limit(self, symbol: str) -> int:
        if self._parameters.page is not None:
            return self._parameters.page
        limit = self._exchange.feature_value(symbol, "fetchOHLCV", "limit")
        return limit if isinstance(limit, int) and limit > 0 else _PAGE

    def _page(self, rows: object, symbol: str, length: timedelta) -> pl.DataFrame:
        """Return an answer as bars, ascending."""
        # What is no JSON, an answer that was cut off or a page about maintenance, ccxt takes for no candles at all.
        if self._exchange.last_json_response is None or not isinstance(rows, list) or not all(map(_is_candle, rows)):
            raise UnavailableError(f"{self._parameters.exchange} answers for {symbol} with something else than candles")
        candles = pl.DataFrame(
            [r[:6] for r in rows], schema=dict.fromkeys(_CANDLE, pl.Float64) | {"ts": pl.Int64}, orient="row"
        )
        return candles.select(
            pl.lit(symbol).alias("symbol"),
            (pl.col("ts") * 1000).cast(BAR_SCHEMA["ts"]) + length,
            *_CANDLE[1:],
        ).sort("ts")

    def _now(self) -> datetime:
        """Return the exchange's time where it told it: a clock that runs ahead would take an unfinished candle."""
        headers = self._exchange.last_response_headers or {}
        try:
            return _date(headers["Date"])
        except (KeyError, ValueError, TypeError):
            return datetime.now(UTC)

    def _call(self, what: str, method: str, *arguments: object) -> Any:  # noqa: ANN401  (whatever ccxt returns)
        """Return what the exchange answers; its errors become ours, which are not chained.

        What ccxt raises holds the address that was asked, and some exchanges take the key in it.
        """
        self._exchange.last_response_headers = self._exchange.last_json_response = None
        ccxt, name = self._ccxt, self._parameters.exchange
        try:
            return getattr(self._exchange, method)(*arguments)
        except ccxt.AuthenticationError as e:
            raise ConfigError(f"{name} refuses {what}: {self._words(e)}; {_account(self._parameters)}") from None
        except ccxt.OperationFailed as e:
            raise UnavailableError(
                f"{name} does not answer for {what}: {self._words(e)}", retry_after_s=self._retry_after_s()
            ) from None
        except ccxt.BaseError as e:
            raise DataError(f"{name} refuses {what}: {self._words(e)}; mend what is asked for") from None
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            # ccxt trusts an answer to be whole, and takes one that was cut off apart until something breaks.
            raise UnavailableError(f"{name} answers for {what} with what ccxt cannot read") from None

    def _words(self, e: Exception) -> str:
        """Return the error in one line, without keys and without what an address says after its path."""
        text = re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", " ".join(str(e).split()))
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return f"{type(e).__name__}: {text[:200]}"

    def _retry_after_s(self) -> float | None:
        """Return how long the last answer asks to wait: seconds, or a date."""
        value = (self._exchange.last_response_headers or {}).get("Retry-After")
        if value is None:
            return None
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, (_date(value) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            return None


def _date(header: str) -> datetime:
    """Return the time of an HTTP date, which is in UTC whether it says so or not."""
    moment = parsedate_to_datetime(header)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _is_candle(row: object) -> bool:
    return isinstance(row, list) and len(row) >= len(_CANDLE) and isinstance(row[0], int)


def _floor(moment: datetime, length: timedelta) -> datetime:
    """Return the last whole multiple of `length` since 1970."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch + (moment - epoch) // length * length


def _keys(parameters: Exchange) -> dict[str, str]:
    """Return the keys that the environment holds, by ccxt's names for them."""
    found = {}
    for setting, option in (("apiKey", "key"), ("secret", "secret"), ("password", "password")):
        variable = getattr(parameters, f"{option}_variable")
        if variable is not None:
            if not os.environ.get(variable):
                raise ConfigError(
                    f"[ccxt] {option}_variable = {variable!r}, and the environment has no such variable, or an empty "
                    "one; set it, and write the key itself nowhere else"
                )
            found[setting] = os.environ[variable]
    return found


def _account(parameters: Exchange) -> str:
    variables = [v for v in (parameters.key_variable, parameters.secret_variable, parameters.password_variable) if v]
    if variables:
        return f"check what the environment holds in {', '.join(variables)}"
    return "it wants an account: name the variables of its key with key_variable and secret_variable"


def _moved(address: Any, url: str) -> Any:  # noqa: ANN401  (addresses nested as each exchange likes)
    """Return ccxt's addresses with another scheme and host."""
    if isinstance(address, Mapping):
        return {name: _moved(value, url) for name, value in address.items()}
    return url + urlsplit(address).path if isinstance(address, str) else address


def _unknown(name: str, known: Iterable[str], what: str) -> str:
    """Return the message for an unknown name among too many to list."""
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=5) or difflib.get_close_matches(name, names, n=5, cutoff=0.2)
    return f"{name!r} is none of the {len(names):,} {what}; nearest: {', '.join(nearest) or 'none'}"
