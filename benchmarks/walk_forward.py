"""Time of a walk-forward: foxflow beside the same job written plainly with vectorbt and scikit-learn.

Ridge on 10 symbols over ten years of daily bars. Both sides are given bars and

- make eight features and the label,
- fit a robust scaler, a clip and a ridge in every fold on a rolling window less its newest fifth, and forecast,
- trade the signs of the forecasts in one portfolio, with and without costs, and buy and hold the same symbols,
- return the Sharpe ratio and the correlation of forecasts with outcomes.

foxflow's side also proves that no label crosses a cut, scores every fold on its validation tail, checks every model's
warm-up, and books every fill twice, by an account of its own and by vectorbt; it fits in two processes. The side by
hand splits a frame of features and labels by `rolling_split` and fits a scikit-learn `Pipeline` per fold, in one
process as such scripts do (numpy's own threads are left to it).
scikit-learn takes rows, so each fold's frames are stacked by symbol: about a third of the time by hand, which a script
that stacks once and splits row numbers would not spend.

Both have compiled and started what they need before they are timed, and agree in every forecast and the final equities
before they are. The cases run in turn, round after round, and the least time of each counts. A whole run, with data
checks, audit, ledger, sensitivity, report and release, is timed as well, without a limit. The limits below must hold,
or the exit status is 1.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "2"

import numpy as np
import pandas as pd
import polars as pl
from numpy.typing import NDArray

from foxflow import config, dataset, experiment, metrics, portfolio, processes, signals, splits, store, training
from foxflow.bars import BAR_SCHEMA
from foxflow.config import Config

Floats = NDArray[np.float64]

RATIO, LINEAR = 2.0, 1.5
N_SYMBOLS, N_BARS, TRAIN, EMBARGO, HORIZON, PENALTY, CLIP = 10, 2_520, 1_020, 0, 1, 0.01, 5.0
VALIDATION = 0.2
# Of the worst forecast, as a share of their standard deviation, and of the final equity.
SAME_FORECAST, SAME_EQUITY = 1e-6, 0.02
FEATURES = (
    "return_1",
    "return_5",
    "return_20",
    "gap",
    "range_position",
    "volatility_20",
    "volume_ratio",
    "drawdown_60",
)


def daily_bars(*, seed: int) -> pl.DataFrame:
    """Return daily bars whose next open-to-open return leans against the last close-to-close return."""
    random = np.random.default_rng(seed)
    first = datetime(2010, 1, 1, tzinfo=UTC)
    ts = pl.datetime_range(first, first + timedelta(days=N_BARS - 1), "1d", time_unit="us", eager=True)
    frames = []
    for n in range(N_SYMBOLS):
        noise = random.normal(0, 0.01, N_BARS)
        move = noise.copy()
        for i in range(1, N_BARS):
            move[i] -= 0.03 * move[i - 1]
        close = 100 * np.exp(np.cumsum(move))
        open_ = np.concatenate([[100.0], close[:-1]]) * np.exp(random.normal(0, 0.002, N_BARS))
        wicks = np.abs(random.normal(0, 0.004, (2, N_BARS)))
        frames.append(
            pl.DataFrame(
                {
                    "symbol": [f"S{n:02d}"] * N_BARS,
                    "ts": ts,
                    "open": open_,
                    "high": np.maximum(open_, close) * (1 + wicks[0]),
                    "low": np.minimum(open_, close) * (1 - wicks[1]),
                    "close": close,
                    "volume": np.exp(random.normal(14, 0.3, N_BARS)),
                },
                schema_overrides=BAR_SCHEMA,
            )
        )
    return pl.concat(frames)


def settings(n_folds: int) -> Config:
    """Return the experiment: signs of the forecasts, a tenth of equity each, at 1 bp of fees and 2 of half-spread."""
    return config.parse(
        {
            "experiment": {"name": "bench", "seed": 1},
            "data": {"source": "store", "bar": "1d", "calendar": "24/7", "ended": "last_close"},
            "features": {"names": list(FEATURES), "clip": CLIP},
            "label": {"name": "forward_return", "horizon": HORIZON},
            "walk_forward": {
                "train": TRAIN,
                "every": (N_BARS - TRAIN) // n_folds,
                "embargo": EMBARGO,
                "validation": VALIDATION,
                "window": "rolling",
            },
            "model": {"name": "ridge", "penalty": PENALTY},
            "strategy": {
                "kind": "direction",
                "side": "long_short",
                "threshold_bps": 0.0,
                "position_limit": 1 / N_SYMBOLS,
                "rebalance_band": 0.0,
            },
            "costs": dict.fromkeys(("fee_per_share", "minimum_fee", "impact", "borrow_bps", "financing_bps"), 0.0)
            | {"fee_bps": 1.0, "half_spread_bps": 2.0},
        }
    )


@dataclass(frozen=True)
class Outcome:
    """What a side came to: forecasts `(n_times, n_symbols)` of the test spans, equities, the Sharpe ratio and the IC.

    `gross`: the equity without costs; `benchmark`: that of buy-and-hold at the same costs.
    """

    forecasts: Floats
    equity: Floats
    gross: Floats
    benchmark: Floats
    sharpe: float
    ic: float


def by_foxflow(bars: pl.DataFrame, n_folds: int, pool: processes.Workers) -> Outcome:
    """Return the outcome by foxflow's own functions."""
    asked = settings(n_folds)
    data = dataset.build(bars, feature_names=FEATURES, label_name="forward_return", horizon=HORIZON)
    folds = splits.walk_forward(dataset.bar_times(data), asked.walk_forward)
    recipe = training.Recipe("ridge", asked.model.options, 1, CLIP)
    results = training.run(data, folds, recipe, workers=asked.experiment.workers, pool=pool)
    forecasts = training.forecasts_of(results)
    held = signals.positions(forecasts, strategy=asked.strategy, horizon=HORIZON, values="return")
    book = portfolio.run(held, bars, band=asked.strategy.rebalance_band, costs=asked.costs)
    equity = book.equity["equity"].to_numpy()
    returns = metrics.returns_of(equity, initial=asked.costs.initial_cash)
    wide = forecasts.pivot(on="symbol", index="ts", values="forecast").sort("ts").drop("ts").to_numpy()
    label = np.column_stack([s.label[np.isin(s.ts, forecasts["ts"].dt.timestamp("us"))] for s in data.series])
    known = np.isfinite(label)
    ic = float(np.corrcoef(wide[known], label[known])[0, 1])
    free, rival = book.gross["gross"].to_numpy(), book.equity["benchmark"].to_numpy()
    return Outcome(wide, equity, free, rival, metrics.sharpe(returns, periods_per_year=365).value, ic)


