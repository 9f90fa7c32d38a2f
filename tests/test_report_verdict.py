"""What the report concludes, in words."""

from typing import Any

import pytest
from report_samples import FORECASTERS, sample_fold, sample_summary

from foxflow import report
from foxflow.report.conclusion import standing


def test_an_interval_around_zero_cannot_be_told_from_luck() -> None:
    summary = sample_summary(
        sharpe=0.292, sharpe_ci95=[-0.328, 0.913], ic=-0.0143, ic_t=-0.79, total_return=0.328, is_sample=True,
        benchmark_total_return=15.68, benchmark_sharpe=1.192,
        folds=[sample_fold(0, 0, 29, has_learned=False), sample_fold(1, 30, 59)],
    )  # fmt: skip
    assert report.verdict(summary) == [
        "This result cannot be told from luck.",
        (
            "The bars are the embedded sample, five survivors picked with hindsight: whatever they earn says nothing "
            "of skill."
        ),
        "The Sharpe ratio is 0.29 a year; its 95 % interval, -0.33 to 0.91, contains 0.",
        (
            "It did not beat buy-and-hold of the same universe net of costs: total return +32.8 % against +1,568.0 %, "
            "Sharpe ratio 0.29 against 1.19."
        ),
        (
            "The information coefficient (IC) is -0.014, its t-statistic -0.79, inside ±1.96: the forecasts cannot be "
            "told from luck either."
        ),
        (
            "1 of 2 folds learned nothing (0): on the validation tail the fitted model was no better than the "
            "untrained one."
        ),
    ]


def test_a_good_result_says_that_it_is_one_walk_forward_of_many() -> None:
    assert report.verdict(sample_summary()) == [
        "Hard to put down to luck alone, which is not yet proof of skill.",
        (
            "The Sharpe ratio is 1.82 a year; its 95 % interval, 1.20 to 2.45, excludes 0 in this one walk-forward; "
            "every configuration tried before it raises the odds of luck."
        ),
        (
            "It beat buy-and-hold of the same universe net of costs: total return +87.7 % against +32.1 %, Sharpe "
            "ratio 1.82 against 0.61; the information ratio of the lead is 0.90, 0.20 to 1.60."
        ),
        (
            "The information coefficient (IC) is 0.051, its t-statistic 3.21: the forecasts carry information in this "
            "one walk-forward."
        ),
        "Every fold's model beat its untrained state on the validation tail.",
    ]


def test_a_negative_result_is_called_a_loss() -> None:
    summary = sample_summary(
        sharpe=-1.5, sharpe_ci95=[-2.2, -0.8], total_return=-0.4, cost_share=None, ic=-0.06, ic_t=-2.5
    )
    said = report.verdict(summary)
    assert said[0] == "It lost money, and by more than bad luck alone would usually explain."
    assert "lies below 0" in said[1]
    assert said[2].startswith("It did not beat buy-and-hold")
    assert said[3] == "Before costs there was no profit either."
    assert "point the wrong way" in said[4]


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_without_trades_nothing_is_concluded(nothing: float | None) -> None:
    summary = sample_summary(
        n_fills=0, sharpe=nothing, sharpe_ci95=[nothing, nothing], total_return=0.0, cost_share=nothing, ic=nothing,
        ic_t=nothing, turnover=nothing,
    )  # fmt: skip
    assert report.verdict(summary)[:4] == [
        "Nothing can be concluded from this result.",
        "It never traded, so there is no Sharpe ratio to judge.",
        "Buy-and-hold of the same universe returned +32.1 % net of costs.",
        "The forecasts cannot be judged: there is no information coefficient with a t-statistic.",
    ]


def test_folds_that_learned_nothing_are_named() -> None:
    folds = [sample_fold(n, 5 * n, 5 * n + 4, has_learned=n in {0, 5}) for n in range(11)]
    assert report.verdict(sample_summary(folds=folds))[-1] == (
        "9 of 11 folds learned nothing (1-4, 6-10): on the validation tail the fitted model was no better than the "
        "untrained one."
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "good"),
        ({"sharpe_ci95": [0.0, 2.4]}, "luck"),
        ({"benchmark_total_return": 0.9}, "market"),
        ({"benchmark_sharpe": 1.9}, "market"),
        ({"benchmark_total_return": None}, "market"),
        ({"ic_t": 1.95}, "unexplained"),
        ({"ic_t": -3.0}, "unexplained"),
        ({"ic_t": None}, "unexplained"),
        ({"folds": [sample_fold(0, 0, 59, has_learned=False)]}, "unexplained"),
        ({"sharpe_ci95": [-2.0, -0.1]}, "loss"),
        ({"sharpe_ci95": [None, None]}, "unknown"),
        ({"n_fills": 0}, "unknown"),
    ],
)
def test_a_conclusion_needs_luck_market_and_forecasts_all_answered(changes: dict[str, Any], expected: str) -> None:
    assert standing(sample_summary(**changes)) == expected


