"""ccxt against an exchange on the loopback address: pages, failures, keys, a process that is killed."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from binance_server import Answer, Exchange, running
from source_fixtures import fetch, installed  # noqa: F401  (fixtures)
from source_samples import HOUR, START, hourly, install

from foxflow import registry, store
from foxflow.errors import ConfigError, DataError, FoxflowError, PluginError
from foxflow.feeds import ccxt as adapter
from foxflow.feeds import intake

pytest.importorskip("ccxt", reason="needs the extra: pip install 'foxflow[ccxt]'")
Fetch = Callable[..., list[intake.Fetched]]
BUSY = Answer(429, json.dumps({"code": -1003, "msg": "Too many requests."}), {"Retry-After": "2"})
DOWN = Answer(500, "<html>Internal Server Error</html>")


@pytest.fixture(autouse=True)
def _installed_ccxt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where this repository was installed before it had sources of its own.
    if "ccxt" not in registry.installed(registry.SOURCES):
        install(tmp_path / "more", {"ccxt": "foxflow.feeds.ccxt:Ccxt"}, distribution="foxflow-again")
        monkeypatch.syspath_prepend(tmp_path / "more")


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    with running() as server:
        server.candles["BTCUSDT"] = hourly("BTC/USDT", 1, 40)
        server.candles["ETHUSDT"] = hourly("ETH/USDT", 1, 40, close=5.0)
        yield server


@pytest.fixture
def get(fetch: Fetch, exchange: Exchange) -> Fetch:
    """Return a fetch of BTC/USDT from the exchange, ten candles a page, 40.5 hours after START."""

    def call(**given: Any) -> list[intake.Fetched]:
        options = {"exchange": "binance", "page": 10, "url": exchange.url} | given.pop("options", {})
        return fetch("ccxt", **({"symbols": ["BTC/USDT"], "options": options, "now": 40.5} | given))

    return call


def stored(tmp_path: Path, **given: Any) -> pl.DataFrame:
    return store.read_bars(tmp_path / "s.duckdb", bar="1h", **given)


def first_asked(exchange: Exchange) -> list[float]:
    """Return which hours after START the requests for candles began with."""
    return [(int(q["startTime"]) / 1000 - START.timestamp()) / 3600 for q in exchange.asked]


def test_pages_are_asked_until_the_last_complete_candle(get: Fetch, exchange: Exchange, tmp_path: Path) -> None:
    assert get() == [
        intake.Fetched("BTC/USDT", START, added=40, first_ts=START + HOUR, last_ts=START + 40 * HOUR),
    ]
    assert stored(tmp_path).equals(hourly("BTC/USDT", 1, 40))
    assert first_asked(exchange) == [-1, 10, 20, 30]
    assert {q["limit"] for q in exchange.asked} == {"10"}


def test_the_exchanges_own_limit_is_a_page(fetch: Fetch, exchange: Exchange) -> None:
    fetch("ccxt", symbols=["BTC/USDT"], options={"exchange": "binance", "url": exchange.url}, now=40.5)
    assert {q["limit"] for q in exchange.asked} == {"1000"}


@pytest.mark.parametrize("page", [1, 2, 3])
def test_pages_of_any_size_lose_nothing(get: Fetch, tmp_path: Path, page: int, exchange: Exchange) -> None:
    exchange.candles["BTCUSDT"] = pl.concat([hourly("BTC/USDT", 1, 4), hourly("BTC/USDT", 9, 12)])
    get(options={"page": page})
    assert stored(tmp_path).equals(exchange.candles["BTCUSDT"])


def test_an_unfinished_candle_is_left_out(get: Fetch, tmp_path: Path) -> None:
    get(now=9.5)
    assert stored(tmp_path).equals(hourly("BTC/USDT", 1, 9))
    get(now=9.9)
    get(now=10.01)
    assert stored(tmp_path).equals(hourly("BTC/USDT", 1, 10))


def test_a_clock_that_runs_ahead_takes_no_unfinished_candle(get: Fetch, exchange: Exchange, tmp_path: Path) -> None:
    exchange.now = START + 10 * HOUR - timedelta(seconds=1)
    get(now=10.001)
    assert stored(tmp_path)["ts"].max() == START + 9 * HOUR


def test_a_candle_is_taken_when_its_last_trades_are_in(get: Fetch, exchange: Exchange, tmp_path: Path) -> None:
    exchange.now = START + 10 * HOUR + timedelta(seconds=4)
    get(now=10.1)
    assert stored(tmp_path)["ts"].max() == START + 9 * HOUR
    exchange.now = START + 10 * HOUR + timedelta(seconds=5)
    get(now=10.1)
    assert stored(tmp_path)["ts"].max() == START + 10 * HOUR


def test_an_empty_page_in_the_middle_is_not_the_end(get: Fetch, exchange: Exchange, tmp_path: Path) -> None:
    exchange.candles["BTCUSDT"] = pl.concat([hourly("BTC/USDT", 1, 8), hourly("BTC/USDT", 35, 40)])
    exchange.windows = True
    get()
    assert first_asked(exchange) == [-1, 8, 18, 28, 38]
    assert stored(tmp_path).equals(exchange.candles["BTCUSDT"])


def test_a_start_inside_a_candle_takes_that_candle(get: Fetch, tmp_path: Path) -> None:
    get(start=START + 5.5 * HOUR)
    assert stored(tmp_path)["ts"].min() == START + 6 * HOUR
    get(start=START + 5 * HOUR, end=START + 5.75 * HOUR)
    assert stored(tmp_path)["ts"].min() == START + 6 * HOUR


def test_a_second_fetch_asks_from_the_last_candle(get: Fetch, exchange: Exchange, tmp_path: Path) -> None:
    get(now=20.5)
    exchange.asked.clear()
    (found,) = get(now=22.5)
    assert (found.added, found.present) == (2, 1)
    assert first_asked(exchange) == [18]
    assert stored(tmp_path).equals(hourly("BTC/USDT", 1, 22))


def test_several_symbols_are_kept_apart(get: Fetch, tmp_path: Path) -> None:
    get(symbols=["ETH/USDT", "BTC/USDT"])
    assert stored(tmp_path).equals(pl.concat([hourly("BTC/USDT", 1, 40), hourly("ETH/USDT", 1, 40, close=5.0)]))


def test_an_exchange_that_is_asked_too_often_is_left_alone_for_as_long_as_it_says(
    get: Fetch, exchange: Exchange, tmp_path: Path
) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    exchange.instead = [None, BUSY, Answer(429, BUSY.body, {"Retry-After": later}), Answer(418, BUSY.body)]
    waits: list[float] = []
    get(wait=waits.append)
    assert waits[0] == 2.0
    assert 55 < waits[1] <= 60
    assert waits[2:] == [4.0]
    assert stored(tmp_path).equals(hourly("BTC/USDT", 1, 40))


def cut(body: str, **headers: str) -> Answer:
    return Answer(body=body, cut=True, headers=headers)


@pytest.mark.parametrize(
    "broken",
    [
        DOWN,
        Answer(503, "{}"),
        cut(json.dumps([[0] * 12] * 50)),
        cut(json.dumps([[0] * 12] * 50), Connection="close"),
        Answer(body=""),
        Answer(body="<html>maintenance</html>"),
    ],
)  # fmt: skip
def test_what_passes_by_itself_is_asked_again(get: Fetch, exchange: Exchange, tmp_path: Path, broken: Answer) -> None:
    exchange.instead = [None, broken]
    waits: list[float] = []
    get(wait=waits.append)
    assert waits == [1.0]
    assert stored(tmp_path).equals(hourly("BTC/USDT", 1, 40))


def test_an_exchange_that_does_not_answer_in_time_is_asked_again(
    get: Fetch, exchange: Exchange, tmp_path: Path
) -> None:
    answer, exchange.klines = exchange.klines, lambda query: time.sleep(1.5) or answer(query)  # type: ignore[method-assign,func-returns-value]
    told: list[intake.Progress] = []

    def once(_: float) -> None:
        exchange.klines = answer  # type: ignore[method-assign]

    get(options={"timeout_s": 0.5}, wait=once, progress=told.append)
    assert "binance does not answer for BTC/USDT 1h from 2023-12-31 23:00Z: RequestTimeout" in told[0].why
    assert stored(tmp_path).equals(hourly("BTC/USDT", 1, 40))


def test_an_exchange_that_stays_down_is_given_up_in_one_line(get: Fetch, exchange: Exchange, tmp_path: Path) -> None:
    exchange.instead = [None, *[DOWN] * 99]
    with pytest.raises(FoxflowError) as e:
        get()
    assert "\n" not in str(e.value)
    assert str(e.value).startswith(
        "binance does not answer for BTC/USDT 1h from 2024-01-01 08:00Z: ExchangeNotAvailable: "
    )
    assert str(e.value).endswith(
        "; given up after 7 tries in a row (10 bars of earlier pages are kept: the same command goes on from there)"
    )
    assert len(exchange.asked) == 8
    assert stored(tmp_path).equals(hourly("BTC/USDT", 1, 10))


def test_nobody_at_the_address_is_one_line(get: Fetch) -> None:
    with pytest.raises(
        FoxflowError, match=r"binance does not answer for its list of symbols: NetworkError: .*given up after 7"
    ):
        get(options={"url": "http://127.0.0.1:9"})


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ({"symbols": ["BTC/USTD"]}, DataError, "binance: symbol 'BTC/USTD' is none of the 2 symbols; nearest: BTC/USDT"),
        ({"symbols": ["BTC/USDT", "DOGE"]}, DataError, "binance: symbol 'DOGE' is none of the 2 symbols; nearest: "),
        ({"bar": "7m"}, DataError, "binance has no candles of 7m; it has 1s, 1m, 3m"),
        ({"options": {"exchange": "binanse"}}, ConfigError, r"\[ccxt\] exchange: 'binanse' is none of the \d+ exchanges of ccxt; nearest: binance"),
        ({"options": {"url": "localhost"}}, ConfigError, r"\[ccxt\] url = 'localhost'; expected an address"),
        ({"options": {"page": 0}}, ConfigError, r"\[ccxt\] page = 0; expected at least 1 candle"),
        ({"options": {"delay_s": -1.0}}, ConfigError, r"\[ccxt\] delay_s = -1.0; expected 0 or more"),
        ({"options": {"timeout_s": 0}}, ConfigError, r"\[ccxt\] timeout_s = 0.0; expected more than 0"),
    ],
)  # fmt: skip
def test_what_the_exchange_does_not_have_is_refused(
    get: Fetch, exchange: Exchange, asked: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        get(**asked)
    assert not exchange.asked


def test_an_exchange_that_refuses_says_why(get: Fetch, exchange: Exchange) -> None:
    exchange.instead = [Answer(400, json.dumps({"code": -1121, "msg": "Invalid symbol."}))]
    with pytest.raises(DataError, match=r"binance refuses BTC/USDT 1h from .*: BadSymbol: .*Invalid symbol"):
        get()


def test_one_fetch_does_not_take_another_exchanges_bars_for_its_own(get: Fetch, exchange: Exchange) -> None:
    get()
    assert adapter.Ccxt(adapter.Exchange(exchange="kraken")).origin == "ccxt kraken"
    assert adapter.Ccxt(adapter.Exchange(exchange="binance")).origin == "ccxt binance"


SECRET = "Zm9vYmFyLXNlY3JldA"
KEYED = {"key_variable": "TEST_KEY", "secret_variable": "TEST_SECRET"}


def test_a_key_that_is_refused_is_not_shown(
    get: Fetch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    exchange: Exchange,
) -> None:
    monkeypatch.setenv("TEST_KEY", "a-" + SECRET)
    monkeypatch.setenv("TEST_SECRET", SECRET)
    exchange.members = Answer(401, json.dumps({"code": -2015, "msg": f"Invalid API-key a-{SECRET}."}))
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError) as e:
        get(options=KEYED)
    assert str(e.value).startswith("binance refuses its list of symbols: AuthenticationError: binance ")
    assert str(e.value).endswith("; check what the environment holds in TEST_KEY, TEST_SECRET")
    assert e.value.__cause__ is None
    assert e.value.__suppress_context__
    assert any(h.get("X-MBX-APIKEY") == "a-" + SECRET for h in exchange.headers)
    said = "".join([str(e.value), caplog.text, *capfd.readouterr()])
    assert SECRET not in said


def test_keys_come_from_the_environment_alone(get: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY", raising=False)
    with pytest.raises(
        ConfigError, match=r"\[ccxt\] key_variable = 'TEST_KEY', and the environment has no such variable"
    ):
        get(options=KEYED)
    with pytest.raises(ConfigError) as e:
        get(options={"key_variable": "a-" + SECRET})
    assert "give the name, never the key itself" in str(e.value)
    assert SECRET not in str(e.value)
    with pytest.raises(ConfigError, match="unknown key 'api_key'"):
        get(options={"api_key": SECRET})


def test_an_account_that_is_missing_says_how_to_give_one(get: Fetch, exchange: Exchange) -> None:
    exchange.instead = [Answer(401, json.dumps({"code": -2014, "msg": "API-key format invalid."}))]
    with pytest.raises(ConfigError, match="it wants an account: name the variables of its key with key_variable"):
        get()


def test_without_the_library_it_says_what_to_install(get: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ccxt", None)
    with pytest.raises(PluginError, match=r"source 'ccxt' needs the library ccxt .*; pip install 'foxflow\[ccxt\]'"):
        get()


def test_naming_sources_and_their_parameters_loads_no_library() -> None:
    code = "import sys; from foxflow import registry as r; r.find(r.SOURCES, 'ccxt'); print('ccxt' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == "False"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def command(exchange: Exchange, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-c", "from foxflow.cli import main; main()",
        "bars", "fetch", "ccxt", "--symbols", "BTC/USDT,ETH/USDT", "--bar", "1h", "--start", "2024-01-01",
        "--end", "2024-01-02T16:00Z", "--out", str(out), "--set", "exchange=binance", "--set", "page=2", "--set", f"url={exchange.url}", *more,
    ]  # fmt: skip


def test_the_command_fetches_and_says_what_it_did(exchange: Exchange, tmp_path: Path) -> None:
    exchange.instead = [None, BUSY]
    done = subprocess.run(command(exchange, tmp_path), capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    said = 'DDoSProtection: binance 429 Too Many Requests {"code": -1003, "msg": "Too many requests."}; waiting 2 s'
    assert done.stderr.splitlines() == [f"binance does not answer for BTC/USDT 1h from 2024-01-01 02:00Z: {said}"]
    assert "BTC/USDT" in done.stdout
    again = subprocess.run(
        command(exchange, tmp_path, "--json"), capture_output=True, text=True, check=False, env=environment()
    )
    assert json.loads(again.stdout)[1] == {
        "symbol": "ETH/USDT",
        "after": None,
        "added": 0,
        "present": 0,
        "corrected": 0,
        "kept": 0,
        "quarantined": 0,
        "first_ts": None,
        "last_ts": None,
    }
    assert again.stderr == ""


@pytest.mark.slow
def test_a_fetch_that_is_killed_anywhere_goes_on_to_every_bar_once(exchange: Exchange, tmp_path: Path) -> None:
    answer = exchange.klines
    exchange.klines = lambda query: time.sleep(0.05) or answer(query)  # type: ignore[method-assign,func-returns-value]
    path, kept = tmp_path / "bars.duckdb", [0]
    for n in range(8):
        asked = len(exchange.asked)
        child = subprocess.Popen(
            command(exchange, tmp_path), env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        while child.poll() is None and len(exchange.asked) < asked + 3:
            time.sleep(0.01)
        time.sleep(0.013 * n)
        child.send_signal(signal.SIGKILL)
        child.wait()
        kept.append(len(store.read_bars(path, bar="1h")) if path.exists() else 0)
    assert kept == sorted(kept)
    assert kept[-1] > 0
    done = subprocess.run(
        command(exchange, tmp_path, "--quiet"), capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert store.read_bars(path, bar="1h").equals(
        pl.concat([hourly("BTC/USDT", 1, 40), hourly("ETH/USDT", 1, 40, close=5.0)])
    )
