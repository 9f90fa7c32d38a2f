"""Tables of trading: what it cost, how the result bears other assumptions, and what became of symbols that ended."""

from collections.abc import Mapping, Sequence
from typing import Any

from foxflow.report.blocks import dated, table
from foxflow.report.text import NONE, escape, known, number, percent

Summary = Mapping[str, Any]


def waterfall(rows: Sequence[Summary]) -> str:
    """Return gross profit, each cost and net profit, in money and as a share of the gross profit.

    What rounding each amount to the cent leaves over has a row of its own: the column adds up.
    """
    amounts = [known(row["amount"]) for row in rows]
    gross = amounts[0]
    lines = [
        [_bold(str(row["name"]), at in {0, len(rows) - 1}), number(amount, 2), _share(amount, gross)]
        for at, (row, amount) in enumerate(zip(rows, amounts, strict=True))
    ]
    cents = [round(100 * a) for a in amounts if a is not None]
    if len(cents) == len(rows) > 1 and (left := cents[-1] - sum(cents[:-1])):
        lines.insert(-1, ["rounding", number(left / 100, 2), ""])
    return table(["Profit and costs", "Money", "Of gross"], lines, look="compact")


def _bold(name: str, is_total: bool) -> str:  # noqa: FBT001
    shown = escape(name.replace("_", " "))
    return f"<b>{shown}</b>" if is_total else shown


def _share(amount: float | None, gross: float | None) -> str:
    return percent(amount / gross, 1) if amount is not None and gross is not None and gross > 0 else NONE


def by_cost(rows: Sequence[Summary]) -> str:
    """Return the result at other costs a trade."""
    lines = [[number(r["bps"], 0), number(r["sharpe"]), percent(r["total_return"], sign="+")] for r in rows]
    if not any(r.get("name") for r in rows):
        return table(["Cost, bps", "Sharpe", "Total return"], lines)
    named = [[escape(_name(r)), *line] for r, line in zip(rows, lines, strict=True)]
    return table(["Cost", "bps", "Sharpe", "Total return"], named)


def _name(row: Summary) -> str:
    return str(row.get("name") or "").removesuffix("_bps").replace("_", " ")


def by_delay(rows: Sequence[Summary]) -> str:
    """Return the result when orders come later."""
    lines = [[number(r["bars"], 0), number(r["sharpe"]), percent(r["total_return"], sign="+")] for r in rows]
    return table(["Delay, bars", "Sharpe", "Total return"], lines)


def by_capital(rows: Sequence[Summary]) -> str:
    """Return the result with more or less money."""
    head = ["Capital", "Sharpe", "Total return", "Impact / costs", "Of volume"]
    lines = [
        [
            number(r["initial_cash"], 0),
            number(r["sharpe"]),
            percent(r["total_return"], sign="+"),
            percent(r.get("impact_cost_share"), 0),
            percent(r.get("most_participation"), 1),
        ]
        for r in rows
    ]
    return table(head, lines)


def endings(rows: Sequence[Summary]) -> str:
    """Return one row for each symbol whose bars or membership ended with something to pay."""
    head = ["Symbol", "Ending", "Last bar", "Last close", "Delisting return", "Closed at bar", "Price", "Shares"]
    cells = [
        [
            escape(row["symbol"]),
            escape(row["kind"]),
            dated(row["last_ts"]),
            number(row["close"], 4),
            percent(row["delisting_return"], sign="+"),
            dated(row["ts"]) if row["ts"] else NONE,
            number(row["price"], 4) if row["ts"] else NONE,
            number(row["shares"], 2) if row["shares"] is not None else NONE,
        ]
        for row in rows
    ]
    return table(head, cells, look="compact")
