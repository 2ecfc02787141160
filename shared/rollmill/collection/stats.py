import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rollmill.contracts.runs import AgentProgress, RunBudget, RunState, RunStatus

MAX_FAILURE_TYPES = 100


@dataclass(slots=True)
class _Agent:
    expected: int = 0
    completed: int = 0
    failed: int = 0
    reward: float = 0.0

    def view(self) -> AgentProgress:
        mean = _mean(self.reward, self.completed)
        return AgentProgress(expected=self.expected, completed=self.completed, failed=self.failed, mean_reward=mean)


def _mean(total: float, count: int) -> float | None:
    """None also when finite rewards add up to more than a float holds: JSON has no infinity."""
    return total / count if count and math.isfinite(total) else None


@dataclass(slots=True)
class RunStats:
    """Running numbers of one run, in constant memory."""

    run_id: str
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    state: RunState = "running"
    error: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    """Tokens used so far, by earlier sessions of the run too."""
    earlier_seconds: float = 0.0
    """How long earlier sessions of the run were at work."""
    budget: RunBudget = field(default_factory=RunBudget)
    clock: Callable[[], float] = time.monotonic
    _agents: dict[str, _Agent] = field(default_factory=dict)
    _started: float | None = None
    _settled_now: int = 0
    _ended: float | None = None

    def expect(self, rollouts: dict[str, int]) -> None:
        """Set the number of rollouts of each agent."""
        for agent, count in rollouts.items():
            self._agent(agent).expected = count

    def start(self) -> None:
        """Begin to measure the rate."""
        self._started = self.clock()
        self._ended = None

    @property
    def wall_seconds(self) -> float:
        """How long the run was at work, earlier sessions included."""
        return self.earlier_seconds + self._seconds()

    @property
    def given_up(self) -> int:
        """Rollouts given up on."""
        return sum(agent.failed for agent in self._agents.values())

    @property
    def left(self) -> int:
        """Rollouts that are not settled."""
        return sum(agent.expected - agent.completed - agent.failed for agent in self._agents.values())

    def stop(self, state: RunState, error: str = "") -> None:
        """Note how the run ended."""
        self.state, self.error = state, error
        self._ended = self.clock()

    def completed(self, agent: str, reward: float, *, earlier: bool = False) -> None:
        """Count a graded rollout; `earlier` ones were found in the files and are no part of the rate."""
        entry = self._agent(agent)
        entry.completed += 1
        entry.reward += reward
        self._settled_now += not earlier

    def failed(self, agent: str, *, earlier: bool = False) -> None:
        """Count a rollout that was given up on."""
        self._agent(agent).failed += 1
        self._settled_now += not earlier

    def attempt_failed(self, boundary: str, kind: str) -> None:
        """Count a failed attempt, whether or not there is another."""
        name = f"{boundary}/{kind}"
        if name not in self.failures and len(self.failures) >= MAX_FAILURE_TYPES:
            name = "other"  # agents may make up types; the status must stay small
        self.failures[name] = self.failures.get(name, 0) + 1

    def status(
        self, *, in_flight: int = 0, concurrency: int = 0, windows: Mapping[str, int] | None = None
    ) -> RunStatus:
        """Return the numbers as they stand."""
        agents = {name: agent.view() for name, agent in self._agents.items()}
        totals = [
            sum(getattr(agent, name) for agent in self._agents.values()) for name in ("expected", "completed", "failed")
        ]
        expected, completed, failed = totals
        reward = sum(agent.reward for agent in self._agents.values())
        rate = self._rate()
        left = expected - completed - failed
        return RunStatus(
            run_id=self.run_id,
            state=self.state,
            error=self.error,
            created_at=self.created_at,
            expected=expected,
            completed=completed,
            failed=failed,
            failed_attempts=sum(self.failures.values()),
            failures=dict(self.failures),
            in_flight=in_flight,
            concurrency=concurrency,
            windows={agent: min(size, concurrency) for agent, size in (windows or {}).items()},
            rate_per_second=round(rate, 3),
            eta_seconds=round(left / rate, 1) if rate and left and self._ended is None else None,
            mean_reward=_mean(reward, completed),
            agents=agents,
            tokens=self.tokens,
            wall_seconds=round(self.wall_seconds, 3),
            budget=self.budget,
        )

    def _seconds(self) -> float:
        """Seconds of this session."""
        if self._started is None:
            return 0.0
        return (self.clock() if self._ended is None else self._ended) - self._started

    def _rate(self) -> float:
        seconds = self._seconds()
        return self._settled_now / seconds if seconds > 0 else 0.0

    def _agent(self, name: str) -> _Agent:
        return self._agents.setdefault(name, _Agent())
