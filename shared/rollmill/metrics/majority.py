"""Majority vote: draw k of a task's n rollouts and take the answer that most of them give.

Source: Wang et al. 2022, arXiv:2203.11171 (self-consistency).
This module imports numpy: import it inside functions, not at start-up.

The probability is exact, without looking at every draw. Let each rollout be drawn with probability p = k/n on its own:
the number of votes for an answer that s rollouts gave is then a polynomial in x, binomial(s, p), the answers are
independent, and what holds for k drawn without replacement is the coefficient of x^k, divided by the probability of
drawing k. "The winners have m votes each" cuts every answer's polynomial: `less`, fewer than m votes, `tie`, just m. An
answer that wins together with t - 1 others counts 1/t, which is the integral of y^(t-1) from 0 to 1; so

    majority@k = sum over m, integral over y of [x^k] sum over a of c_a tie_a product over b != a of (less_b + y tie_b)

with c_a the correctness of answer a. The integral of a polynomial is a short sum (Gauss and Legendre), and so is its
coefficient (discrete Fourier transform). Answers that were given equally often have the same polynomials: their powers,
for all tasks at once, are the exponential of a product of matrices.
"""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rollmill.errors import InputError
from rollmill.metrics.estimators import Floats, Ints

EXACT_ROLLOUTS = 512
"""Votes of tasks with more rollouts than this are sampled."""
DRAWS = 2_000
_CELLS = 1 << 20
"""Complex numbers in one matrix of the calculation, 16 bytes each."""
_ALMOST_ZERO = 1e-300

Complexes = npt.NDArray[np.complex128]


class Ballots(NamedTuple):
    """The answers of tasks that have the same number of rollouts."""

    n: int
    """Rollouts of each task."""
    sizes: Ints
    """Shape (sizes,): by how many rollouts an answer may have been given, ascending, from 1; empty without answers."""
    counts: Ints
    """Shape (tasks, sizes): how many answers were given by so many rollouts."""
    correct: Floats
    """Shape (tasks, sizes): the correctness of those answers, 0 to 1 each, added up."""

    @property
    def silent(self) -> Ints:
        """Rollouts without an answer, shape (tasks,)."""
        return self.n - self.counts @ self.sizes

    def of(self, tasks: Ints | slice) -> "Ballots":
        """Return those of some tasks."""
        return self._replace(counts=self.counts[tasks], correct=self.correct[tasks])


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int, *, seed: int = 0) -> float:
    """Return the probability that the most frequent answer of k rollouts, drawn without replacement, is correct.

    Ties are split evenly. A rollout without an answer votes for nothing, so a draw without any answer is wrong. One
    answer that was scored differently in different rollouts is one answer, as correct as its mean.

    Args:
        answers: the answer of each rollout, None for no answer.
        correct: whether each is correct, same length.
        k: rollouts drawn, 1 to n.
        seed: of the sampling, which is used for more than 512 rollouts. Its standard error is at most 0.012 (2,000
            draws).

    Returns:
        A probability; it does not depend on the order of the rollouts.

    Raises:
        InputError: k is out of range.
    """
    if not 1 <= k <= len(answers):
        raise InputError(f"k must be from 1 to the task's {len(answers)} rollouts, got {k}")
    tallies: dict[Hashable, list[int]] = {}
    for answer, right in zip(answers, correct, strict=True):
        if answer is not None:
            tally = tallies.setdefault(answer, [0, 0])
            tally[0] += 1
            tally[1] += bool(right)
    sizes = np.arange(1, max((size for size, _ in tallies.values()), default=1) + 1)
    counts, shares = np.zeros((1, len(sizes)), dtype=np.int64), np.zeros((1, len(sizes)))
    for size, rights in tallies.values():
        counts[0, size - 1] += 1
        shares[0, size - 1] += rights / size
    return float(majority(Ballots(len(answers), sizes, counts, shares), k, seed=seed)[0])


