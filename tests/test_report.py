"""The report: what it concludes, what it shows, and that it is one safe file that loads nothing."""

import copy
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from plotly.offline import get_plotlyjs
from report_samples import (
    FIRST,
    FORECASTERS,
    HOSTILE,
    N_BARS,
    Page,
    sample_book,
    sample_equity,
    sample_fold,
    sample_history,
    sample_outcomes,
    sample_summary,
)

from foxflow import report
from foxflow.portfolio import FILL_SCHEMA, HELD_SCHEMA, Book
from foxflow.report import figures, tables


def _written(
    folder: Path, summary: dict[str, Any], book: Book | None = None, outcomes: pl.DataFrame | None = None
) -> str:
    path = folder / "report.html"
    report.write(path, summary, book or sample_book(), sample_outcomes() if outcomes is None else outcomes)
    return path.read_text("utf-8")


def words(page: Page) -> str:
    return page.text.replace("\u00a0", " ")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _written(tmp_path_factory.mktemp("report"), sample_summary())


# One file that loads nothing and trusts no name.


def test_plotly_is_embedded_exactly_once_and_the_page_stays_small(page: str) -> None:
    assert page.count(get_plotlyjs()[:2000]) == 1
    assert len(page.encode()) < 8e6


def test_nothing_is_loaded_from_outside(page: str) -> None:
    seen = Page(page)
    loading = {"src", "href", "srcset", "data", "action"}
    assert not [a for _, attributes in seen.elements for a in attributes if a in loading]
    assert not [tag for tag, _ in seen.elements if tag in {"link", "img", "iframe", "object", "embed", "base"}]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    policy = next(a["content"] for tag, a in seen.elements if tag == "meta" and "http-equiv" in a)
    assert policy
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_a_hostile_name_is_shown_and_never_run(tmp_path: Path) -> None:
    attribute = '" onload="alert(1)'
    folds = [
        sample_fold(0, 0, 29, forecasts={HOSTILE: 30, attribute: 0}),
        sample_fold(1, 30, 59, forecasts={HOSTILE: 30}),
    ]
    forecasters = [dict(FORECASTERS[0], forecaster=HOSTILE), FORECASTERS[1]]
    summary = sample_summary(
        symbols=[HOSTILE], folds=folds, experiment=HOSTILE, model=HOSTILE, run_id=HOSTILE, release=f"/tmp/{HOSTILE}",
        forecasters=forecasters,
    )  # fmt: skip
    text = _written(tmp_path, summary, outcomes=sample_outcomes((HOSTILE,)))
    seen = Page(text)
    assert HOSTILE not in text
    # The figures, Plotly and the page's own script.
    assert len(seen.scripts) == 3
    assert not [a for _, attributes in seen.elements for a in attributes if a.startswith("on")]
    assert HOSTILE in seen.text
    drawn = json.loads(seen.scripts[0])
    # Plotly reads its labels as HTML once more.
    assert drawn["scatter"]["data"][0]["text"][0].startswith("&lt;script&gt;")


def test_equal_input_gives_equal_bytes(page: str, tmp_path: Path) -> None:
    assert _written(tmp_path, copy.deepcopy(sample_summary()), sample_book(), sample_outcomes()) == page


# What it shows.


def test_the_key_numbers_are_those_of_the_summary(page: str) -> None:
    seen = Page(page)
    expected = {
        "Total return": ["+87.7 %", "+32.1 %"],
        "Sharpe ratio [95 %]": ["1.82 [1.20, 2.45]", "0.61 [0.10, 1.13]"],
        "Maximum drawdown": ["-12.3 %", "-34.6 %"],
        "Turnover a year": ["26.1\u00d7", "\u2013"],
        "Fills": ["3,286", "1"],
        # Fee 2 and slippage 3 of buy-and-hold's one fill.
        "Costs": ["89,237", "5"],
        "Costs / gross profit": ["9.2 %", "\u2013"],
        "IC": ["0.051 (t 3.21)", "\u2013"],
        "Rank IC": ["0.048 (t 2.99)", "\u2013"],
        "Hit rate": ["54.3 %", "\u2013"],
        "10 % accuracy": ["1.5 %", "\u2013"],
    }
    assert {name: seen.row(name)[1:3] for name in expected} == expected
    for fact in ("20240301T000000Z-trial-ridge-0a1b2c3d", "ab" * 32, "/data/releases/trial/one", "252"):
        assert fact in seen.text


