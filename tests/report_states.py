"""Made-up runs in every state that a report must bear: realistic in size and shape, with every key of the summary."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from report_samples import FORECASTERS, HOSTILE, sample_summary

from foxflow.bars import TS
from foxflow.portfolio import EQUITY_SCHEMA, FILL_SCHEMA, HELD_SCHEMA, Book

Run = tuple[dict[str, Any], Book, pl.DataFrame]
BARE = {"note": None}


@dataclass(frozen=True)
class Shape:
    """What a made-up run is like: bars of a session or of the clock, folds, symbols, and what each bar earns."""

    n_bars: int = 2514
    step: timedelta = timedelta(days=1)
    is_weekly: bool = True
    n_folds: int = 11
    symbols: tuple[str, ...] = ("AAPL", "FB", "GOOG", "IBM", "MSFT")
    drift: float = 0.0004
    noise: float = 0.011
    n_seeds: int = 5
    first: datetime = datetime(2003, 3, 7, 21, tzinfo=UTC)
    changes: dict[str, Any] = field(default_factory=dict)


def iso(ts: datetime) -> str:
    return ts.isoformat().replace("+00:00", "Z")


def times(shape: Shape) -> list[datetime]:
    """Return the ends of bars: days of the week, or steps of the clock without a pause."""
    if not shape.is_weekly:
        return [shape.first + shape.step * n for n in range(shape.n_bars)]
    days = shape.n_bars * 7 // 5 + 14
    if shape.step < timedelta(days=1):
        a_day = 26
        starts = (shape.first.replace(hour=14, minute=30) + timedelta(days=d) for d in range(days // a_day + 14))
        found = [s + shape.step * (n + 1) for s in starts if s.weekday() < 5 for n in range(a_day)]
    else:
        found = [ts for d in range(days) if (ts := shape.first + timedelta(days=d)).weekday() < 5]
    return found[: shape.n_bars]


def run_of(shape: Shape) -> Run:
    """Return summary, book and outcomes of a made-up run; equal shapes give equal runs."""
    rng = np.random.default_rng(20)
    ts = times(shape)
    n, columns = len(ts), {}
    moves = rng.normal(shape.drift, shape.noise, n)
    columns["equity"] = 1e6 * np.exp(np.cumsum(moves))
    market = rng.normal(0.0006, 0.014, n) * min(1.0, shape.noise / 0.011)
    columns["benchmark"] = 1e6 * np.exp(np.cumsum(market))
    columns["baseline"] = 1e6 * np.exp(np.cumsum(0.6 * moves + rng.normal(0, shape.noise / 2, n)))
    for seed in range(1, shape.n_seeds):
        columns[f"equity_seed_{seed}"] = 1e6 * np.exp(np.cumsum(moves + rng.normal(0, shape.noise / 3, n)))
    equity = pl.DataFrame({"ts": ts, **columns}, schema_overrides={"ts": TS})
    book = Book(equity, *_traded(shape, ts, rng))
    return _summary(shape, ts, equity), book, _outcomes(shape, ts, rng)


def _traded(
    shape: Shape, ts: list[datetime], rng: np.random.Generator
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    n, k = len(ts), len(shape.symbols)
    weight = np.clip(np.repeat(rng.normal(0.1, 0.3, (n // 20 + 1, k)), 20, axis=0)[:n], -0.5, 0.5) / max(k / 3, 1)
    rows = {"symbol": list(shape.symbols) * n, "ts": [t for t in ts for _ in range(k)], "weight": weight.ravel()}
    zeros = {name: np.zeros(n * k) for name in HELD_SCHEMA if name not in rows}
    held = pl.DataFrame({**rows, **zeros}, schema_overrides={"ts": TS}).select(list(HELD_SCHEMA))
    at = np.arange(0, n, max(n // 900, 1))
    m = len(at)
    fills = pl.DataFrame(
        {
            "symbol": [shape.symbols[i % k] for i in range(m)],
            "ts": [ts[i] for i in at],
            "shares": rng.normal(0, 900, m).round(),
            "price": rng.uniform(20, 400, m),
            "fee": rng.uniform(1, 9, m),
            "slippage": rng.uniform(1, 30, m),
        },
        schema=FILL_SCHEMA,
    )
    return fills, held, fills.head(12)


def _outcomes(shape: Shape, ts: list[datetime], rng: np.random.Generator) -> pl.DataFrame:
    n, k = len(ts), len(shape.symbols)
    forecast = rng.normal(0, shape.noise / 6, (n, k))
    label = 0.8 * forecast + rng.normal(0, shape.noise * 1.6, (n, k))
    label[-3:] = np.nan
    if "forecasters" in shape.changes:
        # Log volatilities of a day.
        forecast, label = 20 * forecast - 4.1, 12 * label - 4.1
    fold = np.minimum(np.arange(n) * shape.n_folds // n, shape.n_folds - 1)
    frame = pl.DataFrame(
        {
            "symbol": list(shape.symbols) * n,
            "ts": [t for t in ts for _ in range(k)],
            "fold": np.repeat(fold, k),
            "forecast": forecast.ravel(),
            "label": label.ravel(),
        },
        schema_overrides={"ts": TS, "fold": pl.Int32},
    )
    return frame.with_columns(pl.col("label").fill_nan(None))


def _folds(shape: Shape, ts: list[datetime]) -> list[dict[str, Any]]:
    n, found = len(ts), []
    for number in range(shape.n_folds):
        start, stop = number * n // shape.n_folds, (number + 1) * n // shape.n_folds - 1
        before = ts[start] - 7 * shape.step
        curve = [0.5, *(0.5 + 0.02 * (number % 3 - 1) * e + 0.002 * e * e for e in range(1, 6))]
        best = int(np.argmin(curve))
        details = [
            {
                "spectral_radius": 0.984 + 0.0002 * e * (number % 5),
                "clipped_share": None if e == 0 else 0.25 * ((e + number) % 3 == 0),
                "heads_at_limit": 0.0,
                "grad_norm": None if e == 0 else 0.7,
            }
            for e in range(6)
        ]
        found.append(
            {
                "fold": number,
                "cut": iso(before),
                "test_start": iso(ts[start]),
                "test_end": iso(ts[stop]),
                "training_rows": 1602 + 550 * number,
                "members": None,
                "forecasts": dict.fromkeys(shape.symbols, stop - start + 1),
                "untrained_loss": 0.5,
                "best_loss": curve[best],
                "best_epoch": best,
                "has_learned": best > 0,
                "state_gap": 0.0026,
                "seconds": 3.25,
                "history": [
                    {"number": e, "train_loss": 1.0 - 0.03 * e, "valid_loss": v, "detail": d, "seconds": 0.5}
                    for e, (v, d) in enumerate(zip(curve, details, strict=True))
                ],
                "train_label_end": iso(before - 90 * shape.step),
                "valid_start": iso(before - 88 * shape.step),
                "valid_label_end": iso(before),
                "embargo_bars": 5,
                "scaler_first_ts": iso(ts[0] - 1000 * shape.step),
                "scaler_last_ts": iso(before - 96 * shape.step),
                "first_forecast_ts": iso(ts[start]),
            }
        )
    return found


def _seed(number: int) -> dict[str, Any]:
    return {
        "seed": number, "sharpe": 0.54 + 0.11 * ((number * 7) % 5 - 2), "total_return": 1.08 + 0.2 * ((number * 3) % 5 - 2),
        "max_drawdown": -0.40 + 0.01 * number, "ic": -0.0348 + 0.002 * number, "ic_t": -1.30 + 0.1 * number,
        "n_fills": 893 + number, "cost_total": 23779.16 + 100 * number, "forecasts_sha256": f"{number:x}" * 64,
    }  # fmt: skip


SIGNIFICANCE: dict[str, Any] = {
    "psr": 0.9512, "deflated_sharpe": 0.4127, "n_trials": 37, "n_effective_trials": 21.4, "trials_known": True,
    "trials_note": "37 configurations in the ledger, on these symbols and an overlapping span.",
    "trial_sharpe_variance": 0.0004, "expected_max_sharpe": 0.91, "minimum_track_record_sessions": 2_310,
    "n_sessions": 2514, "sharpe_bootstrap_ci95": [-0.06, 1.18], "max_drawdown_bootstrap_ci95": [-0.58, -0.21],
    "bootstrap_block_sessions": 21, "pbo": 0.53, "pbo_n_trials": 37, "pbo_note": None,
}  # fmt: skip
WATERFALL = [
    {"name": "gross", "amount": 1_104_943.40}, {"name": "fee", "amount": -7_926.39},
    {"name": "per_share_fee", "amount": -1_204.55}, {"name": "minimum_fee", "amount": -310.00},
    {"name": "half_spread", "amount": -14_542.77}, {"name": "impact", "amount": -9_011.08},
    {"name": "borrow", "amount": -21_400.12}, {"name": "financing", "amount": 3_200.40}, {"name": "net", "amount": 1_053_748.89},
]  # fmt: skip


def _summary(shape: Shape, ts: list[datetime], equity: pl.DataFrame) -> dict[str, Any]:
    n = len(ts)
    months = equity.group_by(pl.col("ts").dt.truncate("1mo")).agg(pl.col("equity").last()).sort("ts")
    moves = months.with_columns(r=pl.col("equity") / pl.col("equity").shift(1).fill_null(1e6) - 1)
    at = lambda share: iso(ts[int(share * (n - 1))])  # noqa: E731
    decided = ts[n // 2]
    full = sample_summary(
        experiment="returns",
        model="mamba2",
        symbols=list(shape.symbols),
        n_forecasts=n * len(shape.symbols),
        first_ts=iso(ts[0]),
        last_ts=iso(ts[-1]),
        n_folds=shape.n_folds,
        folds=_folds(shape, ts),
        adjustments={s: {"dividend": 3, "split": 1} for s in shape.symbols},
        accepted_findings=[],
        universe={"is_recorded": False, "never_members": [], "members_without_bars": [], "endings": []},
        n_seeds=shape.n_seeds,
        seeds=[_seed(number) for number in range(shape.n_seeds)],
        significance=SIGNIFICANCE,
        versus_benchmark={"alpha": 0.021, "alpha_t": 0.84, "beta": 0.31, "lead": -0.112, "lead_t": -1.92},
        baseline={"model": "ridge", "sharpe": 0.41, "total_return": 0.62, "max_drawdown": -0.33, "ic": 0.012, "ic_t": 0.8},
        waterfall=WATERFALL,
        sensitivity={
            "cost_bps": [{"bps": b, "sharpe": 0.62 - 0.05 * b, "total_return": 1.3 - 0.13 * b} for b in (0, 1, 2, 5, 10)],
            "delay_bars": [{"bars": b, "sharpe": 0.54 - 0.1 * b, "total_return": 1.08 - 0.3 * b} for b in (0, 1, 2)],
            "capacity": [
                {"initial_cash": 10.0**e, "sharpe": 0.6 - 0.02 * (e - 5) ** 2, "total_return": 1.1 - 0.1 * (e - 5) ** 2,
                 "impact_cost_share": 0.02 * 2 ** (e - 5), "most_participation": min(0.0004 * 10 ** (e - 5), 1.0)}
                for e in (5, 6, 7, 8)
            ],
            "capacity_note": None,
        },
        exposure={"mean_gross": 0.74, "mean_net": 0.61, "most_gross": 1.02, "share_of_bars_invested": 0.97,
                  "turnover_a_year": 6.5},
        monthly=[{"year": t.year, "month": t.month, "return": r} for t, r in moves.select("ts", "r").iter_rows()],
        drawdowns=[
            {"start": at(0.1), "trough": at(0.2), "end": at(0.35), "depth": -0.404, "sessions": 610, "recovery_sessions": 360},
            {"start": at(0.5), "trough": at(0.6), "end": at(0.7), "depth": -0.287, "sessions": 402, "recovery_sessions": 251},
            {"start": at(0.9), "trough": at(0.95), "end": None, "depth": -0.121, "sessions": 88, "recovery_sessions": None},
        ],
        audit={
            "passed": True,
            "seconds": 4.2,
            "checks": [
                {"attack": "cut the bars at t", "target": f"feature {f}", "n": 50, "note": "bit for bit equal"}
                for f in ("return_1", "volatility_20", "range_position", "volume_ratio")
            ] + [{"attack": "corrupt all later bars", "target": "model mamba2", "n": 3, "note": ""}],
            "timeline": {
                "symbol": shape.symbols[0], "fold": shape.n_folds // 2, "first_bar_ts": iso(ts[0] - 400 * shape.step),
                "train_label_end": iso(decided - 120 * shape.step), "cut": iso(decided - 30 * shape.step),
                "data_cut": iso(decided), "decision_ts": iso(decided), "order_ts": iso(decided), "fill_price": 187.34,
                "fill_ts": iso(decided + shape.step), "exit_ts": iso(decided + 6 * shape.step),
                "label_end": iso(decided + 6 * shape.step),
            },
        },
        rolling_ic=[{"ts": iso(ts[i]), "ic": 0.04 * np.sin(i / n * 9) - 0.01} for i in range(min(252, n // 4), n, max(n // 1500, 1))],
        calibration={"slope": 0.42, "intercept": 0.0008, "slope_t": 1.1},
        data_findings=[
            {"name": "frozen", "severity": "note", "n": 12, "symbols": list(shape.symbols)},
            {"name": "missing_session", "severity": "severe", "n": 2, "symbols": list(shape.symbols[:1])},
            {"name": "jump", "severity": "warning", "n": 3, "symbols": list(shape.symbols[:2])},
        ],
        provenance={
            "versions": {"python": "3.11.9", "foxflow": "0.1.0", "polars": "2.1.0", "numpy": "2.4.1", "vectorbt": "1.2.0"},
            "code_sha256": "c0" * 32,
            "bars_sha256": "ba" * 32,
            "config": {"experiment": {"name": "returns", "seed": 7}, "label": {"name": "forward_return", "horizon": 5}},
        },
        trading={"fill": "next_open", "delay_bars": 0, "delay_s": 0.0, "participation_limit": 0.05, "n_orders_capped": 7,
                 "n_orders_waited": 2},
    )  # fmt: skip
    return {**full, **shape.changes}


UNKNOWN = {
    **dict.fromkeys(SIGNIFICANCE), "trials_known": False, "psr": 0.71, "n_sessions": 2514,
    "trials_note": "The ledger is not there, so nobody knows how many configurations were tried.",
    "pbo_note": "Fewer than two trials on these bars.",
}  # fmt: skip
CRYPTO = Shape(
    n_bars=35_040, step=timedelta(hours=1), is_weekly=False, n_folds=16, symbols=("BTC/USDT",), drift=0.00001, noise=0.004,
    n_seeds=3, first=datetime(2021, 1, 1, 1, tzinfo=UTC),
)  # fmt: skip
FIFTEEN = Shape(
    n_bars=65_520, step=timedelta(minutes=15), n_folds=40, symbols=("AAPL", "IBM"), drift=0.000004, noise=0.0004, n_seeds=5,
)  # fmt: skip


def _nulls() -> Run:
    """Return a run of which nothing is known: every number is null, and every list of the later summary too."""
    summary, book, outcomes = run_of(Shape(n_bars=40, n_folds=1, n_seeds=1, symbols=("AAA",)))
    kept = {"run_id", "experiment", "model", "symbols", "folds", "is_sample", "ages", "seconds", "n_fills"}
    nulls = {k: v if k in kept else None for k, v in summary.items()}
    for pair in ("sharpe_ci95", "benchmark_sharpe_ci95", "information_ratio_ci95"):
        nulls[pair] = [None, None]
    fold = summary["folds"][0]
    keep = ("fold", "cut", "test_start", "test_end", "forecasts", "history", "best_epoch", "has_learned")
    fold = {k: v if k in keep else None for k, v in fold.items()}
    flat = book.equity.select("ts", equity=pl.lit(1e6), benchmark=pl.lit(1e6)).cast(dict(EQUITY_SCHEMA))  # type: ignore[arg-type]
    nothing = Book(flat, book.fills.clear(), book.held.clear(), book.fills.clear())
    return (
        {**nulls, "n_fills": 0, "folds": [fold], "n_folds": 1},
        nothing,
        outcomes.with_columns(label=pl.lit(None, pl.Float64)),
    )


def _hollow() -> Run:
    """Return a run whose every new key is there, and whose every value in them is null or empty."""
    summary, book, outcomes = run_of(Shape(n_bars=300, n_folds=2, n_seeds=2))

    def emptied(value: Any) -> Any:
        match value:
            case dict():
                return {
                    k: v
                    if k
                    in {
                        "seed",
                        "name",
                        "severity",
                        "year",
                        "month",
                        "ts",
                        "start",
                        "trough",
                        "bps",
                        "bars",
                        "initial_cash",
                        "attack",
                        "target",
                        "model",
                    }
                    else emptied(v)
                    for k, v in value.items()
                }
            case list():
                return [emptied(v) for v in value if not isinstance(v, str)]
        return None

    new = ("seeds", "significance", "versus_benchmark", "baseline", "waterfall", "sensitivity", "exposure", "monthly",
           "drawdowns", "audit", "rolling_ic", "calibration", "data_findings", "provenance", "trading")  # fmt: skip
    hollow = {key: emptied(summary[key]) for key in new}
    # A config has no null.
    hollow["provenance"]["config"] = {}
    return {**summary, **hollow}, book, outcomes


def _without_fills() -> Run:
    summary, book, outcomes = run_of(Shape())
    flat = book.equity.with_columns(equity=pl.lit(1e6))
    none = {"n_fills": 0, "sharpe": None, "sharpe_ci95": [None, None], "total_return": 0.0, "cost_total": 0.0, "drawdowns": [],
            "cost_share": None, "turnover": 0.0, "waterfall": [{"name": n, "amount": 0.0} for n in ("gross", "fee", "net")]}  # fmt: skip
    return (
        {**summary, **none},
        Book(flat, book.fills.clear(), book.held.with_columns(weight=pl.lit(0.0)), book.benchmark_fills),
        outcomes,
    )


def _hostile() -> Run:
    mean = {
        "significance": {**SIGNIFICANCE, "trials_note": HOSTILE, "pbo_note": HOSTILE},
        "experiment": HOSTILE,
        "model": HOSTILE,
    }
    summary, book, outcomes = run_of(Shape(n_bars=300, n_folds=2, symbols=(HOSTILE, 'A" onload="alert(1)')))
    waterfall = [WATERFALL[0], {"name": HOSTILE, "amount": -51_194.51}, WATERFALL[-1]]
    findings = [{"name": HOSTILE, "severity": HOSTILE, "n": 1, "symbols": [HOSTILE]}]
    return (
        {
            **summary,
            **mean,
            "waterfall": waterfall,
            "data_findings": findings,
            "baseline": {**summary["baseline"], "model": HOSTILE},
        },
        book,
        outcomes,
    )


STATES: dict[str, Callable[[], Run]] = {
    "usual": lambda: run_of(Shape()),
    "one fold": lambda: run_of(Shape(n_bars=230, n_folds=1, n_seeds=1)),
    "500 folds": lambda: run_of(Shape(n_bars=5000, n_folds=500, n_seeds=3)),
    "volatility": lambda: run_of(Shape(changes={"forecasters": [*FORECASTERS[:1], {**FORECASTERS[1], "forecaster": "mamba2"}]})),
    "trials unknown": lambda: run_of(Shape(n_folds=6, changes={"significance": UNKNOWN})),
    "no fills": _without_fills,
    "one symbol": lambda: run_of(Shape(symbols=("AAPL",), n_folds=4, n_seeds=1)),
    "60 symbols": lambda: run_of(Shape(symbols=tuple(f"SYM{n:02}" for n in range(60)), n_bars=1250)),
    "crypto hours": lambda: run_of(CRYPTO),
    "15 minutes": lambda: run_of(FIFTEEN),
    "losses": lambda: run_of(Shape(drift=-0.0012, changes={"total_return": -0.94, "sharpe": -1.2, "sharpe_ci95": [-1.9, -0.5],
        "waterfall": [{"name": "gross", "amount": -912_000.00}, {"name": "fee", "amount": -28_000.00}, {"name": "net", "amount": -940_000.00}]})),
    "nulls": _nulls,
    "hollow": _hollow,
    "hostile": _hostile,
}  # fmt: skip
