"""Tables of what the strategy earned: key numbers, seeds, luck, months and drawdowns."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foxflow.portfolio import Book
from foxflow.report.blocks import dated, meanings, table
from foxflow.report.text import NONE, NOT_KNOWN, TIMES, escape, interval, known, number, percent

Summary = Mapping[str, Any]
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# A month this far from 0 has the full colour.
FULL_HEAT = 0.1
UNKNOWN = "trials unknown"


def key_numbers(summary: Summary, book: Book) -> str:
    """Return the numbers of strategy, buy-and-hold and baseline side by side, each with what it means."""
    rival, baseline = book.benchmark_fills, summary.get("baseline")
    rival_cost = float((rival["fee"] + rival["slippage"]).sum())
    turnover = summary.get("turnover")
    total, fall = "total_return", "max_drawdown"
    other = baseline or {}
    rows = [
        ("Total return", *(percent(summary.get(f"{p}{total}"), sign="+") for p in ("", "benchmark_")),
         percent(other.get(total), sign="+"), "Net of costs."),
        ("Sharpe ratio [95 %]", _ratio(summary, "sharpe"), _ratio(summary, "benchmark_sharpe"),
         number(other.get("sharpe")),
         "Mean over spread of session returns, a year. An interval with 0 in it: may be luck."),
        ("Information ratio [95 %]", _ratio(summary, "information_ratio"), NONE, NONE,
         "The same of the lead over buy-and-hold, session by session."),
        *_lead(summary.get("versus_benchmark")),
        ("Maximum drawdown", *(percent(summary.get(f"{p}{fall}")) for p in ("", "benchmark_")),
         percent(other.get(fall)), "Deepest fall from an earlier high."),
        ("Turnover a year", number(turnover, 1) + (TIMES if known(turnover) is not None else ""), NONE, NONE,
         "Value traded over mean equity."),
        *_exposure(summary.get("exposure")),
        ("Fills", number(summary.get("n_fills"), 0), number(len(rival), 0), NONE, "Orders filled."),
        ("Costs", number(summary.get("cost_total"), 0), number(rival_cost, 0), NONE,
         "Of all kinds, in the prices' currency."),
        ("Costs / gross profit", percent(summary.get("cost_share")), NONE, NONE,
         "What the waterfall loses from gross to net; n/a: no gross profit."),
        ("IC", _with_t(summary, "ic"), NONE, _with_t(other, "ic") if baseline else NONE,
         "Correlation of forecast and outcome; |t| below 1.96: may be luck."),
        ("Rank IC", _with_t(summary, "rank_ic"), NONE, NONE, "The same of ranks, so that outliers do not rule it."),
        ("Hit rate", percent(summary.get("hit_rate")), NONE, NONE, _hit_meaning(summary)),
        ("10 % accuracy", percent(summary.get("within_ten_percent")), NONE, NONE,
         "Forecasts within 10 % of the outcome; says nothing where outcomes are near 0."),
    ]  # fmt: skip
    names = ["Strategy", "Buy-and-hold", *([str(other.get("model") or "Baseline")] if baseline else [])]
    head = ["Key numbers", *names, "Meaning"]
    return meanings(head, [(name, *values[: len(names)], meaning) for name, *values, meaning in rows])


def _ratio(summary: Summary, key: str) -> str:
    value = summary.get(key)
    low, high = interval(*(summary.get(f"{key}_ci95") or (None, None)))
    return NOT_KNOWN if known(value) is None else f"{number(value)} [{low}, {high}]"


def _with_t(found: Summary, name: str) -> str:
    value = found.get(name)
    return NOT_KNOWN if known(value) is None else f"{number(value, 3)} (t {number(found.get(f'{name}_t'))})"


def _lead(found: Summary | None) -> list[tuple[str, ...]]:
    if not found:
        return []

    def yearly(name: str) -> str:
        value = percent(found.get(name), sign="+")
        return value if value == NOT_KNOWN else f"{value} (t {number(found.get(f'{name}_t'))})"

    return [
        ("Lead a year", yearly("lead"), NONE, NONE, "Mean return above that of buy-and-hold."),
        ("Alpha a year", yearly("alpha"), NONE, NONE,
         "What is left of the mean return after its share of buy-and-hold's (beta)."),
        ("Beta", number(found.get("beta")), NONE, NONE, "Return for each 1 % that buy-and-hold moves, in %."),
    ]  # fmt: skip


def _exposure(found: Summary | None) -> list[tuple[str, ...]]:
    if not found:
        return []
    mean = " / ".join(percent(found.get(f"mean_{side}"), 0) for side in ("gross", "net"))
    most, invested = (percent(found.get(key), 0) for key in ("most_gross", "share_of_bars_invested"))
    meaning = f"Mean share of equity held; at most {most} gross; something was held on {invested} of bars."
    return [("Exposure, gross / net", mean, NONE, NONE, meaning)]


def _hit_meaning(summary: Summary) -> str:
    if summary.get("forecasters") is not None:
        return "Right direction from the newest volatility."
    return "Right sign; set it against the share of rising outcomes below, not 50 %."


SEED_COLUMNS = (
    ("sharpe", "Sharpe", number),
    ("total_return", "Total return", lambda v: percent(v, sign="+")),
    ("max_drawdown", "Max. drawdown", percent),
    ("ic", "IC", lambda v: number(v, 3)),
    ("ic_t", "IC t", number),
    ("n_fills", "Fills", lambda v: number(v, 0)),
    ("cost_total", "Costs", lambda v: number(v, 0)),
)  # fmt: skip


def seeds(rows: Sequence[Summary]) -> str:
    """Return the mean over seeds, their spread, and then each seed in the order they were run, none set apart.

    Mean and spread are not known where a seed's number is not.
    """
    values = {key: [known(row.get(key)) for row in rows] for key, _, _ in SEED_COLUMNS}
    # Where a seed has none, as one that never traded, the mean of the rest would flatter.
    whole = {key: [v for v in found if v is not None] if None not in found else [] for key, found in values.items()}
    mean = {key: sum(v) / len(v) if v else None for key, v in whole.items()}
    spread = {
        key: math.sqrt(sum((x - sum(v) / len(v)) ** 2 for x in v) / (len(v) - 1)) if len(v) > 1 else None
        for key, v in whole.items()
    }
    lines = [["<b>Mean</b>", *(f"<b>{show(mean[key])}</b>" for key, _, show in SEED_COLUMNS), ""]]
    lines.append(["Standard deviation", *(show(spread[key]).lstrip("+") for key, _, show in SEED_COLUMNS), ""])
    for row in rows:
        sha = escape(row.get("forecasts_sha256") or NOT_KNOWN)
        cells = [show(row.get(key)) for key, _, show in SEED_COLUMNS]
        lines.append([f"seed {escape(row['seed'])}", *cells, f'<code title="{sha}">{sha[:8]}</code>'])
    return table(["Seed", *(name for _, name, _ in SEED_COLUMNS), "Forecasts"], lines, look="compact")


def significance(found: Summary) -> str:
    """Return what may be luck, number by number, each with what it means."""
    is_known = bool(found.get("trials_known"))
    n_trials, effective = number(found.get("n_trials"), 0), number(found.get("n_effective_trials"), 1)
    bootstrap = f"resampling blocks of {number(found.get('bootstrap_block_sessions'), 0)} sessions with replacement."
    psr = (
        "How likely the true Sharpe ratio is above 0, by the length, skew and tails of the record, were this the only "
        "configuration ever tried."
    )
    deflated = "The same against the best that as many trials without skill would give."
    if found.get("trials_note"):
        deflated += f" {found['trials_note']}"
    pbo = found.get("pbo_note") or (
        f"How often the best of {number(found.get('pbo_n_trials'), 0)} trials in one half of the sessions is below the "
        "median in the other; noise gives about 50 %."
    )
    record = (
        "Needed for this Sharpe ratio to be above 0 with 95 % confidence; this run has "
        f"{number(found.get('n_sessions'), 0)}."
    )
    rows = [
        ("Probabilistic Sharpe ratio", percent(found.get("psr")), psr),
        ("Deflated Sharpe ratio", percent(found.get("deflated_sharpe")) if is_known else UNKNOWN, deflated),
        ("Trials / effective", f"{n_trials} / {effective}" if is_known else UNKNOWN,
         "Configurations ever scored on these bars; correlated ones count as fewer."),
        ("Best Sharpe ratio expected of luck", number(found.get("expected_max_sharpe")),
         "A year, of the best of that many trials without skill."),
        ("Probability of overfitting (PBO)", percent(found.get("pbo"), 0), str(pbo)),
        ("Sharpe ratio, bootstrap [95 %]", _pair(found.get("sharpe_bootstrap_ci95"), number), f"By {bootstrap}"),
        ("Maximum drawdown, bootstrap [95 %]", _pair(found.get("max_drawdown_bootstrap_ci95"), percent),
         f"How deep it might have been, by {bootstrap}"),
        ("Minimum track record", _sessions(found.get("minimum_track_record_sessions")), record),
    ]  # fmt: skip
    return meanings(["Is it luck?", "Found", "Meaning"], rows)


def _pair(bounds: Sequence[object] | None, show: Callable[[object], str]) -> str:
    low, high = bounds or (None, None)
    return NOT_KNOWN if known(low) is None or known(high) is None else f"{show(low)} to {show(high)}"


def _sessions(value: object) -> str:
    return NOT_KNOWN if known(value) is None else f"{number(value, 0)} sessions"


def monthly(rows: Sequence[Summary]) -> str:
    """Return the return of each month, a row a year, with what the months make of the year."""
    found = {(int(r["year"]), int(r["month"])): known(r["return"]) for r in rows}
    years = range(min(y for y, _ in found), max(y for y, _ in found) + 1)
    lines = []
    for year in years:
        months = [found.get((year, month)) for month in range(1, 13)]
        whole = math.prod(1 + m for m in months if m is not None) - 1 if any(m is not None for m in months) else None
        lines.append([str(year), *(_warm(m) for m in months), f"<b>{_month(whole)}</b>"])
    return table(["Year", *MONTHS, "Year"], lines, look="months")


def _month(value: float | None) -> str:
    return "" if value is None else number(100 * value, 1)


def _warm(value: float | None) -> str:
    if value is None:
        return ""
    heat = min(abs(value) / FULL_HEAT, 1.0)
    kind = "up" if value > 0 else "down"
    # The colour lies on the cell; the number with its sign says the same.
    return f'<span class="{kind}" style="--heat:{100 * heat:.0f}%">{_month(value)}</span>'


def drawdowns(rows: Sequence[Summary]) -> str:
    """Return the worst drawdowns, the deepest first."""
    ranked = sorted(rows, key=lambda r: known(r["depth"]) or 0.0)
    lines = [
        [
            str(at),
            percent(row["depth"]),
            dated(row["start"]),
            dated(row["trough"]),
            dated(row["end"]) if row["end"] else "not over",
            number(row["sessions"], 0),
            number(row["recovery_sessions"], 0) if row["end"] else NONE,
        ]
        for at, row in enumerate(ranked, start=1)
    ]
    head = ["Worst", "Depth", "High before", "Lowest", "Recovered", "Sessions", "To recover"]
    return table(head, lines, look="compact")


def has_months(rows: Sequence[Summary]) -> bool:
    """Return whether any month's return is known."""
    return any(known(r["return"]) is not None for r in rows)
