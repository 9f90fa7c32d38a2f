"""Tables of the report, as HTML; every name in them is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from foxflow import metrics
from foxflow.portfolio import Book
from foxflow.report.text import NONE, NOT_KNOWN, TIMES, count, day, escape, interval, known, names, number, percent

Summary = Mapping[str, Any]


def key_numbers(summary: Summary, book: Book) -> str:
    """Return the numbers of strategy and buy-and-hold side by side, each with what it means."""

    def ratio(key: str) -> str:
        value = summary.get(key)
        low, high = interval(*(summary.get(f"{key}_ci95") or (None, None)))
        return NOT_KNOWN if known(value) is None else f"{number(value)} [{low}, {high}]"

    def with_t(name: str) -> str:
        value = summary.get(name)
        return NOT_KNOWN if known(value) is None else f"{number(value, 3)} (t {number(summary.get(f'{name}_t'))})"

    rival = book.benchmark_fills
    rival_cost = float((rival["fee"] + rival["slippage"]).sum())
    turnover = summary.get("turnover")
    total, fall = "total_return", "max_drawdown"
    rows = [
        ("Total return", *(percent(summary.get(f"{p}{total}"), sign="+") for p in ("", "benchmark_")),
         "Net of fees and slippage."),
        ("Sharpe ratio [95 %]", ratio("sharpe"), ratio("benchmark_sharpe"),
         "Mean over spread of session returns, a year. An interval with 0 in it: may be luck."),
        ("Information ratio [95 %]", ratio("information_ratio"), NONE,
         "The same of the lead over buy-and-hold, session by session."),
        ("Maximum drawdown", *(percent(summary.get(f"{p}{fall}")) for p in ("", "benchmark_")),
         "Deepest fall from an earlier high."),
        ("Turnover a year", number(turnover, 1) + (TIMES if known(turnover) is not None else ""), NONE,
         "Value traded over mean equity."),
        ("Fills", number(summary.get("n_fills"), 0), number(len(rival), 0), "Orders filled."),
        ("Costs", number(summary.get("cost_total"), 0), number(rival_cost, 0),
         "Fees and slippage, in the prices' currency."),
        ("Costs / gross profit", percent(summary.get("cost_share")), NONE,
         "What costs took of the profit; n/a: there was none."),
        ("IC", with_t("ic"), NONE,
         "Correlation of forecast and outcome; |t| below 1.96: may be luck."),
        ("Rank IC", with_t("rank_ic"), NONE, "The same of ranks, so that outliers do not rule it."),
        ("Hit rate", percent(summary.get("hit_rate")), NONE, _hit_meaning(summary)),
        ("10 % accuracy", percent(summary.get("within_ten_percent")), NONE,
         "Forecasts within 10 % of the outcome; says nothing where outcomes are near 0."),
    ]  # fmt: skip
    head = "<tr><th>Key numbers</th><th>Strategy</th><th>Buy-and-hold</th><th>Meaning</th></tr>"
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(ours)}</td><td>{escape(theirs)}</td>'
        f'<td class="meaning">{escape(meaning)}</td></tr>'
        for name, ours, theirs, meaning in rows
    )
    return f'<table class="key"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _hit_meaning(summary: Summary) -> str:
    if summary.get("forecasters") is not None:
        return "Right direction from the newest volatility."
    return "Right sign; set it against the share of rising outcomes below, not 50 %."


def forecasters(summary: Summary) -> str:
    """Return how volatility forecasters rank, the best R² first and the model of this run in bold."""
    ranked = sorted(summary["forecasters"], key=lambda r: _descending(r["r_squared"]))
    rows = [
        [
            f"<b>{escape(r['forecaster'])}</b>" if r["forecaster"] == summary["model"] else escape(r["forecaster"]),
            number(r["r_squared"], 3),
            number(r["qlike"], 3),
            number(r["n_forecasts"], 0),
        ]
        for r in ranked
    ]
    return _table(["Forecaster", "R² of log volatility", "QLIKE", "Forecasts"], rows, look="compact")


def ages(summary: Summary) -> str:
    """Return one row an age band of a forecast's state: how many forecasts, and how they met outcomes."""
    rows = [
        [
            escape(band["age"]),
            number(band["n_forecasts"], 0),
            number(band["ic"], 3),
            number(band["ic_t"]),
            number(band["r_squared"], 4),
        ]
        for band in summary["ages"]
    ]
    return _table(["Age in bars", "Forecasts", "IC", "t", "R²"], rows, look="compact")


def _descending(value: object) -> tuple[bool, float]:
    found = known(value)
    return found is None, -(found or 0.0)


