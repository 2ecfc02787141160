import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from rollmill.client.asgi import AsgiApp, AsgiTransport
from rollmill.contracts.json import JsonObject, loads
from rollmill.errors import ConnectError, ConnectionLostError, UpstreamTimeoutError

START: JsonObject = {"type": "http.response.start", "status": 200, "headers": [(b"X-One", b"1")]}


def transport(app: AsgiApp) -> AsgiTransport:
    return AsgiTransport({"http://a.embedded": app})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    await send({**START, "status": 201})
    text = (
        f"{scope['method']} {scope['path']} {scope['query_string'].decode()} {dict(scope['headers'])[b'a'].decode()} "
    )
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": message["body"]})


async def test_a_request_reaches_the_application_and_its_answer_comes_back() -> None:
    reply = await transport(echo).send("PUT", "http://a.embedded/b%20c?d=e", headers={"a": "h"}, body=b"{}")
    assert (reply.status, reply.headers["x-one"]) == (201, "1")
    assert reply.body == b"PUT /b c d=e h {}"


async def test_an_unknown_host_is_a_failed_connect() -> None:
    with pytest.raises(ConnectError, match=r"b\.embedded"):
        await transport(echo).send("GET", "http://b.embedded/", headers={})


async def test_a_timeout_cancels_the_application() -> None:
    cancelled = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(UpstreamTimeoutError):
        await transport(slow).send("GET", "http://a.embedded/", headers={}, timeout=0.01)
    assert cancelled.is_set()


async def test_chunks_of_a_stream_arrive_while_the_application_still_works() -> None:
    gate = asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await gate.wait()
        await send({"type": "http.response.body", "body": b"two"})

    got = []
    async with transport(stream).stream("GET", "http://a.embedded/", headers={}) as reply:
        async for chunk in reply.chunks:
            got.append(chunk)
            gate.set()
    assert got == [b"one", b"two"]
    assert reply.status == 200


async def test_leaving_a_stream_early_cancels_the_application() -> None:
    cancelled = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with transport(endless).stream("GET", "http://a.embedded/", headers={}) as reply:
        assert await anext(reply.chunks) == b"x"
    assert cancelled.is_set()


async def test_a_stream_that_the_application_breaks_off_is_a_lost_connection() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        raise RuntimeError("internal")

    async with asyncio.timeout(5), transport(broken).stream("GET", "http://a.embedded/", headers={}) as reply:
        assert await anext(reply.chunks) == b"one"
        with pytest.raises(ConnectionLostError):
            await anext(reply.chunks)


async def test_waiting_for_a_disconnect_does_not_end_by_itself() -> None:
    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["more_body"] is False
        leaving = asyncio.create_task(_next(receive))
        await asyncio.sleep(0)
        await send(START)
        await send({"type": "http.response.body", "body": b'{"left": %s}' % str(leaving.done()).lower().encode()})
        leaving.cancel()

    reply = await transport(waits).send("GET", "http://a.embedded/", headers={})
    assert loads(reply.body) == {"left": False}


async def _next(receive: Receive) -> None:
    await receive()