def test_a_lead_on_one_count_only_is_said_to_be_one() -> None:
    said = report.verdict(sample_summary(benchmark_sharpe=1.9, benchmark_sharpe_ci95=[1.2, 2.6]))[2]
    assert "beat buy-and-hold of the same universe net of costs on total return but not on Sharpe ratio" in said


def test_a_lead_that_can_be_luck_is_not_established() -> None:
    changes = {"information_ratio": 0.4, "information_ratio_ci95": [-0.3, 1.1]}
    said = report.verdict(sample_summary(**changes))[2]
    assert said.endswith("the information ratio of the lead is 0.40, -0.30 to 1.10, so the lead is not established.")
    assert standing(sample_summary(**changes)) == "market"


def test_costs_that_eat_a_quarter_of_the_profit_are_named() -> None:
    assert "Costs ate 25 % of the gross profit." in report.verdict(sample_summary(cost_share=0.25))
    assert not any("Costs ate" in said for said in report.verdict(sample_summary(cost_share=0.24)))
    none = "No cost was charged: all that is said of it is before costs."
    assert none in report.verdict(sample_summary(cost_total=0.0, cost_share=0.0))
    assert none in report.verdict(sample_summary(cost_total=0.0, cost_share=None))
    assert none not in report.verdict(sample_summary(cost_total=0.0, n_fills=0))
    assert none not in report.verdict(sample_summary())


def test_a_volatility_forecast_is_judged_against_the_best_other_forecaster() -> None:
    said = " ".join(report.verdict(sample_summary(forecasters=FORECASTERS)))
    assert "ridge, is ahead of the best other forecaster, HAR: R² of log volatility 0.408 against 0.319." in said
    behind = " ".join(report.verdict(sample_summary(forecasters=FORECASTERS, model="last value")))
    assert "last value, is not ahead of the best other forecaster, ridge" in behind


SIGNIFICANCE: dict[str, Any] = {
    "psr": 0.99997,
    "deflated_sharpe": 0.9731,
    "n_trials": 12,
    "n_effective_trials": 5.34,
    "trials_known": True,
    "trials_note": "12 trials on these bars, by the ledger begun on 2024-01-01",
    "expected_max_sharpe": 0.4123,
    "sharpe_bootstrap_ci95": [1.15, 2.51],
    "max_drawdown_bootstrap_ci95": [-0.214, -0.071],
    "bootstrap_block_sessions": 3.62,
    "pbo": 0.127,
    "pbo_n_trials": 12,
}
VERSUS = {"alpha": 0.1234, "alpha_t": 3.21, "beta": 0.45, "lead": 0.1, "lead_t": 2.5}
BASELINE = {"model": "ridge", "sharpe": 0.71, "total_return": 0.15, "max_drawdown": -0.2, "ic": 0.02, "ic_t": 1.1}


def assessed(
    changes: dict[str, Any] | None = None, versus: dict[str, Any] | None = None, **more: object
) -> dict[str, Any]:
    """Return a good result that outlasts the number of trials too."""
    significance, against = SIGNIFICANCE | (changes or {}), VERSUS | (versus or {})
    whole = {"label": "forward_return", "horizon": 5, "n_seeds": 3, "baseline": BASELINE}
    seeds = [{"seed": n, "sharpe": ratio} for n, ratio in enumerate((1.5, 1.824, 2.148))]
    return sample_summary(significance=significance, versus_benchmark=against, seeds=seeds, **whole, **more)


def test_skill_is_said_with_what_was_tried_what_was_found_and_how_likely_it_is_luck() -> None:
    assert report.verdict(assessed()) == [
        "This looks like skill: neither luck, the number of configurations tried nor the market explains it.",
        (
            "Tried: ridge forecasting forward_return 5 bars ahead for 2 symbols (AAA, BBB) from 2024-01-01 to "
            "2024-02-29, in 2 folds and with 3 seeds, of which the mean is told."
        ),
        (
            "The Sharpe ratio is 1.82 a year (mean of 3 seeds, 1.50 to 2.15); its 95 % interval, 1.20 to 2.45, "
            "excludes 0 in this one walk-forward; every configuration tried before it raises the odds of luck."
        ),
        (
            "The probability that the true Sharpe ratio is above 0 is over 99.9 % taken alone (probabilistic Sharpe "
            "ratio) and 97.3 % as one of 12 trials on these bars in the ledger (deflated Sharpe ratio): they count as "
            "5.3 independent ones, the best of which luck alone would bring to 0.41 a year."
        ),
        (
            "Drawn anew in blocks of 3.6 sessions on average, its returns have a Sharpe ratio of 1.15 to 2.51 and a "
            "maximum drawdown of -21.4 % to -7.1 % in 95 % of cases."
        ),
        (
            "Of 12 trials, the best on one half of the sessions was no better than the median on the other half in "
            "13 % of cases (probability of backtest overfitting)."
        ),
        (
            "It beat buy-and-hold of the same universe net of costs: total return +87.7 % against +32.1 %, Sharpe "
            "ratio 1.82 against 0.61; the information ratio of the lead is 0.90, 0.20 to 1.60."
        ),
        (
            "Its beta to buy-and-hold is 0.45, and the alpha beside it, +12.3 % a year (t-statistic 3.21), is more "
            "than luck alone would usually give."
        ),
        (
            "It is ahead of the ridge baseline on the same folds: Sharpe ratio 1.82 against 0.71, total return "
            "+87.7 % against +15.0 %."
        ),
        (
            "The information coefficient (IC) is 0.051, its t-statistic 3.21: the forecasts carry information in this "
            "one walk-forward."
        ),
        "Every fold's model beat its untrained state on the validation tail.",
    ]


