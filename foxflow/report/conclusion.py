"""What the result shows, in words: pure functions of a run's summary.

Nothing here says more than the numbers do: a good result is still one walk-forward of many that may have been tried.
What a summary lacks, as one written before it was computed does, is left out, and is never taken to be in its favour.
"""

from collections.abc import Mapping
from typing import Any, Literal

from foxflow.report.text import count, day, interval, known, names, number, percent, ranges

Summary = Mapping[str, Any]
Standing = Literal["unknown", "loss", "luck", "market", "unexplained", "good", "skill"]

# Two-sided, 95 %.
T_LIMIT = 1.96
# The probability from which a Sharpe ratio is taken to be above 0.
CONFIDENCE = 0.95
# Up to this beta a strategy owes the market nothing, so alpha says more of it than a lead on buy-and-hold.
NEUTRAL_BETA = 0.1

CONCLUSIONS: Mapping[Standing, str] = {
    "unknown": "Nothing can be concluded from this result.",
    "loss": "It lost money, and by more than bad luck alone would usually explain.",
    "luck": "This result cannot be told from luck.",
    "market": "A Sharpe ratio above 0, but no clear lead on buy-and-hold: nothing here shows skill.",
    "unexplained": "It did better than buy-and-hold, but the forecasts do not explain why.",
    "good": "Hard to put down to luck alone, which is not yet proof of skill.",
    "skill": "This looks like skill: neither luck, the number of configurations tried nor the market explains it.",
}


def verdict(summary: Summary) -> list[str]:
    """Return the conclusion and then, sentence by sentence, what it rests on (plain text, not HTML)."""
    found = [
        CONCLUSIONS[standing(summary)],
        _tried(summary),
        _sample(summary),
        _survivorship(summary),
        _ended(summary),
        _sharpe(summary),
        *_luck(summary),
        _benchmark(summary),
        _alpha(summary),
        _baseline(summary),
        _costs(summary),
        _forecasts(summary),
        _rivals(summary),
        _learning(summary),
    ]
    return [sentence for sentence in found if sentence]


def standing(summary: Summary) -> Standing:
    """Return which conclusion holds; each asks more than the one before it."""
    low, high = _bounds(summary, "sharpe_ci95")
    t = known(summary.get("ic_t"))
    folds = summary.get("folds") or []
    if low is None or high is None or not summary.get("n_fills"):
        return "unknown"
    if high < 0:
        return "loss"
    if low <= 0:
        return "luck"
    explained = t is not None and t >= T_LIMIT and any(f["has_learned"] for f in folds)
    ahead, _ = _bounds(summary, "information_ratio_ci95")
    leads = all(_leads(summary).values()) and ahead is not None and ahead > 0
    if explained and _is_beyond_luck(summary) and _is_beyond_market(summary, leads=leads):
        return "skill"
    if not leads:
        return "market"
    return "good" if explained else "unexplained"


def _is_beyond_luck(summary: Summary) -> bool:
    """Return whether the Sharpe ratio outlasts both the bootstrap and the number of trials, which has to be known."""
    found = summary.get("significance") or {}
    low, _ = _bounds(found, "sharpe_bootstrap_ci95")
    deflated = known(found.get("deflated_sharpe"))
    is_deflated = found.get("trials_known") is True and deflated is not None and deflated > CONFIDENCE
    # Survivors picked with hindsight beat luck and market for a reason of their own.
    return is_deflated and low is not None and low > 0 and not summary.get("is_sample")


def _is_beyond_market(summary: Summary, *, leads: bool) -> bool:
    found = summary.get("versus_benchmark") or {}
    lead_t, alpha_t, beta = (known(found.get(name)) for name in ("lead_t", "alpha_t", "beta"))
    if leads and lead_t is not None and lead_t > T_LIMIT:
        return True
    return beta is not None and abs(beta) <= NEUTRAL_BETA and alpha_t is not None and alpha_t > T_LIMIT


