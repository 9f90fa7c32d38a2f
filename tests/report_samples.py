"""A made-up run to report on, and what a browser would see of a page."""

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import numpy as np
import polars as pl

from foxflow.portfolio import EQUITY_SCHEMA, FILL_SCHEMA, HELD_SCHEMA, Book

HOSTILE = "<script>alert(1)</script>"
FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)
N_BARS = 60


def sample_iso(day: int) -> str:
    return (FIRST + timedelta(days=day)).isoformat().replace("+00:00", "Z")


def sample_history(*losses: float | None) -> list[dict[str, Any]]:
    return [{"number": n, "train_loss": 1.0, "valid_loss": v, "detail": {}} for n, v in enumerate(losses)]


def sample_fold(number: int, start: int, end: int, **changes: object) -> dict[str, Any]:
    return {
        "fold": number,
        "cut": sample_iso(start - 6),
        "test_start": sample_iso(start),
        "test_end": sample_iso(end),
        "training_rows": 1602,
        "forecasts": {"AAA": 30, "BBB": 30 if number else 0},
        "untrained_loss": 0.5,
        "best_loss": 0.4,
        "best_epoch": 1,
        "has_learned": True,
        "state_gap": 0.0048,
        "seconds": 0.25,
        "history": sample_history(0.5, 0.4),
        **changes,
    }


def sample_summary(**changes: object) -> dict[str, Any]:
    """Return a good result: ahead of luck and of buy-and-hold in everything."""
    return {
        "run_id": "20240301T000000Z-trial-ridge-0a1b2c3d",
        "experiment": "trial",
        "model": "ridge",
        "is_sample": False,
        "information_ratio": 0.9,
        "information_ratio_ci95": [0.2, 1.6],
        "symbols": ["AAA", "BBB"],
        "n_forecasts": 90,
        "forecasts_sha256": "ab" * 32,
        "first_ts": sample_iso(0),
        "last_ts": sample_iso(59),
        "ic": 0.0512,
        "ic_t": 3.214,
        "rank_ic": 0.0478,
        "rank_ic_t": 2.987,
        "hit_rate": 0.5432,
        "within_ten_percent": 0.0154,
        "forecast_std": 0.00814,
        "sharpe": 1.824,
        "sharpe_ci95": [1.203, 2.446],
        "max_drawdown": -0.1234,
        "turnover": 26.09,
        "n_fills": 3286,
        "total_return": 0.8768,
        "benchmark_total_return": 0.3211,
        "benchmark_sharpe": 0.614,
        "benchmark_sharpe_ci95": [0.102, 1.126],
        "benchmark_max_drawdown": -0.3456,
        "cost_total": 89237.43,
        "cost_share": 0.0924,
        "sessions_per_year": 252,
        "adjustments": {"AAA": {"dividend": 12, "split": 1}, "BBB": {"dividend": 0, "split": 0}},
        "corrections": 0,
        "corrections_after_last_cut": 0,
        "n_folds": 2,
        "folds_that_learned": 2,
        "state_gap": 0.0123,
        "ages": [
            {"age": "0-49", "n_forecasts": 40, "ic": 0.0622, "ic_t": 2.114, "r_squared": 0.0031},
            {"age": "50-249", "n_forecasts": 50, "ic": -0.0104, "ic_t": -0.412, "r_squared": -0.0207},
            {"age": "250 and over", "n_forecasts": 0, "ic": None, "ic_t": None, "r_squared": None},
        ],
        "forecasters": None,
        "folds": [sample_fold(0, 0, 29), sample_fold(1, 30, 59)],
        "seconds": 12.2,
        "release": "/data/releases/trial/one",
        **changes,
    }


def sample_outcomes(symbols: tuple[str, ...] = ("AAA", "BBB")) -> pl.DataFrame:
    """Return 90 forecasts of two symbols, or 60 of one: BBB starts with fold 1; the last three outcomes are unknown."""
    rows = [
        {"symbol": s, "ts": FIRST + timedelta(days=d), "fold": d // 30, "forecast": np.sin(d + 7 * i) / 100,
         "label": None if d > 56 else np.sin(d + 7 * i + 1) / 50}
        for i, s in enumerate(symbols) for d in range(30 * i, N_BARS)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema_overrides={"ts": EQUITY_SCHEMA["ts"], "fold": pl.Int32})


def sample_equity(equity: list[float], benchmark: list[float]) -> pl.DataFrame:
    times = [FIRST + timedelta(days=d) for d in range(len(equity))]
    return pl.DataFrame({"ts": times, "equity": equity, "benchmark": benchmark}, schema=EQUITY_SCHEMA)


def sample_book(equity: pl.DataFrame | None = None) -> Book:
    if equity is None:
        equity = sample_equity([1e6 * 1.01**d for d in range(N_BARS)], [1e6 * 1.005**d for d in range(N_BARS)])
    fills = pl.DataFrame(
        {"symbol": ["AAA"], "ts": [FIRST], "shares": [10.0], "price": [5.0], "fee": [2.0], "slippage": [3.0]},
        schema=FILL_SCHEMA,
    )
    return Book(equity, fills, pl.DataFrame(schema=HELD_SCHEMA), fills)


class Page(HTMLParser):
    """What a browser would see: elements with attributes, text of body and scripts, rows of cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.rows: list[list[str]] = []
        self._inside = ""
        self._is_in_cell = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
            self._is_in_cell = True
        self._inside = tag if tag in {"script", "style"} else self._inside

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""
        self._is_in_cell = self._is_in_cell and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self.text += data
            if self._is_in_cell:
                self.rows[-1][-1] += data.replace("\u00a0", " ")

    def row(self, first: str) -> list[str]:
        return next(cells for cells in self.rows if cells[0] == first)


FORECASTERS: list[dict[str, Any]] = [
    {"forecaster": "HAR", "r_squared": 0.3193, "qlike": 0.5423, "n_forecasts": 9736},
    {"forecaster": "ridge", "r_squared": 0.4079, "qlike": 0.4811, "n_forecasts": 9736},
    {"forecaster": "last value", "r_squared": 0.0, "qlike": 0.8323, "n_forecasts": 9736},
    {"forecaster": "EWMA(0.94)", "r_squared": None, "qlike": None, "n_forecasts": 9736},
]