def by_hand(bars: dict[str, pd.DataFrame], n_folds: int) -> Outcome:
    """Return the outcome of the same job written plainly: pandas, vectorbt's split and portfolio, scikit-learn."""
    import vectorbt as vbt
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, RobustScaler

    open_, high, low, close, volume = (bars[c] for c in ("open", "high", "low", "close", "volume"))
    log = np.log(close)
    volatility = np.sqrt((log.diff() ** 2).rolling(20).mean()).clip(lower=1e-5)
    spread = high - low
    wide = {
        "return_1": log.diff(1) / volatility,
        "return_5": log.diff(5) / (volatility * np.sqrt(5)),
        "return_20": log.diff(20) / (volatility * np.sqrt(20)),
        "gap": (np.log(open_) - log.shift(1)) / volatility,
        "range_position": ((close - low) / spread - 0.5).where(spread > 0, 0.0),
        "volatility_20": np.log(volatility),
        "volume_ratio": np.log(volume / volume.rolling(20).mean()),
        "drawdown_60": (log - log.rolling(60).max()) / (volatility * np.sqrt(60)),
    }
    label = open_.shift(-1 - HORIZON) / open_.shift(-1) - 1
    table = pd.concat(wide | {"label": label}, axis=1, names=["feature", "symbol"])
    every, times = (N_BARS - TRAIN) // n_folds, close.index
    (learned, _), (ahead, test_times) = table.vbt.rolling_split(
        n=n_folds, window_len=TRAIN + every, set_lens=(every,), left_to_right=False
    )
    # The newest fifth is held back, as foxflow does, and no label reaches into it.
    n_train = TRAIN - round(TRAIN * VALIDATION) - EMBARGO - HORIZON - 1
    features, found = list(wide), dict[int, pd.Series]()
    for n in range(n_folds):
        train = learned[n].iloc[:n_train].stack("symbol", future_stack=True).dropna()
        test = ahead[n].set_axis(test_times[n]).stack("symbol", future_stack=True)
        model = make_pipeline(
            RobustScaler(),
            # In units in which a normal feature varies by 1.
            FunctionTransformer(lambda x: np.clip(1.349 * x, -CLIP, CLIP)),
            Ridge(alpha=PENALTY * len(train)),
        ).fit(train[features], train["label"])
        found[n] = pd.Series(model.predict(test[features]), index=test.index)
    forecasts = pd.concat(found.values()).unstack().rename_axis(index=close.index.name, columns=close.columns.name)
    times = forecasts.index
    everywhere = {
        "close": close.loc[times],
        "price": open_.loc[times],
        "size_type": "targetpercent",
        "init_cash": 1_000_000.0,
        "group_by": True,
        "cash_sharing": True,
        "call_seq": "auto",
        "freq": "1D",
    }
    costs = {"fees": 1e-4, "slippage": 2e-4}
    # Decided at the close, filled at the next open.
    targets = np.sign(forecasts).shift(1) / N_SYMBOLS
    book = vbt.Portfolio.from_orders(size=targets, **costs, **everywhere)
    gross = vbt.Portfolio.from_orders(size=targets, **everywhere)
    bought = pd.DataFrame(np.nan, index=times, columns=targets.columns)
    bought.iloc[1] = 1 / N_SYMBOLS
    held = vbt.Portfolio.from_orders(size=bought, **costs, **everywhere)
    equity, free, rival = (p.value().to_numpy() for p in (book, gross, held))
    both = pd.concat([forecasts.stack(), label.stack()], axis=1, join="inner")
    ic = float(both.corr().iloc[0, 1])
    return Outcome(forecasts.to_numpy(), equity, free, rival, float(book.sharpe_ratio()), ic)


