"""The profile of a run that goes on. It imports numpy: import this module inside functions only."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import REWARD, TASK_INDEX
from rollmill.metrics.estimators import Floats, Ints, pass_at_k_of, pass_hat_k_of
from rollmill.metrics.intervals import SHARE, UNBOUNDED, Bounds, Column, mean_estimate, ratio_estimate
from rollmill.metrics.moments import Moments
from rollmill.metrics.training import solve_rate


class RunningProfile:
    """Statistics of all rollouts so far; adding some costs no more than their number asks for.

    Nothing depends on the order in which rollouts are added, nor on how many at a time, but for rounding.

    Args:
        score_fields: by agent, the field that is its score; `reward` for those that are not listed.
        correct_at: a rollout is correct when its score is at least this.
    """

    def __init__(self, score_fields: Mapping[str, str] | None = None, *, correct_at: float = 1.0) -> None:
        self._score_fields = score_fields or {}
        self._correct_at = correct_at
        self._agents: dict[str, int] = {}
        self._groups: list[dict[int, int]] = []  # of each agent, where a task's numbers are
        self._places = 0
        self._agent_of = np.zeros(0, np.int64)  # of each group
        self._sizes = np.zeros(0, np.int64)  # rollouts of each group
        self._by_group: dict[str, Moments] = {}
        self._by_agent: dict[str, Moments] = {}
        self._score = Moments()
        self._correct = Moments()
        self._graded: set[int] = set()  # agents with a score that is neither 0 nor 1

    def add(self, tasks: Ints, agents: Sequence[str], codes: NDArray[np.int32], fields: Mapping[str, Floats]) -> None:
        """Add rollouts.

        Args:
            tasks: task of each rollout, shape (rollouts,).
            agents: names of agents.
            codes: position in `agents` of each rollout's agent, -1 for none, same shape.
            fields: values of each field, same shape, NaN for a missing one.
        """
        numbers = np.array([self._agent(name) for name in [*agents, ""]] if len(tasks) else [0])
        agent = numbers[codes]
        group = self._group_of(tasks, agent)
        order, by_agent = np.argsort(group, kind="stable"), np.argsort(agent, kind="stable")
        for name, values in fields.items():
            self._by_group.setdefault(name, Moments()).add(group[order], values[order])
            self._by_agent.setdefault(name, Moments()).add(agent[by_agent], values[by_agent])
        score = self._scores(agent, fields)
        self._score.add(group[order], score[order])
        self._correct.add(group[order], np.where(np.isnan(score), np.nan, score >= self._correct_at)[order])
        self._graded.update(agent[~np.isnan(score) & (score != 0) & (score != 1)].tolist())

    def summary(self) -> JsonObject:
        """Return the statistics of each agent as JSON, by name; the name is empty for rollouts without an agent.

        `metrics` has mean, max, min and std of every field as in the classic profile; `estimates` the mean reward over
        tasks, `pass@1`, and the shares of tasks without variance and of tasks that are worth training on; `curve`
        pass@k and pass^k for k = 1, 2, 4, ...; `solve_rate` how many tasks have none, some and all rollouts correct.
        """
        for moments in (self._score, self._correct):
            moments.reach(len(self._sizes))
        found = {name: np.flatnonzero(self._agent_of == self._agents[name]) for name in sorted(self._agents)}
        return {name: self._of(name, groups) for name, groups in found.items() if len(groups)}

    def tasks(self) -> Iterator[JsonObject]:
        """Yield the statistics of each task, in the order in which the tasks appeared.

        A task that two agents attempt has a row for each. There is no median: it cannot be kept up to date.
        """
        names, sizes = list(self._agents), self._sizes
        columns: dict[str, Floats] = {}
        for name, moments in self._by_group.items():
            moments.reach(len(sizes))
            columns |= _statistics(name, moments, sizes)
        tasks = np.zeros(len(sizes), np.int64)
        for places in self._groups:
            tasks[list(places.values())] = list(places)
        for at, (task, agent, size) in enumerate(
            zip(tasks.tolist(), self._agent_of.tolist(), sizes.tolist(), strict=True)
        ):
            numbers = {name: float(values[at]) for name, values in columns.items()}
            yield {TASK_INDEX: task, "agent": names[agent], "num_rollouts": size, **_defined(numbers)}

    def _scores(self, agent: Ints, fields: Mapping[str, Floats]) -> Floats:
        scores = np.full(len(agent), np.nan)
        for name, number in self._agents.items():
            mine = agent == number
            field = self._score_fields.get(name, REWARD)
            if field in fields:
                scores[mine] = fields[field][mine]
        return scores

    def _of(self, name: str, groups: Ints) -> JsonObject:
        agent, rollouts = self._agents[name], int(self._sizes[groups].sum())
        estimates, curve = self._estimates(groups, SHARE if agent not in self._graded else UNBOUNDED)
        shares = self._correct.mean[groups]
        return {
            "tasks": len(groups),
            "rollouts": rollouts,
            "unscored": rollouts - int(self._score.count[groups].sum()),
            "score_field": self._score_fields.get(name, REWARD),
            "binary": agent not in self._graded,
            "correct_at": self._correct_at,
            "metrics": self._metrics(agent, rollouts),
            "estimates": estimates,
            "curve": curve,
            "solve_rate": solve_rate(shares[~np.isnan(shares)]),
        }

    def _metrics(self, agent: int, rollouts: int) -> JsonObject:
        sizes = np.zeros(agent + 1, np.int64)
        sizes[agent] = rollouts
        found: dict[str, float] = {}
        for name, moments in self._by_agent.items():
            moments.reach(agent + 1)
            statistics = _statistics(name, moments, sizes)
            found |= {statistic: float(values[agent]) for statistic, values in statistics.items()}
        return _defined(found)

    def _estimates(self, groups: Ints, bounds: Bounds) -> tuple[JsonObject, list[JsonObject]]:
        score = self._score
        scored, means = score.count[groups], score.mean[groups]
        right = np.rint(np.nan_to_num(self._correct.mean[groups]) * scored).astype(np.int64)
        several = scored > 1
        flat = np.where(several, score.low[groups] == score.high[groups], np.nan)
        estimates = {
            "mean_reward": mean_estimate(Column(np.where(scored > 0, means, np.nan), int(scored.sum())), bounds),
            "pass@1": mean_estimate(Column(pass_at_k_of(scored, right, 1), int(scored.sum())), SHARE),
            "zero_variance_share": mean_estimate(Column(flat, int(scored[several].sum())), SHARE),
            "effective_batch_share": ratio_estimate(np.where(flat == 0, scored, 0).astype(float), scored, SHARE),
        }
        return {name: estimate.to_json() for name, estimate in estimates.items()}, list(_curve(scored, right))

    def _agent(self, name: str) -> int:
        number = self._agents.setdefault(name, len(self._agents))
        if number == len(self._groups):
            self._groups.append({})
        return number

    def _group_of(self, tasks: Ints, agent: Ints) -> Ints:
        """Return the group of each rollout, and count it there."""
        group = np.zeros(len(tasks), np.int64)
        for number in np.unique(agent).tolist():
            mine = np.flatnonzero(agent == number)
            found, position, counts = np.unique(tasks[mine], return_inverse=True, return_counts=True)
            places = np.array([self._place(number, task) for task in found.tolist()])
            more = self._places - len(self._sizes)
            self._agent_of = np.append(self._agent_of, np.full(more, number))
            self._sizes = np.append(self._sizes, np.zeros(more, np.int64))
            self._sizes[places] += counts
            group[mine] = places[position]
        return group

    def _place(self, agent: int, task: int) -> int:
        places = self._groups[agent]
        if task not in places:
            places[task] = self._places
            self._places += 1
        return places[task]


def _statistics(name: str, moments: Moments, sizes: Ints) -> dict[str, Floats]:
    groups = len(sizes)
    return {
        f"mean/{name}": moments.mean[:groups],
        f"max/{name}": moments.high[:groups],
        f"min/{name}": moments.low[:groups],
        f"std/{name}": moments.std(sizes),
    }


def _defined(numbers: Mapping[str, float]) -> JsonObject:
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _curve(n: Ints, c: Ints) -> Iterator[JsonObject]:
    """Yield pass@k and pass^k for k = 1, 2, 4, ... up to the rollouts that some task has."""
    most, k = int(n.max(initial=1)), 1
    while k <= most:
        rollouts = int(n[n >= k].sum())
        any_of, all_of = (Column(estimator(n, c, k), rollouts) for estimator in (pass_at_k_of, pass_hat_k_of))
        yield {
            "k": k,
            "pass@k": mean_estimate(any_of, SHARE).to_json(),
            "pass^k": mean_estimate(all_of, SHARE).to_json(),
        }
        k *= 2
