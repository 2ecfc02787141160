"""The scores of one agent's rollouts, grouped by task: what every estimator starts from.

This module imports numpy and pandas: import it inside functions, not at start-up.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from pandas import DataFrame

from rollmill.contracts.rows import TASK_INDEX
from rollmill.metrics.estimators import Floats, Ints, best_weights, pass_at_k_of, pass_hat_k_of
from rollmill.metrics.intervals import Column

CORRECT_AT = 1.0
"""A rollout is correct when its score is at least this."""


class _SameSize(NamedTuple):
    """Tasks that have the same number of rollouts."""

    tasks: Ints
    scores: Floats
    """Shape (tasks, n), each row sorted."""


class TaskScores:
    """Finite scores by task. Nothing depends on the order of the rollouts.

    Args:
        frame: one row per finished rollout, with `_ng_task_index` and the score; rollouts without a finite score are
            counted as `unscored` and are in no number.
        score_field: column of the scores.
        correct_at: threshold of a correct rollout.
    """

    def __init__(self, frame: DataFrame, score_field: str, *, correct_at: float = CORRECT_AT) -> None:
        known = frame[score_field].to_numpy(dtype=float) if score_field in frame else np.full(len(frame), np.nan)
        finite = np.isfinite(known)
        scored = frame if finite.all() else frame[finite]
        tasks = scored[TASK_INDEX].to_numpy(dtype=np.int64)
        scores = known[finite]
        order = np.lexsort((scores, tasks))
        self.scores: Floats = scores[order]
        """Sorted by task and then by score, shape (rollouts,)."""
        self.ids, starts, sizes = np.unique(tasks[order], return_index=True, return_counts=True)
        self.starts: Ints = starts.astype(np.int64)
        self.n: Ints = sizes.astype(np.int64)
        """Rollouts of each task, shape (tasks,)."""
        self.position: Ints = np.repeat(np.arange(len(self.ids)), self.n)
        """Which task each score belongs to, shape (rollouts,)."""
        self.frame = scored.iloc[order]
        """The rollouts themselves, in the order of `scores`."""
        self.correct = self.scores >= correct_at
        self.c: Ints = self.per_task(self.correct.astype(float)).astype(np.int64)
        """Correct rollouts of each task."""
        self.means: Floats = self.per_task(self.scores) / np.maximum(self.n, 1)
        """Mean score of each task."""
        self.binary = bool(((self.scores == 0.0) | (self.scores == 1.0)).all())
        """Whether every score is 0 or 1."""
        self.unscored = len(frame) - len(scored)
        """Rollouts without a finite score."""
        self.tasks = len(self.ids) if finite.all() else int(frame[TASK_INDEX].nunique())
        """All tasks, also those of which no rollout has a score; `len()` counts those with one."""

    def __len__(self) -> int:
        return len(self.ids)

    def per_task(self, values: Floats) -> Floats:
        """Add up one value per rollout to one per task."""
        totals = np.bincount(self.position, weights=values, minlength=len(self.ids))
        return np.asarray(totals, dtype=np.float64)

    def column(self, values: Floats, k: int = 1) -> Column:
        """Make a column of one value per task, NaN where a task has fewer than k rollouts, or none with a score."""
        without = np.full(self.tasks - len(self), np.nan)
        return Column(np.append(values, without), int(self.n[self.n >= k].sum()))

    def pass_at(self, k: int) -> Column:
        """Return pass@k of each task."""
        return self.column(pass_at_k_of(self.n, self.c, k), k)

    def pass_hat(self, k: int) -> Column:
        """Return pass^k of each task."""
        return self.column(pass_hat_k_of(self.n, self.c, k), k)

    def best_at(self, k: int) -> Column:
        """Return best@k of each task."""
        values = np.full(len(self), np.nan)
        for same in self.same_sizes(at_least=k):
            values[same.tasks] = same.scores @ best_weights(same.scores.shape[1], k)
        return self.column(values, k)

    def same_sizes(self, *, at_least: int = 1) -> Iterator[_SameSize]:
        """Yield the tasks in groups of equal numbers of rollouts."""
        for size in np.unique(self.n[self.n >= at_least]).tolist():
            tasks = np.flatnonzero(self.n == size)
            places = self.starts[tasks][:, np.newaxis] + np.arange(size)
            yield _SameSize(tasks, self.scores[places])

    def spread(self) -> Floats:
        """Return the difference of the highest and the lowest score of each task; NaN with fewer than two rollouts."""
        if not len(self):
            return np.zeros(0)
        ends = self.scores[self.starts + self.n - 1] - self.scores[self.starts]
        return np.where(self.n >= 2, ends, np.nan)
