"""A page a symbol with its prices and what may be wrong with them, and an index: what `bars check --html` writes."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from foxflow.check import SEVERITIES
from foxflow.report import page
from foxflow.report.figures import BENCHMARK, NEUTRAL, STRATEGY, Figure
from foxflow.report.text import count, escape

# A picture has about as many pixels across; a finding is marked whatever is thinned.
MOST_POINTS = 3000
MOST_MARKS, MOST_SPANS = 400, 60
COLOURS = {"severe": "#c8371b", "warning": BENCHMARK, "note": NEUTRAL}
SHAPES = {"severe": "x", "warning": "diamond", "note": "circle-open"}


@dataclass(frozen=True)
class _Pictured:
    symbol: str
    file: str
    n_bars: int
    first: str
    last: str
    counts: dict[str, int]


def write(folder: Path, parts: Iterable[pl.DataFrame], findings: pl.DataFrame, *, bar: str) -> Path:
    """Write a page for every symbol of bars that come in parts, and return the path of the index.

    Parameters
    ----------
    parts
        Raw bars (`bars.BAR_SCHEMA`), all bars of a symbol in one part.
    findings
        `bars.FINDING_SCHEMA`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictured: list[_Pictured] = []
    taken = {"index"}
    for part in parts:
        for (symbol,), rows in part.partition_by("symbol", as_dict=True, maintain_order=True).items():
            file = _file(str(symbol), taken)
            mine = findings.filter(pl.col("symbol") == symbol)
            counts = {s: int((mine["severity"] == s).sum()) for s in SEVERITIES}
            first, last = _time(rows["ts"].min(), bar), _time(rows["ts"].max(), bar)
            one = _Pictured(str(symbol), file, len(rows), first, last, counts)
            (folder / file).write_text(_symbol_page(one, rows.sort("ts"), mine, bar=bar), "utf-8", newline="\n")
            pictured.append(one)
    index = folder / "index.html"
    index.write_text(_index_page(pictured, bar=bar), "utf-8", newline="\n")
    return index


def _file(symbol: str, taken: set[str]) -> str:
    """Return a file name that every system takes and that no symbol before has."""
    stem = re.sub(r"[^A-Za-z0-9.-]+", "_", symbol).strip(".") or "symbol"
    name, n = stem, 1
    while name.lower() in taken:
        n += 1
        name = f"{stem}-{n}"
    taken.add(name.lower())
    return f"{name}.html"


def _index_page(pictured: list[_Pictured], *, bar: str) -> str:
    total = {s: sum(p.counts[s] for p in pictured) for s in SEVERITIES}
    ranked = sorted(pictured, key=lambda p: ([-p.counts[s] for s in SEVERITIES], p.symbol))
    rows = "".join(
        f'<tr><td><a href="{escape(p.file)}">{escape(p.symbol)}</a></td><td>{p.n_bars:,}</td><td>{p.first}</td>'
        f"<td>{p.last}</td>" + "".join(_counted(s, p.counts[s]) for s in SEVERITIES) + "</tr>"
        for p in ranked
    )
    head = "".join(f"<th>{escape(c)}</th>" for c in ("symbol", "bars", "first", "last", *SEVERITIES))
    said = ", ".join(f"{total[s]:,} {s}" for s in SEVERITIES)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    body = (
        f"<header><h1>Bars of {escape(bar)}</h1><p><span>{count(len(pictured), 'symbol')}</span><span>{said}</span></p>"
        f'</header>\n<section><div class="scroll">{table}</div></section>'
    )
    return page.document(f"Bars of {escape(bar)}", body, {})


def _counted(severity: str, n: int) -> str:
    return f'<td class="no">{n:,}</td>' if n and severity == "severe" else f"<td>{n:,}</td>"


def _symbol_page(one: _Pictured, bars: pl.DataFrame, findings: pl.DataFrame, *, bar: str) -> str:
    said = ", ".join(f"{one.counts[s]:,} {s}" for s in SEVERITIES)
    rows = "".join(
        f'<tr><td class="{"no" if r["severity"] == "severe" else ""}">{r["severity"]}</td>'
        f"<td>{escape(r['check'])}</td><td>{_time(r['ts'], bar)}</td><td>{_time(r['until'], bar)}</td>"
        f'<td>{r["count"]:,}</td><td class="said">{escape(r["detail"])}</td></tr>'
        for r in findings.head(MOST_MARKS).iter_rows(named=True)
    )
    head = "".join(f"<th>{c}</th>" for c in ("severity", "check", "from", "to", "count", "detail"))
    more = f"<p>And {len(findings) - MOST_MARKS:,} more.</p>" if len(findings) > MOST_MARKS else ""
    table = (
        f'<div class="scroll findings"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}'
        if rows
        else "<p>Nothing was found.</p>"
    )
    caption = "Range and close of the bars, and their volume; each finding is marked where it begins."
    body = (
        f'<header><h1>{escape(one.symbol)}</h1><p><span><a href="index.html">all symbols</a></span>'
        f"<span>bars of {escape(bar)}</span><span>{one.n_bars:,} bars</span><span>{one.first} to {one.last}</span>"
        f'<span>{said}</span></p></header>\n<section><figure><figcaption>{caption}</figcaption><div class="plot tall" '
        f'id="bars"><noscript>Figures need JavaScript.</noscript></div></figure></section>\n<section>{table}</section>'
    )
    return page.document(f"{escape(one.symbol)} {escape(bar)}", body, {"bars": _figure(bars, findings, bar=bar)})