def _bounds(summary: Summary, name: str) -> tuple[float | None, float | None]:
    low, high = summary.get(name) or (None, None)
    return known(low), known(high)


def _leads(summary: Summary) -> dict[str, bool]:
    """Return where the strategy is ahead of buy-and-hold; what is not known on either side is no lead."""
    pairs = {
        "total return": (known(summary.get("total_return")), known(summary.get("benchmark_total_return"))),
        "Sharpe ratio": (known(summary.get("sharpe")), known(summary.get("benchmark_sharpe"))),
    }
    return {name: ours is not None and theirs is not None and ours > theirs for name, (ours, theirs) in pairs.items()}


def _tried(summary: Summary) -> str:
    """Return which model forecast what, for whom, when, and how often."""
    if summary.get("label") is None:
        return ""
    n_seeds = summary.get("n_seeds") or 1
    seeds = f" and with {n_seeds} seeds, of which the mean is told" if n_seeds > 1 else " and with one seed"
    return (
        f"Tried: {summary['model']} forecasting {summary['label']} {count(summary['horizon'], 'bar')} ahead for "
        f"{count(len(summary['symbols']), 'symbol')} ({names(summary['symbols'], limit=5)}) from "
        f"{day(summary['first_ts'])} to {day(summary['last_ts'])}, in {count(summary['n_folds'], 'fold')}{seeds}."
    )


def _sample(summary: Summary) -> str:
    if not summary.get("is_sample"):
        return ""
    return (
        "The bars are the embedded sample, five survivors picked with hindsight: whatever they earn says nothing of "
        "skill."
    )


def _survivorship(summary: Summary) -> str:
    """Return what was left out of the universe, where that is not known to be nothing."""
    universe = summary.get("universe") or {}
    if not universe or summary.get("is_sample"):
        return ""
    if not universe["is_recorded"]:
        return "There is no universe table: survivorship is not ruled out."
    missing = universe["members_without_bars"]
    if not missing:
        return ""
    have = "member has" if len(missing) == 1 else "members have"
    return f"{len(missing):,} {have} no bars in this run ({names(missing, limit=4)}): survivorship is not ruled out."


def _ended(summary: Summary) -> str:
    """Return who was closed at its last close for want of a recorded end."""
    universe = summary.get("universe") or {"endings": []}
    closed = [e["symbol"] for e in universe["endings"] if e["kind"] == "last close"]
    if not closed:
        return ""
    return (
        f"{names(closed, limit=4)} ended without a recorded return and was closed at its last close, as [data] ended "
        "asks: what a holder really got is not in the result."
    )


def _sharpe(summary: Summary) -> str:
    low, high = _bounds(summary, "sharpe_ci95")
    if not summary.get("n_fills"):
        return "It never traded, so there is no Sharpe ratio to judge."
    if low is None or high is None:
        return "There is no Sharpe ratio: the returns do not vary, or there are fewer than three."
    ends = interval(low, high)
    said = (
        f"The Sharpe ratio is {number(summary['sharpe'])} a year{_seeds(summary)}; its 95 % interval, {ends[0]} to "
        f"{ends[1]},"
    )
    if high < 0:
        return (
            f"{said} lies below 0. Trading the opposite would be one more configuration tried, and would pay the costs "
            "again."
        )
    if low <= 0:
        return f"{said} contains 0."
    return f"{said} excludes 0 in this one walk-forward; every configuration tried before it raises the odds of luck."


def _seeds(summary: Summary) -> str:
    every = [known(row["sharpe"]) for row in summary.get("seeds") or []]
    found = [ratio for ratio in every if ratio is not None]
    if len(every) < 2 or len(found) < len(every):
        return ""
    return f" (mean of {len(found)} seeds, {number(min(found))} to {number(max(found))})"


def _luck(summary: Summary) -> list[str]:
    """Return how likely the Sharpe ratio is luck: alone, as one of many trials, and resampled."""
    found = summary.get("significance") or {}
    psr = known(found.get("psr"))
    if psr is None or not summary.get("n_fills"):
        return []
    alone = f"The probability that the true Sharpe ratio is above 0 is {_probability(psr)} taken alone"
    return [said for said in (f"{alone}{_trials(found)}", _resampled(found), _overfitting(found)) if said]


