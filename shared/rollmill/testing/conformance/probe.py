import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rollmill.client.service_client import ServiceClient
from rollmill.client.services import ResourcesClient, ResourcesSession
from rollmill.context import get_context, reset_context, set_context
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.errors import UpstreamError
from rollmill.ids import new_id
from rollmill.openai import function_call, new_response, text_message
from rollmill.testing.conformance.fixtures import Fixture, ToolCall


@dataclass(frozen=True, slots=True)
class Probe:
    """Does with one resources server what an agent does.

    Args:
        client: reaches the server.
        name: the server's name.
        timeout_seconds: longest time for one call.
    """

    client: ServiceClient
    name: str
    timeout_seconds: float

    async def get(self, path: str) -> JsonValue:
        """Return the JSON that a path answers; None when its answer is empty."""
        reply = await self.client.call(self.name, path, method="GET", timeout=self.timeout_seconds)
        return reply.json() if reply.body else None

    async def seed(self, row: Row) -> None:
        """Open a session for a task and close it, twice."""
        session = await self._open(row)
        await self._close(session)
        session.closed = False
        await self._close(session)

    async def play(
        self,
        row: Row,
        response: JsonObject,
        calls: Sequence[ToolCall] = (),
        *,
        encode: Callable[[Row], bytes] = dumps,
    ) -> Row:
        """Run one rollout in a session of its own, and return the verified row.

        Args:
            row: the task.
            response: what the model answered.
            calls: tool calls made first; they and their outputs become the first items of the response.
            encode: writes the row for `/verify`.
        """
        session = await self._open(row)
        try:
            if items := [item for call in calls for item in await self._call(session, call)]:
                response = {**response, "output": [*items, *(response.get("output") or [])]}
            return await self._verify(encode({**row, rows.RESPONSE: response}), session)
        finally:
            await self._close(session)

    async def grade(self, row: Row) -> Row:
        """Have a row with its response graded without any session."""
        return await self._verify(dumps(row), None)

    async def _verify(self, body: bytes, session: ResourcesSession | None) -> Row:
        await asyncio.sleep(0)
        reply = await self.client.call(
            self.name,
            "/verify",
            body,
            replica=session.replica if session else None,
            headers=session.headers if session else None,
            key=new_id(),
            timeout=self.timeout_seconds,
        )
        value = reply.json()
        if not isinstance(value, dict):
            raise UpstreamError(f"/verify answered {type(value).__name__}, not an object", retryable=False)
        return value

    async def _open(self, row: Row) -> ResourcesSession:
        await asyncio.sleep(0)  # a server in this process may answer without ever letting others run
        with self._bounded():
            return await ResourcesClient(self.client).seed(self.name, row)

    async def _close(self, session: ResourcesSession) -> None:
        with self._bounded():
            await ResourcesClient(self.client).close(session)

    async def _call(self, session: ResourcesSession, call: ToolCall) -> list[JsonObject]:
        item = function_call(call.tool, dumps(call.arguments).decode())
        with self._bounded():
            output = await ResourcesClient(self.client).call_tool(session, call.tool, call.arguments, key=new_id())
        return [item, {"type": "function_call_output", "call_id": item["call_id"], "output": output}]

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        token = set_context(get_context().sooner(self.timeout_seconds))
        try:
            yield
        finally:
            reset_context(token)


def answered(row: Row, text: str) -> JsonObject:
    """Build the Responses object of a model that answers a task with this text."""
    params = row.get(rows.PARAMS)
    return new_response([text_message(text)], request=params if isinstance(params, dict) else {}, model="fixture")


def response_of(fixture: Fixture, row: Row) -> JsonObject:
    """Return a fixture's Responses object."""
    return fixture.response if fixture.response is not None else answered(row, fixture.answer or "")