def _figure(bars: pl.DataFrame, findings: pl.DataFrame, *, bar: str) -> Figure:
    step = -(-len(bars) // MOST_POINTS)
    thin = bars.group_by(pl.int_range(pl.len()) // step, maintain_order=True).agg(
        pl.col("ts", "close").last(), pl.col("high").max(), pl.col("low").min(), pl.col("volume").sum()
    )
    when = _times(thin["ts"], bar)
    line = {"x": when, "type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    band = {"width": 0, "color": STRATEGY}
    traces: list[dict[str, Any]] = [
        {**line, "y": _numbers(thin["high"]), "line": band, "showlegend": False},
        {**line, "y": _numbers(thin["low"]), "line": band, "fill": "tonexty", "fillcolor": STRATEGY + "40",
         "name": "low to high"},
        {**line, "y": _numbers(thin["close"]), "line": {"color": STRATEGY, "width": 1.2}, "name": "close",
         "hoverinfo": "x+y"},
    ]  # fmt: skip
    has_volume = bool((thin["volume"] > 0).any())
    if has_volume:
        traces.append(
            {"x": when, "y": _numbers(thin["volume"]), "type": "bar", "yaxis": "y2", "name": "volume",
             "marker": {"color": NEUTRAL, "line": {"width": 0}}, "showlegend": False}
        )  # fmt: skip
    marked = findings.head(MOST_MARKS)
    traces += [_marks(bars, rows, str(s), bar) for s in reversed(SEVERITIES) if len(rows := marked.filter(severity=s))]
    low, high = bars["low"].min(), bars["high"].max()
    is_wide = isinstance(low, float) and isinstance(high, float) and low > 0 and high / low > 10
    title = "price (log scale)" if is_wide else "price"
    layout: Figure = {
        "hovermode": "closest",
        "bargap": 0,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"anchor": "y2" if has_volume else "y", "title": {"text": "end of the bar (UTC)"}},
        "yaxis": {"domain": [0.24 if has_volume else 0, 1], "title": {"text": title},
                  "type": "log" if is_wide else "linear", "tickformat": "~g", **({"dtick": "D2"} if is_wide else {})},
        "shapes": _spans(bars, marked, bar),
    }  # fmt: skip
    if has_volume:
        layout["yaxis2"] = {"domain": [0, 0.18], "title": {"text": "volume"}, "nticks": 4, "tickformat": "~s"}
    return {"data": traces, "layout": layout}


def _marks(bars: pl.DataFrame, rows: pl.DataFrame, severity: str, bar: str) -> dict[str, Any]:
    placed = rows.sort("ts").join_asof(bars.select("ts", "high"), on="ts", strategy="nearest")
    return {
        "x": _times(placed["ts"], bar),
        "y": _numbers(placed["high"]),
        "text": [f"{escape(c)}: {_wrapped(escape(d))}" for c, d in placed.select("check", "detail").iter_rows()],
        "type": "scatter",
        "mode": "markers",
        "name": severity,
        "marker": {"color": COLOURS[severity], "symbol": SHAPES[severity], "size": 9},
        "hovertemplate": "%{x}<br>%{text}<extra></extra>",
    }


def _spans(bars: pl.DataFrame, findings: pl.DataFrame, bar: str) -> list[dict[str, Any]]:
    """Return the stretches that findings cover as shaded boxes; notes and what lies all over the series have none."""
    whole = bars.select(pl.col("ts").max() - pl.col("ts").min()).item()
    is_box = (pl.col("until") > pl.col("ts")) & (pl.col("severity") != "note")
    long = findings.filter(is_box & (pl.col("until") - pl.col("ts") <= whole / 3)).head(MOST_SPANS)
    return [
        {
            "type": "rect", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 0}, "layer": "below", "opacity": 0.13,
            "x0": _time(r["ts"], bar), "x1": _time(r["until"], bar), "fillcolor": COLOURS[r["severity"]],
        }
        for r in long.iter_rows(named=True)
    ]  # fmt: skip


def _wrapped(text: str) -> str:
    """Return text in lines that a hover label can show."""
    return re.sub(r"(.{60,80}?)\s", r"\1<br>", text)


def _times(ts: pl.Series, bar: str) -> list[str]:
    return ts.dt.strftime("%Y-%m-%d" if bar.endswith("d") else "%Y-%m-%d %H:%M").to_list()


def _time(ts: object, bar: str) -> str:
    return _times(pl.Series([ts], dtype=pl.Datetime("us", "UTC")), bar)[0]


def _numbers(values: pl.Series) -> list[float | None]:
    """Return numbers with the digits a picture shows; JSON knows neither NaN nor infinity."""
    return [float(f"{v:.7g}") if v is not None and math.isfinite(v) else None for v in values]
