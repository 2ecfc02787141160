"""What the client for calls between services keeps from one call to the next, and what it never lets through."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollmill.client import pool
from rollmill.client.connection import HIGH_WATER_BYTES, MAX_HEAD_BYTES
from rollmill.client.http import HttpTransport
from rollmill.errors import ConnectError, ConnectionLostError, RollmillError, UpstreamTimeoutError, is_retryable

pytestmark = pytest.mark.both_loops

Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def listening(handle: Handler) -> AsyncIterator[str]:
    """Have `handle` called again and again for each connection, until that ends; yield the URL."""
    writers: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while not writer.is_closing():
                await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


class Peer:
    """Answers each request with what the test says, one list of writes after the other; the last one for good."""

    def __init__(self, *answers: bytes | list[bytes]) -> None:
        self._answers = [[answer] if isinstance(answer, bytes) else answer for answer in answers]
        self._seen: set[asyncio.StreamWriter] = set()
        self.requests = 0
        self.left = asyncio.Event()
        self.written = 0

    @property
    def connections(self) -> int:
        return len(self._seen)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._seen.add(writer)
        try:
            await request(reader)
            answer = self._answers[min(self.requests, len(self._answers) - 1)]
            self.requests += 1
            for part in answer:
                writer.write(part)
                await writer.drain()
                self.written += len(part)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
            raise
        if b"Connection: close" in b"".join(answer):
            writer.close()


async def request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a request: its head and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
    return head, await reader.readexactly(length)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@asynccontextmanager
async def answering(*answers: bytes | list[bytes]) -> AsyncIterator[tuple[str, Peer]]:
    peer = Peer(*answers)
    async with listening(peer.handle) as url:
        yield url, peer


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(max_body_bytes=100_000)
    yield transport
    await transport.aclose()


async def error_of(transport: HttpTransport, url: str, timeout: float = 10) -> RollmillError:
    with pytest.raises(RollmillError) as caught:
        await transport.send("POST", url, headers={}, timeout=timeout)
    return caught.value


async def test_one_connection_carries_calls_that_follow_each_other(transport: HttpTransport) -> None:
    async with answering(OK) as (url, peer):
        for _ in range(20):
            await transport.send("POST", url, headers={}, body=b"{}")
    assert (peer.connections, peer.requests) == (1, 20)


async def test_calls_at_once_get_a_connection_each_and_their_own_answers(transport: HttpTransport) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await request(reader)
        await asyncio.sleep(int(body) % 7 / 1000)
        writer.write(ok(body))

    async def call(url: str, number: int) -> bytes:
        return (await transport.send("POST", url, headers={}, body=str(number).encode())).body

    async with listening(echo) as url:
        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call(url, number)) for number in range(100)]
            assert [int(task.result()) for task in tasks] == list(range(100))


async def test_a_second_answer_to_one_request_never_answers_the_next(transport: HttpTransport) -> None:
    smuggled = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    for writes in ([OK + smuggled], [OK, smuggled]):
        async with answering(list(writes), OK) as (url, peer):
            assert (await transport.send("POST", url, headers={})).body == b"{}"
            await asyncio.sleep(0.05)
            assert (await transport.send("POST", url, headers={})).body == b"{}"
        assert peer.connections == 2


async def test_the_late_answer_of_a_call_that_was_given_up_reaches_nobody(transport: HttpTransport) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await request(reader)
        path = head.split()[1]
        await asyncio.sleep(0.3 if path == b"/slow" else 0)
        writer.write(ok(path))

    async with listening(slow) as url:
        assert type(await error_of(transport, url + "/slow", timeout=0.05)) is UpstreamTimeoutError
        assert (await transport.send("POST", url + "/fast", headers={})).body == b"/fast"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}",
    ],
)
async def test_a_connection_that_the_peer_closes_carries_no_other_call(transport: HttpTransport, answer: bytes) -> None:
    async with answering(answer) as (url, peer):
        for _ in range(3):
            assert (await transport.send("POST", url, headers={})).body == b"{}"
    assert peer.connections == 3


async def test_an_idle_connection_that_the_peer_drops_harms_no_call(transport: HttpTransport) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        writers.append(writer)

    async with listening(once) as url:
        for _ in range(3):
            await transport.send("POST", url, headers={})
            writers[-1].close()
            await asyncio.sleep(0.02)
    assert len(set(writers)) == 3


async def test_connections_that_were_idle_for_long_are_closed(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "KEEPALIVE_SECONDS", 0.05)
    async with answering(OK) as (url, peer):
        await transport.send("POST", url, headers={})
        await asyncio.wait_for(peer.left.wait(), 10)
        await transport.send("POST", url, headers={})
    assert peer.connections == 2


async def test_news_on_the_way_are_passed_over(transport: HttpTransport) -> None:
    async with answering(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK) as (url, _):
        reply = await transport.send("POST", url, headers={})
    assert (reply.status, reply.body, "link" in reply.headers) == (200, b"{}", False)


async def test_trailers_are_no_headers(transport: HttpTransport) -> None:
    chunks = b"2\r\n{}\r\n0\r\nx-late: 1\r\n\r\n"
    async with answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks) as (url, _):
        reply = await transport.send("POST", url, headers={})
    assert (reply.body, "x-late" in reply.headers) == (b"{}", False)


@pytest.mark.parametrize(
    "start", [b"", b"x-long: ", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-trailer: "], ids=repr
)
async def test_a_head_without_an_end_is_refused(transport: HttpTransport, start: bytes) -> None:
    line = b"x" * 1000 if start else b"x-many: 1\r\n" * 100
    endless = [b"HTTP/1.1 200 OK\r\n" + start, *([line] * 10_000)]
    async with answering(endless) as (url, peer):
        error = await error_of(transport, url)
        await asyncio.wait_for(peer.left.wait(), 10)
    assert f"head is larger than {MAX_HEAD_BYTES}" in str(error)
    assert not is_retryable(error)


@pytest.mark.parametrize("value", ["a\r\nevil: 1", "a\nevil: 1", "a\rb", "\N{SNOWMAN}"])
async def test_a_header_that_could_be_more_than_one_is_not_sent(transport: HttpTransport, value: str) -> None:
    async with answering(OK) as (url, peer):
        with pytest.raises(ConnectError, match="not sent"):
            await transport.send("POST", url, headers={"x-key": value})
    assert peer.requests == 0


@pytest.mark.parametrize("url", ["http://user:secret@127.0.0.1/", "ftp://127.0.0.1/", "http:///run", "http://[::1/"])
async def test_urls_that_cannot_be_called_are_told_at_once(transport: HttpTransport, url: str) -> None:
    error = await error_of(transport, url)
    assert type(error) is ConnectError
    assert not is_retryable(error)
    assert "secret" not in str(error)


async def test_a_path_cannot_end_the_request_line(transport: HttpTransport) -> None:
    seen: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await request(reader))[0])
        writer.write(OK)

    async with listening(note) as url:
        await transport.send("POST", url + "/a b\N{SNOWMAN}?q= HTTP/1.1", headers={})
    assert seen[0].startswith(b"POST /a%20b%E2%98%83?q=%20HTTP/1.1 HTTP/1.1\r\n")


async def test_a_slow_reader_slows_the_sender(transport: HttpTransport) -> None:
    size = 20 * HIGH_WATER_BYTES
    parts = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (100 * 65536), *([b"x" * 65536] * 100)]
    async with answering(parts) as (url, peer), transport.stream("POST", url, headers={}) as reply:
        await asyncio.sleep(0.3)
        assert peer.written < size  # the rest waits with the sender: the system's buffers hold what was written
        got = sum([len(chunk) async for chunk in reply.chunks])
    assert got == 100 * 65536


async def test_after_a_stream_that_was_read_to_its_end_the_connection_goes_on(transport: HttpTransport) -> None:
    async with answering(OK) as (url, peer):
        for _ in range(3):
            async with transport.stream("POST", url, headers={}) as reply:
                assert [chunk async for chunk in reply.chunks] == [b"{}"]
    assert peer.connections == 1


async def test_closing_ends_the_calls_in_flight(transport: HttpTransport) -> None:
    async with answering([]) as (url, peer):
        call = asyncio.create_task(transport.send("POST", url, headers={}))
        while not peer.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await transport.aclose()
        with pytest.raises(ConnectionLostError, match="closed here"):
            await call


async def test_a_connection_that_nobody_takes_is_given_up_in_time() -> None:
    with socket.socket() as full:  # nobody accepts, and the queue is soon full
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        transport = HttpTransport(connect_timeout_seconds=0.5)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(error_of(transport, url, timeout=2)) for _ in range(8)]
        await transport.aclose()
    found = {type(call.result()) for call in calls}
    assert found == {ConnectError, UpstreamTimeoutError}  # the first ones are in the queue, and wait for an answer


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["refusing", "silent"])
async def test_a_peer_that_speaks_no_tls_is_a_failed_connect(said: bytes) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.readuntil(b"never")

    transport = HttpTransport(connect_timeout_seconds=20 if said else 0.5)
    async with listening(plain) as url:
        error = await error_of(transport, url.replace("http:", "https:"))
        await transport.aclose()
    assert type(error) is ConnectError
    assert ("no connection in time" in str(error)) == (not said)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=300),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    chunked=st.booleans(),
    spoiled=st.none() | st.tuples(st.integers(0, 400), st.integers(0, 255)),
)
async def test_however_an_answer_is_cut_or_spoiled_it_is_whole_or_an_error(
    body: bytes, cuts: list[int], chunked: bool, spoiled: tuple[int, int] | None
) -> None:
    if chunked:
        data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        data += (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    else:
        data = ok(body)
    if spoiled is not None and spoiled[0] < len(data):
        place, byte = spoiled
        data = data[:place] + bytes([byte]) + data[place + 1 :]
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    parts = [data[a:b] for a, b in pairwise(edges) if a < b]
    transport = HttpTransport()
    try:
        async with answering(parts) as (url, _):
            reply = await transport.send("POST", url, headers={}, timeout=0.3 if spoiled else 30)
        assert spoiled is not None or (reply.status, reply.body) == (200, body)
    except RollmillError:
        assert spoiled is not None
    finally:
        await transport.aclose()