def folds(summary: Summary, book: Book, known_rows: pl.DataFrame) -> str:
    """Return one row a fold: what it was fitted on, whether it learned, what its forecasts were worth."""
    head = ["Fold", "Cut", "Test span", "Training rows", "Symbols with forecasts", "Untrained loss", "Best loss",
            "Best epoch", "Learned", "State gap", "IC", "Return", "Buy-and-hold", "Seconds"]  # fmt: skip
    has_members = any(fold.get("members") is not None for fold in summary["folds"])
    head[5:5] = ["Members"] if has_members else []
    parts = known_rows.partition_by("fold", as_dict=True)
    rows, seen = [], set[str]()
    for fold in summary["folds"]:
        earned = fold_returns(book.equity, fold)
        ic = _correlation(parts.get((fold["fold"],), known_rows.clear()))
        rows.append(
            [
                str(fold["fold"]),
                _dated(fold["cut"]),
                f"{_dated(fold['test_start'])} to {_dated(fold['test_end'])}",
                number(fold["training_rows"], 0),
                _entered(fold["forecasts"], seen),
                *([_members(fold["members"])] if has_members else []),
                number(fold["untrained_loss"], 4),
                number(fold["best_loss"], 4),
                str(fold["best_epoch"]),
                "yes" if fold["has_learned"] else '<b class="no">no</b>',
                percent(fold["state_gap"], 2),
                number(ic, 3),
                percent(earned["equity"], sign="+"),
                percent(earned["benchmark"], sign="+"),
                number(fold["seconds"], 1),
            ]
        )
        seen |= {symbol for symbol, n in fold["forecasts"].items() if n}
    return _table(head, rows)


def fold_returns(equity: pl.DataFrame, fold: Summary) -> dict[str, float | None]:
    """Return what `equity` and `benchmark` gained from the last bar before the fold's test span to its end.

    The first fold starts from its first bar, at which nothing is filled yet.
    """
    start, end = (datetime.fromisoformat(fold[name]) for name in ("test_start", "test_end"))
    before = max(int((equity["ts"] < start).sum()) - 1, 0)
    last = int((equity["ts"] <= end).sum()) - 1
    if last < before:
        return {"equity": None, "benchmark": None}
    return {name: float(equity[name][last] / equity[name][before] - 1) for name in ("equity", "benchmark")}


def _members(members: Sequence[str]) -> str:
    listed = escape(names(members, limit=8))
    return f'{len(members)}<small title="{escape(", ".join(members))}">: {listed}</small>'


def _entered(counts: Mapping[str, int], seen: set[str]) -> str:
    out = sorted(symbol for symbol, n in counts.items() if not n)
    said = f"{len(counts) - len(out)} of {len(counts)}"
    groups = {"not yet in": [s for s in out if s not in seen], "none now": [s for s in out if s in seen]}
    for label, group in groups.items():
        if group:
            said += f'<small title="{escape(", ".join(group))}">, {label}: {escape(names(group, limit=4))}</small>'
    return said


def endings(rows: Sequence[Summary]) -> str:
    """Return one row for each symbol whose bars or membership ended with something to pay."""
    head = ["Symbol", "Ending", "Last bar", "Last close", "Delisting return", "Closed at bar", "Price", "Shares"]
    cells = [
        [
            escape(row["symbol"]),
            escape(row["kind"]),
            _dated(row["last_ts"]),
            number(row["close"], 4),
            percent(row["delisting_return"], sign="+"),
            _dated(row["ts"]) if row["ts"] else NONE,
            number(row["price"], 4) if row["ts"] else NONE,
            number(row["shares"], 2) if row["shares"] is not None else NONE,
        ]
        for row in rows
    ]
    return _table(head, cells, look="compact")


def symbols(summary: Summary, known_rows: pl.DataFrame) -> str:
    """Return one row a symbol: how its forecasts met its outcomes."""
    is_volatility = summary.get("forecasters") is not None
    parts = known_rows.partition_by("symbol", as_dict=True)
    rows = []
    for symbol in summary["symbols"]:
        part = parts.get((symbol,), known_rows.clear())
        forecast, outcome = part["forecast"].to_numpy(), part["label"].to_numpy()
        means = [_mean(v, is_volatility=is_volatility) for v in (forecast, outcome)]
        # A log volatility has no sign to hit; the newest volatility it is judged against is not in these rows.
        hit = [] if is_volatility else [percent(metrics.hit_rate(forecast, outcome)), percent(_rising(outcome))]
        rows.append([escape(symbol), number(len(part), 0), number(_correlation(part), 3), *hit, *means])
    hits = [] if is_volatility else ["Hit rate", "Rising outcomes"]
    return _table(["Symbol", "Known outcomes", "IC", *hits, "Mean forecast", "Mean outcome"], rows, look="compact")


