"""What travels with a call from hop to hop: request id, deadline, trace, and the rollout that it is part of.

The server sets it when a call arrives, the client sends it on with every call made meanwhile. It is the one
context variable of the code base, because it must cross the author's code without appearing in it.

Between processes a deadline is a Unix time; within one it is a moment of the monotonic clock, so that a wall clock that
is set while calls are in flight ends none of them early and lets none go on too long.
"""

import time
from contextvars import ContextVar
from typing import NamedTuple

from rollmill.errors import DeadlineError
from rollmill.observability.tracing import NO_TRACER, Tracer

REQUEST_ID_HEADER = "x-request-id"
DEADLINE_HEADER = "x-rollmill-deadline"
SESSION_HEADER = "x-rollmill-session"
MCP_TOKEN_HEADER = "x-rollmill-mcp-token"
IDEMPOTENCY_HEADER = "idempotency-key"
TRACE_HEADER = "traceparent"
ATTEMPT_HEADER = "x-rollmill-attempt"


class CallContext(NamedTuple):
    """The circumstances of the call that is being served.

    A tuple, as the other values that are made at every hop: made in half the time of a frozen dataclass.
    """

    request_id: str = ""
    deadline: float | None = None
    """When nobody waits for the answer any more, in seconds of this process's monotonic clock."""
    traceparent: str = ""
    attempt: str = ""
    """An `AttemptId` as text, for log lines; not read before one is written."""
    tracer: Tracer = NO_TRACER
    """Begins the spans of this process; it does not travel."""

    def sooner(self, timeout_seconds: float | None) -> "CallContext":
        """Return a context whose deadline is at most `timeout_seconds` from now."""
        if timeout_seconds is None:
            return self
        limit = time.monotonic() + timeout_seconds
        if self.deadline is not None and self.deadline <= limit:
            return self
        return self.until(limit)

    def until(self, deadline: float) -> "CallContext":
        """Return a context with another deadline."""
        # Several times in each rollout: `_replace` takes twice as long.
        return CallContext(self.request_id, deadline, self.traceparent, self.attempt, self.tracer)

    def remaining(self) -> float | None:
        """Return the seconds left, or None when there is no deadline.

        Raises:
            DeadlineError: the deadline has passed.
        """
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError("the deadline of this call has passed")
        return left


def from_unix(deadline: float) -> float:
    """Turn a Unix time into seconds of this process's monotonic clock."""
    return time.monotonic() + (deadline - time.time())


def to_unix(deadline: float) -> float:
    """Turn seconds of this process's monotonic clock into a Unix time."""
    return time.time() + (deadline - time.monotonic())


_current: ContextVar[CallContext] = ContextVar("rollmill_call", default=CallContext())  # noqa: B039 (frozen)

set_context = _current.set
get_context = _current.get
reset_context = _current.reset