def majority(ballots: Ballots, k: int, *, seed: int = 0) -> Floats:
    """Return majority@k of each task, shape (tasks,); see `majority_at_k`."""
    if not len(ballots.sizes):
        return np.zeros(len(ballots.counts))
    if k == ballots.n:
        return _only_draw(ballots)
    if ballots.n > EXACT_ROLLOUTS:
        return np.array([_sampled(ballots.of(slice(task, task + 1)), k, seed) for task in range(len(ballots.counts))])
    drawing = _Drawing(ballots, k)
    value = np.zeros(len(ballots.counts))
    for votes in range(1, drawing.chances.shape[1]):
        reach = np.where(drawing.likely(votes), ballots.counts[:, ballots.sizes >= votes].sum(axis=1), 0)
        for tasks in _alike(reach):
            most_tied = min(k // votes, int(reach[tasks].max()))
            value[tasks] += _won_with(votes, ballots.of(tasks), drawing, most_tied)
    return np.clip(value, 0.0, 1.0)


class _Drawing:
    """What the votes of all tasks with n rollouts have in common when each rollout is drawn with probability k/n."""

    def __init__(self, ballots: Ballots, k: int) -> None:
        n, sizes = ballots.n, ballots.sizes
        self.p = k / n
        most = min(k, int(sizes.max()))
        table = [[_binomial(int(size), votes, self.p) for votes in range(most + 1)] for size in sizes]
        self.chances: Floats = np.array(table)
        """Probability that an answer of such a size has so many votes, shape (sizes, votes)."""
        points = max(k, n - k) + 1  # fewer would mix the coefficient with others
        half = np.arange(points // 2 + 1)  # the other half is conjugate
        self.x: Complexes = np.exp(2j * np.pi * half / points)
        """Where polynomials are evaluated."""
        of_k = _binomial(n, k, self.p)
        self.parts: Complexes = np.where((half == 0) | (2 * half == points), 1, 2) * self.x**-k / points / of_k
        """Of a polynomial's values there, the part in the wanted probability."""
        self._of_largest = np.cumsum(self.chances, axis=1)[_largest(ballots)]
        """Probability that a task's most frequent answer has at most so many votes, shape (tasks, votes)."""
        self._negligible = 1e-17 * of_k
        self._n = n

    def likely(self, votes: int) -> "npt.NDArray[np.bool_]":
        """Say in which tasks the largest answer may well have no more votes than these, and some answer this many."""
        if self._n * self.chances[:, votes].max() < self._negligible:
            return np.zeros(len(self._of_largest), dtype=np.bool_)
        likely: npt.NDArray[np.bool_] = self._of_largest[:, votes] > self._negligible
        return likely


def _alike(reach: Ints) -> "list[Ints]":
    """Group the tasks by how many of their answers can have enough votes, roughly; leave out those that have none."""
    scale = np.ceil(np.log2(np.maximum(reach, 1)))
    return [np.flatnonzero((scale == size) & (reach > 0)) for size in np.unique(scale[reach > 0])]


def _won_with(votes: int, ballots: Ballots, drawing: _Drawing, most_tied: int) -> Floats:
    """Return the probability of a right majority whose answers have exactly so many votes, shape (tasks,)."""
    y, weights = np.polynomial.legendre.leggauss((most_tied + 1) // 2)
    y, weights = (y + 1) / 2, weights / 2
    powers = drawing.x ** np.arange(votes + 1)[:, np.newaxis]
    less = drawing.chances[:, :votes] @ powers[:-1]
    tie = drawing.chances[:, votes, np.newaxis] * powers[-1]
    either = _never_zero(less[:, np.newaxis] + y[:, np.newaxis] * tie[:, np.newaxis]).reshape(len(tie), -1)
    silence = _never_zero(np.tile(1 - drawing.p + drawing.p * drawing.x, len(y)))
    logs, ratios = np.log(np.vstack([either, silence])), np.tile(tie, len(y)) / either
    ends = np.outer(weights, drawing.parts).ravel()

    value = np.empty(len(ballots.counts))
    step = max(1, _CELLS // len(ends))
    for first in range(0, len(value), step):
        some = ballots.of(slice(first, first + step))
        every = np.exp(_mixed(np.column_stack([some.counts, some.silent]), logs))
        value[first : first + step] = ((every * _mixed(some.correct, ratios)) @ ends).real
    return value


def _mixed(weights: Ints | Floats, values: Complexes) -> Complexes:
    """Return the matrix product at half of what it costs when numpy makes the real matrix complex."""
    return (weights.astype(np.float64) @ values.view(np.float64)).view(np.complex128)


def _never_zero(values: Complexes) -> Complexes:
    """Whatever is divided by these is multiplied with them too, so the least of numbers does as well as zero."""
    return np.where(values == 0, _ALMOST_ZERO, values)


def _binomial(n: int, k: int, p: float) -> float:
    """Probability of k successes in n trials, 0 < p < 1."""
    return math.comb(n, k) * p**k * (1 - p) ** max(0, n - k)


def _largest(ballots: Ballots) -> Ints:
    """Return the place, among the sizes, of each task's most frequent answer, shape (tasks,); 0 where there is none."""
    from_the_end = np.argmax(ballots.counts[:, ::-1] > 0, axis=1)
    return np.where(ballots.counts.any(axis=1), len(ballots.sizes) - 1 - from_the_end, 0)


def _only_draw(ballots: Ballots) -> Floats:
    tasks, largest = np.arange(len(ballots.counts)), _largest(ballots)
    return ballots.correct[tasks, largest] / np.maximum(ballots.counts[tasks, largest], 1)


def _sampled(ballots: Ballots, k: int, seed: int) -> float:
    """Return majority@k of one task."""
    [counts], [shares], [silent] = ballots.counts, ballots.correct, ballots.silent
    sizes = np.repeat(ballots.sizes, counts)
    right = np.repeat(shares / np.maximum(counts, 1), counts)  # answers given equally often are alike, on average
    # Each pattern has draws of its own: errors that all tasks share would not cancel in their mean.
    rng = np.random.default_rng([seed, k, silent, *sizes])
    draws = rng.multivariate_hypergeometric([*sizes, silent], k, size=DRAWS)[:, :-1]
    most = draws.max(axis=1, keepdims=True, initial=0)  # of no answers at all too
    tied = (draws == most) & (most > 0)
    return float(np.mean(tied @ right / np.maximum(tied.sum(axis=1), 1)))
