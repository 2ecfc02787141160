"""Majority voting among k of a task's rollouts. Imports numpy and pandas: import it inside functions only."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pandas import factorize

from rollmill.errors import InputError
from rollmill.metrics.estimators import Floats, Ints

EXACT_UP_TO = 16
"""Every draw counts up to so many rollouts of a task; beyond, draws are sampled."""
DRAWS = 2000
"""Draws sampled of a task; fewer where all tasks together would have more than 20 million votes."""
_MOST_VOTES = 20_000_000
_FEWEST_DRAWS = 4
_CHUNK = 2048


class Votes(NamedTuple):
    """Majority@k of tasks with equal numbers of rollouts, for several k."""

    values: Floats
    """Shape (tasks, ks); NaN where k is larger than n."""
    variances: Floats
    """Variance that sampling gave each value, same shape; 0 where every draw was counted."""


class _Tally(NamedTuple):
    """How the rollouts of each task vote; the answers come in a fixed order that says nothing about them."""

    counts: Ints
    """Rollouts that give each answer, shape (tasks, answers), padded with 0."""
    right: Floats
    """Share of them that are correct, same shape."""
    silent: Ints
    """Rollouts without an answer, shape (tasks,)."""

    def of(self, tasks: Ints | slice) -> "_Tally":
        return _Tally(self.counts[tasks], self.right[tasks], self.silent[tasks])


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int, *, seed: int = 0) -> float:
    """Return the probability that the most frequent answer of k rollouts, drawn without replacement, is correct.

    Ties are split evenly. A rollout without an answer is drawn like any other but votes for nothing, so a draw without
    any answer is wrong. One answer that was scored differently in different rollouts is one answer, as correct as its
    mean.

    Args:
        answers: the answer of each rollout, None for no answer.
        correct: whether each is correct, same length.
        k: rollouts drawn, 1 to n.
        seed: of the sampling, which is used for more than 16 rollouts; its standard error is at most 0.012 (2,000
            draws). For up to 16 the result is exact.

    Returns:
        A probability; it does not depend on the order of the rollouts.

    Raises:
        InputError: k is out of range.

    Source: Wang et al. 2022, arXiv:2203.11171 (self-consistency).
    """
    n = len(answers)
    if not 1 <= k <= n:
        raise InputError(f"k must be from 1 to the task's {n} rollouts, got {k}")
    numbers: dict[Hashable, int] = {}
    codes = [-1 if answer is None else numbers.setdefault(answer, len(numbers)) for answer in answers]
    votes = majority_of([codes], [[bool(right) for right in correct]], [k], seed=seed)
    return float(votes.values[0, 0])


def majority_of(answers: npt.ArrayLike, correct: npt.ArrayLike, ks: Iterable[int], *, seed: int = 0) -> Votes:
    """Return majority@k of many tasks that have n rollouts each.

    Args:
        answers: a number for each answer, -1 for none, shape (tasks, n).
        correct: whether each rollout is correct, same shape.
        ks: draw sizes.
        seed: of the sampling.
    """
    codes, rights = np.asarray(answers, dtype=np.int64), np.asarray(correct, dtype=bool)
    draws = list(ks)
    tasks, n = codes.shape
    values, variances = np.full((tasks, len(draws)), np.nan), np.zeros((tasks, len(draws)))
    chosen = [at for at, k in enumerate(draws) if k <= n]
    if chosen and tasks:
        tally = _tally(codes, rights)
        allowed = [draws[at] for at in chosen]
        found = _exact(tally, n, allowed) if n <= EXACT_UP_TO else _sampled(tally, n, allowed, seed)
        values[:, chosen], variances[:, chosen] = found
    return Votes(values, variances)


def _tally(codes: Ints, correct: npt.NDArray[np.bool_]) -> _Tally:
    tasks, n = codes.shape
    votes = np.sort(2 * (codes + 1) + correct, axis=1).ravel()
    task = np.repeat(np.arange(tasks), n)
    begins = np.flatnonzero((np.diff(votes // 2, prepend=-1) != 0) | (np.diff(task, prepend=-1) != 0))
    counts, rights = np.diff(begins, append=len(votes)), np.add.reduceat(votes % 2, begins)
    answered = votes[begins] > 1
    of, pair = task[begins][answered], (counts * (n + 1) + rights)[answered]
    # Only how many votes each answer has, and how correct it is, matters: sorting makes equal patterns look equal.
    base = (n + 1) ** 2
    ranked = np.sort(of * base + (base - 1 - pair))
    of, pair = ranked // base, base - 1 - ranked % base
    per_task = np.bincount(of, minlength=tasks)
    slot = np.arange(len(of)) - np.repeat(np.cumsum(per_task) - per_task, per_task)
    pairs = np.zeros((tasks, max(1, int(per_task.max()))), dtype=np.int64)
    pairs[of, slot] = pair
    sizes = pairs // (n + 1)
    return _Tally(sizes, pairs % (n + 1) / np.maximum(sizes, 1), n - sizes.sum(axis=1))


def _exact(tally: _Tally, n: int, ks: Sequence[int]) -> tuple[Floats, Floats]:
    pattern, first = _patterns(tally, n)
    found = np.empty((len(first), len(ks)))
    for start in range(0, len(first), _CHUNK):
        of = first[start : start + _CHUNK]
        found[start : start + _CHUNK] = _counted(tally.of(of), n, ks)
    return found[pattern], np.zeros((len(pattern), len(ks)))


def _patterns(tally: _Tally, n: int) -> tuple[Ints, Ints]:
    """Return which of the distinct patterns each task has, and a task that has each; there are few of them."""
    pattern = np.zeros(len(tally.silent), dtype=np.int64)
    for slot in range(tally.counts.shape[1]):
        rights = np.rint(tally.right[:, slot] * tally.counts[:, slot]).astype(np.int64)
        pattern = factorize((pattern * (n + 1) + tally.counts[:, slot]) * (n + 1) + rights)[0].astype(np.int64)
    return pattern, np.unique(pattern, return_index=True)[1]


def _counted(tally: _Tally, n: int, ks: Sequence[int]) -> Floats:
    """Count every draw by how many votes win (j), how many answers tie at it, and how many rollouts were drawn.

    `ways` and `credit` have the shape (ties, drawn, patterns): numbers of draws, and the same weighted by how correct
    the tied answers are in total. Answers join one by one, each with 0 to j of its rollouts drawn.
    """
    most = max(ks)
    choose = np.array([[float(math.comb(size, i)) for i in range(n + 1)] for size in range(n + 1)])
    won = np.zeros((most + 1, len(tally.silent)))
    for j in range(1, min(most, int(tally.counts.max())) + 1):
        ties = min(most // j, tally.counts.shape[1])
        ways = np.zeros((ties + 1, most + 1, len(tally.silent)))
        ways[0] = choose[tally.silent].T[: most + 1]
        credit = np.zeros_like(ways)
        for sizes, right in zip(tally.counts.T, tally.right.T, strict=True):
            ways, credit = _joined(ways, credit, choose[sizes].T, right, min(j, int(sizes.max())), j)
        won += (credit[1:] / np.arange(1, ties + 1)[:, np.newaxis, np.newaxis]).sum(axis=0)
    return np.stack([won[k] / math.comb(n, k) for k in ks], axis=1)


def _joined(ways: Floats, credit: Floats, choose: Floats, right: Floats, drawn: int, j: int) -> tuple[Floats, Floats]:
    """Add an answer of which at most j rollouts are drawn; with j of them it is one of the tied ones."""
    more_ways, more_credit = ways.copy(), credit.copy()
    for i in range(1, drawn + 1):
        if i < j:
            more_ways[:, i:] += choose[i] * ways[:, :-i]
            more_credit[:, i:] += choose[i] * credit[:, :-i]
        else:
            more_ways[1:, i:] += choose[i] * ways[:-1, :-i]
            more_credit[1:, i:] += choose[i] * (credit[:-1, :-i] + right * ways[:-1, :-i])
    return more_ways, more_credit


def _sampled(tally: _Tally, n: int, ks: Sequence[int], seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    tasks = len(tally.silent)
    draws = int(np.clip(_MOST_VOTES // (tasks * n), _FEWEST_DRAWS, DRAWS))
    total, squares = np.zeros((tasks, len(ks))), np.zeros((tasks, len(ks)))
    rows = max(1, min(tasks, _CHUNK * EXACT_UP_TO // n))
    for start in range(0, tasks, rows):
        part = tally.of(slice(start, start + rows))
        for _ in range(draws):
            won = _one_draw(part, n, ks, rng)
            total[start : start + rows] += won
            squares[start : start + rows] += np.square(won)
    values = total / draws
    return values, np.maximum(squares / draws - np.square(values), 0.0) / (draws - 1)


def _one_draw(tally: _Tally, n: int, ks: Sequence[int], rng: np.random.Generator) -> Floats:
    """Draw the rollouts of each task in random order and say who leads after k of them, for each k."""
    tasks, answers = tally.counts.shape
    sizes = np.concatenate([tally.counts, tally.silent[:, np.newaxis]], axis=1)  # the last slot is no answer
    voters = np.repeat(np.tile(np.arange(answers + 1), tasks), sizes.ravel()).reshape(tasks, n)
    voters = rng.permuted(voters, axis=1) + np.arange(tasks)[:, np.newaxis] * (answers + 1)
    votes = np.zeros(tasks * (answers + 1), dtype=np.int64)
    won, before = np.empty((tasks, len(ks))), 0
    for at in np.argsort(ks):
        votes += np.bincount(voters[:, before : ks[at]].ravel(), minlength=len(votes))
        before = ks[at]
        cast = votes.reshape(tasks, -1)[:, :answers]
        leads = (cast == cast.max(axis=1, keepdims=True)) & (cast > 0)
        won[:, at] = (leads * tally.right).sum(axis=1) / np.maximum(leads.sum(axis=1), 1)
    return won
