"""What is to be said of a file that was understood: rows put aside, dropped, reordered, and what stays in doubt."""

import itertools

import polars as pl

from foxflow.errors import DataError
from foxflow.sources import staging
from foxflow.sources.asking import refuse_faults
from foxflow.sources.chunks import Opened
from foxflow.sources.roles import Roles
from foxflow.sources.staging import Order, Repeats
from foxflow.sources.understanding import Understanding


def aside(
    faults: pl.DataFrame, order: Order, opened: Opened, *, seen: Understanding, roles: Roles, is_quarantined: bool
) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows put aside and what to say of them; bad rows refuse the file unless told otherwise."""
    # Words below the last row are a footer; among rows they are a fault.
    rows = faults.filter(pl.col("kind") == "bad")["number"]
    newest = max([order.last_number, *rows.tail(1)])
    kind = (
        pl.when((pl.col("kind") == "words") & (pl.col("number") > newest))
        .then(pl.lit("footer"))
        .when(pl.col("kind") == "words")
        .then(pl.lit("bad"))
        .otherwise("kind")
    )
    faults = faults.with_columns(kind=kind)
    bad = faults.filter(pl.col("kind") == "bad")
    if len(bad) and not is_quarantined:
        refuse_faults(opened, bad, seen, roles, n_rows=order.n_rows)
    if not order.n_rows:
        raise DataError(f"{opened.file} has no bar; expected at least one")
    notes = []
    for what, words in (
        ("blank", "without any price dropped"),
        ("bad", "that are no bars put aside"),
        ("footer", "below the last bar are a footer"),
        ("header", "repeat the header"),
        ("comment", "are comments"),
    ):
        of = faults.filter(pl.col("kind") == what)
        if len(of):
            shown = ", ".join(
                f"{n}" + (f" ({w})" if w else "") for n, w in of.select("number", "when").head(5).iter_rows()
            )
            more = f" and {len(of) - 5} more" if len(of) > 5 else ""
            notes.append(f"{len(of)} {opened.unit}(s) {words}: {shown}{more}")
    return faults, notes


def said(order: Order, repeats: Repeats, seen: Understanding, opened: Opened, day_tz: str | None) -> list[str]:
    """Return what was reordered and dropped, and which values are in doubt."""
    said = []
    if order.is_newest_first():
        said.append("rows ran newest first and were sorted")
    elif order.n_back:
        said.append(
            f"rows were not in order of time ({opened.unit} {order.first_back} is earlier than one before it; "
            f"{order.n_back} "
            "such) and were sorted"
        )
    if repeats.n_equal:
        said.append(
            f"{repeats.n_equal} identical duplicate(s) dropped, first {opened.unit} {repeats.first_equal[1]} "  # type: ignore[index]
            f"(as {opened.unit} {repeats.first_equal[0]})"  # type: ignore[index]
        )
    if repeats.n_resolved:
        assert repeats.first_resolved is not None
        where = staging.place_of(repeats.first_resolved, opened.unit, tz=day_tz)
        said.append(f"{repeats.n_resolved} duplicate(s) with other values dropped by --keep, first {where}")
    if seen.n_inexact_volumes:
        said.append(f"{seen.n_inexact_volumes} volume(s) of 2^53 or more are not exact to the last digit")
    cased = sorted(order.symbols, key=lambda name: (name.lower(), name))
    alike = [pair for pair in itertools.pairwise(cased) if pair[0].lower() == pair[1].lower()]
    if alike:
        said.append(f"symbols {' and '.join(alike[0])} differ only in case, and are taken for two")
    if seen.n_unknown_volumes:
        said.append(f"{seen.n_unknown_volumes} bar(s) of unknown volume")
    return said
