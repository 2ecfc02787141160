import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from rollmill.client.connection import Answer, Connection
from rollmill.client.pool import Origin, Pool
from rollmill.client.transport import Reply, StreamReply
from rollmill.errors import ConnectError, UpstreamTimeoutError

CONNECT_SECONDS: Final = 10.0
"""Of a full queue of connections the system asks again after 1, 3 and 7 s: an overrun service is reached at last."""
MAX_TARGETS: Final = 4096
"""URLs remembered with their parsed form."""
_PORTS: Final = {"http": 80, "https": 443}
_LITERAL: Final = "/%:@!$&'()*+,;=~-._"
"""What a path may hold as it is (RFC 3986, 3.3); `%` because it may be quoted already."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A URL, taken apart."""

    origin: Origin
    start: str
    """What follows the method in the request, up to the caller's headers."""


class HttpTransport:
    """HTTP/1.1 over the network; one per process and event loop.

    Our own client: it does what calls between services need, and costs a fraction of a general one; see
    `docs/decisions/0021-own-http-client.md`. Redirects are not followed, cookies not kept, packed answers refused, and
    nothing is sent twice. Not for HEAD.

    Args:
        connect_timeout_seconds: longest wait for a connection, its TLS included.
        max_body_bytes: a larger answer is an error, not a full memory; services take no larger body either.
        ca_file: authorities (PEM) that certificates are checked against, instead of the system's.
    """

    def __init__(
        self,
        *,
        connect_timeout_seconds: float = CONNECT_SECONDS,
        max_body_bytes: int = 64 * 1024 * 1024,
        ca_file: Path | None = None,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._pool = Pool(connect_timeout_seconds=connect_timeout_seconds, ca_file=ca_file)
        self._targets: dict[str, _Target] = {}

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        """See `Transport.send`."""
        target = self._target(url)
        request = _request(method, target, headers, body)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        connection = self._pool.idle(target.origin) or await self._connect(target.origin, timeout)
        answer = Answer(self._max_body_bytes)
        connection.begin(answer, request)
        timer = None if timeout is None else loop.call_at(begun + timeout, connection.expire, timeout)
        try:
            content = await answer.whole()
        finally:
            if timer is not None:
                timer.cancel()
            self._pool.give_back(target.origin, connection, answer)
        return Reply(answer.status, answer.headers, content)

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[StreamReply]:
        """See `Transport.stream`."""
        target = self._target(url)
        request = _request(method, target, headers, body)
        connection = self._pool.idle(target.origin) or await self._connect(target.origin, None)
        answer = Answer(None)
        connection.begin(answer, request)
        try:
            await answer.head()
            yield StreamReply(answer.status, answer.headers, connection.parts(answer))
        finally:
            self._pool.give_back(target.origin, connection, answer)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()

    async def _connect(self, origin: Origin, timeout: float | None) -> Connection:
        try:
            async with asyncio.timeout(timeout):
                return await self._pool.connect(origin)
        except TimeoutError:
            raise UpstreamTimeoutError(f"{origin.url}: no answer within {timeout:.1f} s") from None

    def _target(self, url: str) -> _Target:
        known = self._targets.get(url)
        if known is None:
            if len(self._targets) >= MAX_TARGETS:
                self._targets.clear()
            known = self._targets[url] = _parsed(url)
        return known


def _parsed(url: str) -> _Target:
    try:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS:
            raise ValueError("it does not begin with http:// or https://")
        if parts.username is not None:
            raise ValueError("it names a user; a token goes into a header")
        if not parts.hostname:
            raise ValueError("it names no host")
        host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode()
        port = parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        shown = url.rpartition("@")[2]  # not the password
        raise ConnectError(f"{shown!r} is not a URL that can be called: {error}", retryable=False) from None
    named = f"[{host}]" if ":" in host else host
    place = named if port == _PORTS[parts.scheme] else f"{named}:{port}"
    path = quote(parts.path, safe=_LITERAL) or "/"
    query = f"?{quote(parts.query, safe=_LITERAL + '?')}" if parts.query else ""
    start = f" {path}{query} HTTP/1.1\r\nhost: {place}\r\naccept-encoding: identity\r\n"
    return _Target(Origin(f"{parts.scheme}://{place}", host, port, parts.scheme == "https"), start)


def _request(method: str, target: _Target, headers: Mapping[str, str], body: bytes) -> tuple[bytes, bytes]:
    """Return a request's head and body."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\r") != len(headers) or lines.count("\n") != len(headers):
        raise ConnectError(f"{target.origin.url}: a header with a line break is not sent", retryable=False)
    length = f"content-length: {len(body)}\r\n" if body or method != "GET" else ""
    try:
        return f"{method}{target.start}{lines}{length}\r\n".encode("latin-1"), body
    except UnicodeEncodeError:
        raise ConnectError(f"{target.origin.url}: a header is not Latin-1 and not sent", retryable=False) from None
