"""Majority votes over many tasks. This module imports numpy: import it inside functions, not at start-up.

A vote depends on little: how many rollouts gave each answer, how many of those are correct, and how many gave none.
Thousands of tasks share a few such patterns, so each pattern is computed once.
"""

import numpy as np

from rollmill.metrics.estimators import Floats, Ints
from rollmill.metrics.intervals import Column
from rollmill.metrics.majority import Pattern, majority_of_pattern
from rollmill.metrics.task_scores import TaskScores


class Votes:
    """The vote patterns of an agent's tasks.

    Args:
        scores: the rollouts, by task.
        answers: a number for the answer of each, in the order of `scores.scores`; negative for no answer.
        seed: of votes that are sampled; see `rollmill.metrics.majority.majority_at_k`.
    """

    def __init__(self, scores: TaskScores, answers: Ints, *, seed: int = 0) -> None:
        self._scores = scores
        self._seed = seed
        self._patterns: list[Pattern] = []
        self._of_task: Ints = np.zeros(len(scores), dtype=np.int64)
        tasks, sizes, correct = _answers(scores, answers)
        answered = np.bincount(tasks, weights=sizes, minlength=len(scores)).astype(np.int64)
        kinds = np.bincount(tasks, minlength=len(scores))
        first = np.cumsum(kinds) - kinds
        for count in np.unique(kinds).tolist():
            alike = np.flatnonzero(kinds == count)
            groups = first[alike][:, np.newaxis] + np.arange(count)
            silent = (scores.n - answered)[alike][:, np.newaxis]
            self._add(alike, np.concatenate([silent, sizes[groups], correct[groups]], axis=1))

    def majority_at(self, k: int) -> Column:
        """Return majority@k of each task; NaN where a task has fewer than k rollouts."""
        allowed = self._scores.n >= k
        values = np.full(len(self._patterns), np.nan)
        for pattern in np.unique(self._of_task[allowed]):
            values[pattern] = majority_of_pattern(*self._patterns[int(pattern)], k, self._seed)
        found: Floats = np.full(len(self._scores), np.nan)
        found[allowed] = values[self._of_task[allowed]]
        return self._scores.column(found, k)

    def _add(self, tasks: Ints, rows: Ints) -> None:
        """Number the distinct patterns of tasks that have equally many answers; each row is one task's pattern."""
        order = np.lexsort(rows.T)
        ordered = rows[order]
        begins = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
        self._of_task[tasks[order]] = len(self._patterns) - 1 + np.cumsum(begins)
        count = (rows.shape[1] - 1) // 2
        for silent, *numbers in ordered[begins].tolist():
            sizes, correct = numbers[:count], numbers[count:]
            groups = tuple((size, right / size) for size, right in zip(sizes, correct, strict=True))
            self._patterns.append((groups, silent))


def _answers(scores: TaskScores, answers: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the task, the size and the correct rollouts of each distinct answer, by task and then by those two."""
    given = answers >= 0
    names = int(answers.max(initial=0)) + 1
    both, of_answer, sizes = np.unique(
        scores.position[given] * names + answers[given], return_inverse=True, return_counts=True
    )
    right = np.bincount(of_answer, weights=scores.correct[given], minlength=len(both)).astype(np.int64)
    order = np.lexsort((right, sizes, both // names))
    return (both // names)[order], sizes[order].astype(np.int64), right[order]
