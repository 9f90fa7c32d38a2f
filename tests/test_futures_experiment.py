"""A whole experiment on continuous futures: half hours of two contracts, made hours of one series, traded and reported."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from foxflow import bars, store
from foxflow.bars import BAR_SCHEMA
from foxflow.cli.app import app

CONFIG = """
[experiment]
name = "futures"
seed = 3
workers = 1
[data]
source = "store"
bar = "1h"
stored_bar = "30m"
calendar = "CMES"
[futures]
roots = ["ES"]
roll = "volume"
adjust = "ratio"
[features]
names = ["return_1", "range_position"]
[label]
name = "forward_return"
horizon = 1
[walk_forward]
train = 300
every = 150
embargo = 1
[model]
name = "ridge"
[strategy]
kind = "direction"
side = "long_only"
threshold_bps = 0.0
position_limit = 1.0
rebalance_band = 0.5
[costs]
fee_bps = 1.0
fee_per_share = 0.0
minimum_fee = 0.0
half_spread_bps = 2.0
impact = 0.0
borrow_bps = 0.0
financing_bps = 0.0
"""
# The roll gap of ten per cent would be the largest move by far.
GAP = 1.1
ROLL_SESSION = date(2024, 2, 1)


def contracts(random: np.random.Generator) -> pl.DataFrame:
    """Return half hours of two contracts that rise alike, the later one a tenth above; its volume comes on 31 January."""
    sessions = bars.sessions("CMES", date(2024, 1, 2), date(2024, 2, 9))
    rows, price = [], 4000.0
    for s in sessions.iter_rows(named=True):
        for k in range(1, (s["close"] - s["open"]) // timedelta(minutes=30) + 1):
            opened, price = price, price * float(np.exp(random.normal(0.0005, 0.001)))
            ts = s["open"] + k * timedelta(minutes=30)
            late = s["session"] >= ROLL_SESSION - timedelta(days=1)
            for symbol, level, volume in (("ESH4", 1.0, 1.0 if late else 9.0), ("ESM4", GAP, 9.0 if late else 1.0)):
                o, c = opened * level, price * level
                rows.append((symbol, ts, o, max(o, c), min(o, c), c, volume))
    return pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row")


@pytest.mark.slow
def test_a_run_on_futures_has_no_roll_gap_in_any_return_and_pays_for_the_roll(tmp_path: Path) -> None:
    raw = contracts(np.random.default_rng(5))
    store.write_bars(tmp_path / "bars.duckdb", raw, bar="30m")
    file, settings = tmp_path / "contracts.csv", tmp_path / "futures.toml"
    file.write_text("root,symbol,expiry\nES,ESH4,2024-03-15\nES,ESM4,2024-06-21\n")
    settings.write_text(CONFIG)
    recorded = CliRunner().invoke(app, ["bars", "contracts", str(file), "--out", str(tmp_path)], catch_exceptions=False)
    assert recorded.exit_code == 0
    done = CliRunner().invoke(
        app, ["backtest", str(settings), "--out", str(tmp_path), "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["symbols"] == ["ES"]
    first = bars.sessions("CMES", ROLL_SESSION, ROLL_SESSION)["open"][0] + timedelta(minutes=30)
    roll = summary["rolls"]
    assert [(r["old"], r["new"], r["ts"]) for r in roll] == [("ESH4", "ESM4", bars.iso(first))]
    assert roll[0]["new_price"] / roll[0]["old_price"] == pytest.approx(GAP)
    run = Path(summary["report"]).parent
    held = pl.read_parquet(run / "held.parquet")
    assert held["return"].abs().max() < 0.01
    # Hours from 22:00 or 23:00 in UTC on, as the exchange's clock has them.
    assert held["ts"].dt.minute().unique().to_list() == [0]
    # Prices rise, so it is long throughout: one purchase, and one sale and one purchase at the roll.
    fills = pl.read_parquet(run / "fills.parquet")
    bought = fills["shares"][0]
    assert fills["shares"].to_list() == [bought, -bought, bought]
    assert fills["ts"].to_list()[1:] == [first + timedelta(minutes=30)] * 2
    assert summary["cost_total"] == pytest.approx((fills["fee"] + fills["slippage"]).sum())
    assert "ES from ESH4 to ESM4" in Path(summary["report"]).read_text("utf-8")
    # The fills are at the prices of the contracts, moved by what the gap was.
    highest = raw.filter(pl.col("symbol") == "ESH4")["high"].max()
    assert fills["price"].is_between(raw["low"].min() * 0.99, highest * 1.01).all()
    assert datetime.fromisoformat(summary["first_ts"]) < datetime(2024, 2, 1, tzinfo=UTC)
