"""The store: bars, splits and dividends in one DuckDB file; the only SQL for bars.

Both tables are append-only and bitemporal: a row says what was known from `known_at` on, a correction is a new row
with a later `known_at`. A bulk import sets `known_at = ts + delay`, never the clock, so a past night can be replayed.
"""

from foxflow.store.bars import LIST_SCHEMA, correct_bars, list_bars, read_bars, write_bars
from foxflow.store.connection import Transaction, connect, transaction
from foxflow.store.events import read_events, write_events
from foxflow.store.tables import Counts

__all__ = [
    "LIST_SCHEMA",
    "Counts",
    "Transaction",
    "connect",
    "correct_bars",
    "list_bars",
    "read_bars",
    "read_events",
    "transaction",
    "write_bars",
    "write_events",
]
