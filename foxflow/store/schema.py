"""The tables of the store: one entry each, made by the next write where a store has it not yet.

A table that is not among `TABLES` is not exported.
"""

import duckdb

# No PRIMARY KEY: its index makes the file eight times larger and inserts six times slower. Every write checks keys.
_BARS = """
    symbol varchar not null, bar varchar not null, ts timestamptz not null,
    open double not null, high double not null, low double not null, close double not null, volume double,
    known_at timestamptz not null
"""
TABLES = {
    # The first values known of each (symbol, bar, ts), in that order within an import, so that most reads need no sort.
    "bars": _BARS,
    # Every later correction of a bar. Few rows, if any.
    "revisions": _BARS,
    "events": """
    symbol varchar not null, ts timestamptz not null, kind varchar not null, value double not null,
    known_at timestamptz not null
""",
    # Rows of imported files that are no bars, by the file's content and their number in it.
    "quarantine": """
    file varchar not null, sha256 varchar not null, number bigint not null, kind varchar not null, "when" varchar,
    text varchar not null, reason varchar not null
""",
    # Revisions of memberships.
    "universe": """
    symbol varchar not null, since timestamptz not null, until timestamptz, delisting_return double,
    known_at timestamptz not null
""",
    # Revisions of futures contracts.
    "contracts": """
    root varchar not null, symbol varchar not null, expiry date not null, multiplier double,
    known_at timestamptz not null
""",
    "open_interest": """
    symbol varchar not null, ts timestamptz not null, open_interest double not null
""",
    # Which bars a source has handed over, those with a ts after the one and up to the other time.
    "fetched": """
    origin varchar not null, symbol varchar not null, bar varchar not null,
    after timestamptz not null, until timestamptz not null
""",
}
# What belongs to the home of a store, not to its bars: made when it is first needed, and never exported.
OWN_TABLES = {
    "ledger_heights": "ledger varchar not null, n_records bigint not null, head varchar not null",
}
# What every store has had from the first version on.
FIRST_TABLES = frozenset({"bars", "events"})


def ddl() -> str:
    """Return the statements that make each table a store lacks."""
    return "\n".join(f"create table if not exists {name} ({columns});" for name, columns in TABLES.items())


def own_ddl(name: str) -> str:
    """Return the statement that makes one of `OWN_TABLES` where a store lacks it."""
    return f"create table if not exists {name} ({OWN_TABLES[name]})"


def migrate(con: duckdb.DuckDBPyConnection) -> None:
    """Bring a store up to date, inside a transaction: an older one lacks tables, or has revisions among its bars."""
    old = _has_one_table(con)
    con.execute(ddl())
    if old:
        con.execute("alter table bars alter volume drop not null")
        con.execute(f"insert into revisions select * from {_LATER}")  # noqa: S608 - constants
        con.execute(
            "delete from bars using revisions r where bars.symbol = r.symbol and bars.bar = r.bar "
            "and bars.ts = r.ts and bars.known_at = r.known_at"
        )


def source(con: duckdb.DuckDBPyConnection, table: str) -> str:
    """Return what to read a table from: itself, or for bars and revisions a part of the one table of an older store."""
    if table not in {"bars", "revisions"} or not _has_one_table(con):
        return table
    return _FIRST if table == "bars" else _LATER


_RANK = "row_number() over (partition by symbol, bar, ts order by known_at)"
_FIRST = f"(select * from bars qualify {_RANK} = 1)"  # noqa: S608 - constants
_LATER = f"(select * from bars qualify {_RANK} > 1)"  # noqa: S608 - constants


def _has_one_table(con: duckdb.DuckDBPyConnection) -> bool:
    names = {row[0] for row in con.sql("select table_name from duckdb_tables()").fetchall()}
    return "bars" in names and "revisions" not in names