def test_the_verdict_is_the_first_thing_after_the_title(page: str) -> None:
    text = Page(page).text
    at = [text.index(said.replace(" %", "\u00a0%")) for said in report.verdict(sample_summary())]
    assert at == sorted(at)
    assert at[-1] < text.index("Key numbers")


def test_a_fold_row_says_what_it_was_fitted_on_and_earned() -> None:
    # 100 -> 110 in fold 0, whose first bar fills nothing; fold 1 starts from 110.
    book = sample_book(sample_equity([100.0, 105.0, 110.0, 99.0, 121.0], [100.0, 100.0, 90.0, 90.0, 99.0]))
    folds = [sample_fold(0, 0, 2), sample_fold(1, 3, 4, has_learned=False)]
    rows = pl.DataFrame(
        {
            "symbol": ["AAA"] * 3,
            "ts": [FIRST, FIRST + timedelta(days=1), FIRST + timedelta(days=2)],
            "fold": [0, 0, 0],
            "forecast": [1.0, 2.0, 3.0],
            "label": [3.0, 2.0, 1.0],
        },
        schema_overrides={"fold": pl.Int32},
    )
    first, second = Page(tables.folds(sample_summary(folds=folds), book, rows)).rows[1:]
    assert first == [
        "0", "2023-12-26", "2024-01-01 to 2024-01-03", "1,602", "1 of 2, not yet in: BBB", "0.5000", "0.4000", "1",
        "yes", "0.48 %", "-1.000", "+10.0 %", "-10.0 %", "0.2",
    ]  # fmt: skip
    assert second[4:5] + second[8:13] == ["2 of 2", "no", "0.48 %", "n/a", "+10.0 %", "+10.0 %"]


def test_forecasts_are_shown_by_the_age_of_their_state(page: str, tmp_path: Path) -> None:
    seen = Page(page)
    assert [seen.row(name) for name in ("Age in bars", "0-49", "50-249", "250 and over")] == [
        ["Age in bars", "Forecasts", "IC", "t", "R²"],
        ["0-49", "40", "0.062", "2.11", "0.0031"],
        ["50-249", "50", "-0.010", "-0.41", "-0.0207"],
        ["250 and over", "0", "n/a", "n/a", "n/a"],
    ]
    assert "The largest of a fit is 1.23 %; a fit is refused above 5 %. R² is against a forecast of 0." in words(seen)
    volatility = Page(_written(tmp_path, sample_summary(forecasters=FORECASTERS, state_gap=None)))
    assert "The largest of a fit is n/a;" in words(volatility)
    assert "R² is against each symbol's expanding mean." in words(volatility)


def test_a_symbol_that_left_is_not_called_not_yet_in() -> None:
    folds = [sample_fold(0, 0, 29, forecasts={"AAA": 30}), sample_fold(1, 30, 59, forecasts={"AAA": 0})]
    rows = Page(tables.folds(sample_summary(folds=folds), sample_book(), sample_outcomes().drop_nulls())).rows
    assert rows[2][4] == "0 of 1, none now: AAA"


def test_a_symbol_row_counts_only_known_outcomes() -> None:
    known = pl.DataFrame(
        {
            "symbol": ["AAA"] * 4,
            "ts": [FIRST + timedelta(days=d) for d in range(4)],
            "forecast": [0.01, 0.02, -0.01, -0.02],
            "label": [0.02, 0.04, -0.02, 0.04],
        }
    )
    rows = Page(tables.symbols(sample_summary(), known)).rows
    assert rows[0] == ["Symbol", "Known outcomes", "IC", "Hit rate", "Rising outcomes", "Mean forecast", "Mean outcome"]
    # Correlation by hand: 0.0004 / sqrt(0.001 * 0.0024), after subtracting means 0 and 0.02.
    assert rows[1] == ["AAA", "4", "0.258", "75.0 %", "75.0 %", "0.00 %", "+2.00 %"]
    assert rows[2][:3] == ["BBB", "0", "n/a"]


