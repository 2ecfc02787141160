from collections.abc import Callable
from dataclasses import dataclass

from rollmill.artifacts.writer import JsonlWriter
from rollmill.collection.fail_fast import FailFast
from rollmill.collection.outcomes import Assignment, Completed, Failed, failure_line
from rollmill.collection.stats import RunStats
from rollmill.contracts.rows import tokens_used


@dataclass(slots=True)
class FileSink:
    """Writes outcomes to the run's files and counts them."""

    rollouts: JsonlWriter
    failures: JsonlWriter
    stats: RunStats
    fail_fast: FailFast
    on_outcome: Callable[[], None]
    """Called after each attempt is counted."""

    async def completed(self, assignment: Assignment, outcome: Completed) -> None:
        """See `Sink.completed`."""
        await self.rollouts.append(outcome.line)
        self.stats.completed(assignment.agent, outcome.reward)
        self.stats.tokens += tokens_used(outcome.row)
        self.fail_fast.completed()
        self.on_outcome()

    async def attempt_failed(self, assignment: Assignment, attempt: int, failed: Failed, *, given_up: bool) -> None:
        """See `Sink.attempt_failed`."""
        self.stats.attempt_failed(failed.failure.boundary, failed.failure.type)
        self.stats.tokens += tokens_used(failed.row or failed.unverified or {})
        if failed.persist:
            await self.failures.append(failure_line(assignment, attempt, failed))
        if given_up:
            self.stats.failed(assignment.agent)
        self.fail_fast.attempt_failed(failed.failure, given_up=given_up)
        self.on_outcome()
