"""The pages of `bars check --html`: every symbol and finding is there, and nothing is loaded from outside."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
from conftest import daily_bars

from foxflow.bars import FINDING_SCHEMA
from foxflow.report import pictures

FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)


def findings(*rows: tuple[str, int, int, str, str]) -> pl.DataFrame:
    """Return findings: symbol, first and last day of January 2024, severity, detail."""
    return pl.DataFrame(
        [(s, FIRST.replace(day=a), FIRST.replace(day=b), "frozen", severity, b - a + 1, d) for s, a, b, severity, d in rows],
        schema=FINDING_SCHEMA,
        orient="row",
    )  # fmt: skip


def figure(page: str) -> dict[str, Any]:
    block = re.search(r'<script id="figures" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    found: dict[str, Any] = json.loads(block[1])["bars"]
    return found


def test_every_symbol_has_a_page_and_the_worst_comes_first(tmp_path: Path) -> None:
    parts = [daily_bars([1, 2, 3], symbol=s) for s in ("BTC/USDT", "BTC_USDT", "index", "ZZZ")]
    index = pictures.write(tmp_path, parts, findings(("ZZZ", 1, 3, "severe", "x")), bar="1d")
    assert index == tmp_path / "index.html"
    linked = re.findall(r'<a href="([^"]+)">([^<]+)</a>', index.read_text())
    assert linked == [
        ("ZZZ.html", "ZZZ"),
        ("BTC_USDT.html", "BTC/USDT"),
        ("BTC_USDT-2.html", "BTC_USDT"),
        ("index-2.html", "index"),
    ]
    assert {f.name for f in tmp_path.iterdir()} == {"index.html", *(name for name, _ in linked)}


def test_a_finding_is_marked_at_its_bar_and_shaded_over_its_stretch(tmp_path: Path) -> None:
    bars = daily_bars([float(n) for n in range(100, 130)])
    pictures.write(tmp_path, [bars], findings(("AAA", 5, 8, "severe", "<b>stood & still</b>")), bar="1d")
    page = (tmp_path / "AAA.html").read_text()
    drawn = figure(page)
    (marks,) = [t for t in drawn["data"] if t["mode" if "mode" in t else "type"] == "markers"]
    assert (marks["x"], marks["y"]) == (["2024-01-05"], [104.0])
    assert [(s["x0"], s["x1"]) for s in drawn["layout"]["shapes"]] == [("2024-01-05", "2024-01-08")]
    assert "&lt;b&gt;stood &amp; still&lt;/b&gt;" in page
    assert "<b>stood" not in page


def test_a_page_is_bounded_and_loads_nothing(tmp_path: Path) -> None:
    bars = daily_bars([float(n) for n in range(1, 20_001)], start=-19_000)
    pictures.write(tmp_path, [bars], findings(), bar="1d")
    page = (tmp_path / "AAA.html").read_text()
    assert all(len(t["x"]) <= pictures.MOST_POINTS for t in figure(page)["data"])
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="', page.partition("<script>")[0].replace('href="index.html"', ""))


def test_bars_without_volume_and_prices_below_zero_are_drawn(tmp_path: Path) -> None:
    bars = daily_bars([-1.0, 2.0, 30.0]).with_columns(volume=pl.lit(None, dtype=pl.Float64))
    pictures.write(tmp_path, [bars], findings(), bar="1d")
    layout = figure((tmp_path / "AAA.html").read_text())["layout"]
    assert layout["yaxis"]["type"] == "linear"
    assert "yaxis2" not in layout
