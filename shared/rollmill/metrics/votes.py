"""Majority votes over many tasks. This module imports numpy: import it inside functions, not at start-up.

A vote depends on little: how many rollouts gave each answer, how many of those are correct, and how many gave none.
Thousands of tasks share a few such patterns, so each pattern is computed once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rollmill.metrics.estimators import Floats, Ints
from rollmill.metrics.intervals import Column
from rollmill.metrics.majority import Ballots, majority
from rollmill.metrics.task_scores import TaskScores


class _Patterns(NamedTuple):
    """The different ballots of tasks that have the same number of rollouts."""

    ballots: Ballots
    tasks: Ints
    of_task: Ints
    """Which of the ballots each of the tasks has."""


class Votes:
    """The answers of an agent's tasks.

    Args:
        scores: the rollouts, by task.
        answers: a number for the answer of each, in the order of `scores.scores`; negative for no answer.
        seed: of votes that are sampled; see `rollmill.metrics.majority.majority_at_k`.
    """

    def __init__(self, scores: TaskScores, answers: Ints, *, seed: int = 0) -> None:
        self._scores = scores
        self._seed = seed
        self._patterns = list(_patterns(scores, answers))

    def majority_at(self, k: int) -> Column:
        """Return majority@k of each task; NaN where a task has fewer than k rollouts."""
        found: Floats = np.full(len(self._scores), np.nan)
        for ballots, tasks, of_task in self._patterns:
            if ballots.n >= k:
                found[tasks] = majority(ballots, k, seed=self._seed)[of_task]
        return self._scores.column(found, k)


def _patterns(scores: TaskScores, answers: Ints) -> Iterator[_Patterns]:
    task, size, right = _tallies(scores, answers)
    for n in np.unique(scores.n).tolist():
        tasks = np.flatnonzero(scores.n == n)
        these = scores.n[task] == n
        sizes, of_size = np.unique(size[these], return_inverse=True)
        cell = np.searchsorted(tasks, task[these]) * len(sizes) + of_size
        shape = (len(tasks), len(sizes))
        counts = np.bincount(cell, minlength=len(tasks) * len(sizes)).reshape(shape)
        rights = np.bincount(cell, weights=right[these], minlength=len(tasks) * len(sizes)).reshape(shape)
        first, of_task = distinct_rows(np.concatenate([counts, rights.astype(np.int64)], axis=1), n)
        yield _Patterns(Ballots(n, sizes, counts[first], rights[first] / sizes), tasks, of_task)


def _tallies(scores: TaskScores, answers: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the task, the size and the correct rollouts of each distinct answer of a task."""
    given = answers >= 0
    names = int(answers.max(initial=0)) + 1
    both, of_answer, sizes = np.unique(
        scores.position[given] * names + answers[given], return_inverse=True, return_counts=True
    )
    right = np.bincount(of_answer, weights=scores.correct[given], minlength=len(both)).astype(np.int64)
    return both // names, sizes.astype(np.int64), right


def distinct_rows(rows: Ints, most: int) -> tuple[Ints, Ints]:
    """Return a place of each distinct row, and which of them each row equals.

    Args:
        rows: shape (rows, numbers), numbers from 0 to `most`.
    """
    bits = most.bit_length()
    in_a_word = 63 // bits  # sorting takes its time for every word, however little it holds
    words = [np.zeros(len(rows), dtype=np.int64)]
    for place, numbers in enumerate(rows.T):
        if place % in_a_word == 0:
            words.append(np.zeros(len(rows), dtype=np.int64))
        words[-1] |= numbers << bits * (place % in_a_word)
    order = np.lexsort(words)
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    of_row = np.empty(len(rows), dtype=np.int64)
    of_row[order] = np.cumsum(begins) - 1
    return order[begins], of_row
