"""The scores of one agent's rollouts, grouped by task: what every estimator starts from.

This module imports numpy and pandas: import it inside functions, not at start-up.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pandas import CategoricalDtype, DataFrame, factorize

from rollmill.contracts.rows import ROLLOUT_INDEX, TASK_INDEX
from rollmill.errors import InputError
from rollmill.metrics.estimators import Floats, Ints, best_weights, pass_at_k_of, pass_hat_k_of
from rollmill.metrics.intervals import Column

CORRECT_AT = 1.0
"""A rollout is correct when its score is at least this."""
_LARGEST = 2**63 - 1
Number = TypeVar("Number", np.int64, np.float64)


class SameSize(NamedTuple):
    """Tasks that have the same number of scored rollouts, n."""

    tasks: Ints
    """Positions of the tasks, shape (tasks,)."""
    rollouts: Ints
    """Positions of their scored rollouts, shape (tasks, n)."""
    scores: Floats
    """Shape (tasks, n), each row sorted."""


class TaskScores:
    """Rollouts in the order of task and rollout index, so that nothing depends on which finished first.

    A score that is not finite is no score: such a rollout counts for nothing that has to do with scores, but its task
    is still one of the tasks.

    Args:
        frame: one row per finished rollout, with `_ng_task_index`, `_ng_rollout_index` and the score. An empty frame
            needs no columns.
        score_field: column of the scores.
        correct_at: threshold of a correct rollout.

    Raises:
        InputError: there are rollouts, but the frame has no such column.
    """

    def __init__(self, frame: DataFrame, score_field: str, *, correct_at: float = CORRECT_AT) -> None:
        if len(frame) and score_field not in frame:
            raise InputError(f"no rollout has a score field {score_field!r}; fields: {', '.join(map(str, frame))}")
        self._frame = frame
        self._order: Ints | None = None
        task, rollout = self._index(TASK_INDEX), self._index(ROLLOUT_INDEX)
        self._order = _sorting(task, rollout)
        task, self.rollout_ids = self._ordered(task), self._ordered(rollout)
        first = np.diff(task, prepend=task[:1] - 1) != 0
        self.ids: Ints = task[first]
        """Index of each task, ascending, shape (tasks,)."""
        self.position: Ints = np.cumsum(first) - 1
        """Position in `ids` of each rollout's task, shape (rollouts,)."""
        self.starts: Ints = np.flatnonzero(first)
        """Where the rollouts of each task begin."""
        scores = self.field(score_field)
        scores = np.zeros(0) if scores is None else scores
        self.scores: Floats = np.where(np.isfinite(scores), scores, np.nan)
        """Shape (rollouts,), NaN for none."""
        self.scored = ~np.isnan(self.scores)
        self.correct = self.scores >= correct_at
        self.n: Ints = np.bincount(self.position[self.scored], minlength=len(self.ids))
        """Scored rollouts of each task."""
        self.c: Ints = np.bincount(self.position[self.correct], minlength=len(self.ids))
        """Correct rollouts of each task."""
        values = self.scores[self.scored]
        self.binary = bool(((values == 0) | (values == 1)).all())
        """Whether every score is 0 or 1."""
        self.sizes: list[SameSize] = self._same_sizes()
        """The tasks with any score, in groups of equal n."""
        self.means: Floats = self._per_size(lambda rows: rows.mean(axis=1))
        """Mean score of each task; NaN without any, infinite beyond the range of doubles."""
        self.spread: Floats = self._per_size(lambda rows: rows[:, -1] - rows[:, 0])
        """Difference of the highest and the lowest score of each task."""

    def __len__(self) -> int:
        return len(self.ids)

    def field(self, name: str) -> Floats | None:
        """Return a field of the rollouts, booleans as 0 and 1, NaN where missing; None when there is no such column."""
        if name not in self._frame:
            return None
        return self._ordered(self._frame[name].to_numpy(dtype=np.float64, na_value=np.nan))

    def codes(self, name: str) -> Ints | None:
        """Return a field of texts as numbers that stand for them, -1 where missing; None without a single text."""
        if name not in self._frame:
            return None
        texts = self._frame[name]
        of_text = texts.cat.codes if isinstance(texts.dtype, CategoricalDtype) else factorize(texts.to_numpy())[0]
        codes = self._ordered(np.asarray(of_text, dtype=np.int64))
        return codes if (codes >= 0).any() else None

    def totals(self, values: Floats) -> tuple[Floats, Ints]:
        """Return for each task the sum of a field and how many rollouts have it (are not NaN)."""
        known = ~np.isnan(values)
        tasks = self.position[known]
        sums = np.bincount(tasks, weights=values[known], minlength=len(self))
        return np.asarray(sums, dtype=np.float64), np.bincount(tasks, minlength=len(self))

    def column(self, values: Floats, k: int = 1) -> Column:
        """Make a column of one value per task, where tasks with fewer than k rollouts have none."""
        return Column(values, int(self.n[self.n >= k].sum()))

    def pass_at(self, k: int) -> Column:
        """Return pass@k of each task."""
        return self.column(pass_at_k_of(self.n, self.c, k), k)

    def pass_hat(self, k: int) -> Column:
        """Return pass^k of each task."""
        return self.column(pass_hat_k_of(self.n, self.c, k), k)

    def best_at(self, k: int) -> Column:
        """Return best@k of each task."""
        values = np.full(len(self), np.nan)
        for same in self.sizes:
            size = same.scores.shape[1]
            if size >= k:
                values[same.tasks] = same.scores @ best_weights(size, k)
        return self.column(values, k)

    def _same_sizes(self) -> list[SameSize]:
        scored = np.flatnonzero(self.scored)
        starts = np.cumsum(self.n) - self.n
        found = []
        for size in np.unique(self.n[self.n > 0]).tolist():
            tasks = np.flatnonzero(self.n == size)
            rollouts = scored[starts[tasks][:, np.newaxis] + np.arange(size)]
            found.append(SameSize(tasks, rollouts, np.sort(self.scores[rollouts], axis=1)))
        return found

    def _per_size(self, of: Callable[[Floats], Floats]) -> Floats:
        values = np.full(len(self), np.nan)
        with np.errstate(over="ignore"):
            for same in self.sizes:
                values[same.tasks] = of(same.scores)
        return values

    def _index(self, name: str) -> Ints:
        return self._frame[name].to_numpy(dtype=np.int64) if len(self._frame) else np.zeros(0, dtype=np.int64)

    def _ordered(self, values: NDArray[Number]) -> NDArray[Number]:
        return values if self._order is None else values[self._order]


def _sorting(task: Ints, rollout: Ints) -> Ints | None:
    """Return what puts rollouts into the order of their keys; None when they are in it."""
    later, same = task[1:] > task[:-1], task[1:] == task[:-1]
    if (later | (same & (rollout[1:] >= rollout[:-1]))).all():
        return None
    width = int(rollout.max()) + 1
    if rollout.min() >= 0 and task.min() >= 0 and int(task.max()) < _LARGEST // width:
        return np.argsort(task * width + rollout, kind="stable")  # much faster than sorting by two keys
    return np.lexsort((rollout, task))
