"""What was earned, and whether it may be luck."""

from foxflow.portfolio import Book
from foxflow.report import figures, tables
from foxflow.report.blocks import Part, plot, said, section
from foxflow.report.conclusion import Summary
from foxflow.report.text import count


def performance(summary: Summary, book: Book) -> Part:
    """Return equity and drawdown against buy-and-hold and the baseline, and the key numbers."""
    baseline = str((summary.get("baseline") or {}).get("model") or "baseline")
    drawn = figures.equity(book.equity, summary["folds"], baseline=baseline)
    caption = "Equity and drawdown at each bar's close, net of costs; a line where each fold begins."
    if len(summary["folds"]) > figures.MOST_LINES:
        caption = "Equity and drawdown at each bar's close, net of costs."
    if any(t["name"] == "other seeds" for t in drawn["data"]):
        caption += " The strategy's line is the first seed's, pale lines are the others."
    return section(
        "performance", "Performance", plot("equity", drawn, caption, look="tall"), tables.key_numbers(summary, book)
    )


def seeds(summary: Summary) -> Part:
    """Return the result of each seed beside their mean, which is what all other numbers are of."""
    rows = summary.get("seeds")
    if not rows:
        return Part()
    if len(rows) == 1:
        only = "One seed was run: how much of the result is the seed's is not known. Set [experiment] n_seeds to know."
        return section("seeds", "Seeds", said(only))
    note = (
        f"The same folds and bars with {count(len(rows), 'seed')}. Ratios and returns above are means over seeds; "
        "fills, figures and the release are of the first. The best seed is luck, and each counts as a trial."
    )
    return section("seeds", "Seeds", tables.seeds(rows), note=note)


def significance(summary: Summary) -> Part:
    """Return what may be luck, or nothing where it was not computed."""
    found = summary.get("significance")
    return section("significance", "Significance", tables.significance(found)) if found else Part()


def monthly(summary: Summary) -> Part:
    """Return the returns of each month, as a table in warm and cold colours."""
    rows = summary.get("monthly")
    if not rows or not tables.has_months(rows):
        return Part()
    note = "In percent, net of costs. Blue months gained and red ones lost; the full colour is 10 % or more."
    return section("monthly", "Monthly returns", tables.monthly(rows), note=note)


def drawdowns(summary: Summary) -> Part:
    """Return the worst drawdowns."""
    rows = summary.get("drawdowns")
    if rows is None:
        return Part()
    if not rows:
        only = "At no session's close was it below that of an earlier one."
        return section("drawdowns", "Worst drawdowns", said(only))
    note = "From one session's close to another's; between them it may have fallen further."
    return section("drawdowns", "Worst drawdowns", tables.drawdowns(rows), note=note)