@pytest.mark.parametrize(
    ("changes", "versus", "more", "expected"),
    [
        ({"deflated_sharpe": 0.95}, {}, {}, "good"),
        ({"deflated_sharpe": None}, {}, {}, "good"),
        ({"trials_known": False}, {}, {}, "good"),
        ({"trials_known": None}, {}, {}, "good"),
        ({"sharpe_bootstrap_ci95": [0.0, 2.5]}, {}, {}, "good"),
        ({"sharpe_bootstrap_ci95": None}, {}, {}, "good"),
        ({}, {"lead_t": 1.9}, {}, "good"),
        ({}, {"lead_t": None}, {}, "good"),
        ({}, {}, {"is_sample": True}, "good"),
        ({}, {}, {"ic_t": 1.9}, "unexplained"),
        ({}, {}, {"folds": [sample_fold(0, 0, 59, has_learned=False)]}, "unexplained"),
        ({}, {}, {"sharpe_ci95": [-0.1, 2.4]}, "luck"),
        ({}, {}, {"n_fills": 0}, "unknown"),
        # Behind buy-and-hold, which only a market-neutral strategy may be.
        ({}, {}, {"benchmark_total_return": 0.9}, "market"),
        ({}, {"beta": 0.11, "lead_t": -1.0}, {"benchmark_total_return": 0.9}, "market"),
        ({}, {"beta": -0.08, "lead_t": -1.0}, {"benchmark_total_return": 0.9}, "skill"),
        ({}, {"beta": 0.08, "alpha_t": 1.9}, {"benchmark_total_return": 0.9}, "market"),
        ({"trials_known": False}, {"beta": 0.08}, {"benchmark_total_return": 0.9}, "market"),
    ],
)
def test_skill_needs_everything_answered(
    changes: dict[str, Any], versus: dict[str, Any], more: dict[str, Any], expected: str
) -> None:
    assert standing(assessed()) == "skill"
    assert standing(assessed(changes, versus, **more)) == expected


def test_unknown_trials_are_said_with_the_reason_and_nothing_is_deflated() -> None:
    unknown = {"trials_known": False, "deflated_sharpe": None, "n_trials": None, "pbo": None}
    said = report.verdict(assessed(unknown | {"psr": 0.9644, "trials_note": "the ledger was deleted"}))
    assert said[0] == "Hard to put down to luck alone, which is not yet proof of skill."
    assert said[3] == (
        "The probability that the true Sharpe ratio is above 0 is 96.4 % taken alone (probabilistic Sharpe ratio); how "
        "many configurations were tried is not known, so this cannot be called skill: the ledger was deleted."
    )
    assert not any("overfitting" in sentence for sentence in said)


def test_the_only_trial_is_said_to_be_one() -> None:
    said = report.verdict(assessed({"n_trials": 1, "n_effective_trials": 1.0, "pbo": None}))
    assert said[3].endswith("is over 99.9 % taken alone, and this is the only trial on these bars in the ledger.")


def test_a_result_behind_the_baseline_says_so() -> None:
    said = report.verdict(assessed(sharpe=0.70))
    assert any(s.startswith("It is not ahead of the ridge baseline on the same folds: Sharpe ratio 0.70") for s in said)
    alone = report.verdict(assessed() | {"baseline": None})
    assert not any("baseline" in sentence for sentence in alone)


@pytest.mark.parametrize(
    ("alpha_t", "words"),
    [(1.9, "cannot be told from luck."), (-2.1, "is lower than luck alone would usually make it.")],
)
def test_alpha_is_told_with_its_t(alpha_t: float, words: str) -> None:
    said = report.verdict(assessed(versus={"alpha_t": alpha_t}))
    assert any(s.startswith("Its beta to buy-and-hold is 0.45") and s.endswith(words) for s in said)
