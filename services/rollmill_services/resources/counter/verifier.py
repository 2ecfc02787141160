from typing import ClassVar

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import InputError
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill.server.tools import ToolError, tool

_COUNT = "count"
_LARGEST = 2**53 - 1  # beyond this, JSON readers that use doubles lose exactness


class Counter(Resources):
    """One counter per session: shows state that tools change and that the verifier grades at the end."""

    reverify_mode: ClassVar[ReverifyMode] = "unsupported"

    async def seed_session(self, session: Session, row: Row) -> None:
        """Set the counter to the task's `initial_count`; a task that could not be graded is refused.

        Raises:
            InputError: `initial_count` or `expected_count` is missing or not an integer.
        """
        session.state[_COUNT] = _whole_number(Rollout(row), "initial_count")
        _whole_number(Rollout(row), "expected_count")

    @tool
    async def increment_counter(self, count: int, session: Session) -> JsonObject:
        """Add a whole number to the counter."""
        total = _current(session) + count
        if abs(total) > _LARGEST:
            raise ToolError(f"the counter must stay between -{_LARGEST} and {_LARGEST}")
        session.state[_COUNT] = total
        return {"success": True}

    @tool
    async def get_counter_value(self, session: Session) -> JsonObject:
        """Read the counter."""
        return {"count": _current(session)}

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when the session's counter ended at `expected_count`.

        Raises:
            InputError: `expected_count` is missing or not an integer.
        """
        final = _current(session)
        return Verdict(float(final == _whole_number(rollout, "expected_count")), {"final_count": final})


def _current(session: Session) -> int:
    count: int = session.state.get(_COUNT, 0)
    return count


def _whole_number(rollout: Rollout, name: str) -> int:
    value = rollout.require(name)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
        fault = {"pointer": f"/{name}", "detail": f"must be an integer of at most {_LARGEST}"}
        raise InputError(f"{name!r} must be an integer of at most {_LARGEST}", errors=[fault])
    return value
