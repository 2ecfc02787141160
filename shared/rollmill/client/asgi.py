"""Calls ASGI applications in the same process: no ports, no serialisation beyond the bodies themselves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from rollmill.client.transport import Reply, StreamReply
from rollmill.errors import ConnectError, ConnectionLostError, UpstreamTimeoutError
from rollmill.time_limit import time_limit

# The ASGI specification's own types: messages and scopes are open mappings.
Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[
    [Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

SCHEME = "http"
MAX_TARGETS = 4096
"""URLs remembered with their parsed form."""
IN_PROCESS = "rollmill.in_process"
"""Key of `scope["extensions"]` for calls that never leave the process: cancelling the caller cancels the application.
Its value is the `Direct` way to read the request and to answer, or None when the answer is wanted part by part."""
_STREAMED: dict[str, Any] = {IN_PROCESS: None}


class AsgiTransport:
    """Maps base URLs such as `http://weather-0.embedded` to applications.

    Args:
        apps: application by base URL, no trailing slash.
    """

    def __init__(self, apps: Mapping[str, AsgiApp]) -> None:
        self._apps = {urlsplit(url).netloc: app for url, app in apps.items()}
        self._targets: dict[str, tuple[AsgiApp, Scope]] = {}

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        """See `Transport.send`."""
        collected = Direct(body)
        app, scope = self._scope(method, url, headers)
        scope["extensions"] = {IN_PROCESS: collected}
        try:
            with time_limit(timeout):
                await app(scope, collected.receive, collected.send)
        except TimeoutError:
            raise UpstreamTimeoutError(f"{url}: no answer within {timeout:.1f} s") from None
        return Reply(collected.status, collected.headers, b"".join(collected.chunks))

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[StreamReply]:
        """See `Transport.stream`; the application is cancelled when the caller leaves early."""
        app, scope = self._scope(method, url, headers)
        channel = _Channel(body)
        task = asyncio.create_task(channel.run(app, scope))
        try:
            await channel.started.wait()
            yield StreamReply(channel.status, channel.headers, channel.read())
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def aclose(self) -> None:
        """Nothing to close: whoever started the applications stops them."""

    def _scope(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[AsgiApp, Scope]:
        target = self._targets.get(url)
        if target is None:
            if len(self._targets) > MAX_TARGETS:
                self._targets.clear()
            target = self._targets[url] = self._target(url)
        app, fixed = target
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return app, {**fixed, "method": method, "headers": raw}

    def _target(self, url: str) -> tuple[AsgiApp, Scope]:
        """Find the application behind a URL, and make the part of the scope that is the same for all calls to it."""
        parts = urlsplit(url)
        app = self._apps.get(parts.netloc)
        if app is None:
            raise ConnectError(f"no embedded service at {parts.netloc}")
        return app, {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": SCHEME,
            "path": unquote(parts.path),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "client": None,
            "server": (parts.hostname or "", 80),
            "extensions": _STREAMED,
        }


class Direct:
    """The two ASGI callables for a whole answer, and a way around them, for applications that know of it.

    They need not take an answer apart that is put together again right here.
    """

    __slots__ = ("_asked", "body", "chunks", "headers", "status")

    def __init__(self, body: bytes) -> None:
        self.body = body
        """The request's."""
        self._asked = False
        self.status = 500
        self.headers: Mapping[str, str] = {}
        self.chunks: list[bytes] = []

    def whole(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Take the answer, instead of `send`."""
        self.status = status
        self.headers = _decoded(headers)
        self.chunks.append(body)

    async def receive(self) -> Message:
        """See the ASGI specification."""
        if self._asked:
            await asyncio.Event().wait()  # the client never leaves by itself; cancellation ends the wait
        self._asked = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Message) -> None:
        """See the ASGI specification."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = _decoded(message["headers"])
        elif message["type"] == "http.response.body" and message.get("body"):
            self.chunks.append(message["body"])


def _decoded(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


class _Channel(Direct):
    """The two ASGI callables for a streamed answer; a slow reader slows the application."""

    __slots__ = ("_broken", "_queue", "started")

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.started = asyncio.Event()
        self._broken: Exception | None = None
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)

    async def run(self, app: AsgiApp, scope: Scope) -> None:
        try:
            await app(scope, self.receive, self.send)
        except Exception as error:
            self._broken = error
        self.started.set()
        await self._queue.put(None)

    async def send(self, message: Message) -> None:
        await super().send(message)
        if message["type"] == "http.response.start":
            self.started.set()
        while self.chunks:
            await self._queue.put(self.chunks.pop(0))

    async def read(self) -> AsyncIterator[bytes]:
        while (chunk := await self._queue.get()) is not None:
            yield chunk
        if self._broken is not None:
            raise ConnectionLostError("the embedded service broke off its answer") from self._broken
