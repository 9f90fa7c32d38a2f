"""What was held and paid, and how the result bears other assumptions."""

from foxflow.portfolio import Book
from foxflow.report import figures, tables
from foxflow.report.blocks import Part, beside, joined, plot, said, section
from foxflow.report.conclusion import Summary
from foxflow.report.text import count, escape, known


def exposure(summary: Summary, book: Book) -> Part:
    """Return exposure and turnover over time, or that nothing was held."""
    title = "Exposure and turnover"
    drawn = figures.exposure(book.held, book.fills, book.equity)
    if drawn is None:
        return Part()
    if not summary.get("n_fills"):
        return section("exposure", title, said("Nothing was ever held."))
    caption = "Gross exposure adds long and short positions, net sets them against each other; shares of equity."
    return section("exposure", title, plot("exposure", drawn, caption, look="tall"))


def costs(summary: Summary) -> Part:
    """Return how gross profit became net profit."""
    rows = summary.get("waterfall")
    if not rows:
        return Part()
    drawn = figures.waterfall(rows)
    caption = (
        "From the profit before costs to what is left, cost by cost; bars to the left take away. Smaller positions: "
        "what was paid earlier left less to invest, for better or worse."
    )
    waited = _waited(summary.get("trading") or {})
    return section("costs", "Costs", beside(plot("waterfall", drawn, caption), tables.waterfall(rows)), waited)


def _waited(trading: Summary) -> str:
    told = []
    for key, what in (
        ("n_orders_capped", "made smaller by the limit on a bar's volume"),
        ("n_orders_waited", "had no bar when due and waited for the next"),
    ):
        n = trading.get(key)
        if n:
            told.append(f"{count(int(n), 'order')} {what}.")
    return said(*told) if told else ""


def sensitivity(summary: Summary) -> Part:
    """Return the result under other costs, delays and amounts of money."""
    found = summary.get("sensitivity")
    if not found:
        return Part()
    parts = [
        _one(found, "cost_bps", now=None),
        _one(found, "delay_bars", now=known((summary.get("trading") or {}).get("delay_bars"))),
        _one(found, "capacity", now=None),
    ]
    note = "The same forecasts with one assumption changed at a time; every other cost and rule as in this run."
    return section("sensitivity", "Sensitivity", beside(*parts), note=note)


# Of each kind: the key of the assumption, its title, the title of its axis, and its table.
KINDS = {
    "cost_bps": ("bps", "Costs", "cost of a trade (bps)", tables.by_cost),
    "delay_bars": ("bars", "Delay", "delay of an order (bars)", tables.by_delay),
    "capacity": ("initial_cash", "Capacity", "capital (money, log scale)", tables.by_capital),
}


def _one(found: Summary, kind: str, *, now: float | None) -> Part:
    key, title, axis, show = KINDS[kind]
    rows = found.get(kind)
    head = f"<h3>{escape(title)}</h3>"
    if not rows:
        why = found.get(f"{kind}_note")
        return joined(said(str(why)), inside=(head, "")) if why else Part()
    drawn = plot(f"sensitivity-{kind.replace('_', '-')}", figures.sensitivity(rows, key, axis, now=now), look="low")
    return joined(drawn, show(rows), inside=(head, ""))
