"""Which bars each fold was fitted on, checked on and judged on."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from foxflow.report.figures.shared import LEGEND, LOSS, NEUTRAL, STRATEGY, Figure, Folds, instant
from foxflow.report.text import escape

# Rows that keep apart on a narrow screen.
MOST_ROWS = 32
# A test span earns the strategy's result and has its colour; training is a paler one.
TRAINING = "rgba(47,134,201,0.36)"

# Name, colour, and the keys of the fold where the span begins and ends.
SPANS = (
    ("training", TRAINING, "scaler_first_ts", "train_label_end"),
    ("validation", NEUTRAL, "valid_start", "valid_label_end"),
    ("embargo", LOSS, "valid_label_end", "test_start"),
    ("test, out of sample", STRATEGY, "test_start", "test_end"),
)


def drawn_folds(folds: Folds) -> list[Mapping[str, Any]]:
    """Return evenly spaced folds, the first and the last among them, no more than keep apart on a narrow screen."""
    n = len(folds)
    if n <= MOST_ROWS:
        return list(folds)
    return [folds[round(i * (n - 1) / (MOST_ROWS - 1))] for i in range(MOST_ROWS)]


def spans(folds: Folds) -> Figure | None:
    """Return a row a fold with its training, validation, embargo and test spans over time, the first fold at the top.

    None where no fold records a span. Spans of the summary before they were recorded: the test alone.
    """
    rows = drawn_folds(folds)
    names = [f"fold {escape(f['fold'])}" for f in rows]
    traces = []
    for name, color, first, last in SPANS:
        found = [(at, _known(f.get(first)), _known(f.get(last))) for at, f in enumerate(rows)]
        drawn = [(at, start, end) for at, start, end in found if start and end and end > start]
        if drawn:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "y": [names[at] for at, _, _ in drawn],
                    "base": [instant(start.isoformat()) for _, start, _ in drawn],
                    "x": [(end - start).total_seconds() * 1000 for _, start, end in drawn],
                    "marker": {"color": color, "line": {"width": 0}},
                    "customdata": [[instant(a.isoformat()), instant(b.isoformat())] for _, a, b in drawn],
                    "hovertemplate": "%{y}: " + name + "<br>%{customdata[0]} to %{customdata[1]}<extra></extra>",
                }
            )
    if not traces:
        return None
    # About six names, for a row may be as low as the letters.
    every = -(-len(names) // 12)
    layout = {
        "barmode": "overlay",
        "bargap": 0.22,
        "hovermode": "closest",
        "legend": {**LEGEND, "traceorder": "normal"},
        "xaxis": {"type": "date", "title": {"text": "date (UTC)"}},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "categoryorder": "array",
            "categoryarray": names,
            "tickvals": names[::every],
            "title": {"text": "fold"},
            "ticktext": [name.removeprefix("fold ") for name in names[::every]],
            "showgrid": False,
        },
    }
    return {"data": traces, "layout": layout}


def _known(iso: object) -> datetime | None:
    return datetime.fromisoformat(str(iso)).astimezone(UTC) if iso else None
