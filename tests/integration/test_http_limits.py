"""What a service does with requests that are too large or too slow, byte by byte over a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from rollmill.config.settings import ServiceSettings
from rollmill.local import http_protocol
from rollmill.local.http_protocol import MAX_HEADERS, BoundedHttpProtocol
from rollmill.server import build_app
from rollmill.server.calls import Answer, Call, HotRoute, json_answer

OK = b"GET /livez HTTP/1.1\r\nhost: x\r\n"


async def echo(call: Call) -> Answer:
    return json_answer({"bytes": len(call.body)})


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    app = build_app(ServiceSettings(), kind="resources", title="x", hot=[HotRoute("POST", "/echo", echo, "Echo")])
    config = uvicorn.Config(app, log_config=None, lifespan="off")
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BoundedHttpProtocol(config, ServerState(), {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()


async def answer_to(*pieces: bytes) -> bytes:
    """All that a service says to these pieces before it closes the connection."""
    async with connection() as (reader, writer), asyncio.timeout(20):
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            return await reader.read()
        except ConnectionError:
            return b"reset"


async def test_several_requests_over_one_connection_are_answered() -> None:
    async with connection() as (reader, writer), asyncio.timeout(20):
        for _ in range(3):
            writer.write(OK + b"\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            writer.write(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\nabc")
            await asyncio.sleep(0.02)
            writer.write(b"def")
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(11) == b'{"bytes":6}'


async def test_as_many_headers_as_are_allowed_pass_and_one_more_is_refused() -> None:
    def headers(count: int) -> bytes:
        return b"".join(b"x-%d: y\r\n" % number for number in range(count))

    closing = b"connection: close\r\n\r\n"
    assert (await answer_to(OK + headers(MAX_HEADERS - 2) + closing)).startswith(b"HTTP/1.1 204")
    assert (await answer_to(OK + headers(MAX_HEADERS - 1) + closing)).startswith(b"HTTP/1.1 400")


async def test_a_head_without_an_end_is_cut_off() -> None:
    said = await answer_to(OK + b"x: ", *[b"y" * 65_536] * 40)

    assert said == b"reset" or said.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("start", [b"", OK, b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc"])
async def test_a_request_that_never_becomes_whole_is_given_up(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.2)

    assert b"200" not in await answer_to(start)


async def test_a_connection_that_was_used_is_not_closed_by_what_it_waited_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.8)
    async with connection() as (reader, writer), asyncio.timeout(20):
        for _ in range(2):
            writer.write(OK + b"\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            await asyncio.sleep(1.2)
