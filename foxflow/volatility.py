"""The rivals of a volatility forecast: last value, EWMA and HAR, each from what was known at `ts`.

All forecasts are of the label `forward_volatility`: the log of a volatility per bar.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl

from foxflow import labels
from foxflow.bars import log_price
from foxflow.market import Market
from foxflow.metrics import Floats, qlike, r_squared
from foxflow.training import FoldResult

EWMA_DECAY = 0.94
Forecaster = Callable[[pl.DataFrame], Floats]


def references(bars: pl.DataFrame, *, horizon: int, bar: str = "1d") -> pl.DataFrame:
    """Return, per (symbol, ts), the label, its end and what simple forecasters say at `ts`.

    Returns
    -------
    Columns `symbol`, `ts`, `label`, `label_end`; `mean` (of the symbol's labels known by `ts`), `last` (of the newest
    `horizon` returns), `ewma` (decay 0.94 over all returns so far), and the HAR regressors `day`, `week`, `month` (1,
    5 and 22 bars).

    Sources: J.P. Morgan RiskMetrics (1996) for the decay; Corsi (2009), Journal of Financial Econometrics 7(2),
    equation 12, on logs.
    """
    square = log_price("open").diff().pow(2)
    expressions = {
        # The newest label known at t is that of bar t - 1 - horizon.
        "mean": labels.realised_volatility(horizon, bar).cum_sum()
        / labels.realised_volatility(horizon, bar).cum_count(),
        "last": labels.realised_volatility(horizon, bar),
        "ewma": pl.max_horizontal(
            square.ewm_mean(alpha=1 - EWMA_DECAY, adjust=False, ignore_nulls=True),
            pl.lit(labels.volatility_floor(bar) ** 2),
        ).log()
        / 2,
        "day": labels.realised_volatility(1, bar),
        "week": labels.realised_volatility(5, bar),
        "month": labels.realised_volatility(22, bar),
    }
    known = labels.compute(bars, "forward_volatility", horizon, bar=bar)
    simple = bars.sort("symbol", "ts").select(
        e.over("symbol", order_by="ts").alias(name) for name, e in expressions.items()
    )
    return pl.concat([known, simple], how="horizontal")


def score(
    pulled: Market, streams: Mapping[str, Sequence[FoldResult]], *, horizon: int, bar: str = "1d"
) -> pl.DataFrame:
    """Return R² of log volatility and QLIKE of each forecaster over the rows that all of them forecast.

    Parameters
    ----------
    pulled
        Outcomes are of its bars as they came; what is fitted and read in a fold is as of the fold's cut.
    streams
        Fold results of fitted models by name, on the same folds.

    Returns
    -------
    Columns `forecaster`, `r_squared` (against each symbol's expanding mean), `qlike`, `n_forecasts`. A variance
    forecast is `exp(2 m + 2 s²)` with `s²` the forecaster's squared error on each fold's validation tail.
    """
    outcomes = references(pulled.first, horizon=horizon, bar=bar).drop_nulls()
    rows, corrected_at = outcomes, None
    first = next(iter(streams.values()))
    parts: dict[str, list[pl.DataFrame]] = {}
    for index, result in enumerate(first):
        if result.fold.is_final:
            continue
        fold = result.fold
        newest = pulled.corrected_at(fold.cut)
        if newest != corrected_at:
            rows, corrected_at = references(pulled.as_of(fold.cut), horizon=horizon, bar=bar).drop_nulls(), newest
        ts, end = (rows[c].dt.timestamp("us").to_numpy() for c in ("ts", "label_end"))
        member = pulled.universe.mask(rows, as_of=fold.cut)
        train = rows.filter(fold.trains_on(ts, end) & member)
        valid = rows.filter(fold.validates_on(ts, end) & member)
        test = rows.filter(fold.tests_on(ts))
        simple = {"last value": _column("last"), "EWMA(0.94)": _column("ewma"), "HAR": _fitted_har(train)}
        for name, forecaster in simple.items():
            error = forecaster(valid) - valid["label"].to_numpy()
            parts.setdefault(name, []).append(
                test.select("symbol", "ts").with_columns(
                    m=pl.Series(forecaster(test)), s2=pl.lit(float((error**2).mean()))
                )
            )
        for name, results in streams.items():
            each = results[index]
            parts.setdefault(name, []).append(
                each.forecasts.select("symbol", "ts", m="forecast", s2=pl.lit(each.residual_variance))
            )
    table = outcomes.select("symbol", "ts", "label", "mean")
    frames = {name: pl.concat(p) for name, p in parts.items()}
    for frame in frames.values():
        table = table.join(frame.select("symbol", "ts"), on=["symbol", "ts"], how="semi")
    table = table.sort("symbol", "ts")
    scores = []
    for name, frame in frames.items():
        both = table.join(frame, on=["symbol", "ts"], how="left", maintain_order="left")
        label, m, s2 = (both[c].to_numpy() for c in ("label", "m", "s2"))
        scores.append(
            {
                "forecaster": name,
                "r_squared": r_squared(m, label, both["mean"].to_numpy()),
                "qlike": qlike(np.exp(2 * m + 2 * s2), np.exp(2 * label)),
                "n_forecasts": len(both),
            }
        )
    return pl.DataFrame(scores)


def _regressors(rows: pl.DataFrame) -> Floats:
    return np.column_stack([np.ones(len(rows)), rows.select("day", "week", "month").to_numpy()])


def _fitted_har(train: pl.DataFrame) -> Forecaster:
    coefficients = np.linalg.lstsq(_regressors(train), train["label"].to_numpy(), rcond=None)[0]
    return lambda rows: _regressors(rows) @ coefficients


def _column(name: str) -> Forecaster:
    return lambda rows: rows[name].to_numpy()
