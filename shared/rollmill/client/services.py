"""Typed calls to the three kinds of data-plane services."""

from dataclasses import dataclass, field

from rollmill.client.directory import Replica
from rollmill.client.service_client import ServiceClient
from rollmill.client.transport import Reply
from rollmill.context import SESSION_HEADER
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rows import Row
from rollmill.errors import InputError, RollmillError, ToolError, ToolFailedError, UpstreamError

CLOSE_WITH_VERIFY_HEADER = "x-rollmill-close-session"
"""Sent with `/verify`: end the session after grading. The answer repeats it when the server did so."""

_MODEL_VISIBLE = (ToolError, ToolFailedError, InputError)


@dataclass(slots=True)
class ResourcesSession:
    """A session on one replica of a resources server."""

    replica: Replica
    headers: dict[str, str] = field(default_factory=dict)
    """The session header, or the cookies of a server that knows only those."""
    closed: bool = False


class AgentClient:
    """Calls an agent."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def run(self, name: str, row: bytes, *, key: str, timeout: float | None = None) -> Reply:
        """Run one rollout: the row as JSON in, the verified row as JSON in the answer's body.

        Args:
            name: the agent.
            row: the row, serialised once by the caller.
            key: idempotency key of this attempt.
            timeout: seconds.
        """
        return await self._client.call(name, "/run", row, key=key, timeout=timeout)

    async def aggregate_metrics(self, name: str, body: bytes, *, timeout: float | None = None) -> JsonObject:
        """Have the agent's environment compute its metrics."""
        return _object(await self._client.call(name, "/aggregate_metrics", body, timeout=timeout), name)


class ModelClient:
    """Calls a model."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def respond(self, name: str, request: JsonObject) -> JsonObject:
        """Answer a Responses request."""
        return _object(await self._client.call(name, "/v1/responses", dumps(request)), name)


class ResourcesClient:
    """Calls a resources server; every call of a session goes to the replica that seeded it."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def seed(self, name: str, row: Row) -> ResourcesSession:
        """Open a session for a task on a lightly loaded replica, another one if that refuses or cannot be reached."""
        replica, reply = await self._client.place(name, "/seed_session", dumps(row))
        return ResourcesSession(replica, _session_headers(reply))

    async def call_tool(self, session: ResourcesSession, tool: str, arguments: JsonObject, *, key: str) -> str:
        """Call a declared tool and return its output; an error of the tool itself is returned as JSON text.

        Raises:
            RollmillError: the server, not the tool, failed.
        """
        name = session.replica.info.name
        try:
            reply = await self._client.call(
                name, f"/{tool}", dumps(arguments), replica=session.replica, key=key, headers=session.headers
            )
        except RollmillError as error:
            if isinstance(error, _MODEL_VISIBLE) or error.extensions.get("upstream_status") == 400:
                return error_output(error.detail)
            raise
        return reply.body.decode("utf-8", "replace")

    async def verify(self, session: ResourcesSession, row: Row, *, key: str, close: bool = True) -> Row:
        """Grade a row with its response; by default the session ends with it."""
        name = session.replica.info.name
        headers = {**session.headers, CLOSE_WITH_VERIFY_HEADER: "1"} if close else session.headers
        reply = await self._client.call(name, "/verify", dumps(row), replica=session.replica, key=key, headers=headers)
        session.closed = CLOSE_WITH_VERIFY_HEADER in reply.headers
        return _object(reply, name)

    async def close(self, session: ResourcesSession) -> None:
        """End a session; closing twice is no error."""
        if session.closed:
            return
        session.closed = True
        await self._client.call(
            session.replica.info.name, "/close_session", b"{}", replica=session.replica, headers=session.headers
        )

    async def aggregate_metrics(self, name: str, body: bytes) -> bytes:
        """Have the environment compute its metrics."""
        return (await self._client.call(name, "/aggregate_metrics", body)).body


def error_output(detail: str) -> str:
    """Render an error as the tool output that a model reads."""
    return dumps({"error": detail}).decode()


def _session_headers(reply: Reply) -> dict[str, str]:
    signed = reply.headers.get(SESSION_HEADER)
    if signed:
        return {SESSION_HEADER: signed}
    cookie = reply.headers.get("set-cookie")
    return {"cookie": cookie.split(";", 1)[0]} if cookie else {}


def _object(reply: Reply, name: str) -> JsonObject:
    value = reply.json()
    if not isinstance(value, dict):
        raise UpstreamError(f"{name} answered {type(value).__name__} where an object was expected", retryable=False)
    return value
