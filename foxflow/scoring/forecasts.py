"""How forecasts meet outcomes: over all rows, by age of state, through time, and whether their size is right."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxflow import labels, metrics, state, training, volatility
from foxflow.config import Config
from foxflow.metrics import Floats


def with_references(config: Config, adjusted: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """Return the outcomes with what a hit (`reference`) and an R² (`mean`) are judged against: 0 for a return."""
    if labels.find(config.label.name).values != "log volatility":
        return outcomes.with_columns(reference=pl.lit(0.0), mean=pl.lit(0.0))
    # A log volatility has no sign of its own: a hit is the right direction from the newest value.
    simple = volatility.references(adjusted, horizon=config.label.horizon, bar=config.data.bar)
    newest = simple.select("symbol", "ts", "mean", reference="last")
    return outcomes.join(newest, on=["symbol", "ts"], how="left", maintain_order="left")


def judged(outcomes: pl.DataFrame) -> dict[str, Any]:
    """Return how forecasts meet outcomes, over the rows whose label is known."""
    both = outcomes.drop_nulls()
    forecast, outcome, reference = (both[c].to_numpy() for c in ("forecast", "label", "reference"))
    date = both["ts"].dt.timestamp("us").to_numpy()
    lags = overlap(date, both["label_end"].dt.timestamp("us").to_numpy())
    ic = metrics.information_coefficient(forecast, outcome, date, overlap=lags)
    rank = metrics.rank_information_coefficient(forecast, outcome, date, overlap=lags)
    return {
        "symbols": sorted(outcomes["symbol"].unique().to_list()),
        "n_forecasts": len(outcomes),
        "forecasts_sha256": training.forecasts_sha256(outcomes),
        "first_ts": outcomes["ts"].min(),
        "last_ts": outcomes["ts"].max(),
        "ic": ic.value,
        "ic_t": ic.t_statistic,
        "rank_ic": rank.value,
        "rank_ic_t": rank.t_statistic,
        "hit_rate": metrics.hit_rate(forecast, outcome, reference),
        "within_ten_percent": metrics.within_ten_percent(forecast, outcome),
        "forecast_std": float(forecast.std()),
    }


def by_age(outcomes: pl.DataFrame, age: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return, for each age band of a forecast's state, how many forecasts fall into it and how they meet outcomes.

    Parameters
    ----------
    outcomes
        With `ts`, `forecast`, `label`, `label_end` and `mean`, which R² is judged against.
    age
        `(n_rows,)`, from `state.ages`.
    """
    bands = []
    for (start, stop), name in zip(state.BANDS, state.BAND_NAMES, strict=True):
        inside = outcomes.filter((age >= start) & (age < stop if stop else True))
        both = inside.drop_nulls()
        forecast, outcome, mean = (both[c].to_numpy() for c in ("forecast", "label", "mean"))
        date, end = (both[c].dt.timestamp("us").to_numpy() for c in ("ts", "label_end"))
        ic = metrics.information_coefficient(forecast, outcome, date, overlap=overlap(date, end))
        r_squared = metrics.r_squared(forecast, outcome, mean) if len(both) else float("nan")
        bands.append(
            {"age": name, "n_forecasts": len(inside), "ic": ic.value, "ic_t": ic.t_statistic, "r_squared": r_squared}
        )
    return bands


def overlap(ts: NDArray[np.int64], label_end: NDArray[np.int64]) -> int:
    """Return how many dates ahead an outcome reaches: its horizon where all symbols share their bars, else more."""
    dates = np.unique(ts)
    if not len(dates):
        return 0
    return int(np.median(np.searchsorted(dates, label_end) - np.searchsorted(dates, ts)))


def rolling_ic(outcomes: pl.DataFrame, *, dates_a_year: int) -> list[dict[str, Any]]:
    """Return the IC of the outcomes known by the end of each of about 200 windows of a year: `ts` (its end), `ic`.

    A window is of the forecasts of `dates_a_year` dates; without so many there is none. Outcomes have `ts`, `forecast`,
    `label` and `label_end`: one that ends after the window is not in it.
    """
    rows = outcomes.drop_nulls(["forecast", "label"]).sort("ts")
    dates = rows["ts"].unique().sort()
    first = rows["ts"].search_sorted(dates, side="left").to_numpy()
    last = rows["ts"].search_sorted(dates, side="right").to_numpy()
    forecast, outcome = rows["forecast"].to_numpy(), rows["label"].to_numpy()
    ts, known_at = (rows[c].dt.timestamp("us").to_numpy() for c in ("ts", "label_end"))
    step = max((len(dates) - dates_a_year) // 200, 1)
    found = []
    for end in range(dates_a_year - 1, len(dates), step):
        begin, stop = int(first[end - dates_a_year + 1]), int(last[end])
        own = begin + np.flatnonzero(known_at[begin:stop] <= ts[stop - 1])
        ic = metrics.information_coefficient(forecast[own], outcome[own], ts[own], overlap=0)
        found.append({"ts": dates[end], "ic": ic.value})
    return found


def calibration(outcomes: pl.DataFrame) -> dict[str, float]:
    """Return the regression of outcomes on forecasts over all rows: `slope` (1 where their size is right), `intercept`.

    `slope_t` is the slope over its standard error, rows of one date clustered and neighbouring dates with Newey-West
    lags of the outcomes' overlap; all NaN where forecasts do not vary. Source: Mincer and Zarnowitz (1969).
    """
    both = outcomes.drop_nulls(["forecast", "label", "label_end"])
    forecast, outcome = both["forecast"].to_numpy(), both["label"].to_numpy()
    if len(both) < 3 or not np.ptp(forecast) > 0:
        return dict.fromkeys(("slope", "intercept", "slope_t"), float("nan"))
    date, end = (both[c].dt.timestamp("us").to_numpy() for c in ("ts", "label_end"))
    centred = forecast - forecast.mean()
    power = float(centred @ centred)
    slope = float(centred @ outcome) / power
    intercept = float(outcome.mean() - slope * forecast.mean())
    dates, at = np.unique(date, return_inverse=True)
    error: Floats = np.bincount(at, weights=centred * (outcome - intercept - slope * forecast)).astype(np.float64)
    lags = max(overlap(date, end), metrics.persistence_lags(error))
    # A series of that mean over its error: the t-statistic of a shift by the slope.
    shifted: Floats = error + slope * power / len(dates)
    t = metrics.t_statistic(shifted, lags=lags)
    return {"slope": slope, "intercept": intercept, "slope_t": t}
