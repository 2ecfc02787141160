"""The summary of one agent's rollouts: every number with its interval and what stands behind it.

This module imports numpy and pandas: import it inside functions, not at start-up.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from pandas import DataFrame

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import REWARD
from rollmill.errors import InputError
from rollmill.metrics.estimate import Estimate
from rollmill.metrics.intervals import (
    RESAMPLES,
    SHARE,
    UNBOUNDED,
    Column,
    bootstrap_estimates,
    mean_estimate,
    ratio_estimate,
)
from rollmill.metrics.majority import majority_of
from rollmill.metrics.task_scores import CORRECT_AT, TaskScores
from rollmill.metrics.training import (
    effective_batch_share,
    length,
    listed_tasks,
    percentiles,
    solve_rate,
    zero_variance_share,
)

ANSWER = "answer"
MAX_K = 64
"""Draws beyond this are not among the default ones."""
_PER_ROLLOUT: Final = (
    ("truncation_rate", "truncated", SHARE),
    ("tool_errors_per_rollout", "tool_errors", (0.0, np.inf)),
)


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
            `answer`, `truncated`, `tool_errors`, `output_tokens`, `total_tokens`, `seconds` and `turns`. Rollouts
            without a finite score count as rollouts, but for nothing that has to do with scores. An empty frame needs
            no columns.
        score_field: column of the scores.
        expected: rollouts that the run is to have.
        failures: counts `by_class` and `by_boundary`, passed on.
        ks: draw sizes; by default the powers of two up to the most rollouts of a task (at most 64), and that number.
        seed: of the bootstrap, the sampled votes and the sampled points.
        resamples: of the bootstrap.
        correct_at: a rollout is correct when its score is at least this.

    Returns:
        A JSON object; `docs/metrics.md` defines each entry. With no rollouts, estimates have no value.

    Raises:
        InputError: no rollout has the score field, or a draw size is below 1.
    """
    scores = TaskScores(frame, score_field, correct_at=correct_at)
    draws = default_ks(int(scores.n.max(initial=1))) if ks is None else _checked(ks)
    votes, errors = _votes(scores, draws, seed)
    estimates = _at_k(scores, draws, votes, seed=seed, resamples=resamples)
    bounds = SHARE if scores.binary else UNBOUNDED
    named = {"mean_reward": mean_estimate(scores.column(scores.means), bounds), **estimates, **_shares(scores)}
    hardest, uncertain = listed_tasks(scores)
    return {
        "tasks": len(scores),
        "rollouts": len(scores.scores),
        **({"expected_rollouts": expected} if expected is not None else {}),
        "score_field": score_field,
        "binary": scores.binary,
        "correct_at": correct_at,
        "estimates": {name: estimate.to_json() for name, estimate in named.items()},
        **({"sampling_errors": errors} if errors else {}),
        "curve": [_curve_point(named, k) for k in draws],
        "solve_rate": solve_rate(scores.n, scores.c),
        "length": length(scores, seed=seed),
        "percentiles": percentiles(scores),
        "hardest": hardest,
        "most_uncertain": uncertain,
        "failures": {"by_class": {}, "by_boundary": {}, **(failures or {})},
    }


def default_ks(most: int) -> list[int]:
    """Return the powers of two up to the most rollouts that a task has (at most 64), and that number itself."""
    top = min(most, MAX_K)
    return sorted({2**power for power in range(top.bit_length())} | {top})


def _checked(ks: Sequence[int]) -> list[int]:
    if wrong := [k for k in ks if k < 1]:
        raise InputError(f"a draw has at least 1 rollout, got k = {wrong[0]}")
    return sorted(set(ks))


def _at_k(
    scores: TaskScores, draws: Sequence[int], votes: Mapping[int, Column], *, seed: int, resamples: int
) -> dict[str, Estimate]:
    """Estimate everything that is about k rollouts: analytic where k is 1, which is a mean, else bootstrapped."""
    named = {name: column for k in draws for name, column in _columns(scores, k, votes)}
    single = {name: _mean_of_one(name, column, scores) for name, column in named.items() if name[-2:] in ("@1", "^1")}
    several = {name: column for name, column in named.items() if name not in single}
    found = bootstrap_estimates(several.values(), seed=seed, resamples=resamples)
    estimates = {**single, **dict(zip(several, found, strict=True))}
    return {name: estimates[name] for name in named}


def _mean_of_one(name: str, column: Column, scores: TaskScores) -> Estimate:
    return mean_estimate(column, SHARE if scores.binary or not name.startswith("best") else UNBOUNDED)


def _columns(scores: TaskScores, k: int, votes: Mapping[int, Column]) -> Iterator[tuple[str, Column]]:
    yield f"pass@{k}", scores.pass_at(k)
    yield f"pass^{k}", scores.pass_hat(k)
    yield f"best@{k}", scores.best_at(k)
    if k in votes:
        yield f"majority@{k}", votes[k]


def _votes(scores: TaskScores, draws: Sequence[int], seed: int) -> tuple[dict[int, Column], JsonObject]:
    """Return majority@k by k where rollouts tell their answers, and the standard errors that sampling added."""
    codes = scores.codes(ANSWER)
    if codes is None:
        return {}, {}
    values = np.full((len(scores), len(draws)), np.nan)
    variances = np.zeros(values.shape)
    for same in scores.sizes:
        found = majority_of(codes[same.rollouts], scores.correct[same.rollouts], draws, seed=seed)
        values[same.tasks], variances[same.tasks] = found
    used = np.maximum(np.isfinite(values).sum(axis=0), 1)
    errors = np.sqrt(variances.sum(axis=0)) / used
    return (
        {k: scores.column(values[:, at], k) for at, k in enumerate(draws)},
        {f"majority@{k}": float(errors[at]) for at, k in enumerate(draws) if errors[at] > 0},
    )


def _shares(scores: TaskScores) -> dict[str, Estimate]:
    """Estimate numbers per rollout, of which tasks may have unlike many, and what groups give a trainer."""
    found: dict[str, Estimate] = {}
    codes = scores.codes(ANSWER)
    if codes is not None:
        found["no_answer"] = ratio_estimate(*scores.totals(np.where(codes < 0, 1.0, 0.0)), SHARE)
    for name, field, bounds in _PER_ROLLOUT:
        if (values := scores.field(field)) is not None:
            found[name] = ratio_estimate(*scores.totals(values), bounds)
    return {
        **found,
        "zero_variance_share": zero_variance_share(scores.n, scores.spread),
        "effective_batch_share": effective_batch_share(scores.n, scores.spread),
    }


def _curve_point(named: Mapping[str, Estimate], k: int) -> JsonObject:
    names = {"pass@k": f"pass@{k}", "pass^k": f"pass^{k}", "best@k": f"best@{k}"}
    return {"k": k, **{generic: named[name].to_json() for generic, name in names.items()}}