def test_forecasters_are_ranked_and_shown_only_for_volatility(page: str, tmp_path: Path) -> None:
    assert "Volatility forecasters" not in page
    seen = Page(_written(tmp_path, sample_summary(forecasters=FORECASTERS)))
    ranked = [r for r in seen.rows if r[0] in {"HAR", "ridge", "last value", "EWMA(0.94)"}]
    assert ranked == [
        ["ridge", "0.408", "0.481", "9,736"],
        ["HAR", "0.319", "0.542", "9,736"],
        ["last value", "0.000", "0.832", "9,736"],
        ["EWMA(0.94)", "n/a", "n/a", "9,736"],
    ]
    # A log volatility has no sign to hit.
    assert seen.row("Symbol") == ["Symbol", "Known outcomes", "IC", "Mean forecast", "Mean outcome"]


def test_one_fold_one_symbol_and_no_number_at_all_still_make_a_page(tmp_path: Path) -> None:
    numbers = [
        "ic", "ic_t", "rank_ic", "rank_ic_t", "hit_rate", "within_ten_percent", "forecast_std", "sharpe",
        "max_drawdown", "turnover", "total_return", "benchmark_total_return", "benchmark_sharpe",
        "benchmark_max_drawdown", "cost_share",
    ]  # fmt: skip
    fold = sample_fold(0, 0, 59, forecasts={"AAA": 60}, untrained_loss=None, best_loss=None)
    summary = sample_summary(
        **dict.fromkeys(numbers), sharpe_ci95=[None, None], benchmark_sharpe_ci95=[None, None], n_fills=0,
        cost_total=0.0, symbols=["AAA"], folds=[fold], n_folds=1,
    )  # fmt: skip
    flat = sample_equity([1e6] * N_BARS, [1e6] * N_BARS)
    fills = pl.DataFrame(schema=FILL_SCHEMA)
    book = Book(flat, fills, pl.DataFrame(schema=HELD_SCHEMA), fills)
    constant = sample_outcomes(("AAA",)).with_columns(forecast=pl.lit(0.001))
    seen = Page(_written(tmp_path, summary, book, constant))
    assert seen.row("Sharpe ratio [95 %]")[1:3] == ["n/a", "n/a"]
    assert seen.row("Turnover a year")[1] == "n/a"
    assert "The forecasts do not vary" in seen.text
    assert "1 fold" in seen.text
    assert not re.search(r"\b(nan|None)\b", seen.text)
    unknown = constant.with_columns(label=pl.lit(None, dtype=pl.Float64))
    assert "No outcome is known yet." in Page(_written(tmp_path, summary, book, unknown)).text


# Figures.


def test_every_figure_is_valid_plotly(tmp_path: Path) -> None:
    import plotly.graph_objects as go

    folds = [sample_fold(0, 0, 29, history=sample_history(0.5, 0.25, None)), sample_fold(1, 30, 59)]
    drawn = json.loads(Page(_written(tmp_path, sample_summary(folds=folds))).scripts[0])
    assert list(drawn) == ["equity", "folds", "binned", "scatter", "learning"]
    for figure in drawn.values():
        layout = go.Figure(figure).layout
        assert layout.xaxis.title.text
        assert layout.yaxis.title.text


def test_learning_curves_are_multiples_of_the_untrained_loss_and_need_three_entries() -> None:
    assert figures.learning([sample_fold(0, 0, 29), sample_fold(1, 30, 59)]) is None
    drawn = figures.learning([sample_fold(0, 0, 29, history=sample_history(0.5, 0.25, 0.4))])
    assert drawn is not None
    (curve,) = drawn["data"]
    assert (curve["x"], curve["y"]) == ([0, 1, 2], [1.0, 0.5, 0.8])
    assert [size > 0 for size in curve["marker"]["size"]] == [False, True, False]


def test_a_long_history_is_thinned_but_keeps_its_end_and_its_deepest_drawdown() -> None:
    n = 10_000
    values = np.linspace(1.0, 2.0, n)
    values[4321] = 0.7
    frame = sample_equity(values.tolist(), [1.0] * n)
    drawn = figures.equity(frame, [])
    growth, fall = (t for t in drawn["data"] if t["name"] == "strategy")
    assert len(growth["x"]) <= figures.MOST_POINTS
    assert growth["y"][-1] == 2.0
    assert min(fall["y"]) == pytest.approx(0.7 / values[4320] - 1, rel=1e-5)


