import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rollmill.client.http import HttpTransport
from rollmill.errors import (
    ConnectError,
    ConnectionLostError,
    RollmillError,
    UpstreamError,
    UpstreamTimeoutError,
    is_retryable,
)

pytestmark = pytest.mark.both_loops

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Speaks raw bytes on a loopback socket, so that every way to break a connection can be played."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.requests: list[bytes] = []
        self.left = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
                self.requests.append(head + await reader.readexactly(length))
                await self._peer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def serving(peer: Peer) -> AsyncIterator[tuple[str, Server]]:
    server = Server(peer)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", server
    finally:
        listener.close()


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(max_body_bytes=1000)
    yield transport
    await transport.aclose()


def answering(data: bytes) -> Peer:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return peer


def breaking(data: bytes = b"") -> Peer:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    return peer


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"never")


async def error_of(call: Awaitable[object]) -> RollmillError:
    with pytest.raises(RollmillError) as caught:
        await call
    return caught.value


async def test_an_answer_comes_back_whole(transport: HttpTransport) -> None:
    async with serving(answering(OK)) as (url, server):
        for _ in range(2):
            reply = await transport.send("POST", url + "/a%2Fb?c=d", headers={"x-one": "1"}, body=b"{}")
            assert (reply.status, reply.body, reply.json()) == (200, b"{}", {})
    assert server.requests[0].startswith(b"POST /a%2Fb?c=d HTTP/1.1\r\n")
    assert b"x-one: 1" in server.requests[0]
    assert server.requests[0].endswith(b"{}")


async def test_a_refused_connection_is_a_failed_connect(transport: HttpTransport) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    error = await error_of(transport.send("POST", f"http://127.0.0.1:{port}/run", headers={}))
    assert type(error) is ConnectError
    assert f"127.0.0.1:{port}" in str(error)


@pytest.mark.parametrize("url", ["http://host.invalid/", "no-url", "http://127.0.0.1:99999/"])
async def test_an_address_that_is_none_is_a_failed_connect(transport: HttpTransport, url: str) -> None:
    assert isinstance(await error_of(transport.send("GET", url, headers={}, timeout=10)), ConnectError)


@pytest.mark.parametrize(
    "peer",
    [
        reset,
        breaking(),
        breaking(b"HTTP/1.1 200 OK\r\nContent-Le"),
        breaking(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
        breaking(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
        breaking(b"this is no HTTP\r\n\r\n"),
    ],
)
async def test_a_connection_that_breaks_after_the_request_is_lost_and_not_replayed(
    transport: HttpTransport, peer: Peer
) -> None:
    async with serving(peer) as (url, server):
        error = await error_of(transport.send("POST", url + "/run", headers={}, body=b"{}"))
    assert type(error) is ConnectionLostError
    assert len(server.requests) == 1


async def test_a_reused_connection_that_breaks_is_not_replayed_either(transport: HttpTransport) -> None:
    async def second_time_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (answering(OK) if len(server.requests) == 1 else reset)(reader, writer)

    async with serving(second_time_reset) as (url, server):
        await transport.send("POST", url, headers={}, body=b"{}")
        error = await error_of(transport.send("POST", url, headers={}, body=b"{}"))
    assert type(error) is ConnectionLostError
    assert len(server.requests) == 2


async def test_a_slow_answer_is_a_timeout_and_aborts_the_request(transport: HttpTransport) -> None:
    async with serving(silent) as (url, server):
        error = await error_of(transport.send("POST", url, headers={}, timeout=0.05))
        await asyncio.wait_for(server.left.wait(), 10)
    assert type(error) is UpstreamTimeoutError


async def test_cancelling_the_call_aborts_the_request(transport: HttpTransport) -> None:
    async with serving(silent) as (url, server):
        call = asyncio.create_task(transport.send("POST", url, headers={}))
        while not server.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.left.wait(), 10)


async def test_a_redirect_is_not_followed(transport: HttpTransport) -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    async with serving(answering(moved)) as (url, server):
        reply = await transport.send("POST", url, headers={}, body=b"{}")
    assert (reply.status, reply.ok, len(server.requests)) == (302, False, 1)
    assert type(reply.error()) is UpstreamError


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        (b"Content-Length: 5000\r\n\r\n", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n1388\r\n", b"\r\n0\r\n\r\n"),
        (b"Connection: close\r\n\r\n", b""),
    ],
)
async def test_a_huge_answer_is_refused_for_good(transport: HttpTransport, head: bytes, tail: bytes) -> None:
    async with serving(breaking(b"HTTP/1.1 200 OK\r\n" + head + b"x" * 5000 + tail)) as (url, _):
        error = await error_of(transport.send("POST", url, headers={}))
    assert "larger than 1000 bytes" in str(error)
    assert not is_retryable(error)
    assert not isinstance(error, ConnectionLostError)


async def test_an_answer_that_is_packed_although_nobody_asked_is_refused(transport: HttpTransport) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 10\r\n\r\n"
    async with serving(answering(head + b"x" * 10)) as (url, server):
        error = await error_of(transport.send("GET", url, headers={}))
    assert b"accept-encoding: identity\r\n" in server.requests[0]
    assert "packed (gzip)" in str(error)
    assert not is_retryable(error)


async def test_cookies_of_one_answer_are_not_sent_with_the_next_request(transport: HttpTransport) -> None:
    cookie = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    async with serving(answering(cookie)) as (url, server):
        await transport.send("POST", url, headers={})
        await transport.send("POST", url, headers={"cookie": "mine=1"})
    assert b"ookie" not in server.requests[0]
    assert b"cookie: mine=1" in server.requests[1]
    assert b"a=b" not in server.requests[1]


async def test_a_stream_hands_out_chunks_as_they_come(transport: HttpTransport) -> None:
    gate = asyncio.Event()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await gate.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    got = []
    async with serving(slowly) as (url, _), transport.stream("POST", url, headers={}) as reply:
        async for chunk in reply.chunks:
            got.append(chunk)
            gate.set()
    assert got == [b"one", b"two"]


async def test_leaving_a_stream_early_aborts_the_request(transport: HttpTransport) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await silent(reader, writer)

    async with serving(endless) as (url, server):
        async with transport.stream("POST", url, headers={}) as reply:
            assert await anext(reply.chunks) == b"one"
        await asyncio.wait_for(server.left.wait(), 10)


async def test_a_torn_stream_is_a_lost_connection(transport: HttpTransport) -> None:
    torn = breaking(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")

    async def read(url: str) -> None:
        async with transport.stream("POST", url, headers={}) as reply:
            async for _ in reply.chunks:
                pass

    async with serving(torn) as (url, _):
        assert type(await error_of(read(url))) is ConnectionLostError


async def test_what_the_reader_of_a_stream_raises_is_not_taken_for_the_connections_fault(
    transport: HttpTransport,
) -> None:
    async with serving(answering(OK)) as (url, _):
        with pytest.raises(FileNotFoundError):
            async with transport.stream("POST", url, headers={}):
                raise FileNotFoundError("the reader's own file")
