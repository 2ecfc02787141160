"""What a trainer looks at: where the gradient is, whether length is rewarded, and which tasks are hard.

This module imports numpy and pandas: import it inside functions, not at start-up.
"""

import math

import numpy as np
from pandas import factorize

from rollmill.contracts.json import JsonObject
from rollmill.metrics.estimate import Estimate
from rollmill.metrics.estimators import Floats, Ints
from rollmill.metrics.intervals import SHARE, Column, mean_estimate, ratio_estimate, t_quantile, wilson
from rollmill.metrics.task_scores import TaskScores

BINS = 10
LISTED = 10
MAX_ROLLOUTS = 100
"""Rollouts that are named of a listed task."""
MAX_POINTS = 2000
TOKENS = "output_tokens"
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
_PERCENTILE_FIELDS = (TOKENS, "total_tokens", "seconds", "turns")


def solve_rate(n: Ints, c: Ints) -> JsonObject:
    """Count tasks by the share of their rollouts that are correct.

    Args:
        n: scored rollouts of each task; tasks without any are not counted.
        c: correct ones of them.

    Returns:
        `none`, `some` and `all`, which together are all tasks; ten `bins` of the some, which add up to `some`, where a
        bin has its lower edge but not its upper one; and their 11 `edges`.
    """
    some = (c > 0) & (c < n)
    bins = np.bincount(BINS * c[some] // n[some], minlength=BINS)  # in whole numbers: 3 of 10 is in the bin from 0.3
    return {
        "none": int(((c == 0) & (n > 0)).sum()),
        "some": int(some.sum()),
        "all": int(((c == n) & (n > 0)).sum()),
        "bins": bins.tolist(),
        "edges": [edge / BINS for edge in range(BINS + 1)],
    }


def zero_variance_share(n: Ints, spread: Floats) -> Estimate:
    """Return the share of tasks whose rollouts all have one score, among those with two or more scored rollouts.

    Training that compares a rollout with its group learns nothing from such a group.

    Args:
        n: scored rollouts of each task.
        spread: difference of each task's highest and lowest score.

    Source: Shao et al. 2024, arXiv:2402.03300 (GRPO); Yu et al. 2025, arXiv:2503.14476 (dynamic sampling).
    """
    same = np.where(n > 1, (spread == 0).astype(float), np.nan)
    return mean_estimate(Column(same, int(n[n > 1].sum())), SHARE)


def effective_batch_share(n: Ints, spread: Floats) -> Estimate:
    """Return the share of scored rollouts that give a gradient: those of tasks with more than one score among them.

    A task with one rollout gives none. Arguments and sources are those of `zero_variance_share`.
    """
    return ratio_estimate(np.where(spread > 0, n, 0).astype(float), n, SHARE)


def length(scores: TaskScores, *, seed: int = 0) -> JsonObject:
    """Relate scores to output tokens, over all scored rollouts that tell how many they had.

    Returns:
        `rollouts`; `pearson` and `spearman`, -1 to 1 (left out when either side does not vary); mean tokens of right
        and wrong rollouts; and at most 2,000 `points` `[output_tokens, score, task, rollout]`, chosen by the seed.
        Empty without token counts.

    Source: Spearman 1904, The American Journal of Psychology 15(1), with mean ranks for ties.
    """
    tokens = scores.field(TOKENS)
    if tokens is None:
        return {}
    known = np.flatnonzero(np.isfinite(tokens) & scores.scored)
    if not len(known):
        return {}
    tokens, values, right = tokens[known], scores.scores[known], scores.correct[known]
    named = {
        "pearson": _correlation(tokens, values),
        "spearman": _correlation(_ranks(tokens), _ranks(values)),
        "mean_output_tokens_right": _mean(tokens[right]),
        "mean_output_tokens_wrong": _mean(tokens[~right]),
    }
    chosen = np.arange(len(known))
    if len(chosen) > MAX_POINTS:
        chosen = np.sort(np.random.default_rng(seed).choice(len(known), MAX_POINTS, replace=False))
    tasks = scores.ids[scores.position[known[chosen]]].tolist()
    rollouts = scores.rollout_ids[known[chosen]].tolist()
    points = zip(tokens[chosen].tolist(), values[chosen].tolist(), tasks, rollouts, strict=True)
    return {
        "rollouts": len(known),
        **{name: value for name, value in named.items() if value is not None},
        "points": [list(point) for point in points],
    }


def percentiles(scores: TaskScores) -> JsonObject:
    """Return p50, p90 and p99 over rollouts of tokens, seconds and turns, as far as they are known.

    Between two rollouts a percentile is interpolated linearly.
    """
    found: JsonObject = {}
    for field in _PERCENTILE_FIELDS:
        values = scores.field(field)
        if values is not None and len(values := values[np.isfinite(values)]):
            ends = np.percentile(values, list(_PERCENTILES.values()), overwrite_input=True).tolist()
            found[field] = dict(zip(_PERCENTILES, ends, strict=True))
    return found


def listed_tasks(scores: TaskScores) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the ten hardest tasks, by mean score, and the ten whose mean is least certain, by its 95 % interval.

    A task's own interval is over its rollouts, which are independent of each other given the task. Of tasks with equal
    means, those with more rollouts come first.
    """
    low, high = _task_intervals(scores)
    scored = np.flatnonzero(scores.n > 0)
    hardest = np.lexsort((scores.ids, -scores.n, scores.means))
    width = np.where(np.isfinite(high - low), high - low, np.inf)
    uncertain = np.lexsort((scores.ids, -width))
    chosen = [order[np.isin(order, scored)][:LISTED].tolist() for order in (hardest, uncertain)]
    return (
        [_task(scores, task, low, high) for task in chosen[0]],
        [_task(scores, task, low, high) for task in chosen[1] if width[task] > 0],
    )


def _task_intervals(scores: TaskScores) -> tuple[Floats, Floats]:
    """Return the 95 % interval of each task's mean: Wilson's for scores of 0 and 1, Student's otherwise."""
    low, high = np.full(len(scores), np.nan), np.full(len(scores), np.nan)
    for same in scores.sizes:
        size = same.scores.shape[1]
        if scores.binary:
            low[same.tasks], high[same.tasks] = wilson(size, scores.c[same.tasks])
        elif size > 1:
            with np.errstate(over="ignore", invalid="ignore"):  # beyond the range of doubles it is undefined
                reach = t_quantile(size - 1) * same.scores.std(axis=1, ddof=1) / np.sqrt(size)
                low[same.tasks], high[same.tasks] = scores.means[same.tasks] - reach, scores.means[same.tasks] + reach
    return low, high


def _task(scores: TaskScores, position: int, low: Floats, high: Floats) -> JsonObject:
    task, start = int(scores.ids[position]), int(scores.starts[position])
    numbers = {"mean_reward": scores.means[position], "low": low[position], "high": high[position]}
    scored = scores.scored[start : start + _size(scores, position)]
    rollouts = scores.rollout_ids[start : start + _size(scores, position)][scored]
    return {
        "task": task,
        "num_rollouts": int(scores.n[position]),
        **{name: float(number) for name, number in numbers.items() if np.isfinite(number)},
        "rollouts": [f"{task}:{rollout}" for rollout in rollouts[:MAX_ROLLOUTS].tolist()],
    }


def _size(scores: TaskScores, position: int) -> int:
    starts = scores.starts
    return int((starts[position + 1] if position + 1 < len(starts) else len(scores.scores)) - starts[position])


def _correlation(x: Floats, y: Floats) -> float | None:
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = x - x.mean(), y - y.mean()
        scale = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
        value = float(x @ y) / scale if scale else math.nan
    return min(max(value, -1.0), 1.0) if math.isfinite(value) else None


def _ranks(values: Floats) -> Floats:
    """Return ranks from 1; equal values share their mean rank."""
    codes, _ = factorize(values, sort=True)
    counts = np.bincount(codes)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[codes], dtype=np.float64)


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
