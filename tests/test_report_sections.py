"""Each section of the report: what it shows, and that it is gone or says why where a run has nothing for it."""

from pathlib import Path

import pytest
from report_samples import Page, sample_book, sample_outcomes, sample_summary
from report_states import SIGNIFICANCE, STATES, WATERFALL, Shape, run_of

from foxflow import report
from foxflow.cli import backtest
from foxflow.report import figures, sections, tables

FULL = run_of(Shape(n_bars=500, n_folds=4, n_seeds=3))


def page(tmp_path: Path, **changes: object) -> Page:
    report.write(tmp_path / "report.html", {**FULL[0], **changes}, FULL[1], FULL[2])
    return Page((tmp_path / "report.html").read_text())


def test_the_waterfall_adds_up_to_the_cent_as_it_is_shown() -> None:
    rows = Page(tables.waterfall(WATERFALL)).rows[1:]
    cents = [round(100 * float(money.replace(",", ""))) for _, money, _ in rows]
    assert sum(cents[:-1]) == cents[-1] == 105_374_889


def test_what_rounding_leaves_over_in_the_waterfall_has_a_row() -> None:
    rows = [{"name": "gross", "amount": 10.004}, {"name": "fee", "amount": -0.006}, {"name": "net", "amount": 9.998}]
    shown = [cells[:2] for cells in Page(tables.waterfall(rows)).rows[1:]]
    assert shown == [["gross", "10.00"], ["fee", "-0.01"], ["rounding", "0.01"], ["net", "10.00"]]


def test_seeds_begin_with_their_mean_and_keep_their_order() -> None:
    rows = [{"seed": 7, "sharpe": 1.0}, {"seed": 8, "sharpe": 4.0}, {"seed": 9, "sharpe": -2.0}]
    shown = [cells[:2] for cells in Page(tables.seeds(rows)).rows[1:]]
    # Mean 1; deviations 0, 3 and -3 over n - 1 = 2.
    assert shown == [
        ["Mean", "1.00"],
        ["Standard deviation", "3.00"],
        ["seed 7", "1.00"],
        ["seed 8", "4.00"],
        ["seed 9", "-2.00"],
    ]


def test_the_mean_of_seeds_is_not_that_of_those_that_traded() -> None:
    idle = {"seed": 2, "sharpe": None, "total_return": 0.0, "max_drawdown": 0.0, "ic": None, "ic_t": None}
    traded = {"seed": 1, "sharpe": 3.0, "total_return": 0.5, "max_drawdown": -0.1, "ic": 0.1, "ic_t": 4.0}
    mean, spread, *_ = [cells[1:3] for cells in Page(tables.seeds([traded, idle])).rows[1:]]
    assert mean == ["n/a", "+25.0 %"]
    assert spread == ["n/a", "35.4 %"]


def test_a_year_is_what_its_months_compound_to_and_what_is_not_known_is_empty() -> None:
    rows = [{"year": 2020, "month": 11, "return": 0.1}, {"year": 2020, "month": 12, "return": -0.5}]
    (shown,) = Page(tables.monthly(rows)).rows[1:]
    assert shown == ["2020", *[""] * 10, "10.0", "-50.0", "-45.0"]


def test_trials_that_nobody_knows_are_never_shown_as_a_number() -> None:
    found = {**SIGNIFICANCE, "trials_known": False, "deflated_sharpe": None, "trials_note": "The ledger is gone."}
    shown = Page(tables.significance(found))
    assert shown.row("Deflated Sharpe ratio")[1] == "trials unknown"
    assert "The ledger is gone." in shown.row("Deflated Sharpe ratio")[2]
    assert shown.row("Trials / effective")[1] == "trials unknown"


def test_a_fit_that_saw_what_came_after_its_first_forecast_is_named(tmp_path: Path) -> None:
    assert "In each of 4 folds all that touched the fit" in page(tmp_path).text
    folds = [dict(f) for f in FULL[0]["folds"]]
    folds[2]["train_label_end"] = folds[2]["test_end"]
    assert "In 1 fold the fit saw what came after its first forecast." in page(tmp_path, folds=folds).text


