"""Runs rollouts with bounded concurrency and bounded attempts. Knows neither HTTP nor files."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

from rollmill.collection.limiter import Limiter
from rollmill.collection.outcomes import Assignment, Completed, Failed
from rollmill.collection.window import Window
from rollmill.contracts.rows import RowKey

BACKOFF_BASE_SECONDS = 0.2
BACKOFF_CAP_SECONDS = 15.0


class Runner(Protocol):
    """Makes one attempt at a rollout. Every failure is a `Failed`; only a cancellation leaves as an exception."""

    async def attempt(self, assignment: Assignment, attempt: int) -> Completed | Failed:
        """Run and grade the rollout; `attempt` counts from 0 over all sessions of the run."""


class Sink(Protocol):
    """Takes what the attempts end in."""

    async def completed(self, assignment: Assignment, outcome: Completed) -> None:
        """Keep a graded rollout."""

    async def attempt_failed(self, assignment: Assignment, attempt: int, failed: Failed, *, given_up: bool) -> None:
        """Keep a failed attempt; `given_up` says that there will be no other in this session of the run."""


class Dispatcher:
    """Hands assignments to a runner, never more at once than the limiter allows.

    Args:
        runner: makes the attempts.
        sink: takes the outcomes.
        limiter: slots; may change while running.
        max_attempts: attempts at one rollout, earlier sessions of the run included.
        earlier_attempts: failed attempts of earlier sessions, by key.
        sleep: waits between attempts (replaced in tests).
    """

    def __init__(
        self,
        runner: Runner,
        sink: Sink,
        limiter: Limiter,
        *,
        max_attempts: int,
        earlier_attempts: Mapping[RowKey, int] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._runner = runner
        self._sink = sink
        self._limiter = limiter
        self._max_attempts = max_attempts
        self._earlier = earlier_attempts or {}
        self._sleep = sleep
        self._windows: dict[str, Window] = {}

    def windows(self) -> dict[str, int]:
        """Return how many rollouts of each agent may be in flight now, the limiter's slots apart."""
        return {agent: window.size for agent, window in self._windows.items()}

    async def run(self, assignments: AsyncIterator[Assignment]) -> None:
        """Settle every assignment. A sink that fails ends the run; a rollout that fails does not."""
        async with asyncio.TaskGroup() as group:
            async for assignment in assignments:
                await self._limiter.acquire()
                task = group.create_task(self._settle(assignment))
                task.add_done_callback(lambda _: self._limiter.release())  # also of one cancelled before it began

    async def _settle(self, assignment: Assignment) -> None:
        attempt = self._earlier.get(assignment.key, 0)
        while await self._try(assignment, attempt):
            attempt += 1
            await self._sleep(backoff(attempt, random.uniform))

    async def _try(self, assignment: Assignment, attempt: int) -> bool:
        """Make one attempt; return whether there should be another."""
        outcome = await self._within_window(assignment, attempt)
        if isinstance(outcome, Completed):
            await self._sink.completed(assignment, outcome)
            return False
        again = should_retry(outcome, attempt=attempt, max_attempts=self._max_attempts)
        await self._sink.attempt_failed(assignment, attempt, outcome, given_up=not again)
        return again

    async def _within_window(self, assignment: Assignment, attempt: int) -> Completed | Failed:
        window = self._windows.get(assignment.agent)
        if window is None:
            window = self._windows[assignment.agent] = Window()
        await window.acquire()
        try:
            outcome = await self._runner.attempt(assignment, attempt)
            window.note(outcome)
            return outcome
        finally:
            window.release()


def should_retry(failed: Failed, *, attempt: int, max_attempts: int) -> bool:
    """Decide whether a rollout is tried again in this session of the run. A pure function.

    Args:
        failed: how the last attempt ended. What an agent classified itself is left to a resume.
        attempt: its number, from 0.
        max_attempts: attempts allowed in all.
    """
    classified = failed.row is not None
    return failed.failure.retryable and not failed.terminal and not classified and attempt + 1 < max_attempts


def backoff(attempt: int, uniform: Callable[[float, float], float]) -> float:
    """Return the seconds to wait before attempt number `attempt` (>= 1): full jitter over a doubling bound."""
    return uniform(0.0, min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** (attempt - 1)))
