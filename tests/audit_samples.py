"""Small synthetic markets in a store of their own, and the experiments that the audit is tested on."""

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from foxflow import audit, bars, config, store
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA
from foxflow.config import Config
from foxflow.errors import LeakageError

SYMBOLS = ("AAA", "BBB", "CCC")
FEATURES = ("return_1", "volatility_5", "range_position", "volume_ratio")


def document(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest whole experiment on the store, its sections overridden key by key."""
    base: dict[str, Any] = {
        "experiment": {"name": "audited", "seed": 1},
        "data": {"source": "store", "bar": "1d", "calendar": "XNYS"},
        "features": {"names": list(FEATURES)},
        "label": {"name": "forward_return", "horizon": 1},
        "walk_forward": {"train": 120, "every": 60, "embargo": 2},
        "model": {"name": "ridge"},
        "strategy": {
            "kind": "direction",
            "side": "long_short",
            "threshold_bps": 0.0,
            "position_limit": 0.25,
            "rebalance_band": 0.01,
        },
        "costs": {
            "fee_bps": 1.0,
            "fee_per_share": 0.0,
            "minimum_fee": 0.0,
            "half_spread_bps": 2.0,
            "impact": 0.0,
            "borrow_bps": 0.0,
            "financing_bps": 0.0,
        },
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return {name: {k: v for k, v in body.items() if v is not None} for name, body in base.items()}


def experiment(**sections: dict[str, Any]) -> Config:
    """Return that experiment as a config."""
    return config.parse(document(**sections))


def volatility(**sections: dict[str, Any]) -> Config:
    """Return that experiment with the other kind of label, and the strategy it needs."""
    strategy = {
        "kind": "volatility_target",
        "side": "long_only",
        "threshold_bps": None,
        "target_volatility": 0.01,
        "hold": "refresh",
    }
    return experiment(label={"name": "forward_volatility", "horizon": 5}, strategy=strategy, **sections)


def daily(seed: int, *, n_bars: int = 260, symbols: tuple[str, ...] = SYMBOLS) -> pl.DataFrame:
    """Return random walks with gaps, unlike volumes, and, of the last symbol, the first 40 bars missing."""
    days = bars.session_closes("XNYS", date(2020, 1, 2), date(2023, 12, 29))["ts"].head(n_bars)
    random = np.random.default_rng(seed)
    frames = [_walk(random, symbol, days) for symbol in symbols]
    return pl.concat([*frames[:-1], frames[-1].tail(n_bars - 40)])


def quarter_hours(seed: int, *, n_days: int = 45) -> pl.DataFrame:
    """Return bars of 15 minutes of two symbols over whole sessions."""
    sessions = bars.sessions("XNYS", date(2020, 1, 2), date(2020, 12, 31)).head(n_days)
    stamps: list[datetime] = []
    for opens, closes in sessions.select("open", "close").iter_rows():
        steps = int((closes - opens) / timedelta(minutes=15))
        stamps += [opens + timedelta(minutes=15 * (i + 1)) for i in range(steps)]
    random = np.random.default_rng(seed)
    return pl.concat([_walk(random, s, pl.Series(stamps).cast(bars.TS), size=0.002) for s in SYMBOLS[:2]])


def _walk(random: np.random.Generator, symbol: str, ts: pl.Series, *, size: float = 0.015) -> pl.DataFrame:
    n = len(ts)
    close = 50 * np.exp(np.cumsum(random.normal(0, size, n)))
    opened = np.concatenate([[50.0], close[:-1]]) * np.exp(random.normal(0, size / 3, n))
    high = np.maximum(opened, close) * np.exp(np.abs(random.normal(0, size / 3, n)))
    low = np.minimum(opened, close) * np.exp(-np.abs(random.normal(0, size / 3, n)))
    volume = random.uniform(1000, 3000, n)
    columns = {"open": opened, "high": high, "low": low, "close": close, "volume": volume}
    return pl.DataFrame({"symbol": [symbol] * n, "ts": ts} | columns, schema=BAR_SCHEMA)


def splits_of(rows: pl.DataFrame, *, at: int = 150) -> pl.DataFrame:
    """Return a split of the first symbol at its bar of that number, and a dividend forty bars later."""
    own = rows.filter(pl.col("symbol") == SYMBOLS[0])["ts"]
    events = [(SYMBOLS[0], own[at], "split", 2.0), (SYMBOLS[0], own[at + 40], "dividend", 0.5)]
    return pl.DataFrame(events, schema=EVENT_SCHEMA, orient="row")


def stored(folder: Path, rows: pl.DataFrame, *, bar: str = "1d", events: pl.DataFrame | None = None) -> Path:
    """Return the path of a new store with the bars and events in it; a split halves what the bars say from then on."""
    path = folder / "bars.duckdb"
    for symbol, ts, value in (
        events.filter(kind="split").select("symbol", "ts", "value").iter_rows() if events is not None else ()
    ):
        split = (pl.col("symbol") == symbol) & (pl.col("ts") >= ts)
        rows = rows.with_columns(
            *(pl.when(split).then(pl.col(c) / value).otherwise(c).alias(c) for c in bars.PRICES),
            volume=pl.when(split).then(pl.col("volume") * value).otherwise("volume"),
        )
    store.write_bars(path, rows, bar=bar)
    if events is not None:
        store.write_events(path, events)
    return path


def accusation(config: Config, store: Path) -> str:
    """Return what the audit says, which has to be one line of three parts."""
    with pytest.raises(LeakageError) as caught:
        audit.full(config, store)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message.split("; ")) >= 3
    return message
