"""Passes the page's questions on to the collector and the profiler, so that the page needs one origin and no token."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from fastapi.responses import StreamingResponse

from rollmill.client.transport import StreamReply, Transport
from rollmill.contracts.services import Instance
from rollmill.errors import NotFoundError, ServiceNotFoundError, UpstreamTimeoutError
from rollmill_services.head.registry import Registry

Behind: TypeAlias = Literal["collector", "profiler"]

SILENCE_SECONDS: Final = 120.0
"""Longest wait for the next part of an answer, by default."""
_RUN: Final = r"/v1/runs/[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_PATHS: Final[dict[Behind, tuple[re.Pattern[str], ...]]] = {
    "collector": (
        re.compile("(GET|POST) /v1/runs"),
        re.compile(f"(GET|PATCH) {_RUN}"),
        re.compile(f"POST {_RUN}/(cancel|pause|resume)"),
    ),
    "profiler": (
        re.compile("GET /v1/compare"),
        re.compile(f"GET {_RUN}/(profile|live)"),
        re.compile(f"GET {_RUN}/rollouts/(table|timeline|[0-9]{{1,19}}/[0-9]{{1,19}})"),
    ),
}
"""All that may be asked through the gateway."""
_PASSED_ON: Final = ("content-type", "x-request-id", "retry-after")


class Gateway:
    """Sends a call to a live replica, with the head's own token.

    Args:
        transport: carries the calls.
        registry: knows the replicas.
        headers: makes what is shown to them; asked for each call.
        most_calls: at once; others wait, no longer than for a part of an answer.
        silence_seconds: longest wait for the next part of an answer.
    """

    def __init__(
        self,
        transport: Transport,
        registry: Registry,
        headers: Callable[[], Mapping[str, str]],
        *,
        most_calls: int,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._free = asyncio.Semaphore(most_calls)
        self._silence_seconds = silence_seconds
        self._transport = transport
        self._registry = registry
        self._headers = headers

    async def call(
        self, kind: Behind, method: str, path: str, *, query: str = "", body: bytes = b"", content_type: str = ""
    ) -> StreamingResponse:
        """Pass a call on and stream its answer.

        Args:
            kind: whom it is for; one replica of that kind gets it.
            method: of HTTP.
            path: from its first slash on.
            query: as it came, without the question mark.
            body: whole.
            content_type: of the body.

        Raises:
            NotFoundError: this is no path that the gateway passes on.
            ServiceNotFoundError: no such service is live.
            ConnectError: it cannot be reached.
            UpstreamTimeoutError: it says nothing for too long.
        """
        if not any(allowed.fullmatch(f"{method} {path}") for allowed in _PATHS[kind]):
            raise NotFoundError(f"{method} {path[:200]} is not passed on to the {kind}")
        url = self._live(kind).url.rstrip("/") + quote(path) + (f"?{query}" if query else "")
        headers = {**self._headers(), **({"content-type": content_type} if content_type else {})}
        async with AsyncExitStack() as stack:
            async with self._in_time(kind):
                await stack.enter_async_context(self._free)
                reply = await stack.enter_async_context(self._transport.stream(method, url, headers=headers, body=body))
            held = stack.pop_all()
        kept = {name: reply.headers[name] for name in _PASSED_ON if name in reply.headers}
        return StreamingResponse(
            self._body(kind, reply, held), reply.status, headers={**kept, "cache-control": "no-store"}
        )

    def _live(self, kind: Behind) -> Instance:
        found = self._registry.services(kind)
        if not found:
            raise ServiceNotFoundError(f"no {kind} is registered at this head", service=kind)
        return next((instance for instance in found if instance.state == "ready"), found[0])

    async def _body(self, kind: Behind, reply: StreamReply, held: AsyncExitStack) -> AsyncIterator[bytes]:
        async with held:
            while True:
                async with self._in_time(kind):
                    chunk = await anext(reply.chunks, None)
                if chunk is None:
                    return
                yield chunk

    @asynccontextmanager
    async def _in_time(self, kind: Behind) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._silence_seconds):
                yield
        except TimeoutError:
            raise UpstreamTimeoutError(
                f"the {kind} said nothing for {self._silence_seconds:g} s", service=kind
            ) from None
