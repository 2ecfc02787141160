"""The summary of one agent's rollouts: every number with its interval and what stands behind it.

This module imports numpy and pandas: import it inside functions, not at start-up.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pandas import DataFrame

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import REWARD
from rollmill.metrics.estimate import Estimate
from rollmill.metrics.estimators import Floats
from rollmill.metrics.intervals import (
    RESAMPLES,
    SHARE,
    UNBOUNDED,
    Bounds,
    Column,
    bootstrap_estimates,
    mean_estimate,
    ratio_estimate,
)
from rollmill.metrics.task_scores import CORRECT_AT, TaskScores
from rollmill.metrics.training import length, listed_tasks, percentiles, solve_rate
from rollmill.metrics.votes import Votes

ANSWER = "answer"
MAX_K = 64
"""Draws beyond this are not among the default ones."""


def summarize(
    frame: DataFrame,
    *,
    score_field: str = REWARD,
    expected: int | None = None,
    failures: Mapping[str, JsonObject] | None = None,
    ks: Sequence[int] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    correct_at: float = CORRECT_AT,
) -> JsonObject:
    """Summarize the finished rollouts of one agent. Nothing depends on their order.

    Args:
        frame: one row per rollout: `_ng_task_index`, `_ng_rollout_index`, the score, and as far as they are known
            `answer`, `truncated`, `tool_errors`, `output_tokens`, `seconds` and others. Rollouts without a finite score
            are `unscored`, and in no estimate.
        score_field: column of the scores.
        expected: rollouts that the run is to have.
        failures: counts `by_class` and `by_boundary`, passed on.
        ks: draw sizes; by default the powers of two up to the most rollouts of a task, and that number.
        seed: of the bootstrap, the sampled votes and the sampled points.
        resamples: of the bootstrap.
        correct_at: a rollout is correct when its score is at least this.

    Returns:
        A JSON object; `docs/metrics.md` defines each entry. With no rollouts, estimates have no value.
    """
    scores = TaskScores(frame, score_field, correct_at=correct_at)
    draws = list(ks) if ks is not None else default_ks(int(scores.n.max()) if len(scores) else 1)
    named = _estimates(scores, draws, seed=seed, resamples=resamples) | _ratios(scores)
    hardest, uncertain = listed_tasks(scores)
    return {
        "tasks": scores.tasks,
        "rollouts": len(frame),
        "unscored": scores.unscored,
        **({"expected_rollouts": expected} if expected is not None else {}),
        "score_field": score_field,
        "binary": scores.binary,
        "correct_at": correct_at,
        "estimates": {name: estimate.to_json() for name, estimate in named.items()},
        "curve": [_curve_point(named, k) for k in draws],
        "solve_rate": solve_rate(scores.c / np.maximum(scores.n, 1)),
        "length": length(scores, seed=seed),
        "percentiles": percentiles(scores),
        "hardest": hardest,
        "most_uncertain": uncertain,
        "failures": dict(failures or {"by_class": {}, "by_boundary": {}}),
    }


def default_ks(most: int) -> list[int]:
    """Return the powers of two up to the most rollouts that a task has (at most 64), and that number itself."""
    top = min(most, MAX_K)
    return sorted({2**power for power in range(top.bit_length()) if 2**power <= top} | {top})


def _estimates(scores: TaskScores, draws: Sequence[int], *, seed: int, resamples: int) -> dict[str, Estimate]:
    """Numbers that every task has one of; with k = 1 they are means of rollouts, whose interval is known."""
    columns = _columns(scores, draws, seed)
    plain = {name: column for name, column in columns.items() if name.endswith(("@1", "^1"))}
    others = {name: column for name, column in columns.items() if name not in plain}
    bounds = SHARE if scores.binary else UNBOUNDED
    found = {
        "mean_reward": mean_estimate(scores.column(scores.means), bounds),
        **{name: mean_estimate(column, bounds if name == "best@1" else SHARE) for name, column in plain.items()},
        **dict(zip(others, bootstrap_estimates(others.values(), seed=seed, resamples=resamples), strict=True)),
    }
    return {name: found[name] for name in ("mean_reward", *columns)}


def _columns(scores: TaskScores, draws: Sequence[int], seed: int) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for k in draws:
        columns[f"pass@{k}"] = scores.pass_at(k)
        columns[f"pass^{k}"] = scores.pass_hat(k)
        columns[f"best@{k}"] = scores.best_at(k)
    columns |= _votes(scores, draws, seed)
    spread = scores.spread()
    same = np.where(np.isfinite(spread), (spread == 0).astype(float), np.nan)
    columns["zero_variance_share"] = scores.column(same, 2)
    return columns


def _votes(scores: TaskScores, draws: Sequence[int], seed: int) -> dict[str, Column]:
    """majority@k, where rollouts tell their answers."""
    if ANSWER not in scores.frame or not scores.frame[ANSWER].notna().any():
        return {}
    answers = scores.frame[ANSWER].astype("category").cat.codes.to_numpy().astype(np.int64)
    votes = Votes(scores, answers, seed=seed)
    return {f"majority@{k}": votes.majority_at(k) for k in draws}


def _ratios(scores: TaskScores) -> dict[str, Estimate]:
    """Numbers per rollout; tasks may have unlike numbers of them."""
    found: dict[str, Estimate] = {}
    frame = scores.frame
    if ANSWER in frame and frame[ANSWER].notna().any():
        found["no_answer"] = _per_rollout(scores, frame[ANSWER].isna().to_numpy().astype(float))
    if "truncated" in frame:
        found["truncation_rate"] = _per_rollout(scores, frame["truncated"].to_numpy(dtype=float))
    if "tool_errors" in frame:
        errors = frame["tool_errors"].to_numpy(dtype=float)
        found["tool_errors_per_rollout"] = _per_rollout(scores, np.nan_to_num(errors), share=False)
    useful = np.nan_to_num(scores.spread()) > 0
    found["effective_batch_share"] = _ratio(scores, scores.n * useful.astype(float), SHARE)
    return found


def _per_rollout(scores: TaskScores, values: Floats, *, share: bool = True) -> Estimate:
    return _ratio(scores, scores.per_task(values), SHARE if share else (0.0, np.inf))


def _ratio(scores: TaskScores, totals: Floats, bounds: Bounds) -> Estimate:
    without = scores.tasks - len(scores)
    return ratio_estimate(np.pad(totals, (0, without)), np.pad(scores.n, (0, without)), bounds)


def _curve_point(named: Mapping[str, Estimate], k: int) -> JsonObject:
    names = {"pass@k": f"pass@{k}", "pass^k": f"pass^{k}", "best@k": f"best@{k}"}
    return {"k": k, **{generic: named[name].to_json() for generic, name in names.items()}}
