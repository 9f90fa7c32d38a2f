"""An exchange on the loopback address that answers as Binance does, from candles that a test gives it.

The shapes are those of https://developers.binance.com/docs/binance-spot-api-docs/rest-api: `exchangeInfo` and `klines`.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import polars as pl

from foxflow.bars import bar_length

# Time of the close, volume in the other currency, number of trades, and what takers bought: nothing reads them.
_REST = (0, "0.00000000", 17, "0.00000000", "0.00000000", "0")


@dataclass
class Answer:
    """What is answered instead of the next candles; `cut` ends the connection in the middle of `body`."""

    status: int = 200
    body: str = "{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


class Exchange(ThreadingHTTPServer):
    """The exchange: its candles by symbol, what it answers instead, and what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.candles: dict[str, pl.DataFrame] = {"BTCUSDT": pl.DataFrame(), "ETHUSDT": pl.DataFrame()}
        self.instead: list[Answer | None] = []
        self.members = Answer(
            401, json.dumps({"code": -2015, "msg": "Invalid API-key, IP, or permissions for action."})
        )
        # Some exchanges answer for the time that a page spans, and not from the next candle on.
        self.windows = False
        self.now: datetime | None = None
        self.asked: list[dict[str, str]] = []
        self.headers: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that went away."""

    def klines(self, query: dict[str, str]) -> list[list[Any]]:
        """Return up to `limit` candles that open at `startTime` or later, the unfinished one too."""
        bars = self.candles[query["symbol"]]
        if not len(bars):
            return []
        length = round(bar_length(query["interval"]).total_seconds() * 1000)
        opens = bars.with_columns(open_ms=pl.col("ts").dt.epoch("ms") - length)
        start, limit = int(query["startTime"]), int(query["limit"])
        rows = opens.filter(pl.col("open_ms") >= start).head(limit)
        if self.windows:
            rows = rows.filter(pl.col("open_ms") < start + limit * length)
        return [
            [r["open_ms"], *(f"{r[c]:.8f}" for c in ("open", "high", "low", "close", "volume")), *_REST]
            for r in rows.iter_rows(named=True)
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Exchange
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        self.server.headers.append(self.headers)
        if address.path == "/api/v3/exchangeInfo":
            self._send(Answer(body=json.dumps({"symbols": [_market(name) for name in self.server.candles]})))
        elif address.path in ("/fapi/v1/exchangeInfo", "/dapi/v1/exchangeInfo"):
            self._send(Answer(body=json.dumps({"symbols": []})))
        elif address.path == "/api/v3/klines":
            self.server.asked.append(query)
            instead = self.server.instead.pop(0) if self.server.instead else None
            self._send(instead or Answer(body=json.dumps(self.server.klines(query))))
        else:
            self._send(self.server.members)

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode()
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        if answer.headers.get("Connection") != "close":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if answer.cut else body)
        self.close_connection = self.close_connection or answer.cut

    def date_time_string(self, timestamp: float | None = None) -> str:
        now = self.server.now
        return super().date_time_string(timestamp) if now is None else format_datetime(now, usegmt=True)

    def log_message(self, *_: Any) -> None:
        pass


def _market(name: str) -> dict[str, Any]:
    return {
        "symbol": name,
        "status": "TRADING",
        "baseAsset": name.removesuffix("USDT"),
        "baseAssetPrecision": 8,
        "quoteAsset": "USDT",
        "quotePrecision": 8,
        "isSpotTradingAllowed": True,
        "isMarginTradingAllowed": False,
        "filters": [
            {"filterType": "PRICE_FILTER", "minPrice": "0.01", "maxPrice": "1000000.00", "tickSize": "0.01"},
            {"filterType": "LOT_SIZE", "minQty": "0.00001", "maxQty": "9000.0", "stepSize": "0.00001"},
        ],
        "permissions": ["SPOT"],
    }


@contextmanager
def running() -> Iterator[Exchange]:
    """Yield the exchange while it answers."""
    with Exchange() as exchange:
        thread = threading.Thread(target=exchange.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield exchange
        finally:
            exchange.shutdown()
            thread.join()
