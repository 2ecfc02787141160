"""Rows of the classic profile, built from a table of rollouts. Imports pandas: import it inside functions."""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice

from pandas import DataFrame, Series

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import AGENT_REF, REWARD, ROLLOUT_INDEX, TASK_INDEX
from rollmill.metrics.describe import describe, records
from rollmill.metrics.sources import Rollouts
from rollmill.metrics.table import KEYS

_ROLLOUT_ID = "rollout_id"


class Groups:
    """A table's rollouts sorted by key, so that no number depends on the order in which they finished."""

    def __init__(self, table: Rollouts) -> None:
        self.unsorted = table.frame()
        """The rollouts in the order of the table."""
        self._fields = table.fields
        self._usage = table.usage_fields
        self._integers = table.integer_fields

    @cached_property
    def frame(self) -> DataFrame:
        """The rollouts by task and rollout index."""
        return self.unsorted.sort_values(KEYS, ignore_index=True)

    def tasks(self, extras: Callable[[int, int], JsonObject]) -> Iterator[JsonObject]:
        """Yield one row per task, by task index: index, statistics, extras, `rollout_infos`.

        Args:
            extras: given the task index and its number of rollouts, returns further members.
        """
        by_task = self.frame[TASK_INDEX]
        statistics = describe(self.frame[self._fields], by_task)
        counts = by_task.value_counts(sort=False).sort_index()
        infos = self._rollout_infos()
        rows = zip(counts.index.tolist(), counts.tolist(), records(statistics), strict=True)
        for task, count, numbers in rows:
            yield {
                TASK_INDEX: task,
                **numbers,
                **extras(task, count),
                "rollout_infos": list(islice(infos, count)),
            }

    def agents(self, names: "Series[str]") -> Iterator[JsonObject]:
        """Yield one row per agent, by name: `agent_ref` and statistics over all its rollouts.

        Args:
            names: the agent of each rollout of `frame`; a rollout without one counts for none.
        """
        statistics = describe(self.frame[self._fields], names)
        for name, numbers in zip(statistics.index.tolist(), records(statistics), strict=True):
            yield {AGENT_REF: {"name": name}, **numbers}

    def overall(self) -> JsonObject:
        """Return the statistics over all rollouts; empty when there are none."""
        everything = Series(0, index=self.frame.index)
        return next(records(describe(self.frame[self._fields], everything)), {})

    def _rollout_infos(self) -> Iterator[JsonObject]:
        first = [name for name in (REWARD, *self._usage) if name in self._fields]
        ordered = dict.fromkeys([*first, *self._fields])
        ordered.pop(_ROLLOUT_ID, None)  # the name is taken; its statistics are still in the task's row
        columns: DataFrame = self.frame[[*KEYS, *ordered]]
        keys = zip(self.frame[TASK_INDEX].tolist(), self.frame[ROLLOUT_INDEX].tolist(), strict=True)
        ids = [f"{task}:{rollout}" for task, rollout in keys]
        return records(columns, self._integers, {_ROLLOUT_ID: ids})


def completion(done: int, expected: int) -> JsonObject:
    """Return how complete a task's rollouts are, as members of its row."""
    return {
        "num_rollouts": done,
        "expected_num_rollouts": expected,
        "missing_num_rollouts": expected - done,
        "reward_profile_completion_pct": percent(done, expected),
    }


def percent(done: int, expected: int) -> float:
    """Return the share of expected rollouts that are done, in percent; 100 when none is expected."""
    return 100.0 * done / expected if expected else 100.0
