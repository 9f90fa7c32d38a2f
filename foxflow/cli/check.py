"""`foxflow bars check`: what may be wrong with the bars of the store."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foxflow.cli.app import interruptible, with_json, with_out, with_sample
from foxflow.cli.bars import bars_group
from foxflow.cli.printing import print_rows

if TYPE_CHECKING:
    import polars as pl

# Rows of bars held at once: some hundred megabytes.
ROWS_AT_ONCE = 4_000_000
SHOWN = 60
SEVERE, WARNED = 1, 3


@bars_group.command("check")
@click.option("--bar", metavar="LENGTH", help="Bar length to check; needed where the store has several.")
@click.option("--symbols", metavar="A,B,...", help="Only these symbols; all, unless given.")
@click.option("--calendar", metavar="EXCHANGE", help="Exchange whose sessions the bars should fill, as in XNYS.")
@click.option("--html", type=click.Path(path_type=Path, file_okay=False), help="Folder for a picture of every symbol.")
@click.option("--strict", is_flag=True, help="Exit 3 where a finding is a warning and none is severe.")
@with_out
@with_sample
@with_json
def bars_check(
    bar: str | None,
    symbols: str | None,
    calendar: str | None,
    html: Path | None,
    strict: bool,
    out: Path | None,
    sample: bool,
    as_json: bool,
) -> None:
    """Check the bars of the store: gaps, splits, units, clocks, frozen and copied prices.

    Exit 1 where a finding is severe: training refuses such bars unless the finding is accepted by name in
    [data] accept. Exit 0 else, or 3 with --strict where there is a warning.
    """
    from foxflow import check, experiment, store
    from foxflow.sample import CALENDAR

    with interruptible("the store is as it was; give the same command again"):
        path = experiment.open_store(experiment.home(out), "sample" if sample else "store")
        calendar = calendar or (CALENDAR if sample else None)
        length, counts = _asked(path, bar, symbols)
        events = store.read_events(path)
        findings = check.findings_of(_parts(path, length, counts), bar=length, calendar=calendar, events=events)
        if html is not None:
            from foxflow.report import pictures

            index = pictures.write(html, _parts(path, length, counts), findings, bar=length)
    if as_json:
        print_rows(findings.to_dicts(), as_json=True, title="findings")
    else:
        _print(findings, n_bars=sum(counts.values()), bar=length, calendar=calendar)
        if html is not None:
            print(f"pictures: {index}")
    found = set(findings["severity"])
    if "severe" in found:
        sys.exit(SEVERE)
    if strict and "warning" in found:
        sys.exit(WARNED)


def _asked(path: Path, bar: str | None, symbols: str | None) -> tuple[str, dict[str, int]]:
    """Return the bar length asked for, and the symbols with the number of their bars."""
    import polars as pl

    from foxflow import store
    from foxflow.errors import DataError, unknown
    from foxflow.store.bars import bar_name

    listed = store.list_bars(path)
    lengths = listed["bar"].unique().sort().to_list()
    if not lengths:
        raise DataError(f"{path} holds no bars; import some first")
    if bar is None and len(lengths) > 1:
        raise DataError(f"{path} holds bars of {', '.join(lengths)}; say which to check with --bar")
    length = bar_name(bar) if bar is not None else lengths[0]
    if length not in lengths:
        raise DataError(f"{path} holds no bars of {length}; it holds {', '.join(lengths)}")
    counts = dict(listed.filter(pl.col("bar") == length).select("symbol", "rows").iter_rows())
    names = [name.strip() for name in symbols.split(",")] if symbols is not None else list(counts)
    for name in names:
        if name not in counts:
            raise DataError(f"{path}, bars of {length}: {unknown('symbol', name, counts)}")
    return length, {name: counts[name] for name in names}


def _parts(path: Path, bar: str, counts: dict[str, int]) -> Iterator["pl.DataFrame"]:
    """Yield the bars of some symbols at a time, so that memory holds a part of the store and never all of it."""
    from foxflow import store

    waiting: list[str] = []
    rows = 0
    for symbol, n in counts.items():
        if waiting and rows + n > ROWS_AT_ONCE:
            yield store.read_bars(path, bar=bar, symbols=waiting)
            waiting, rows = [], 0
        waiting.append(symbol)
        rows += n
    if waiting:
        yield store.read_bars(path, bar=bar, symbols=waiting)


def _print(findings: "pl.DataFrame", *, n_bars: int, bar: str, calendar: str | None) -> None:
    """Print the findings, severe first, and where there are many, how many there are of each check."""
    import polars as pl

    rows = [
        {
            "severity": r["severity"],
            "check": r["check"],
            "symbol": r["symbol"],
            "from": _time(r["ts"], bar),
            "to": _time(r["until"], bar) if r["until"] != r["ts"] else "",
            "count": f"{r['count']:,}",
            "detail": r["detail"],
        }
        for r in findings.head(SHOWN).iter_rows(named=True)
    ]
    said = ", ".join(f"{(findings['severity'] == s).sum():,} {s}" for s in ("severe", "warning", "note"))
    print_rows(rows, as_json=False, title=f"{len(findings):,} findings in {n_bars:,} bars of {bar}: {said}")
    if len(findings) > SHOWN:
        every = findings.group_by("severity", "check", maintain_order=True).agg(
            pl.len().alias("findings"), pl.col("symbol").n_unique().alias("symbols"), pl.col("count").sum()
        )
        print_rows(every.to_dicts(), as_json=False, title=f"all {len(findings):,}; --json lists each")
    if calendar is None:
        print("no --calendar given: missing sessions and bars outside the hours were not looked for")


def _time(ts: object, bar: str) -> str:
    return f"{ts:%Y-%m-%d}" if bar.endswith("d") else f"{ts:%Y-%m-%d %H:%M}Z"
