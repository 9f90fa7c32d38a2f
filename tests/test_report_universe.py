"""What the report says of who could be traded, what ended, and which orders waited."""

from pathlib import Path
from typing import Any

from report_samples import HOSTILE, Page, sample_book, sample_fold, sample_iso, sample_outcomes, sample_summary

from foxflow import report


def facts(**changes: object) -> dict[str, Any]:
    return {"is_recorded": True, "never_members": [], "members_without_bars": [], "endings": [], **changes}


def ending(symbol: str, kind: str, **changes: object) -> dict[str, Any]:
    base = {"last_ts": sample_iso(20), "close": 40.0, "delisting_return": -0.6, "ts": sample_iso(21), "price": 16.0}
    return {"symbol": symbol, "kind": kind, **base, "shares": -100.0, **changes}


def page(tmp_path: Path, **changes: object) -> Page:
    report.write(tmp_path / "report.html", sample_summary(**changes), sample_book(), sample_outcomes())
    return Page((tmp_path / "report.html").read_text())


def test_without_a_universe_table_it_says_that_survivorship_is_not_ruled_out(tmp_path: Path) -> None:
    sentence = "There is no universe table: survivorship is not ruled out."
    assert report.verdict(sample_summary(universe=facts(is_recorded=False)))[1] == sentence
    assert sentence not in report.verdict(sample_summary(universe=facts(is_recorded=False), is_sample=True))
    assert not any("survivorship" in said for said in report.verdict(sample_summary(universe=facts())))
    assert "No universe table: survivorship is not ruled out." in page(tmp_path, universe=facts(is_recorded=False)).text


def test_members_without_bars_and_unrecorded_ends_are_in_the_verdict() -> None:
    said = report.verdict(sample_summary(universe=facts(members_without_bars=["GONE", "LOST"])))
    assert said[1] == "2 members have no bars in this run (GONE, LOST): survivorship is not ruled out."
    said = report.verdict(sample_summary(universe=facts(endings=[ending("ZZZ", "last close"), ending("A", "open")])))
    assert said[1].startswith("ZZZ ended without a recorded return and was closed at its last close")


def test_an_ending_is_a_row_and_a_fold_lists_its_members(tmp_path: Path) -> None:
    still_open = ending("YYY", "open", ts=None, price=None, shares=None, delisting_return=None)
    folds = [sample_fold(0, 0, 29, members=["AAA", HOSTILE]), sample_fold(1, 30, 59, members=["AAA"])]
    shown = page(tmp_path, universe=facts(endings=[ending("ZZZ", "delisted"), still_open]), folds=folds)
    assert shown.row("ZZZ") == [
        "ZZZ",
        "delisted",
        "2024-01-21",
        "40.0000",
        "-60.0 %",
        "2024-01-22",
        "16.0000",
        "-100.00",
    ]
    assert shown.row("YYY")[4:] == ["n/a", "\u2013", "\u2013", "\u2013"]
    assert shown.row("Fold")[5] == "Members"
    assert shown.row("0")[5] == f"2: AAA, {HOSTILE}"
    assert len(shown.scripts) == 3


def test_orders_that_met_no_bar_are_counted(tmp_path: Path) -> None:
    waited = {"n_orders": 3, "n_never_filled": 1, "most_missed_bars": 12, "symbols": ["AAA", "BBB"]}
    text = page(tmp_path, universe=facts(), orders_waited=waited).text
    assert (
        "3 orders met no bar of the symbol when due, as in a halt, and waited for the next one (AAA, BBB): at most 12 "
        "bars missed, 1 never filled."
    ) in text
    assert "met no bar" not in page(tmp_path, universe=facts(), orders_waited={**waited, "n_orders": 0}).text
