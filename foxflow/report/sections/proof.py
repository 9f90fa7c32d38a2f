"""That nothing was seen before its time: one forecast from data to outcome, and every fold's fit."""

from datetime import datetime
from itertools import groupby
from typing import Any

import polars as pl

from foxflow.portfolio import Book
from foxflow.report import figures, tables
from foxflow.report.blocks import Part, folded, joined, no, plot, said, section, table
from foxflow.report.conclusion import Summary
from foxflow.report.tables.folds import duration
from foxflow.report.text import count, escape, known, number

# The keys of `audit.timeline`, in the order in which equal times are named, and whether the decision knew of it.
STEPS = (
    ("first_bar_ts", "first bar read", True),
    ("train_label_end", "newest outcome trained on", True),
    ("cut", "model's cut", True),
    ("data_cut", "newest bar seen", True),
    ("decision_ts", "decision", True),
    ("order_ts", "order sent", False),
    ("fill_ts", "fill", False),
    ("exit_ts", "exit", False),
    ("label_end", "outcome known", False),
)


def one_forecast(summary: Summary) -> Part:
    """Return the times of one forecast as a strip, what the audit tried, and the proof of every fold."""
    audit = summary.get("audit") or {}
    strip = Part(_strip(audit["timeline"])) if audit.get("timeline") else Part()
    parts = [strip, _checks(audit), _proof(summary)]
    title = "Nothing seen before its time"
    if not any(p.html for p in parts):
        return section("proof", title, said("This run was not audited, and its folds record no proof."))
    return section("proof", title, *parts)


def _strip(timeline: Summary) -> str:
    found = [(str(timeline[key]), name, is_known) for key, name, is_known in STEPS if timeline.get(key)]
    found.sort(key=lambda step: datetime.fromisoformat(step[0]))
    steps = [(ts, list(group)) for ts, group in groupby(found, key=lambda step: step[0])]
    items = []
    for at, (ts, group) in enumerate(steps):
        told = [escape(_told(name, timeline)) for _, name, _ in group]
        is_known = any(is_known for _, _, is_known in group)
        is_decision = any(name == "decision" for _, name, _ in group)
        is_late = is_known and bool(timeline.get("decision_ts")) and _seconds(str(timeline["decision_ts"]), ts) > 0
        later = duration(_seconds(steps[at - 1][0], ts)) + " later" if at else ""
        kind = "late" if is_late else "decision" if is_decision else "known" if is_known else "unknown"
        clock = f"{escape(ts[:10])} <span>{escape(ts[11:16])}</span>"
        items.append(
            f'<li class="{kind}"><time datetime="{escape(ts)}">{clock}</time><b>{"<br>".join(told)}</b>'
            f"<small>{escape(later)}</small></li>"
        )
    fold = timeline.get("fold")
    of = f" in fold {escape(fold)}" if fold is not None else ""
    caption = (
        f"One forecast of {escape(timeline.get('symbol') or 'a symbol')}{of}, in UTC and not to scale. Full dots were "
        "known when it decided; what is hollow came after."
    )
    return f'<p>{caption}</p><ol class="strip">{"".join(items)}</ol>'


def _told(name: str, timeline: Summary) -> str:
    price = known(timeline.get("fill_price"))
    return f"{name} at {number(price, 4)}" if name == "fill" and price is not None else name


def _seconds(first: str, then: str) -> float:
    return (datetime.fromisoformat(then) - datetime.fromisoformat(first)).total_seconds()


def _checks(audit: Summary) -> Part:
    checks: list[dict[str, Any]] = audit.get("checks") or []
    if not checks:
        return Part()
    rows = [
        [escape(c["attack"]), escape(c["target"]), number(c.get("n"), 0), escape(c.get("note") or "")] for c in checks
    ]
    took = known(audit.get("seconds"))
    in_time = f" in {number(took, 1)} s" if took is not None else ""
    outcome = "and found no leak" if audit.get("passed") else no("and did not pass")
    told = f"<p>Before anything was scored the audit tried {count(len(checks), 'attack')}{in_time} {outcome}.</p>"
    return joined(told, folded("What was attacked", table(["Attack", "Target", "Times", "Note"], rows, look="words")))


def _proof(summary: Summary) -> Part:
    if not tables.has_proof(summary):
        return Part()
    clean = [tables.is_clean(fold) for fold in summary["folds"]]
    seen = sum(c is False for c in clean)
    if seen:
        told = no(f"In {count(seen, 'fold')} the fit saw what came after its first forecast.")
    elif all(clean):
        told = (
            f"In {'the one fold' if len(clean) == 1 else f'each of {len(clean):,} folds'} all that touched the fit, "
            "scaler and outcomes included, was known before the first forecast."
        )
    else:
        told = f"Of {count(len(clean), 'fold')} {sum(c is True for c in clean):,} record what proves it."
    return joined(f"<p>{told}</p>", folded("Proof of every fold", tables.proof(summary)))


def folds(summary: Summary, book: Book, known_rows: pl.DataFrame) -> Part:
    """Return which bars each fold was fitted on and judged on, and how it went."""
    found = summary["folds"]
    drawn = figures.drawn_folds(found)
    some = f" {len(drawn)} of {len(found):,} folds, evenly spaced." if len(drawn) < len(found) else ""
    caption = f"The bars of each fold: fitted on, checked on, left out and forecast.{some}"
    note = (
        "A fold is fitted on what was known at its cut and forecasts the test span after it. It learned where the best "
        "validation loss lies below the untrained one. Positions carry over from fold to fold."
    )
    size = "low" if len(drawn) < 4 else "tall" if len(drawn) > 14 else ""
    spans = plot("folds", figures.spans(found), caption, look=size)
    return section("folds", "Folds", spans, tables.folds(summary, book, known_rows), note=note)