def _trials(found: Summary) -> str:
    deflated, n_trials = known(found.get("deflated_sharpe")), found.get("n_trials")
    if not found.get("trials_known") or deflated is None or not n_trials:
        why = str(found.get("trials_note") or "nothing was recorded").rstrip(".")
        return (
            " (probabilistic Sharpe ratio); how many configurations were tried is not known, so this cannot be called "
            f"skill: {why}."
        )
    if n_trials == 1:
        return ", and this is the only trial on these bars in the ledger."
    effective = known(found.get("n_effective_trials"))
    return (
        f" (probabilistic Sharpe ratio) and {_probability(deflated)} as one of {n_trials:,} trials on these bars in "
        f"the ledger (deflated Sharpe ratio): they count as {number(effective, 1)} independent ones, the best of which "
        f"luck alone would bring to {number(found.get('expected_max_sharpe'))} a year."
    )


def _probability(value: float) -> str:
    """Return it in percent, never as certain.

    >>> _probability(0.5), _probability(0.99999), _probability(0.0)
    ('50.0 %', 'over 99.9 %', 'under 0.1 %')
    """
    if value > 0.999:
        return "over 99.9 %"
    return "under 0.1 %" if value < 0.001 else percent(value)


def _resampled(found: Summary) -> str:
    low, high = _bounds(found, "sharpe_bootstrap_ci95")
    deep, shallow = _bounds(found, "max_drawdown_bootstrap_ci95")
    if low is None or high is None or deep is None or shallow is None:
        return ""
    ends = interval(low, high)
    return (
        f"Drawn anew in blocks of {number(found.get('bootstrap_block_sessions'), 1)} sessions on average, its returns "
        f"have a Sharpe ratio of {ends[0]} to {ends[1]} and a maximum drawdown of {percent(deep)} to "
        f"{percent(shallow)} in 95 % of cases."
    )


def _overfitting(found: Summary) -> str:
    pbo = known(found.get("pbo"))
    if pbo is None:
        return ""
    return (
        f"Of {found['pbo_n_trials']:,} trials, the best on one half of the sessions was no better than the median on "
        f"the other half in {percent(pbo, 0)} of cases (probability of backtest overfitting)."
    )


def _benchmark(summary: Summary) -> str:
    theirs = summary.get("benchmark_total_return")
    if known(theirs) is None or known(summary.get("total_return")) is None:
        return "There is no buy-and-hold result to compare with."
    if not summary.get("n_fills"):
        return f"Buy-and-hold of the same universe returned {percent(theirs, sign='+')} net of costs."
    leads = _leads(summary)
    ahead = [name for name, is_ahead in leads.items() if is_ahead]
    behind = [name for name, is_ahead in leads.items() if not is_ahead]
    words = "beat" if ahead else "did not beat"
    split = f" on {ahead[0]} but not on {behind[0]}" if ahead and behind else ""
    sharpes = f"{number(summary.get('sharpe'))} against {number(summary.get('benchmark_sharpe'))}"
    return (
        f"It {words} buy-and-hold of the same universe net of costs{split}: total return "
        f"{percent(summary['total_return'], sign='+')} against {percent(theirs, sign='+')}, Sharpe ratio {sharpes}"
        f"{_lead(summary) if ahead else ''}."
    )


def _lead(summary: Summary) -> str:
    """Return whether the lead itself, session by session, can be told from luck."""
    low, high = _bounds(summary, "information_ratio_ci95")
    if low is None or high is None:
        return ""
    ends = interval(low, high)
    said = f"; the information ratio of the lead is {number(summary['information_ratio'])}, {ends[0]} to {ends[1]}"
    return f"{said}, so the lead is not established" if low <= 0 else said


