"""Tables of folds: what each was fitted on and earned, and the proof that it saw nothing of its test span."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from foxflow.portfolio import Book
from foxflow.report.blocks import dated, no, table
from foxflow.report.tables.forecasts import correlation
from foxflow.report.text import NOT_KNOWN, count, escape, names, number, percent

Summary = Mapping[str, Any]


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
        ic = correlation(parts.get((fold["fold"],), known_rows.clear()))
        rows.append(
            [
                str(fold["fold"]),
                dated(fold["cut"]),
                f"{dated(fold['test_start'])} to {dated(fold['test_end'])}",
                number(fold["training_rows"], 0),
                _entered(fold["forecasts"], seen),
                *([_members(fold["members"])] if has_members else []),
                number(fold["untrained_loss"], 4),
                number(fold["best_loss"], 4),
                str(fold["best_epoch"]),
                "yes" if fold["has_learned"] else no("no"),
                percent(fold["state_gap"], 2),
                number(ic, 3),
                percent(earned["equity"], sign="+"),
                percent(earned["benchmark"], sign="+"),
                number(fold["seconds"], 1),
            ]
        )
        seen |= {symbol for symbol, n in fold["forecasts"].items() if n}
    return table(head, rows)


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


PROOF = ("train_label_end", "valid_label_end", "scaler_last_ts", "first_forecast_ts")


def has_proof(summary: Summary) -> bool:
    """Return whether the folds record what each fit saw last."""
    return any(fold.get(key) for fold in summary["folds"] for key in PROOF[:2])


def is_clean(fold: Summary) -> bool | None:
    """Return whether all that touched the fit was known before the first forecast, None where that is not recorded."""
    *seen, first = (fold.get(key) for key in PROOF)
    if first is None or seen[0] is None:
        return None
    return max(datetime.fromisoformat(t) for t in seen if t) < datetime.fromisoformat(first)


def proof(summary: Summary) -> str:
    """Return one row a fold: the last that its fit saw, and the first that it was asked."""
    head = ["Fold", "Scaler fitted on", "Last training outcome", "Validation from", "Last validation outcome",
            "Embargo", "First forecast", "Gap", "Nothing seen of its test"]  # fmt: skip
    rows = []
    for fold in summary["folds"]:
        clean = is_clean(fold)
        embargo = fold.get("embargo_bars")
        rows.append(
            [
                str(fold["fold"]),
                f"{dated(fold.get('scaler_first_ts'))} to {dated(fold.get('scaler_last_ts'))}",
                dated(fold.get("train_label_end")),
                dated(fold.get("valid_start")),
                dated(fold.get("valid_label_end")),
                NOT_KNOWN if embargo is None else count(int(embargo), "bar"),
                dated(fold.get("first_forecast_ts")),
                _gap(fold),
                NOT_KNOWN if clean is None else "yes" if clean else no("no"),
            ]
        )
    return table(head, rows)


def _gap(fold: Summary) -> str:
    first, ends = fold.get("first_forecast_ts"), [fold[k] for k in PROOF[:2] if fold.get(k)]
    if not first or not ends:
        return NOT_KNOWN
    return escape(duration((datetime.fromisoformat(first) - max(map(datetime.fromisoformat, ends))).total_seconds()))


def duration(seconds: float) -> str:
    """Return a length of time in the two units that say most.

    >>> duration(86_400 * 3 + 3600 * 2.5), duration(900), duration(0), duration(-60)
    ('3 d 2 h', '15 min', '0 s', '-1 min')
    """
    sign, left = ("-" if seconds < 0 else ""), abs(round(seconds))
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        n, left = divmod(left, length)
        if n or (unit == "s" and not parts):
            parts.append(f"{n:,} {unit}")
        elif parts:
            break
    return sign + " ".join(parts[:2])
