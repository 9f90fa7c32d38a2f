"""The gate before training: bars with severe findings are refused, unless each finding is accepted by its name."""

from collections.abc import Sequence

import polars as pl

from foxflow.check import findings
from foxflow.errors import DataError, unknown

SHOWN = 3


def require_sound(
    bars: pl.DataFrame, events: pl.DataFrame, *, bar: str, calendar: str, accept: Sequence[str], where: str
) -> tuple[tuple[str, ...], pl.DataFrame]:
    """Return the names of the severe findings in raw bars that are accepted, and all findings; raise where one is not.

    Parameters
    ----------
    accept
        Names of findings: the check, the check and the symbol, or these and the day it begins in UTC, as in
        `possible split`, `possible split AAPL`, `possible split AAPL 2000-06-21`.
    where
        What a message calls the bars.

    Raises
    ------
    DataError
        On a severe finding that no name accepts, naming the first and how to accept them; and on a name that fits no
        severe finding, naming those there are.
    """
    found = findings(bars, bar=bar, calendar=calendar, events=events)
    severe = found.filter(pl.col("severity") == "severe")
    named = severe.select(*names().values(), "detail").unique("full", keep="first", maintain_order=True)
    for name in accept:
        if not named.select(pl.any_horizontal(pl.col(*names()) == name).any()).item():
            known = named["full"].to_list()
            raise DataError(
                f"[data] accept: {unknown('severe finding', name, known[:20])}; take the name out, or mend it"
            )
    is_accepted = pl.any_horizontal(pl.col(*names()).is_in(list(accept)))
    refused = named.filter(~is_accepted)
    if len(refused):
        first = "; ".join(f"{row['full']}: {row['detail']}" for row in refused.head(SHOWN).iter_rows(named=True))
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        raise DataError(
            f"{where}: {len(refused)} severe finding(s) in the bars of {bar}: {first}{more}. Mend the bars or record "
            f'the event, or accept by name: [data] accept = ["{refused["full"][0]}"]; '
            f"`foxflow bars check --bar {bar} --calendar {calendar}` shows all"
        )
    return tuple(named["full"]), found


def names() -> dict[str, pl.Expr]:
    """Return the columns of the names a finding goes by: `check`, `symbol` and check, and `full` with its day."""
    day = pl.col("ts").dt.strftime("%Y-%m-%d")
    return {
        "check": pl.col("check"),
        "brief": pl.format("{} {}", "check", "symbol").alias("brief"),
        "full": pl.format("{} {} {}", "check", "symbol", day).alias("full"),
    }
