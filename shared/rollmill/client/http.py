import asyncio
import math
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from rollmill.client.transport import Reply, StreamReply
from rollmill.errors import ConnectError, ConnectionLostError, RollmillError, UpstreamError, UpstreamTimeoutError

KEEPALIVE_SECONDS = 30.0
"""Below the servers' 75 s, so that the client, not the server, drops an idle connection."""
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class HttpTransport:
    """HTTP over the network with aiohttp; one per process and event loop.

    Args:
        connect_timeout_seconds: longest wait for a TCP connection.
        max_connections: connections open at once, 0 for no limit of its own.
        max_body_bytes: a larger answer is an error, not a full memory; services take no larger body either.
    """

    def __init__(
        self,
        *,
        connect_timeout_seconds: float = 5.0,
        max_connections: int = 0,
        max_body_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._connect_timeout = connect_timeout_seconds
        self._max_connections = max_connections
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        """See `Transport.send`."""
        try:
            async with (
                asyncio.timeout(timeout),
                self._open().request(
                    method, self._url(url), headers=headers, data=body, allow_redirects=False
                ) as response,
            ):
                return Reply(response.status, response.headers, await self._read(response))
        except _BROKEN as error:
            raise _translate(error, url, timeout) from error

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[StreamReply]:
        """See `Transport.stream`."""
        try:
            response = await self._open().request(
                method, self._url(url), headers=headers, data=body, allow_redirects=False
            )
        except _BROKEN as error:
            raise _translate(error, url, None) from error
        async with response:  # what the reader raises here is the reader's own and passes as it is
            yield StreamReply(response.status, response.headers, _chunks(response, url))

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        length = response.content_length
        if length is not None and length <= self._max_body_bytes:
            return await response.read()
        chunks: list[bytes] = []
        size = length or 0  # one that says beforehand that it is too large is not read
        while size <= self._max_body_bytes:
            chunk = await response.content.readany()
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
        raise UpstreamError(f"the answer is larger than {self._max_body_bytes} bytes", retryable=False)

    def _url(self, url: str) -> URL:
        known = self._urls.get(url)
        if known is None:
            if len(self._urls) > 4096:
                self._urls.clear()
            try:
                known = self._urls[url] = URL(url)
            except ValueError as error:
                raise ConnectError(f"{url!r} is not a URL: {error}", retryable=False) from None
        return known

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._max_connections,
                limit_per_host=0,
                keepalive_timeout=KEEPALIVE_SECONDS,
                happy_eyeballs_delay=None,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout),
                auto_decompress=True,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            )
        return self._session


async def _chunks(response: aiohttp.ClientResponse, url: str) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except _BROKEN as error:
        raise _translate(error, url, None) from error


def _translate(error: Exception, url: str, timeout: float | None) -> RollmillError:
    origin = str(URL(url).origin()) if "://" in url else url
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ConnectError(f"{origin}: no connection in time")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ConnectError(f"{origin}: {error.certificate_error}", retryable=False)
    if isinstance(error, aiohttp.ClientConnectorError):
        return ConnectError(f"{origin}: {os_reason(error.os_error)}")
    if isinstance(error, TimeoutError):
        return UpstreamTimeoutError(f"{origin}: no answer within {timeout or math.nan:.1f} s")
    if isinstance(error, aiohttp.InvalidURL):
        return ConnectError(f"{url!r} is not a URL", retryable=False)
    return ConnectionLostError(f"{origin}: {type(error).__name__}: {error}".rstrip(": "))


def os_reason(error: OSError) -> str:
    """Say what the system says of a failed connection; asyncio's own words repeat the address instead."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