def require_same(ours: Outcome, theirs: Outcome) -> None:
    """Exit where the two sides did not do the same job."""
    gap = np.abs(ours.forecasts - theirs.forecasts).max() / theirs.forecasts.std()
    pairs = ((getattr(side, name)[-1] for side in (ours, theirs)) for name in ("equity", "gross", "benchmark"))
    apart = [abs(one / other - 1) for one, other in pairs]
    print(
        f"{ours.forecasts.size:,} forecasts, worst difference {gap:.1e} of their deviation; IC {ours.ic:.4f} and "
        f"{theirs.ic:.4f}; Sharpe {ours.sharpe:.3f} and {theirs.sharpe:.3f}; final equity {apart[0]:.2%} apart, "
        f"{apart[1]:.2%} without costs, {apart[2]:.2%} held"
    )
    if not (gap <= SAME_FORECAST and max(apart) <= SAME_EQUITY):
        raise SystemExit("the two sides differ, so there is nothing to time")


def least(cases: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Return the least seconds of each case over rounds in which each runs once."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            times[name].append(time.perf_counter() - began)
    return {name: min(found) for name, found in times.items()}


def time_whole(bars: pl.DataFrame, n_folds: int) -> float:
    """Return the seconds of a whole run, with all that goes beside the forecasts: audit, ledger, report, release."""
    with tempfile.TemporaryDirectory() as folder:
        path = experiment.store_path(Path(folder), "store")
        store.write_bars(path, bars, bar="1d")
        began = time.perf_counter()
        experiment.run(settings(n_folds), Path(folder))
        return time.perf_counter() - began


def main() -> None:
    """Run every case and exit 1 where a limit does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--whole", action=argparse.BooleanOptionalAction, default=True, help="time a whole run too")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    bars = daily_bars(seed=4)
    # Times without a zone, which pandas and vectorbt are faster with.
    frame = bars.with_columns(pl.col("ts").dt.replace_time_zone(None)).to_pandas()
    wide = {c: frame.pivot(index="ts", columns="symbol", values=c) for c in ("open", "high", "low", "close", "volume")}
    held = True
    with processes.workers(2) as pool:
        require_same(by_foxflow(bars, 50, pool), by_hand(wide, 50))
        print(f"{'':34} {'foxflow':>10} {'by hand':>10} {'ratio':>8}")
        each = []
        for n_folds in (25, 50, 100):
            times = least(
                {"foxflow": lambda n=n_folds: by_foxflow(bars, n, pool), "by hand": lambda n=n_folds: by_hand(wide, n)},
                rounds=asked.rounds,
            )
            ratio = times["by hand"] / times["foxflow"]
            limit = f"   at least {RATIO}" if n_folds == 50 else ""
            print(f"{f'{n_folds} folds':34} {times['foxflow']:8.2f} s {times['by hand']:8.2f} s {ratio:8.2f}{limit}")
            if n_folds == 50:
                held &= ratio >= RATIO
                by_hand_50 = times["by hand"]
            each.append(times["foxflow"] / n_folds)
        growth = each[-1] / each[0]
        print(f"{'ms a fold at 25, 50, 100 folds':34} {', '.join(f'{1e3 * e:.1f}' for e in each)}   grows {growth:.2f}")
        held &= growth <= LINEAR
    if asked.whole:
        seconds = time_whole(bars, 50)
        print(f"{'the whole run, 50 folds':34} {seconds:8.2f} s {by_hand_50:8.2f} s {by_hand_50 / seconds:8.2f}")
    if not held:
        sys.exit("a limit does not hold")


if __name__ == "__main__":
    main()