def test_the_strip_of_a_forecast_orders_its_times_and_marks_what_was_known_too_late() -> None:
    steps = {
        "data_cut": "2024-01-02T21:00:00Z",
        "decision_ts": "2024-01-02T21:00:00Z",
        "fill_ts": "2024-01-03T21:00:00Z",
    }
    html = sections.one_forecast(sample_summary(audit={"timeline": {**steps, "fill_price": 10}})).html
    kinds = [a["class"] for tag, a in Page(html).elements if tag == "li"]
    assert kinds == ["decision", "unknown"]
    assert "fill at 10.0000" in html
    late = {**steps, "data_cut": "2024-01-04T21:00:00Z"}
    html = sections.one_forecast(sample_summary(audit={"timeline": late})).html
    assert [a["class"] for tag, a in Page(html).elements if tag == "li"] == ["decision", "unknown", "late"]


def test_500_folds_are_drawn_as_a_few_with_the_first_and_the_last() -> None:
    folds = STATES["500 folds"]()[0]["folds"]
    drawn = figures.drawn_folds(folds)
    assert len(drawn) == 32
    assert (drawn[0]["fold"], drawn[-1]["fold"]) == (0, 499)


def test_ticks_of_an_intraday_forecast_tell_it_from_zero() -> None:
    _, _, outcomes = STATES["15 minutes"]()
    rows = outcomes.drop_nulls()
    drawn = figures.binned(rows, is_volatility=False)
    assert drawn is not None
    assert drawn["layout"]["xaxis"]["tickformat"] == ".3%"


@pytest.mark.parametrize("name", ["hollow", "nulls", "hostile"])
def test_no_null_and_no_hostile_name_comes_through(name: str, tmp_path: Path) -> None:
    report.write(tmp_path / "report.html", *STATES[name]())
    seen = Page((tmp_path / "report.html").read_text())
    assert len(seen.scripts) == 3
    assert "nan" not in seen.text.split()
    assert "None" not in seen.text.split()
    assert not [a for _, attributes in seen.elements for a in attributes if a.startswith("on")]


def test_an_older_summary_has_none_of_the_later_sections(tmp_path: Path) -> None:
    report.write(tmp_path / "report.html", sample_summary(), sample_book(), sample_outcomes())
    seen = Page((tmp_path / "report.html").read_text())
    shown = {a["id"] for tag, a in seen.elements if tag == "section" and "id" in a}
    later = {"seeds", "significance", "rolling", "costs", "monthly", "drawdowns", "sensitivity", "bars"}
    assert shown.isdisjoint({f"at-{name}" for name in later})


def test_the_printed_table_has_seeds_trials_costs_and_delays_and_prints_older_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    backtest.print_summary({**FULL[0], "verdict": ["Nothing."], "report": "report.html"})
    printed = capsys.readouterr().out
    for said in ("0.32, 0.54, 0.76", "95.1%", "41.3% of 37 trials", "-11.2% (-1.9)", "profit: gross 1,104,943, fee -7,926",
                 "Sharpe by delay in bars: 0: 0.54, 1: 0.44, 2: 0.34", "ridge: Sharpe, return"):  # fmt: skip
        assert said in printed, said
    backtest.print_summary(sample_summary(verdict=["Nothing."], report="report.html"))
    assert "seeds" not in capsys.readouterr().out


def test_each_cost_by_name_has_a_curve_and_rows_of_its_own() -> None:
    rows = [
        {"name": name, "bps": bps, "sharpe": 0.3, "total_return": 0.4}
        for name in ("fee_bps", "half_spread_bps")
        for bps in (0, 1)
    ]
    drawn = figures.sensitivity(rows, "bps", "bps")
    assert drawn is not None
    assert [(t["name"], t["x"]) for t in drawn["data"]] == [("fee", [0.0, 1.0]), ("half spread", [0.0, 1.0])]
    assert Page(tables.by_cost(rows)).rows[3] == ["half spread", "0", "0.30", "+40.0 %"]
