"""Grading stored rollouts: the calls to the verifiers, and what becomes of their verdicts."""

from contextlib import suppress
from dataclasses import dataclass, field, replace

from rollmill.artifacts.writer import JsonlWriter
from rollmill.client.service_client import ServiceClient
from rollmill.client.services import ResourcesClient
from rollmill.collection.outcomes import Assignment, Completed, Failed, failed_by, failure_line, read_outcome
from rollmill.collection.stats import RunStats
from rollmill.context import CallContext, set_context
from rollmill.contracts import rows
from rollmill.contracts.attempts import AttemptId
from rollmill.contracts.json import dumps
from rollmill.contracts.rows import RowKey
from rollmill.errors import RollmillError
from rollmill.ids import new_id

CORRECT = 1.0
"""A rollout with this reward or a higher one is correct."""


@dataclass(slots=True)
class Changes:
    """How the new rewards differ from the old ones, over the rollouts that have both."""

    compared: int = 0
    up: int = 0
    down: int = 0
    flips: int = 0
    """Correct rollouts that became wrong, and the other way round."""

    def add(self, old: float | None, new: float) -> None:
        """Count a rollout."""
        if old is None:
            return
        self.compared += 1
        self.up += new > old
        self.down += new < old
        self.flips += (new >= CORRECT) != (old >= CORRECT)

    @property
    def flip_rate(self) -> float | None:
        """Share of flips, 0 to 1; None when nothing could be compared."""
        return self.flips / self.compared if self.compared else None


@dataclass(frozen=True, slots=True)
class Verifying:
    """The resources server that grades an agent's rollouts, and what it says about grading them again."""

    resources: str
    mode: str


@dataclass(frozen=True, slots=True)
class Grader:
    """Makes attempts at grading by calling resources servers."""

    client: ServiceClient
    verifiers: dict[str, Verifying]
    run_id: str
    timeout_seconds: float

    async def attempt(self, assignment: Assignment, attempt: int) -> Completed | Failed:
        """See `Runner.attempt`."""
        key = str(AttemptId(self.run_id, assignment.key.task, assignment.key.rollout, attempt))
        context = CallContext(new_id(), attempt=key)
        set_context(context.sooner(self.timeout_seconds))  # each runs in a context of its own
        verifier = self.verifiers[assignment.agent]
        try:
            if verifier.mode == "stateless":
                body = (await self.client.call(verifier.resources, "/verify", assignment.line, key=key)).body
            else:
                body = await self._in_fresh_session(verifier.resources, assignment, key)
        except RollmillError as error:
            error.extensions.setdefault("boundary", "resources")
            return failed_by(error)
        outcome = read_outcome(assignment, body)
        if isinstance(outcome, Failed):
            return replace(outcome, failure=outcome.failure.model_copy(update={"boundary": "resources"}))
        return outcome

    async def _in_fresh_session(self, name: str, assignment: Assignment, key: str) -> bytes:
        """The verifier may look at a session; the best there is now is one in which nothing happened."""
        resources = ResourcesClient(self.client)
        seed = {name: value for name, value in assignment.row.items() if name != rows.RESPONSE}
        session = await resources.seed(name, seed)
        try:
            return dumps(await resources.verify(session, assignment.row, key=key))
        finally:
            with suppress(RollmillError):  # it is reaped some time
                await resources.close(session)


@dataclass(slots=True)
class GradingSink:
    """Writes outcomes to the run's files, and counts them and how the rewards changed."""

    graded: JsonlWriter
    failures: JsonlWriter
    stats: RunStats
    changes: Changes
    old_rewards: dict[RowKey, float | None] = field(default_factory=dict)
    """Of the rollouts in flight."""

    async def completed(self, assignment: Assignment, outcome: Completed) -> None:
        """See `Sink.completed`."""
        await self.graded.append(outcome.line)
        self.stats.completed(assignment.agent, outcome.reward)
        self.changes.add(self.old_rewards.pop(assignment.key), outcome.reward)

    async def attempt_failed(self, assignment: Assignment, attempt: int, failed: Failed, *, given_up: bool) -> None:
        """See `Sink.attempt_failed`."""
        self.stats.attempt_failed(failed.failure.boundary, failed.failure.type)
        await self.failures.append(failure_line(assignment, attempt, failed))
        if given_up:
            self.stats.failed(assignment.agent)
            self.old_rewards.pop(assignment.key)
