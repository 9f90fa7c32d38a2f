"""Scores: pure functions of arrays. Returns are fractions per period, never percent."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foxflow.errors import DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Correlation:
    """A correlation of forecasts with outcomes, its t-statistic, and the number of dates behind it."""

    value: float
    t_statistic: float
    n_dates: int


def information_coefficient(forecast: Floats, outcome: Floats, date: NDArray[np.int64], *, overlap: int) -> Correlation:
    """Return the pooled correlation of forecasts and outcomes, NaN where either does not vary.

    Parameters
    ----------
    forecast, outcome
        `(n_rows,)`, without NaN.
    date
        `(n_rows,)`, what rows of one moment share: symbols of one date are not independent.
    overlap
        Bars that neighbouring outcomes share, which is their horizon.

    Notes
    -----
    The t-statistic is that of the mean, over dates, of the product of the standardised series, with Newey-West standard
    errors, because outcomes of neighbouring bars share most of their span: of `overlap` lags, or of as many as the
    persistence of the product asks for, whichever is more.

    Sources: Newey and West (1987), Econometrica 55(3), equation 5; Andrews (1991), Econometrica 59(3), equations 6.2
    and 6.4 for the lags; Grinold and Kahn (1999), chapter 6.
    """
    if len(forecast) < 2 or not (np.ptp(forecast) > 0 and np.ptp(outcome) > 0):
        return Correlation(float("nan"), float("nan"), len(np.unique(date)))
    product = _standardised(forecast) * _standardised(outcome)
    dates, at = np.unique(date, return_inverse=True)
    # Each date's sum, scaled so that the mean over dates is the pooled correlation.
    daily = np.bincount(at, weights=product) * len(dates) / len(product)
    return Correlation(
        float(product.mean()), t_statistic(daily, lags=max(overlap, persistence_lags(daily))), len(dates)
    )


def rank_information_coefficient(
    forecast: Floats, outcome: Floats, date: NDArray[np.int64], *, overlap: int
) -> Correlation:
    """Return `information_coefficient` of the ranks (Spearman), ties sharing their mean rank."""
    return information_coefficient(_ranks(forecast), _ranks(outcome), date, overlap=overlap)


def _standardised(values: Floats) -> Floats:
    scores: Floats = (values - values.mean()) / values.std()
    return scores


def _ranks(values: Floats) -> Floats:
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = last - (counts - 1) / 2
    return ranks[at]


def persistence_lags(values: Floats) -> int:
    """Return the lags that the first autocorrelation of a series asks of Bartlett weights (Andrews 1991, AR(1))."""
    centred = values - values.mean()
    power = float(centred @ centred)
    if not power > 0:
        return 0
    # Beyond 0.97 the rule asks for more lags than any sample has.
    rho = min(max(float(centred[1:] @ centred[:-1]) / power, 0.0), 0.97)
    alpha = 4 * rho**2 / ((1 - rho) ** 2 * (1 + rho) ** 2)
    return int(np.ceil(1.1447 * (alpha * len(values)) ** (1 / 3)))


def t_statistic(values: Floats, *, lags: int) -> float:
    """Return the mean over its Newey-West standard error with `lags` lags (Bartlett weights)."""
    centred = values - values.mean()
    n = len(values)
    variance = centred @ centred / n
    for lag in range(1, min(lags, n - 1) + 1):
        variance += 2 * (1 - lag / (lags + 1)) * (centred[lag:] @ centred[:-lag]) / n
    return float(values.mean() / np.sqrt(variance / n)) if variance > 0 else float("nan")


def hit_rate(forecast: Floats, outcome: Floats, reference: Floats | float = 0.0) -> float:
    """Return the share of rows whose forecast lies on the outcome's side of the reference; ties are left out."""
    side, truth = np.sign(forecast - reference), np.sign(outcome - reference)
    decided = (side != 0) & (truth != 0)
    return float((side == truth)[decided].mean()) if decided.any() else float("nan")


def within_ten_percent(forecast: Floats, outcome: Floats) -> float:
    """Return the share of forecasts within 10 % of the outcome, as the original system measured its accuracy.

    Kept for parity: it says nothing where outcomes are near zero, as returns are.
    """
    return float((np.abs(forecast - outcome) <= 0.1 * np.abs(outcome)).mean()) if len(outcome) else float("nan")


@dataclass(frozen=True)
class Sharpe:
    """An annualised Sharpe ratio and its 95 % interval."""

    value: float
    low: float
    high: float


def sharpe(returns: Floats, *, periods_per_year: float) -> Sharpe:
    """Return the annualised Sharpe ratio (risk-free rate 0), NaN where returns do not vary.

    The interval is `ratio ± 1.96 standard errors`, the error allowing for skewness and kurtosis.

    Source: Mertens (2002), Comments on variance of the IID estimator in Lo (2002).
    """
    n = len(returns)
    spread = returns.std(ddof=1) if n > 1 else 0.0
    # A constant series has a spread of rounding errors, not of returns.
    if n < 3 or not spread > 1e-14:
        return Sharpe(float("nan"), float("nan"), float("nan"))
    ratio = returns.mean() / spread
    z = (returns - returns.mean()) / returns.std()
    skewness, kurtosis = (z**3).mean(), (z**4).mean()
    error = np.sqrt(max(1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2, 0.0) / n)
    year = np.sqrt(periods_per_year)
    return Sharpe(*(float(year * (ratio + k * error)) for k in (0.0, -1.96, 1.96)))


def drawdown(equity: Floats) -> Floats:
    """Return the fraction below the highest equity so far, `(n_periods,)`, 0 or negative."""
    below: Floats = equity / np.maximum.accumulate(equity) - 1
    return below


def returns_of(equity: Floats, *, initial: float) -> Floats:
    """Return the fraction each period gains, the first against the initial equity."""
    if not (equity > 0).all() or initial <= 0:
        raise DataError(f"equity of {equity.min()} has no returns; expected positive equity")
    returns: Floats = np.diff(equity, prepend=initial) / np.concatenate([[initial], equity[:-1]])
    return returns


def r_squared(forecast: Floats, outcome: Floats, reference: Floats) -> float:
    """Return 1 - squared error of the forecast over that of the reference forecast."""
    return float(1 - ((outcome - forecast) ** 2).sum() / ((outcome - reference) ** 2).sum())


def qlike(variance_forecast: Floats, variance: Floats) -> float:
    """Return the mean QLIKE loss `v / f - log(v / f) - 1`: 0 for a perfect forecast, robust to noise in `v`.

    Source: Patton (2011), Volatility forecast comparison using imperfect volatility proxies, equation 24.
    """
    ratio = variance / variance_forecast
    return float((ratio - np.log(ratio) - 1).mean())
