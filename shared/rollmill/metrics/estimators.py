"""What to expect of k rollouts drawn, without replacement, from the n that a task has.

Every estimator is unbiased for the same quantity of a fresh set of k rollouts, and none depends on the order of the
rollouts. The scalar functions are the definitions; the array functions give the same numbers for many tasks at once.
This module imports numpy: import it inside functions, not at start-up.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rollmill.errors import InputError

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that at least one of k rollouts is correct: `1 - C(n - c, k) / C(n, k)`.

    Args:
        n: rollouts of the task.
        c: how many of them are correct, 0 to n.
        k: rollouts drawn, 1 to n.

    Returns:
        A probability, exact to the last digit for any n.

    Raises:
        InputError: k or c is out of range; a task with fewer than k rollouts has no pass@k.

    Source: Chen et al. 2021, arXiv:2107.03374.
    """
    _check(n, c, k)
    draws = math.comb(n, k)
    return (draws - math.comb(n - c, k)) / draws


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the probability that all of k rollouts are correct, pass^k: `C(c, k) / C(n, k)`.

    Arguments, result and errors are those of `pass_at_k`.

    Source: Yao et al. 2024, arXiv:2406.12045.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def best_at_k(scores: Sequence[float], k: int) -> float:
    """Return the expected highest score of k rollouts: the sum over i of `s_i * C(i - 1, k - 1) / C(n, k)`.

    Here s_1 <= ... <= s_n are the sorted scores. On scores of 0 and 1 this is pass@k.

    Args:
        scores: the finite scores of the task's rollouts, in any order.
        k: rollouts drawn, 1 to n.

    Raises:
        InputError: k is out of range, or a score is not finite.

    Source: the distribution of the maximum of a draw without replacement (order statistics).
    """
    n = len(scores)
    _check(n, 0, k)
    if not all(map(math.isfinite, scores)):
        raise InputError("a score must be a finite number")
    return math.fsum(score * weight for score, weight in zip(sorted(scores), best_weights(n, k).tolist(), strict=True))


def pass_at_k_of(n: Ints, c: Ints, k: int) -> Floats:
    """Return pass@k of each task; NaN where a task has fewer than k rollouts.

    Args:
        n: rollouts of each task, shape (tasks,).
        c: correct ones of them, same shape.
        k: rollouts drawn, at least 1.
    """
    return 1.0 - pass_hat_k_of(n, n - c, k)


def pass_hat_k_of(n: Ints, c: Ints, k: int) -> Floats:
    """Return pass^k of each task; NaN where a task has fewer than k rollouts. Arguments as for `pass_at_k_of`."""
    allowed = n >= k
    n, c = n[allowed], c[allowed]
    every = np.ones(len(n))
    for drawn in range(k):  # a product of ratios cannot overflow, unlike the binomials
        every *= np.maximum(c - drawn, 0) / (n - drawn)
    result = np.full(len(allowed), np.nan)
    result[allowed] = every
    return result


def best_weights(n: int, k: int) -> Floats:
    """Return the weight that each of n sorted scores has in best@k, `C(i - 1, k - 1) / C(n, k)` for i = 1 to n.

    Weights are zero or more and add up to 1. Those too small for a double are 0.
    """
    weights = np.zeros(n)
    rank = np.arange(n - 1, k - 1, -1)
    # From the top down, so that the binomials themselves are never needed: C(i-1, k-1) = C(i, k-1) * (i-k+1) / i
    weights[k - 1 :] = np.cumprod(np.concatenate([[k / n], (rank - k + 1) / rank]))[::-1]
    return weights


def _check(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n:
        raise InputError(f"k must be from 1 to the task's {n} rollouts, got {k}")
    if not 0 <= c <= n:
        raise InputError(f"correct rollouts must be from 0 to {n}, got {c}")
