"""Which column is which: names as vendors write them, matched whole, exact names first; a doubt is asked about."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foxflow.bars import PRICES
from foxflow.errors import ConfigError, DataError, unknown

# The names of each role, in tiers: a name of an earlier tier wins over one of a later tier.
NAMES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "ts": (
        ("ts", "timestamp", "datetime", "date", "time", "date_time"),
        (
            "open time",
            "opentime",
            "close time",
            "closetime",
            "gmt time",
            "utc time",
            "local time",
            "timestamp utc",
            "time utc",
            "time (utc)",
        ),
        (
            "date time",
            "date/time",
            "window start",
            "begin",
            "dtyyyymmdd",
            "trade date",
            "trading day",
            "session",
            "day",
            "unix",
            "unix timestamp",
            "epoch",
            "unix time",
            "bar time",
            "start time",
            "end time",
            "begins at",
            "ts event",
            "t",
            "dt",
            "exchange date",
        ),
        # What pandas calls an index without a name.
        ("index", "index level 0"),
    ),
    "open": (("open",), ("o", "open price", "px open", "first", "opening price")),
    "high": (("high",), ("h", "hi", "high price", "max", "px high", "highest")),
    "low": (("low",), ("l", "lo", "low price", "min", "px low", "lowest")),
    "close": (
        ("close",),
        ("c", "close price", "last", "close/last", "px last", "px close", "closing price", "latest"),
        ("price",),
    ),
    "volume": (("volume",), ("vol", "v", "vol.", "total volume", "px volume", "tick volume", "tickvol", "tick vol")),
    "symbol": (("symbol", "ticker"), ("raw symbol", "instrument", "sym", "contract", "tic")),
}
# The time of day beside a date.
CLOCKS = ("time", "hour", "time of day", "hhmm", "clock")
ADJUSTED = ("adj close", "adjusted close", "adj. close", "adjclose", "adj_close", "adjusted_close", "close adj")
_EVENTS = (
    "dividends",
    "dividend",
    "stock splits",
    "split ratio",
    "ex-dividend",
    "split coefficient",
    "dividend amount",
    "capital gains",
)
# Names that say what a time is.
_OPENS = ("open time", "opentime", "start time", "window start", "begin", "begins at")
_CLOSES = ("close time", "closetime", "end time")
_UTC = ("gmt time", "utc time", "timestamp utc", "time utc", "time (utc)")
NONE = "none"


@dataclass(frozen=True)
class Roles:
    """The column of each role, as a position among the file's columns.

    Attributes
    ----------
    positions
        Role to position; `clock` is the time of day beside a date; a `volume` that the file does not have is absent.
    adjusted
        The column of adjusted closes, which is never taken unasked.
    stamp, tz
        What the time's own name says.
    notes
        What a reader should know of the choice.
    """

    positions: Mapping[str, int]
    adjusted: int | None = None
    stamp: str | None = None
    tz: str | None = None
    notes: tuple[str, ...] = field(default=())


def plain(name: str) -> str:
    """Return a column's name without case, brackets, numbering and underscores."""
    name = name.strip().strip("\ufeff").strip("\"'").strip().lower()
    name = re.sub(r"^<(.*)>$", r"\1", name)
    # Footnote marks, as in Close*.
    name = re.sub(r"^\d+[a-z]?\. ?", "", name).rstrip("*†")
    return re.sub(r"[\s_]+", " ", name).strip()


def declared(texts: Sequence[str]) -> Mapping[str, str | int] | tuple[str, ...] | None:
    """Return what --columns says: role to name or position, or every name by position.

    Raises
    ------
    ConfigError
        On an unknown role, or both ways at once.
    """
    if not texts:
        return None
    if not any("=" in text for text in texts):
        if len(texts) > 1:
            raise ConfigError(f"--columns {' --columns '.join(texts)}; expected one list of names by position")
        return tuple(name.strip() for name in texts[0].split(","))
    chosen: dict[str, str | int] = {}
    for part in (part for text in texts for part in text.split(",")):
        role, equals, name = part.partition("=")
        role, name = role.strip(), name.strip().strip("\"'")
        if not equals or not name:
            raise ConfigError(f'--columns {part!r}; expected ROLE=NAME, as in close="Adj Close"')
        if role not in (*NAMES, "clock"):
            raise ConfigError(f"--columns {unknown('role', role, (*NAMES, 'clock'))}")
        chosen[role] = int(name) if name.isdigit() else name
    return chosen


def is_header(names: Sequence[str]) -> bool:
    """Return whether the fields of a line name a time and prices."""
    known = {plain(name) for name in names}
    found = [role for role, tiers in NAMES.items() if any(name in known for tier in tiers for name in tier)]
    return ("ts" in found and len({*found} & {*PRICES}) >= 1) or len({*found} & {*PRICES}) >= 3


