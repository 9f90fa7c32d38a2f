"""One table of all times, and the same as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from gpu.timing import Row

_HEAD = ("shape", "type", "scan", "forward ms", "x floor", "backward ms", "x floor", "both/ours", "error", "note")
_WIDTHS = (28, 9, 11, 11, 8, 12, 8, 10, 9, 0)
_LEFT = 3


def head() -> str:
    """Return the line above the rows: `x floor` is the time over that of the bytes, `both/ours` over the kernels'."""
    return _line(_HEAD)


def line(row: Row, earlier: Sequence[Row]) -> str:
    """Return a row as text; the kernels' own, if they have one for its shape and type, is `row` or among `earlier`."""
    case = (row.shape, row.dtype, "cuda")
    ours = next((_both(r) for r in (row, *earlier) if (r.shape, r.dtype, r.scan) == case), None)
    return _line(
        (
            row.shape,
            row.dtype,
            row.scan,
            _number(row.forward_ms, ".3f"),
            _ratio(row.forward_ms, row.forward_floor_ms),
            _number(row.backward_ms, ".3f"),
            _ratio(row.backward_ms, row.backward_floor_ms),
            _ratio(_both(row), ours),
            _number(row.error, ".1e"),
            row.note,
        )
    )


def _both(row: Row) -> float | None:
    return None if row.forward_ms is None or row.backward_ms is None else row.forward_ms + row.backward_ms


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ratio(value: float | None, unit: float | None) -> str:
    return "-" if value is None or not unit else f"{value / unit:.2f}"


def _line(cells: Sequence[str]) -> str:
    padded = [c.ljust(w) if i < _LEFT else c.rjust(w) for i, (c, w) in enumerate(zip(cells, _WIDTHS, strict=True))]
    return "  ".join(padded).rstrip()


def to_json(facts: Mapping[str, object], rows: Sequence[Row]) -> str:
    """Return the facts of the run and its rows."""
    return json.dumps({**facts, "rows": [asdict(r) for r in rows]}, indent=1)