def test_a_line_marks_where_each_fold_after_the_first_begins() -> None:
    layout = figures.equity(sample_book().equity, sample_summary()["folds"])["layout"]
    assert [s["x0"] for s in layout["shapes"]] == ["2024-01-31 21:00"]
    assert [a["text"] for a in layout["annotations"]] == ["0", "1"]


def _independent_rows(n: int) -> pl.DataFrame:
    rng = np.random.default_rng(5)
    times = [FIRST + timedelta(days=d) for d in range(n)]
    forecast, label = rng.normal(size=(2, n))
    return pl.DataFrame({"symbol": ["AAA"] * n, "ts": times, "forecast": forecast, "label": label})


def test_bins_are_of_equal_size_and_hold_their_means() -> None:
    rows = _independent_rows(400).with_columns(label=pl.col("forecast") * 2)
    table = figures.bins(rows)
    assert table["n"].to_list() == [20] * 20
    assert table["forecast"].is_sorted()
    assert np.allclose(table["outcome"], 2 * table["forecast"])
    assert table["forecast"].mean() == pytest.approx(rows["forecast"].to_numpy().mean())


def test_a_bins_error_is_the_usual_one_where_every_row_is_its_own_block_of_time() -> None:
    rows = _independent_rows(40)
    table = figures.bins(rows)
    labels = rows.sort("forecast")["label"].to_numpy().reshape(4, 10)
    assert np.allclose(table["error"], 1.96 * labels.std(axis=1, ddof=1) / np.sqrt(10))


def test_copies_of_one_moment_add_no_certainty() -> None:
    rows = _independent_rows(40)
    value, moment = rows["label"].to_numpy(), np.arange(40)
    alone = figures.clustered_error(value, moment)
    assert alone == pytest.approx(value.std(ddof=1) / np.sqrt(40))
    assert figures.clustered_error(np.tile(value, 5), np.tile(moment, 5)) == pytest.approx(alone)


def test_a_scatter_is_a_repeatable_sample_of_at_most_two_thousand() -> None:
    rows = _independent_rows(9_736)
    drawn = figures.scatter(rows, is_volatility=False)["data"][0]
    assert 1_500 < len(drawn["x"]) <= 2_000
    assert figures.scatter(rows.sample(fraction=1.0, shuffle=True, seed=3), is_volatility=False)["data"][0] == drawn


def provenance(**changes: object) -> str:
    return Page(tables.provenance(sample_summary(**changes))).text


def test_the_report_says_which_splits_and_dividends_were_applied_and_never_that_none_were() -> None:
    said = provenance()
    assert "splits and dividends, AAA (1 split and 12 dividends): a later event changes no earlier value." in said
    assert "Without any on record: BBB." in said
    none = {"AAA": {"dividend": 0, "split": 0}}
    assert "No recorded splits or dividends" in provenance(adjustments=none)
    assert "Adjusted" not in provenance(adjustments=none)
    assert "BBB (2 splits)" in provenance(adjustments={**none, "BBB": {"dividend": 0, "split": 2}})


def test_the_report_says_how_futures_rolled_and_what_was_left_out() -> None:
    rolls = [{"symbol": "ES", "ts": "2013-12-18T23:01:00Z", "old": "ESZ3", "new": "ESH4"}]
    said = provenance(rolls=rolls, bars_outside_sessions=47)
    assert "1 roll, ES from ESZ3 to ESH4 on 2013-12-18: decided by what was known at the close before" in said
    assert "47 bars outside every session of the calendar." in said
    nothing = provenance(rolls=[], bars_outside_sessions=0)
    assert "Rolls" not in nothing
    assert "Bars left out" not in nothing


def test_the_report_says_how_many_corrections_there_are_and_how_many_came_too_late_for_any_fit() -> None:
    assert "No bar was ever corrected." in provenance()
    said = provenance(corrections=1200, corrections_after_last_cut=3)
    assert "1,200 corrections: a fold sees those known at its cut" in said
    assert "Known only after the last cut, so in no fit: 3." in said
    assert "Known only" not in provenance(corrections=2)
