"""Two runs over the same tasks, paired by task.

This module imports numpy and pandas: import it inside functions, not at start-up.
"""

import math

import numpy as np
from pandas import DataFrame

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import REWARD
from rollmill.metrics.estimate import Estimate
from rollmill.metrics.estimators import Floats, Ints
from rollmill.metrics.intervals import SHARE, UNBOUNDED, bootstrap_means, mean_estimate
from rollmill.metrics.task_scores import CORRECT_AT, TaskScores

MOVED = 10
RESAMPLES = 10_000
"""A p-value cannot be below 1 / 10,001."""
SOLVED_AT = 0.5
"""A task counts as solved when more than this share of its rollouts is correct."""
_TOLERANCE = 1e-12  # means that differ only by rounding are equal


def compare_runs(
    a: DataFrame, b: DataFrame, *, score_field: str = REWARD, seed: int = 0, correct_at: float = CORRECT_AT
) -> JsonObject:
    """Compare one agent's rollouts of two runs over the tasks that both have scored rollouts of.

    Args:
        a: the run to measure against: one row per rollout, `_ng_task_index`, `_ng_rollout_index` and the score.
        b: the other run; differences are b minus a.
        score_field: column of the scores.
        seed: of the bootstrap.
        correct_at: a rollout is correct when its score is at least this.

    Returns:
        `tasks` (both, only_a, only_b), `mean_a` and `mean_b` (over the common tasks, beside the number of all tasks of
        the run), `difference` with its t interval over tasks, `p_value` (two-sided paired bootstrap; left out with
        fewer than two common tasks), `mcnemar` (tasks solved by one run only, exact two-sided p-value), `wins`, and the
        up to ten tasks that `moved_most`. Undefined numbers are left out.

    Raises:
        InputError: a run has rollouts but no such score field.

    Source: Miller 2024, arXiv:2411.00640 (paired differences); Efron & Tibshirani 1993, section 16.4 (bootstrap test);
    McNemar 1947, Psychometrika 12(2), in its exact binomial form.
    """
    one, other = (TaskScores(frame, score_field, correct_at=correct_at) for frame in (a, b))
    scored_a, scored_b = np.flatnonzero(one.n > 0), np.flatnonzero(other.n > 0)
    common, at_a, at_b = np.intersect1d(one.ids[scored_a], other.ids[scored_b], assume_unique=True, return_indices=True)
    in_a, in_b = scored_a[at_a], scored_b[at_b]
    mean_a, mean_b = one.means[in_a], other.means[in_b]
    moved = _moved(mean_a, mean_b)
    estimate = mean_estimate(one.column(moved)).to_json()
    p_value = _bootstrap_p(moved, seed)
    largest = np.lexsort((common, -np.abs(moved)))[:MOVED]
    return {
        "tasks": {"both": len(common), "only_a": len(one) - len(common), "only_b": len(other) - len(common)},
        "mean_a": _mean(one, in_a).to_json(),
        "mean_b": _mean(other, in_b).to_json(),
        "difference": {name: estimate[name] for name in ("value", "low", "high", "standard_error") if name in estimate},
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
            if moved[i] != 0 and np.isfinite(moved[i])
        ],
    }


def _moved(mean_a: Floats, mean_b: Floats) -> Floats:
    scale = np.maximum(np.abs(mean_a), np.abs(mean_b))
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the range of doubles it is undefined
        moved = mean_b - mean_a
    return np.where(np.abs(moved) <= _TOLERANCE * scale, 0.0, moved)


def _mean(scores: TaskScores, common: Ints) -> Estimate:
    means = np.full(len(scores), np.nan)
    means[common] = scores.means[common]
    column = scores.column(means)._replace(rollouts=int(scores.n[common].sum()))
    return mean_estimate(column, SHARE if scores.binary else UNBOUNDED)


def _bootstrap_p(moved: Floats, seed: int) -> float | None:
    """Return how often a mean of resampled differences, centred on none, is as far from zero as the one seen.

    Resampled means spread a little less than means of new tasks would; the root makes up for it. The result is at least
    2 / 2^tasks, what flipping the signs of that many differences could give: two tasks that agree prove nothing.
    """
    tasks = len(moved)
    if tasks < 2 or not np.isfinite(moved).all():
        return None
    seen = moved.mean()
    means = bootstrap_means(moved - seen, seed=seed, resamples=RESAMPLES) * math.sqrt(tasks / (tasks - 1))
    extreme = int((np.abs(means) >= abs(seen) * (1 - 1e-9)).sum())
    return max((extreme + 1) / (RESAMPLES + 1), math.ldexp(1.0, 1 - tasks))


def _mcnemar(rate_a: Floats, rate_b: Floats) -> JsonObject:
    solved_a, solved_b = rate_a > SOLVED_AT, rate_b > SOLVED_AT
    only_a, only_b = int((solved_a & ~solved_b).sum()), int((solved_b & ~solved_a).sum())
    return {"only_a_solved": only_a, "only_b_solved": only_b, "p_value": exact_sign_p(only_a, only_b)}


def exact_sign_p(one: int, other: int) -> float:
    """Return the two-sided binomial p-value of two counts that chance would make equal; 1.0 when both are 0.

    It is twice the probability of a smaller count at most as large as this one, `2 * sum of C(n, i) / 2^n`, or 1.
    """
    total, least = one + other, min(one, other)
    if 2 * least >= total - 1:  # both tails together hold everything
        return 1.0
    # Terms relative to the largest, from there down: no binomial is ever too large, and tiny ones end the sum.
    tail, term = 0.0, 1.0
    for i in range(least, -1, -1):
        tail += term
        term *= i / (total - i + 1)
        if term < tail * 1e-17:
            break
    largest = math.lgamma(total + 1) - math.lgamma(least + 1) - math.lgamma(total - least + 1) - total * math.log(2)
    return min(1.0, 2 * tail * math.exp(largest))
