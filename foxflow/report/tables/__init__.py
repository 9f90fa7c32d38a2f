"""Tables of the report, as HTML; every name in them is escaped."""

from foxflow.report.tables.folds import fold_returns, folds, has_proof, is_clean, proof
from foxflow.report.tables.forecasts import ages, forecasters, symbols
from foxflow.report.tables.performance import drawdowns, has_months, key_numbers, monthly, seeds, significance
from foxflow.report.tables.provenance import document, findings, provenance, versions
from foxflow.report.tables.trading import by_capital, by_cost, by_delay, endings, waterfall

__all__ = [
    "ages",
    "by_capital",
    "by_cost",
    "by_delay",
    "document",
    "drawdowns",
    "endings",
    "findings",
    "fold_returns",
    "folds",
    "forecasters",
    "has_months",
    "has_proof",
    "is_clean",
    "key_numbers",
    "monthly",
    "proof",
    "provenance",
    "seeds",
    "significance",
    "symbols",
    "versions",
    "waterfall",
]
