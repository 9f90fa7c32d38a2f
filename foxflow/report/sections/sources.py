"""Where the result comes from: symbols, bars, versions and config."""

from foxflow.report import tables
from foxflow.report.blocks import Part, folded, said, section
from foxflow.report.conclusion import Summary
from foxflow.report.text import count, escape, names, number


def universe(summary: Summary) -> Part:
    """Return who could be traded, what ended, and which orders waited."""
    found = summary.get("universe")
    if not found:
        return Part()
    told = ["No universe table: survivorship is not ruled out. Every symbol is a member whenever it has bars."]
    if found["is_recorded"]:
        told = ["A symbol is forecast, traded and trained on while it is a member, as was known at the time."]
        for key, what in (
            ("never_members", "Stored, but never a member in the walk-forward"),
            ("members_without_bars", "Members without bars in this run: survivorship is not ruled out"),
        ):
            if found[key]:
                told.append(f"{what}: {names(found[key], limit=20)}.")
    waited = summary.get("orders_waited") or {"n_orders": 0}
    if waited["n_orders"]:
        told.append(
            f"{count(waited['n_orders'], 'order')} met no bar of the symbol when due, as in a halt, and waited for the "
            f"next one ({names(waited['symbols'], limit=12)}): at most {count(waited['most_missed_bars'], 'bar')} "
            f"missed, {number(waited['n_never_filled'], 0)} never filled."
        )
    table = ""
    if found["endings"]:
        told.append(
            "A delisted symbol is closed at its last close times one plus its delisting return, costs included; one "
            "that is open had bars up to near the end and is held at its last close."
        )
        table = tables.endings(found["endings"])
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in told)
    return section("universe", "Universe", text, table)


def bars(summary: Summary) -> Part:
    """Return what the checks of the bars found."""
    rows = summary.get("data_findings")
    if rows is None:
        return Part()
    if not rows:
        return section("bars", "Data findings", said("Nothing was found in the bars."))
    return section("bars", "Data findings", tables.findings(rows))


def provenance(summary: Summary) -> Part:
    """Return by which conventions the numbers are what they are."""
    return section("provenance", "Provenance", tables.provenance(summary))


def config(summary: Summary) -> Part:
    """Return config and versions, folded."""
    found = summary.get("provenance") or {}
    document, versions = found.get("config"), found.get("versions")
    return section(
        "config",
        "Config and versions",
        folded("Versions", tables.versions(found)) if versions else "",
        folded("Config", tables.document(document)) if document else "",
        "" if versions or document else said("This run was written before its summary held them."),
    )
