"""Intervals are simulated: of many runs whose truth is known, how many intervals hold it?"""

from collections.abc import Callable

import numpy as np
import pytest
from pandas import DataFrame

from rollmill.metrics.compare import compare_runs
from rollmill.metrics.estimate import Estimate
from rollmill.metrics.estimators import Floats, Ints, pass_at_k_of
from rollmill.metrics.intervals import Column, bootstrap_estimates, mean_estimate, ratio_estimate

TASKS, ROLLOUTS = 100, 8
A, B = 2.0, 3.0  # how often tasks are solved: a beta distribution, with mean A / (A + B)


def mean_of(n: Ints, c: Ints) -> Estimate:
    return mean_estimate(Column(c / n, int(n.sum())))


def ratio_of(n: Ints, c: Ints) -> Estimate:
    return ratio_estimate(c.astype(float), n)


def bootstrapped_mean_of(n: Ints, c: Ints) -> Estimate:
    return bootstrap_estimates([Column(c / n, int(n.sum()))], resamples=200)[0]


def bootstrapped_pass_at_2_of(n: Ints, c: Ints) -> Estimate:
    return bootstrap_estimates([Column(pass_at_k_of(n, c, 2), int(n.sum()))], resamples=200)[0]


def pass_at(k: int) -> float:
    """The truth: one minus the k-th moment of failing, of a beta distribution."""
    failing = 1.0
    for i in range(k):
        failing *= (B + i) / (A + B + i)
    return 1 - failing


def simulated(rng: np.random.Generator, *, uneven: bool) -> tuple[Ints, Ints]:
    n = rng.integers(2, 2 * ROLLOUTS - 1, size=TASKS) if uneven else np.full(TASKS, ROLLOUTS)
    return n, rng.binomial(n, rng.beta(A, B, size=TASKS))


@pytest.mark.parametrize(
    ("estimate", "truth", "uneven", "runs"),
    [
        (mean_of, pass_at(1), False, 4000),
        (mean_of, pass_at(1), True, 4000),
        (ratio_of, pass_at(1), True, 4000),
        (bootstrapped_mean_of, pass_at(1), False, 1000),
        (bootstrapped_pass_at_2_of, pass_at(2), False, 1000),
    ],
    ids=["mean", "mean of uneven tasks", "ratio of uneven tasks", "bootstrap of a mean", "bootstrap of pass@2"],
)
def test_95_of_100_intervals_hold_the_truth(
    estimate: Callable[[Ints, Ints], Estimate], truth: float, uneven: bool, runs: int
) -> None:
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(runs):
        found = estimate(*simulated(rng, uneven=uneven))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high

    assert 0.94 <= held / runs <= 0.96


def test_5_of_100_comparisons_of_equal_models_have_a_p_value_below_5_percent() -> None:
    rng = np.random.default_rng(12)
    runs, significant, held = 200, 0, 0
    for _ in range(runs):
        solve = rng.beta(A, B, size=TASKS)
        found = compare_runs(run_of(rng, solve), run_of(rng, solve))
        significant += found["p_value"] < 0.05
        held += found["difference"]["low"] <= 0 <= found["difference"]["high"]

    assert 0.02 <= significant / runs <= 0.08
    assert 0.92 <= held / runs <= 0.98


def run_of(rng: np.random.Generator, solve: Floats) -> DataFrame:
    tasks, rollouts = np.divmod(np.arange(TASKS * ROLLOUTS), ROLLOUTS)
    reward = (rng.random(TASKS * ROLLOUTS) < solve[tasks]).astype(float)
    return DataFrame({"_ng_task_index": tasks, "_ng_rollout_index": rollouts, "reward": reward})
