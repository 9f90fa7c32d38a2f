"""Whether a ledger can be believed: pure functions of its entries and of what else remembers it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from foxflow.ledger.chain import FILE, Entry, broken
from foxflow.ledger.traces import Trace


@dataclass(frozen=True)
class Judgement:
    """What is wrong with a ledger.

    Attributes
    ----------
    ledger
        The id it goes by since its newest beginning, None where there is none.
    lost
        Why it was begun anew and when, None where it was begun in a fresh home: trials recorded before are unknown.
    damage
        What is wrong with the ledger itself since then.
    strangers
        What other ledgers, or none, recorded: runs that were brought here, or a ledger that was taken for another.
    """

    ledger: str | None
    lost: tuple[str, datetime] | None = None
    damage: tuple[str, ...] = field(default=())
    strangers: tuple[str, ...] = field(default=())


def judge(entries: Sequence[Entry], traces: Sequence[Trace], *, unreadable: str | None) -> Judgement:
    """Return what is wrong with the entries of a ledger, or with its absence (no entries).

    Parameters
    ----------
    traces
        Read before the entries were: a run that is written meanwhile must not seem to know more than they do.
    unreadable
        Why the ledger gives no entries.
    """
    heights = [(t.where, t.height) for t in traces if t.height]
    strays = [t for t in traces if not t.height]
    begun = _beginnings(entries)
    if not begun:
        gone = [f"{FILE} is gone, but {_named([where for where, _ in heights])} remember it"] if heights else []
        without = [f"no ledger recorded {_named([t.where for t in strays])}"] if strays else []
        begins = [f"{FILE} does not begin as a ledger does"] if entries else []
        return Judgement(None, damage=tuple([unreadable] if unreadable else begins + gone + without))
    newest, document = begun[-1]
    lost = _lost(document)
    damage = []
    wrong = broken(entries, since=newest.number if lost else 1)
    if wrong is not None:
        damage.append(f"record {wrong} of {FILE} is not what was written")
    seals = {e.number: e.seal for e in entries}
    own = [(where, h) for where, h in heights if h.ledger == document["ledger"]]
    above = [where for where, h in own if seals.get(h.n_records) != h.head]
    if above:
        most = max(h.n_records for where, h in own if where in above)
        damage.append(f"{FILE} has {len(entries)} records, but {_named(above)} remember {most} of it, or others")
    names = {d["ledger"] for _, d in begun} | {name for _, d in begun for name in d.get("instead_of", ())}
    others = [where for where, h in heights if h.ledger not in names]
    strays = [t for t in strays if lost is None or t.at is None or t.at > lost[1]]
    strangers = [f"another ledger recorded {_named(others)}"] if others else []
    if strays:
        strangers.append(f"no ledger recorded {_named([t.where for t in strays])}")
    return Judgement(str(document["ledger"]), lost, tuple(damage), tuple(strangers))


def beginning(judged: Judgement, traces: Sequence[Trace], *, ledger: str, at: str) -> dict[str, Any]:
    """Return the entry that begins a ledger: in a fresh home, or instead of what is damaged."""
    instead_of = sorted({t.height.ledger for t in traces if t.height} | ({judged.ledger} - {None}))  # type: ignore[type-var]
    return {
        "kind": "beginning",
        "ledger": ledger,
        "at": at,
        "lost": "; ".join(judged.damage) or None,
        "instead_of": instead_of,
    }


def _beginnings(entries: Sequence[Entry]) -> list[tuple[Entry, Mapping[str, Any]]]:
    read = [(e, e.document) for e in entries if '"kind":"beginning"' in e.body]
    return [(e, d) for e, d in read if d.get("kind") == "beginning" and isinstance(d.get("ledger"), str)]


def _lost(document: Mapping[str, Any]) -> tuple[str, datetime] | None:
    return (str(document["lost"]), datetime.fromisoformat(str(document["at"]))) if document.get("lost") else None


def _named(places: Sequence[str]) -> str:
    shown = sorted(set(places))
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return ", ".join(shown[:3]) + more
