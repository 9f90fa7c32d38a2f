"""One call gives all that says how likely a result is luck."""

import math
from typing import Any

import numpy as np
import pytest

from foxflow import significance
from foxflow.errors import DataError
from foxflow.metrics import Floats
from foxflow.significance import Trials

YEAR = 252


def noise(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(0.0, 0.01, shape)


def assess(returns: Any, benchmark: Floats, trials: Trials) -> tuple[dict[str, Any], dict[str, Any]]:
    found = significance.assess(returns, benchmark, periods_per_year=YEAR, trials=trials, seed=1)
    return found["significance"], found["versus_benchmark"]


def test_a_run_alone_in_its_ledger_is_deflated_by_nothing() -> None:
    returns, benchmark = noise(20, 500) + 0.001, noise(21, 500)
    found, against = assess(returns, benchmark, Trials(returns[:, None], is_known=True, note="1 trial"))
    moments = significance.moments(returns)
    assert moments is not None
    assert found["psr"] == found["deflated_sharpe"] == significance.probabilistic_sharpe(moments)
    assert (found["n_trials"], found["n_effective_trials"], found["expected_max_sharpe"]) == (1, 1.0, 0.0)
    assert found["trial_sharpe_variance"] == 1 / 499
    assert found["n_sessions"] == 500
    assert (found["pbo"], found["pbo_note"]) == (None, "not computed: it needs at least 2 trials")
    assert against["lead"] == pytest.approx((returns - benchmark).mean() * YEAR, rel=1e-12)
    assert against["alpha"] + against["beta"] * benchmark.mean() * YEAR == pytest.approx(returns.mean() * YEAR)


def test_unknown_trials_are_never_one() -> None:
    returns = noise(22, 500)
    found, _ = assess(returns, noise(23, 500), Trials(returns[:, None], is_known=False, note="the ledger was deleted"))
    for name in ("n_trials", "n_effective_trials", "deflated_sharpe", "expected_max_sharpe", "trial_sharpe_variance"):
        assert found[name] is None, name
    assert found["trials_known"] is False
    assert found["trials_note"] == "the ledger was deleted"
    assert found["pbo"] is None
    assert found["psr"] is not None


def test_a_quant_can_recompute_the_deflated_sharpe_ratio_from_the_summary() -> None:
    trials = noise(24, 400, 40)
    returns = trials[:, 0] + 0.001
    found, _ = assess(returns, noise(25, 400), Trials(trials, is_known=True, note=""))
    moments = significance.moments(returns)
    assert moments is not None
    reference = math.sqrt(found["trial_sharpe_variance"]) * significance.expected_maximum(found["n_effective_trials"])
    assert found["expected_max_sharpe"] == pytest.approx(reference * math.sqrt(YEAR), rel=1e-12)
    assert found["deflated_sharpe"] == pytest.approx(
        significance.probabilistic_sharpe(moments, reference=reference), rel=1e-12
    )
    assert found["pbo_n_trials"] == 40
    assert found["pbo_note"].startswith("40 of 40 trials over 400 sessions in 12 groups")


def test_numbers_are_means_over_seeds_and_never_the_best() -> None:
    streams, benchmark = [noise(s, 300) for s in (26, 27, 28)], noise(29, 300)
    trials = Trials(np.column_stack(streams), is_known=True, note="")
    together, against = assess(streams, benchmark, trials)
    alone = [assess(r, benchmark, trials) for r in streams]
    for name in ("psr", "deflated_sharpe", "sharpe_bootstrap_ci95", "max_drawdown_bootstrap_ci95"):
        assert together[name] == pytest.approx(np.mean([a[name] for a, _ in alone], axis=0), rel=1e-12), name
    assert against["alpha_t"] == pytest.approx(np.mean([b["alpha_t"] for _, b in alone]), rel=1e-12)
    assert together["n_trials"] == 3


def test_trials_on_other_sessions_stay_out_of_pbo_and_are_said_to() -> None:
    trials = np.full((400, 5), np.nan)
    trials[:, :3], trials[100:, 3], trials[390:, 4] = noise(30, 400, 3), noise(31, 300), noise(32, 10)
    found, _ = assess(trials[:, 0], noise(33, 400), Trials(trials, is_known=True, note=""))
    assert found["pbo_n_trials"] == 3
    assert found["pbo_note"].startswith("3 of 5 trials over 400 sessions")
    short, _ = assess(trials[:60, 0], noise(34, 60), Trials(trials[:60, :3], is_known=True, note=""))
    assert short["pbo"] is None
    assert short["pbo_note"] == "not computed: 3 trials share 60 sessions; it needs at least 2 and 120"


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_few_sessions_give_none_and_no_error(n: int) -> None:
    returns = noise(35, n)
    found, against = assess(returns, noise(36, n), Trials(returns[:, None], is_known=True, note=""))
    assert found["sharpe_bootstrap_ci95"] is None
    assert found["n_sessions"] == n
    assert (found["psr"] is None) == (n < 3)
    assert (against["lead"] is None) == (n == 0)


def test_a_strategy_that_never_trades_is_assessed_without_a_ratio() -> None:
    idle = np.zeros(300)
    found, against = assess(idle, noise(37, 300), Trials(idle[:, None], is_known=True, note=""))
    assert found["psr"] is None
    assert found["deflated_sharpe"] is None
    assert against["beta"] == 0.0


def test_streams_that_do_not_fit_are_refused() -> None:
    trials = Trials(noise(38, 300, 1), is_known=True, note="")
    with pytest.raises(DataError, match="beside those of the benchmark of shape"):
        assess(noise(39, 299), noise(40, 300), trials)
    with pytest.raises(DataError, match="1 of them not finite"):
        assess(np.append(noise(41, 299), np.nan), noise(42, 300), trials)