def _alpha(summary: Summary) -> str:
    found = summary.get("versus_benchmark") or {}
    alpha, alpha_t, beta = (known(found.get(name)) for name in ("alpha", "alpha_t", "beta"))
    if alpha is None or alpha_t is None or beta is None or not summary.get("n_fills"):
        return ""
    kept = "is more than luck alone would usually give" if alpha_t > T_LIMIT else "cannot be told from luck"
    if alpha_t < -T_LIMIT:
        kept = "is lower than luck alone would usually make it"
    return (
        f"Its beta to buy-and-hold is {number(beta)}, and the alpha beside it, {percent(alpha, sign='+')} a year "
        f"(t-statistic {number(alpha_t)}), {kept}."
    )


def _baseline(summary: Summary) -> str:
    """Return how the ridge model does on the same folds, by the Sharpe ratio."""
    rival = summary.get("baseline") or {}
    ours, theirs = known(summary.get("sharpe")), known(rival.get("sharpe"))
    if rival.get("note"):
        return f"The {rival['model']} baseline could not be traded on the same folds: {rival['note']}."
    if ours is None or theirs is None:
        return ""
    words = "ahead of" if ours > theirs else "not ahead of"
    return (
        f"It is {words} the {rival['model']} baseline on the same folds: Sharpe ratio {number(ours)} against "
        f"{number(theirs)}, total return {percent(summary.get('total_return'), sign='+')} against "
        f"{percent(rival.get('total_return'), sign='+')}."
    )


def _costs(summary: Summary) -> str:
    if not summary.get("n_fills"):
        return ""
    if summary.get("cost_total") == 0:
        return "No cost was charged: all that is said of it is before costs."
    share = known(summary.get("cost_share"))
    if share is None:
        return "Before costs there was no profit either."
    if share >= 1:
        return f"Costs ate all of the gross profit ({percent(share, 0)} of it)."
    return f"Costs ate {percent(share, 0)} of the gross profit." if share >= 0.25 else ""


def _forecasts(summary: Summary) -> str:
    ic, t = known(summary.get("ic")), known(summary.get("ic_t"))
    if ic is None or t is None:
        return "The forecasts cannot be judged: there is no information coefficient with a t-statistic."
    said = f"The information coefficient (IC) is {number(ic, 3)}, its t-statistic {number(t)}"
    if t <= -T_LIMIT:
        return f"{said}: the forecasts point the wrong way, by more than luck alone would usually explain."
    if t < T_LIMIT:
        either = " either" if standing(summary) == "luck" else ""
        return f"{said}, inside ±{T_LIMIT}: the forecasts cannot be told from luck{either}."
    return f"{said}: the forecasts carry information in this one walk-forward."


def _rivals(summary: Summary) -> str:
    """Return how a volatility forecast does against the best of the others."""
    rows = summary.get("forecasters") or []
    own = [r for r in rows if r["forecaster"] == summary["model"] and known(r["r_squared"]) is not None]
    others = [r for r in rows if r["forecaster"] != summary["model"] and known(r["r_squared"]) is not None]
    if not own or not others:
        return ""
    best = max(others, key=lambda r: float(r["r_squared"]))
    lead = "ahead of" if own[0]["r_squared"] > best["r_squared"] else "not ahead of"
    return (
        "Volatility persists, so a high IC is no feat, and it says how far prices move, not which way. The model, "
        f"{summary['model']}, is {lead} the best other forecaster, {best['forecaster']}: R² of log volatility "
        f"{number(own[0]['r_squared'], 3)} against {number(best['r_squared'], 3)}."
    )


def _learning(summary: Summary) -> str:
    folds = summary.get("folds") or []
    idle = [int(f["fold"]) for f in folds if not f["has_learned"]]
    if not folds:
        return ""
    if not idle:
        return "Every fold's model beat its untrained state on the validation tail."
    return (
        f"{len(idle)} of {count(len(folds), 'fold')} learned nothing ({ranges(idle)}): on the validation tail the "
        "fitted model was no better than the untrained one."
    )
