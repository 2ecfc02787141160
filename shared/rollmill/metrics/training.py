"""What a trainer looks at: where the gradient is, whether length is rewarded, and which tasks are hard.

This module imports numpy: import it inside functions, not at start-up.
"""

import numpy as np

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import ROLLOUT_INDEX
from rollmill.metrics.estimators import Floats
from rollmill.metrics.intervals import t_quantile, wilson
from rollmill.metrics.task_scores import TaskScores

BINS = 10
LISTED = 10
MAX_POINTS = 2000
TOKENS = "output_tokens"
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
_PERCENTILE_FIELDS = (TOKENS, "total_tokens", "seconds", "turns")


def solve_rate(rates: Floats) -> JsonObject:
    """Count tasks by the share of their rollouts that are correct: none, some, all, and ten equal bins of the some.

    Args:
        rates: that share of each task, 0 to 1, shape (tasks,).
    """
    some = rates[(rates > 0) & (rates < 1)]
    counts, edges = np.histogram(some, bins=BINS, range=(0.0, 1.0))
    return {
        "none": int((rates == 0).sum()),
        "some": len(some),
        "all": int((rates == 1).sum()),
        "bins": counts.tolist(),
        "edges": [round(edge, 10) for edge in edges.tolist()],
    }


def length(scores: TaskScores, *, seed: int = 0) -> JsonObject:
    """Relate scores to output tokens, over all rollouts that tell how many they had.

    Returns:
        `pearson` and `spearman` (left out when either side does not vary), mean tokens of right and wrong rollouts, and
        a seeded sample of at most 2,000 `points` `[output_tokens, score, task, rollout]`; empty without token counts.
    """
    if TOKENS not in scores.frame:
        return {}
    tokens = scores.frame[TOKENS].to_numpy(dtype=float)
    known = np.isfinite(tokens)
    tokens, values, right = tokens[known], scores.scores[known], scores.correct[known]
    if not len(tokens):
        return {}
    found: JsonObject = {"rollouts": len(tokens)}
    named = {
        "pearson": _correlation(tokens, values),
        "spearman": _correlation(_ranks(tokens), _ranks(values)),
        "mean_output_tokens_right": _mean(tokens[right]),
        "mean_output_tokens_wrong": _mean(tokens[~right]),
    }
    found |= {name: value for name, value in named.items() if value is not None}
    chosen = np.arange(len(tokens))
    if len(chosen) > MAX_POINTS:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, MAX_POINTS, replace=False))
    tasks = scores.ids[scores.position[known]][chosen].tolist()
    rollouts = scores.frame[ROLLOUT_INDEX].to_numpy()[known][chosen].tolist()
    points = zip(tokens[chosen].tolist(), values[chosen].tolist(), tasks, rollouts, strict=True)
    return found | {"points": [list(point) for point in points]}


def percentiles(scores: TaskScores) -> JsonObject:
    """Return p50, p90 and p99 over rollouts of tokens, seconds and turns, as far as they are known."""
    found: JsonObject = {}
    for field in _PERCENTILE_FIELDS:
        if field in scores.frame:
            values = scores.frame[field].to_numpy(dtype=float)
            values = values[np.isfinite(values)]
            if len(values):
                ends = np.percentile(values, list(_PERCENTILES.values())).tolist()
                found[field] = dict(zip(_PERCENTILES, ends, strict=True))
    return found


def listed_tasks(scores: TaskScores) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the ten hardest tasks, by mean score, and the ten whose mean is least certain, by its interval."""
    low, high = _task_intervals(scores)
    hardest = np.lexsort((scores.ids, scores.means))[:LISTED]
    width = np.where(np.isfinite(high - low), high - low, np.inf)
    uncertain = np.lexsort((scores.ids, -width))[:LISTED]
    return [_task(scores, i, low, high) for i in hardest.tolist()], [
        _task(scores, i, low, high) for i in uncertain.tolist() if width[i] > 0
    ]


def _task_intervals(scores: TaskScores) -> tuple[Floats, Floats]:
    """95 % intervals of each task's mean: Wilson's for scores of 0 and 1, Student's otherwise."""
    if scores.binary:
        return wilson(scores.n.astype(float), scores.c.astype(float))
    squares = scores.per_task(np.square(scores.scores - np.repeat(scores.means, scores.n)))
    several = scores.n > 1
    reach = np.full(len(scores), np.nan)
    spread = np.sqrt(squares[several] / (scores.n[several] - 1) / scores.n[several])
    quantiles = {size: t_quantile(size - 1) for size in np.unique(scores.n[several]).tolist()}
    reach[several] = spread * [quantiles[size] for size in scores.n[several].tolist()]
    return scores.means - reach, scores.means + reach


def _task(scores: TaskScores, index: int, low: Floats, high: Floats) -> JsonObject:
    task, start, size = int(scores.ids[index]), int(scores.starts[index]), int(scores.n[index])
    rollouts = sorted(scores.frame[ROLLOUT_INDEX].iloc[start : start + size].tolist())
    ends = {"low": float(low[index]), "high": float(high[index])}
    return {
        "task": task,
        "mean_reward": float(scores.means[index]),
        "num_rollouts": size,
        **{name: end for name, end in ends.items() if np.isfinite(end)},
        "rollouts": [f"{task}:{rollout}" for rollout in rollouts],
    }


def _correlation(x: Floats, y: Floats) -> float | None:
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return None
    value = float(np.corrcoef(x, y)[0, 1])
    return value if np.isfinite(value) else None


def _ranks(values: Floats) -> Floats:
    """Ranks from 1, ties sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=float)


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
