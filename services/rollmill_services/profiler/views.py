"""Parts of a profile: its statistics per agent, those of chosen tasks, and the summary of each agent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from rollmill.artifacts.manifest import Manifest
from rollmill.comparison import split_by_agent
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import AGENT_REF, REWARD, TASK_INDEX, Row
from rollmill.contracts.runs import RunState
from rollmill.profiling import Profile

if TYPE_CHECKING:
    from pandas import DataFrame

    from rollmill.artifacts.columns import RunColumns

FindRows = Callable[[list[str]], dict[str, Row]]
"""From rollout ids, `"task:rollout"`, to the rows of those that exist."""


@dataclass(frozen=True)
class Profiled:
    """A profile, and what it is of.

    Args:
        profile: the classic statistics.
        columns: reads the columns of the rollouts.
        rows: finds rollouts.
        manifest: of the run; None for posted rows and files.
        run_id: None for posted rows and files.
    """

    profile: Profile
    columns: "Callable[[], RunColumns]"
    rows: FindRows
    manifest: Manifest | None = None
    run_id: str | None = None

    @property
    def state(self) -> RunState | None:
        """The run's state as its manifest gives it."""
        return self.manifest.state if self.manifest else None


@dataclass(frozen=True)
class Chosen:
    """The tasks of a profile that a filter lets through; all of them without one.

    Raises:
        InputError: the filter cannot be parsed, or names something that a task does not have.
    """

    profiled: Profiled
    filter: str | None = None
    _tasks: "DataFrame | None" = field(default=None, init=False)

    @cached_property
    def tasks(self) -> set[int] | None:
        """Indices of the chosen tasks; None for all."""
        if self.filter is None:
            return None
        from rollmill.metrics.selection import parse_filter, task_frame

        wanted = parse_filter(self.filter)
        tasks = task_frame(self.profiled.columns().frame)
        return set(tasks.loc[wanted.mask(tasks), "task"].tolist())

    @cached_property
    def frame(self) -> "DataFrame":
        """The rollouts of the chosen tasks."""
        frame = self.profiled.columns().frame
        return frame if self.tasks is None else frame[frame[TASK_INDEX].isin(self.tasks)]

    @property
    def total(self) -> int:
        """Number of chosen tasks."""
        done = self.profiled.profile.completion
        return done["complete_tasks"] + done["partial_tasks"] if self.tasks is None else len(self.tasks)

    def task_rows(self, offset: int, limit: int) -> list[JsonObject]:
        """Return the classic rows of a page of tasks, by task index."""
        return list(islice(self._task_rows(), offset, offset + limit))

    def task_table(self, offset: int, limit: int | None) -> "DataFrame":
        """Return the statistics of a page of tasks, by task index."""
        tasks = self.profiled.profile.tasks
        if self.tasks is not None:
            tasks = tasks[tasks[TASK_INDEX].isin(self.tasks)]
        return tasks.iloc[offset : None if limit is None else offset + limit]

    def agent_rows(self) -> list[JsonObject]:
        """Return the classic rows of the agents, over the rollouts of the chosen tasks."""
        if self.tasks is None:
            return self.profiled.profile.reward_profile.agents
        from rollmill.metrics.describe import describe, records

        statistics = describe(self.frame[self.profiled.columns().fields], self.frame["agent"])
        pairs = zip(statistics.index.tolist(), records(statistics), strict=True)
        return [{AGENT_REF: {"name": str(name)}, **numbers} for name, numbers in pairs]

    def agent_table(self) -> "DataFrame":
        """Return the same as a frame."""
        from pandas import DataFrame

        rows = ({"agent": row[AGENT_REF]["name"], **row} for row in self.agent_rows())
        return DataFrame([{name: value for name, value in row.items() if name != AGENT_REF} for row in rows])

    def summaries(self) -> dict[str, JsonObject]:
        """Return the summary of each agent, by name, over the rollouts of the chosen tasks."""
        from rollmill.metrics.summary import summarize
        from rollmill.report import summarize_agents

        if self.tasks is None:
            return summarize_agents(self.profiled.columns(), self.profiled.manifest)
        groups = split_by_agent(self.frame).items()
        return {agent: summarize(group, score_field=self._score_field(agent)) for agent, group in groups}

    def estimate_table(self) -> "DataFrame":
        """Return the estimates of the summaries, one a row: agent, name, value and how sure it is."""
        from pandas import DataFrame

        return DataFrame(
            [
                {"agent": agent, "estimate": name, **estimate}
                for agent, summary in self.summaries().items()
                for name, estimate in summary["estimates"].items()
            ]
        )

    def _score_field(self, agent: str) -> str:
        manifest = self.profiled.manifest
        told = manifest.score_field(agent) if manifest else REWARD
        return told if told in self.frame else REWARD

    def _task_rows(self) -> Iterator[JsonObject]:
        for row in self.profiled.profile.reward_profile.iter_tasks():
            if self.tasks is None or row[TASK_INDEX] in self.tasks:
                yield row
