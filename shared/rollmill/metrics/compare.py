"""Two runs over the same tasks, paired by task.

This module imports numpy and pandas: import it inside functions, not at start-up.
"""

import math

import numpy as np
from pandas import DataFrame

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import REWARD
from rollmill.metrics.estimators import Floats, Ints
from rollmill.metrics.intervals import Column, bootstrap_means, mean_estimate
from rollmill.metrics.task_scores import CORRECT_AT, TaskScores

MOVED = 10
RESAMPLES = 10_000
"""Of the bootstrap behind a p-value, which thereby cannot be smaller than 0.0001."""
SOLVED_AT = 0.5
"""A task counts as solved when more than this share of its rollouts is correct."""


def compare_runs(
    a: DataFrame, b: DataFrame, *, score_field: str = REWARD, seed: int = 0, correct_at: float = CORRECT_AT
) -> JsonObject:
    """Compare one agent's rollouts of two runs over the tasks that both have.

    Args:
        a: the run to measure against: one row per rollout, `_ng_task_index` and the score.
        b: the other run; differences are b minus a.
        score_field: column of the scores.
        seed: of the bootstrap.
        correct_at: a rollout is correct when its score is at least this.

    Returns:
        `tasks` (both, only_a, only_b; of those with a score), `unscored` (rollouts without a finite score, which count
        in no number: a, b), `mean_a` and `mean_b` (over the common tasks), `difference` with its interval
        over tasks, `p_value` (two-sided paired bootstrap), `mcnemar` (tasks solved by one run only, exact two-sided
        p-value), `wins`, and the ten tasks that `moved_most`. Undefined numbers are left out.

    Source: McNemar 1947, Psychometrika 12(2) (exact binomial form); Efron & Tibshirani 1993, section 16 (bootstrap
    test).
    """
    one, other = (TaskScores(frame, score_field, correct_at=correct_at) for frame in (a, b))
    common, in_a, in_b = np.intersect1d(one.ids, other.ids, return_indices=True)
    mean_a, mean_b = one.means[in_a], other.means[in_b]
    moved = mean_b - mean_a
    estimate = mean_estimate(Column(moved, _rollouts(one, in_a) + _rollouts(other, in_b))).to_json()
    difference = {name: estimate[name] for name in ("value", "low", "high", "standard_error") if name in estimate}
    p_value = _bootstrap_p(moved, seed)
    largest = np.lexsort((common, -np.abs(moved)))[:MOVED]
    return {
        "tasks": {"both": len(common), "only_a": len(one) - len(common), "only_b": len(other) - len(common)},
        "unscored": {"a": one.unscored, "b": other.unscored},
        "mean_a": _mean(one, in_a),
        "mean_b": _mean(other, in_b),
        "difference": difference,
        **({"p_value": p_value} if p_value is not None else {}),
        "mcnemar": _mcnemar(one.c[in_a] / one.n[in_a], other.c[in_b] / other.n[in_b]),
        "wins": {"a": int((moved < 0).sum()), "b": int((moved > 0).sum()), "ties": int((moved == 0).sum())},
        "moved_most": [
            {
                "task": int(common[i]),
                "mean_a": float(mean_a[i]),
                "mean_b": float(mean_b[i]),
                "difference": float(moved[i]),
            }
            for i in largest.tolist()
            if moved[i] != 0
        ],
    }


def _mean(scores: TaskScores, chosen: Ints) -> JsonObject:
    return mean_estimate(Column(scores.means[chosen], _rollouts(scores, chosen))).to_json()


def _rollouts(scores: TaskScores, chosen: Ints) -> int:
    return int(scores.n[chosen].sum())


def _bootstrap_p(moved: Floats, seed: int) -> float | None:
    """How often the mean of resampled differences, centred on no difference, is as far from zero as the one seen."""
    if len(moved) < 2:
        return None
    seen = moved.mean()
    centred = bootstrap_means(moved - seen, seed=seed, resamples=RESAMPLES)
    extreme = int((np.abs(centred) >= abs(seen) - 1e-12).sum())
    return (extreme + 1) / (RESAMPLES + 1)


def _mcnemar(rate_a: Floats, rate_b: Floats) -> JsonObject:
    solved_a, solved_b = rate_a > SOLVED_AT, rate_b > SOLVED_AT
    only_a, only_b = int((solved_a & ~solved_b).sum()), int((solved_b & ~solved_a).sum())
    return {"only_a_solved": only_a, "only_b_solved": only_b, "p_value": exact_sign_p(only_a, only_b)}


def exact_sign_p(fewer: int, more: int) -> float:
    """Return the two-sided binomial p-value of two counts that chance would make equal; 1.0 when there are none."""
    total, least = fewer + more, min(fewer, more)
    if not total:
        return 1.0
    tail = sum(math.comb(total, i) for i in range(least + 1))
    return float(min(1.0, 2 * tail / 2**total))
