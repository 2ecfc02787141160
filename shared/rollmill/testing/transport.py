from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollmill.client.transport import Reply, StreamReply


@dataclass(frozen=True, slots=True)
class SentCall:
    """One call that a `FakeTransport` was given."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class FakeTransport:
    """A `Transport` that answers from a function, which may raise transport errors, and remembers the calls."""

    def __init__(self, answer: Callable[[SentCall], Reply]) -> None:
        self._answer = answer
        self.calls: list[SentCall] = []

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        """Answer the call."""
        call = SentCall(method, url, dict(headers), body)
        self.calls.append(call)
        return self._answer(call)

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[StreamReply]:
        """Answer the call, the whole body as one chunk."""
        reply = await self.send(method, url, headers=headers, body=body)

        async def chunks() -> AsyncIterator[bytes]:
            yield reply.body

        yield StreamReply(reply.status, reply.headers, chunks())

    async def aclose(self) -> None:
        """Nothing to close."""