def settle(names: Sequence[str], *, file: str, chosen: Mapping[str, str | int] | None, where: str) -> Roles:
    """Return the roles of columns.

    Parameters
    ----------
    names
        The file's columns; several header lines of one column are joined by a newline.
    chosen
        The user's choice, role to name or position (from 1).

    Raises
    ------
    DataError
        When a role has no column, or two that are equally good, naming them and the option.
    """
    chosen = chosen or {}
    spoken = _spoken(names)
    positions: dict[str, int] = {}
    for role, choice in chosen.items():
        if choice != NONE:
            positions[role] = _chosen(names, spoken, role, choice, file=file)
    taken = set(positions.values())
    for role in NAMES:
        if role in chosen:
            continue
        found = _best(role, spoken, taken)
        if role == "ts" and "clock" not in chosen and 1 <= len(found) <= 2:
            found, clock = _date_and_clock(found, spoken)
            if clock is not None:
                positions["clock"] = clock
        if role == "ts" and len(found) == 2:
            found = _opened(found, spoken)
        if len(found) > 1:
            shown = ", ".join(repr(names[p].replace("\n", "/")) for p in found)
            raise DataError(
                f"{file}, {where}: columns {shown} ({', '.join(str(p + 1) for p in found)}) may each be the {role}; "
                f"choose one with --columns {role}=NAME or {role}=NUMBER"
            )
        if found:
            positions[role] = found[0]
            taken.add(found[0])
    _require(positions, chosen, names, file=file, where=where)
    return _described(positions, names, spoken)


def _spoken(names: Sequence[str]) -> list[set[str]]:
    spoken = [{plain(part) for part in name.split("\n")} for name in names]
    if spoken and spoken[0] == {""}:
        spoken[0] = {"index"}
    return spoken


def _opened(found: list[int], spoken: Sequence[set[str]]) -> list[int]:
    """Return the time a bar opens, where the other is when it closes: one tells the other."""
    opens, closes = ([p for p in found if spoken[p] & set(words)] for words in (_OPENS, _CLOSES))
    return opens if len(opens) == len(closes) == 1 else found


def _chosen(names: Sequence[str], spoken: Sequence[set[str]], role: str, choice: str | int, *, file: str) -> int:
    if isinstance(choice, int):
        if not 1 <= choice <= len(names):
            raise DataError(f"{file}: --columns {role}={choice}, but there are {len(names)} columns")
        return choice - 1
    found = [p for p, name in enumerate(names) if name.strip() == choice] or [
        p for p, parts in enumerate(spoken) if plain(choice) in parts
    ]
    if len(found) != 1:
        shown = ", ".join(repr(name.replace("\n", "/")) for name in names)
        many = f"stands {len(found)} times" if found else "is no column"
        raise DataError(f"{file}: --columns {role}={choice!r} {many}; the columns are {shown[:400]}")
    return found[0]


def _best(role: str, spoken: Sequence[set[str]], taken: set[int]) -> list[int]:
    for tier in NAMES[role]:
        found = [p for p, parts in enumerate(spoken) if p not in taken and parts & set(tier)]
        if found:
            return found
    return []


def _date_and_clock(found: list[int], spoken: Sequence[set[str]]) -> tuple[list[int], int | None]:
    """Return the date, and the time of day where a column is called so beside one that is called a date."""
    clocks = [p for p, parts in enumerate(spoken) if parts & set(CLOCKS)]
    dates = [p for p in found if p not in clocks]
    if len(clocks) == 1 and len(dates) == 1 and "date" in spoken[dates[0]]:
        return dates, clocks[0]
    return found, None


def _require(
    positions: Mapping[str, int], chosen: Mapping[str, str | int], names: Sequence[str], *, file: str, where: str
) -> None:
    shown = ", ".join(repr(name.replace("\n", "/")) for name in names)[:300]
    for role in ("ts", *PRICES, "volume"):
        if role in positions or chosen.get(role) == NONE:
            if role != "volume" and chosen.get(role) == NONE:
                raise DataError(f"{file}: --columns {role}=none; only a volume may be missing")
            continue
        if role == "volume":
            raise DataError(
                f"{file}, {where}: no column volume among {shown}; name it with --columns volume=NAME, or say that "
                "the file has none with --columns volume=none"
            )
        raise DataError(
            f"{file}, {where}: no column {role if role != 'ts' else 'ts, timestamp, datetime, date or time'} among "
            f"{shown}; "
            f"name it with --columns {role}=NAME"
        )


def _described(positions: Mapping[str, int], names: Sequence[str], spoken: Sequence[set[str]]) -> Roles:
    time = spoken[positions["ts"]]
    adjusted = [p for p, parts in enumerate(spoken) if parts & {plain(a) for a in ADJUSTED}]
    notes = []
    events = [names[p].strip() for p, parts in enumerate(spoken) if parts & set(_EVENTS)]
    if events:
        notes.append(f"columns {', '.join(events)} are not imported; give splits and dividends with --events")
    unknown_volume = (
        spoken[positions["volume"]] & {"tick volume", "tickvol", "tick vol"} if "volume" in positions else set()
    )
    if unknown_volume:
        notes.append("volume counts price changes (ticks), not what was traded")
    left = adjusted[0] if adjusted and adjusted[0] not in positions.values() else None
    if left is not None:
        taken, other = (names[p].strip().replace("\n", "/") for p in (positions["close"], left))
        notes.append(f"the close is {taken!r}, taken as traded; {other!r} is left out")
    return Roles(
        positions=positions,
        adjusted=left,
        stamp="open" if time & set(_OPENS) else "close" if time & set(_CLOSES) else None,
        tz="UTC" if time & set(_UTC) else None,
        notes=tuple(notes),
    )
