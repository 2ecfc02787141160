from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import AGENT_REF, TASK_INDEX, Row, RowKey
from rollmill.errors import InputError
from rollmill.metrics.sources import Inputs, Rollouts
from rollmill.metrics.table import KEYS, KeyTable, RolloutTable

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_KEYS_SHOWN = 10


class TaskInputs:
    """Collects materialized input rows: every key, and of each task the first row and a count."""

    def __init__(self) -> None:
        self._keys = KeyTable("input row")
        self.first: dict[int, Row] = {}
        """The first input row of each task, without its two indices."""
        self._expected: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def expected(self) -> dict[int, int]:
        """How many rollouts each task is to have."""
        return self._expected

    def add(self, row: Row) -> None:
        """Append an input row.

        Raises:
            InputError: the row has no valid key.
        """
        key = self._keys.check(row)
        self._keys.add(key, row)
        if key.task not in self.first:
            self.first[key.task] = {name: value for name, value in row.items() if name not in KEYS}
        self._expected[key.task] = self._expected.get(key.task, 0) + 1

    def frame(self) -> "DataFrame":
        """Return the keys and agents of all rows, in the order in which they were added."""
        return self._keys.frame()

    def samples(self) -> AbstractContextManager[Callable[[int], Row]]:
        """Give a function that returns the first row of a task, without its two indices."""
        return nullcontext(self.first.__getitem__)


class RewardProfile:
    """The classic profile of a run: reward statistics per task and per agent, and how complete they are.

    Args:
        inputs: the run's input rows.
        rollouts: the run's finished rollouts.
        allow_partial: accept input rows that have no rollout yet.

    Raises:
        InputError: duplicate keys, rollouts with no input row, or input rows with no rollout; shows ten keys.
    """

    def __init__(self, inputs: Inputs, rollouts: Rollouts, *, allow_partial: bool = False) -> None:
        from rollmill.metrics.groups import Groups

        self._samples = inputs.samples
        self._expected = dict(inputs.expected)
        self._groups = Groups(rollouts)
        self._inputs = inputs.frame()
        _check_keys(self._inputs, self._groups.unsorted, allow_partial=allow_partial)

    def iter_tasks(self) -> Iterator[JsonObject]:
        """Yield the rows of `x_reward_profiling.jsonl` one by one, so that a large profile is never held whole."""
        from rollmill.metrics.groups import completion

        with self._samples() as sample:
            yield from self._groups.tasks(
                lambda task, done: {"sample": sample(task), **completion(done, self._expected[task])}
            )

    @cached_property
    def tasks(self) -> list[JsonObject]:
        """The rows of `x_reward_profiling.jsonl`, by task index; tasks with no rollout have none."""
        return list(self.iter_tasks())

    @cached_property
    def agents(self) -> list[JsonObject]:
        """The entries of `x_agent_metrics.json`, by agent name."""
        return list(self._groups.agents(_agents(self._inputs, self._groups.frame)))

    @cached_property
    def completion(self) -> JsonObject:
        """How complete the run is, in rollouts and in tasks."""
        from rollmill.metrics.groups import percent

        expected, completed = sum(self._expected.values()), len(self._groups.unsorted)
        by_task = self._groups.unsorted[TASK_INDEX].value_counts()
        counts = dict(zip(by_task.index.tolist(), by_task.tolist(), strict=True))
        complete = sum(counts.get(task, 0) == total for task, total in self._expected.items())
        return {
            "expected_rollouts": expected,
            "completed_rollouts": completed,
            "missing_rollouts": expected - completed,
            "extra_rollouts": 0,  # the join refuses rollouts that no input row asked for
            "complete_tasks": complete,
            "partial_tasks": len(counts) - complete,
            "missing_tasks": len(self._expected) - len(counts),
            "reward_profile_completion_pct": percent(completed, expected),
        }


def build_profile(inputs: Iterable[Row], rollouts: Iterable[Row], *, allow_partial: bool = False) -> RewardProfile:
    """Profile materialized input rows and rollout rows, each read once and not kept.

    Args:
        inputs: rows of `x_materialized_inputs.jsonl`.
        rollouts: rows of `x.jsonl`, in any order.
        allow_partial: accept input rows that have no rollout yet.

    Raises:
        InputError: a row has no valid key, a reward is not finite, keys are duplicate, a rollout has no input
            row, or (unless partial) an input row has no rollout; shows the first ten keys.
    """
    task_inputs, table = TaskInputs(), RolloutTable()
    for row in inputs:
        task_inputs.add(row)
    for row in rollouts:
        table.add(row)
    return profile_table(task_inputs, table, allow_partial=allow_partial)


def profile_table(inputs: Inputs, rollouts: Rollouts, *, allow_partial: bool = False) -> RewardProfile:
    """Profile what was collected so far; both collectors may go on growing, the profile stays as it is."""
    return RewardProfile(inputs, rollouts, allow_partial=allow_partial)


def _check_keys(inputs: "DataFrame", rollouts: "DataFrame", *, allow_partial: bool) -> None:
    _refuse(inputs[inputs.duplicated(KEYS)], "duplicate keys in the input rows")
    _refuse(rollouts[rollouts.duplicated(KEYS)], "duplicate keys in the rollouts")
    sides = inputs[KEYS].merge(rollouts[KEYS], on=KEYS, how="outer", indicator=True)
    _refuse(sides[sides["_merge"] == "right_only"], "rollouts with no input row")
    if not allow_partial:
        _refuse(sides[sides["_merge"] == "left_only"], "input rows with no rollout (a partial profile is possible)")


def _agents(inputs: "DataFrame", rollouts: "DataFrame") -> "Series[str]":
    """Return the agent of each rollout: the input row's, else its own."""
    agents = rollouts[KEYS].merge(inputs, on=KEYS, how="left")[AGENT_REF].astype(object)
    return agents.where(agents.notna(), rollouts[AGENT_REF].astype(object))


def _refuse(rows: "DataFrame", fault: str) -> None:
    if rows.empty:
        return
    keys = rows[KEYS].drop_duplicates().sort_values(KEYS)
    shown = [str(RowKey(*pair)) for pair in keys.head(_KEYS_SHOWN).to_numpy().tolist()]
    more = f" and {len(keys) - len(shown)} more" if len(keys) > len(shown) else ""
    raise InputError(f"{fault}: {', '.join(shown)}{more}", keys=shown, count=len(keys))
