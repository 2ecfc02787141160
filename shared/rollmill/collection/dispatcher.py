"""Runs rollouts with bounded concurrency and bounded attempts. Knows neither HTTP nor files."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from rollmill.collection.limiter import Limiter
from rollmill.collection.outcomes import Assignment, Completed, Failed
from rollmill.collection.window import Window
from rollmill.contracts.rows import RowKey

BACKOFF_BASE_SECONDS = 0.2
BACKOFF_CAP_SECONDS = 15.0
MOST_HELD = 1024
MOST_HELD_BYTES = 32 * 1024 * 1024
"""So many rollouts, with so many bytes of rows, wait for a throttled agent or for their next attempt; then no further
row is read. They hold no slot, so that the rollouts of other agents pass them."""


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


@dataclass(slots=True)
class _Line:
    """The rollouts of one agent that have still to be attempted, first come, first served, and its window."""

    window: Window = field(default_factory=Window)
    waiting: deque[tuple[Assignment, int]] = field(default_factory=deque)


class Dispatcher:
    """Hands assignments to a runner, never more at once than the limiter allows.

    A slot is held during an attempt only. A rollout that waits, for its next attempt or because its agent asked for
    less load, holds none: one throttled agent does not keep the others from being used.

    Args:
        runner: makes the attempts.
        sink: takes the outcomes.
        limiter: slots; may change while running.
        max_attempts: attempts at one rollout, earlier sessions of the run included.
        earlier_attempts: failed attempts of earlier sessions, by key.
        grace_seconds: after `stop`, longest time for the attempts in flight.
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
        grace_seconds: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._runner = runner
        self._sink = sink
        self._limiter = limiter
        self._max_attempts = max_attempts
        self._earlier = earlier_attempts or {}
        self._grace_seconds = grace_seconds
        self._sleep = sleep
        self._lines: dict[str, _Line] = {}
        self._held = 0
        self._held_bytes = 0
        self._at_work: set[asyncio.Task[None]] = set()
        self._resting: set[asyncio.Task[None]] = set()
        self._stopped = False

    def windows(self) -> dict[str, int]:
        """Return how many rollouts of each agent may be in flight now, the limiter's slots apart."""
        return {agent: line.window.size for agent, line in self._lines.items()}

    def stop(self) -> None:
        """Start no further attempt; `run` returns when those in flight are finished, or the grace time is over."""
        self._stopped = True
        self._limiter.notify()

    async def run(self, assignments: AsyncIterator[Assignment]) -> None:
        """Settle every assignment. A sink that fails ends the run; a rollout that fails does not."""
        async with asyncio.TaskGroup() as group:
            async for assignment in assignments:
                self._hold(assignment, 1)
                self._line_up(assignment, self._earlier.get(assignment.key, 0))
                await self._start(group, self._has_room)
                if self._stopped:
                    break
            await self._start(group, self._is_done)
            if self._stopped:
                await self._wind_down()

    async def _start(self, group: asyncio.TaskGroup, enough: Callable[[], bool]) -> None:
        """Start whatever may be started, again after each change, until it is enough for now."""
        while not self._stopped:
            while (line := self._startable()) is not None:
                assignment, attempt = line.waiting.popleft()
                self._hold(assignment, -1)
                self._limiter.take()
                line.window.take()
                task = group.create_task(self._attempt(group, line.window, assignment, attempt))
                self._at_work.add(task)
                task.add_done_callback(partial(self._ended, line))  # also of one cancelled before it began
            if enough():
                return
            await self._limiter.changed()

    def _startable(self) -> _Line | None:
        if not self._limiter.free:
            return None
        return next((line for line in self._lines.values() if line.waiting and line.window.free), None)

    def _ended(self, line: _Line, task: "asyncio.Task[None]") -> None:
        self._at_work.discard(task)
        line.window.release()
        self._limiter.release()

    def _has_room(self) -> bool:
        return self._limiter.free and self._held < MOST_HELD and self._held_bytes < MOST_HELD_BYTES

    def _is_done(self) -> bool:
        return not (self._held or self._at_work)

    def _hold(self, assignment: Assignment, sign: int) -> None:
        self._held += sign
        self._held_bytes += sign * len(assignment.line)

    def _line_up(self, assignment: Assignment, attempt: int) -> None:
        line = self._lines.get(assignment.agent)
        if line is None:
            line = self._lines[assignment.agent] = _Line()
        line.waiting.append((assignment, attempt))

    async def _attempt(self, group: asyncio.TaskGroup, window: Window, assignment: Assignment, attempt: int) -> None:
        outcome = await self._runner.attempt(assignment, attempt)
        window.note(outcome)
        if isinstance(outcome, Completed):
            await self._sink.completed(assignment, outcome)
            return
        again = should_retry(outcome, attempt=attempt, max_attempts=self._max_attempts)
        await self._sink.attempt_failed(assignment, attempt, outcome, given_up=not again)
        if again and not self._stopped:
            self._hold(assignment, 1)
            task = group.create_task(self._rest(assignment, attempt + 1))
            self._resting.add(task)
            task.add_done_callback(self._resting.discard)

    async def _rest(self, assignment: Assignment, attempt: int) -> None:
        await self._sleep(backoff(attempt, random.uniform))
        self._line_up(assignment, attempt)
        self._limiter.notify()

    async def _wind_down(self) -> None:
        for task in self._resting:
            task.cancel()
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=self._grace_seconds)
        for task in self._at_work:
            task.cancel()


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