def _mean(values: metrics.Floats, *, is_volatility: bool) -> str:
    mean = float(values.mean()) if len(values) else None
    return number(mean, 3) if is_volatility else percent(mean, 2, sign="+")


def _rising(outcome: metrics.Floats) -> float | None:
    moved = outcome[outcome != 0]
    return float((moved > 0).mean()) if len(moved) else None


def _correlation(rows: pl.DataFrame) -> float:
    forecast, outcome = rows["forecast"].to_numpy(), rows["label"].to_numpy()
    # The overlap moves only the t-statistic, which is not shown per part.
    return metrics.information_coefficient(forecast, outcome, rows["ts"].dt.timestamp("us").to_numpy(), overlap=1).value


def provenance(summary: Summary) -> str:
    """Return where the numbers come from and by which conventions."""
    spread = summary.get("forecast_std")
    facts = {
        "Run": summary["run_id"],
        "Release": summary.get("release") or NOT_KNOWN,
        "Forecasts sha256": summary.get("forecasts_sha256") or NOT_KNOWN,
        "Forecasts": f"{number(summary.get('n_forecasts'), 0)}, standard deviation {number(spread, 5)}",
        "Sessions a year": number(summary.get("sessions_per_year"), 0),
        "Time taken": f"{number(summary.get('seconds'), 1)} s",
        "Fills": "At the next open plus slippage; shares are counted from what was known at ts, before that open.",
        "Prices": _adjusted(summary.get("adjustments")),
        "Corrections": _corrected(summary),
        **_rolled(summary.get("rolls") or []),
        **_left_out(summary.get("bars_outside_sessions") or 0),
        "Findings accepted": _accepted(summary.get("accepted_findings")),
        "Buy-and-hold": "The same symbols in equal weights, set anew when one enters or leaves, at the same costs.",
        "Sharpe ratio": "Of session returns over a risk-free rate of 0; interval by Mertens (2002).",
        "IC": "Pooled over symbols and dates; t-statistic by Newey and West (1987), lags for overlapping outcomes.",
    }
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items()) + "</dl>"


def _accepted(found: Sequence[str] | None) -> str:
    if not found:
        return "No severe finding in the bars as they came." if found is not None else NOT_KNOWN
    return f"{count(len(found), 'severe finding')}, accepted by name: {names(found, limit=6)}."


def _adjusted(found: Mapping[str, Mapping[str, int]] | None) -> str:
    """Return which splits and dividends were applied: prices of a symbol without any are those of the file."""
    if found is None:
        return NOT_KNOWN
    groups = {s: [count(n, kind) for kind, n in sorted(c.items(), reverse=True) if n] for s, c in found.items()}
    adjusted = [f"{s} ({' and '.join(counts)})" for s, counts in groups.items() if counts]
    if not adjusted:
        return "No recorded splits or dividends: as stored, so a split would count as a loss or a gain."
    without = [s for s, counts in groups.items() if not counts]
    none = f" Without any on record: {names(without, limit=12)}." if without else ""
    return (
        f"Adjusted forward for splits and dividends, {names(adjusted, limit=12)}: a later event changes no earlier "
        f"value.{none}"
    )


def _corrected(summary: Summary) -> str:
    n, late = summary.get("corrections"), summary.get("corrections_after_last_cut")
    if n is None:
        return NOT_KNOWN
    if not n:
        return "No bar was ever corrected."
    after = f" Known only after the last cut, so in no fit: {late:,}." if late else ""
    return (
        f"{count(n, 'correction')}: a fold sees those known at its cut; fills and outcomes are of first values.{after}"
    )


def _rolled(rolls: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how the continuous series of futures went from contract to contract, nothing where there are none."""
    if not rolls:
        return {}
    said = [f"{r['symbol']} from {r['old']} to {r['new']} on {day(r['ts'])}" for r in rolls]
    return {
        "Rolls": f"{count(len(rolls), 'roll')}, {names(said, limit=12)}: decided by what was known at the close "
        "before, adjusted forward so that no gap is a return; what is held through one is sold and bought again at "
        "cost."
    }


def _left_out(n: int) -> dict[str, str]:
    return {"Bars left out": f"{count(n, 'bar')} outside every session of the calendar."} if n else {}


def _dated(instant: str) -> str:
    return f'<time datetime="{escape(instant)}" title="{escape(instant)}">{escape(day(instant))}</time>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, look: str = "") -> str:
    """Return a table that scrolls inside its own box; cells are HTML."""
    top = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll {look}" tabindex="0">{table}</div>'
