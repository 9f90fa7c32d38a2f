"""The store: bars, splits and dividends in one DuckDB file; the only SQL for bars.

Every table is append-only and bitemporal: a row says what was known from `known_at` on, a correction is a new row
with a later `known_at`, of a bar in a table of revisions. A bulk import sets `known_at = ts + delay`, never the clock,
so a past night can be replayed.
"""

from foxflow.store.additions import CONFLICTS, Conflict, correct_bars, write_bars
from foxflow.store.bars import (
    LIST_SCHEMA,
    REVISION_SCHEMA,
    bar_name,
    list_bars,
    read_bars,
    read_delays,
    read_first,
    read_revisions,
)
from foxflow.store.connection import Transaction, connect, transaction
from foxflow.store.contracts import read_contracts, read_open_interest, write_contracts, write_open_interest
from foxflow.store.events import read_events, write_events
from foxflow.store.fetched import Span, add_fetched, read_fetched
from foxflow.store.lake import export, is_export, restore
from foxflow.store.quarantine import QUARANTINE_SCHEMA, read_quarantine, write_quarantine
from foxflow.store.tables import Counts
from foxflow.store.tried import read_heights, write_height
from foxflow.store.universe import read_universe, write_universe

__all__ = [
    "CONFLICTS",
    "LIST_SCHEMA",
    "QUARANTINE_SCHEMA",
    "REVISION_SCHEMA",
    "Conflict",
    "Counts",
    "Span",
    "Transaction",
    "add_fetched",
    "bar_name",
    "connect",
    "correct_bars",
    "export",
    "is_export",
    "list_bars",
    "read_bars",
    "read_contracts",
    "read_delays",
    "read_events",
    "read_fetched",
    "read_first",
    "read_heights",
    "read_open_interest",
    "read_quarantine",
    "read_revisions",
    "read_universe",
    "restore",
    "transaction",
    "write_bars",
    "write_contracts",
    "write_events",
    "write_height",
    "write_open_interest",
    "write_quarantine",
    "write_universe",
]
