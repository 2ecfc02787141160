"""Majority vote: draw k of a task's n rollouts and take the answer that most of them give.

Source: Wang et al. 2022, arXiv:2203.11171 (self-consistency).
This module imports numpy: import it inside functions, not at start-up.
"""

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from rollmill.errors import InputError

EXACT_STATES = 20_000
"""Up to so many different draws are enumerated; more are sampled."""
DRAWS = 2_000

Group = tuple[int, float]
"""How many rollouts give one answer, and how correct it is, 0 to 1."""
Pattern = tuple[tuple[Group, ...], int]
"""All that a vote depends on: the answers, sorted, and how many rollouts gave none."""


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int, *, seed: int = 0) -> float:
    """Return the probability that the most frequent answer of k rollouts, drawn without replacement, is correct.

    Ties are split evenly. A rollout without an answer votes for nothing, so a draw without any answer is wrong. One
    answer that was scored differently in different rollouts is one answer, as correct as its mean.

    Args:
        answers: the answer of each rollout, None for no answer.
        correct: whether each is correct, same length.
        k: rollouts drawn, 1 to n.
        seed: of the sampling, which is used when more than 20,000 different draws are possible. Its standard error is
            at most 0.012 (2,000 draws).

    Returns:
        A probability; it does not depend on the order of the rollouts.

    Raises:
        InputError: k is out of range.
    """
    if not 1 <= k <= len(answers):
        raise InputError(f"k must be from 1 to the task's {len(answers)} rollouts, got {k}")
    return majority_of_pattern(*vote_pattern(answers, correct), k, seed)


def vote_pattern(answers: Sequence[Hashable | None], correct: Sequence[bool]) -> Pattern:
    """Return what a vote depends on: the answers' sizes and correctness, sorted, and how many gave no answer."""
    sizes: dict[Hashable, list[int]] = {}
    for answer, right in zip(answers, correct, strict=True):
        if answer is not None:
            tally = sizes.setdefault(answer, [0, 0])
            tally[0] += 1
            tally[1] += bool(right)
    groups = tuple(sorted((size, right / size) for size, right in sizes.values()))
    return groups, len(answers) - sum(size for size, _ in groups)


def majority_of_pattern(groups: tuple[Group, ...], unanswered: int, k: int, seed: int = 0) -> float:
    """Return majority@k for a vote pattern, see `vote_pattern`; the other arguments are those of `majority_at_k`."""
    if k == unanswered + sum(size for size, _ in groups):
        return _won([size for size, _ in groups], groups)  # there is one draw
    states = math.prod(min(size, k) + 1 for size, _ in groups)
    if states <= EXACT_STATES:
        return _exact(groups, unanswered, k)
    return _sampled(groups, unanswered, k, seed)


def _exact(groups: tuple[Group, ...], unanswered: int, k: int) -> float:
    total = 0.0
    for votes, ways in _draws([size for size, _ in groups], k):
        silent = k - sum(votes)
        if silent <= unanswered:
            total += ways * math.comb(unanswered, silent) * _won(votes, groups)
    return total / math.comb(sum(size for size, _ in groups) + unanswered, k)


def _draws(sizes: Sequence[int], k: int) -> Iterator[tuple[list[int], int]]:
    """Yield every way to draw at most k votes from the groups, with the number of draws that give it."""
    if not sizes:
        yield [], 1
        return
    for first in range(min(sizes[0], k) + 1):
        ways = math.comb(sizes[0], first)
        for rest, more in _draws(sizes[1:], k - first):
            yield [first, *rest], ways * more


def _sampled(groups: tuple[Group, ...], unanswered: int, k: int, seed: int) -> float:
    sizes, correct = zip(*groups, strict=True)
    # Each pattern has draws of its own: errors that all tasks share would not cancel in their mean.
    rng = np.random.default_rng([seed, k, unanswered, *sizes])
    draws = rng.multivariate_hypergeometric([*sizes, unanswered], k, size=DRAWS)[:, :-1]
    most = draws.max(axis=1, keepdims=True)
    tied = (draws == most) & (most > 0)
    return float(np.mean(tied @ np.array(correct) / np.maximum(tied.sum(axis=1), 1)))


def _won(votes: Sequence[int], groups: tuple[Group, ...]) -> float:
    most = max(votes, default=0)
    if not most:
        return 0.0
    tied = [right for count, (_, right) in zip(votes, groups, strict=True) if count == most]
    return sum(tied) / len(tied)
