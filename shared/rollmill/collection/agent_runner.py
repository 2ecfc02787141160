import time

from rollmill.client.service_client import ServiceClient
from rollmill.client.services import AgentClient
from rollmill.collection.outcomes import Assignment, Completed, Failed, failed_by, read_outcome, timed
from rollmill.context import CallContext, set_context
from rollmill.contracts import rows
from rollmill.contracts.json import dumps
from rollmill.errors import RollmillError
from rollmill.ids import new_id


class AgentRunner:
    """Makes attempts by calling agents.

    Args:
        client: finds and calls them.
        run_id: makes idempotency keys unique among runs.
        timeout_seconds: for each attempt.
    """

    def __init__(self, client: ServiceClient, *, run_id: str, timeout_seconds: float) -> None:
        self._agents = AgentClient(client)
        self._run_id = run_id
        self._timeout = timeout_seconds

    async def attempt(self, assignment: Assignment, attempt: int) -> Completed | Failed:
        """See `Runner.attempt`."""
        set_context(CallContext(new_id()))  # each rollout runs in a task, and so in a context, of its own
        body = assignment.line
        if attempt:
            body = dumps({**assignment.row, rows.ATTEMPT_INDEX: attempt})
        key = f"{self._run_id}/{assignment.key}/{attempt}"
        started_at, began = time.time(), time.monotonic()
        try:
            reply = await self._agents.run(assignment.agent, body, key=key, timeout=self._timeout)
        except RollmillError as error:
            return failed_by(error)
        outcome = read_outcome(assignment, reply.body, attempt=attempt)
        if isinstance(outcome, Failed):
            return outcome
        return timed(outcome, seconds=time.monotonic() - began, started_at=started_at, attempt=attempt)
