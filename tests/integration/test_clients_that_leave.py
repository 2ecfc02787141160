import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import pytest

from rollmill.client.http import HttpTransport
from rollmill.client.transport import Reply
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.server import ServiceApp, build_app, edge
from rollmill.server.calls import Answer, Call, HotRoute, event_stream, json_answer

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]


class Work:
    """A long call, and an endless stream; records how they end."""

    def __init__(self) -> None:
        self.runs = 0
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()

    async def run(self, call: Call) -> Answer:
        self.runs += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return json_answer({"runs": self.runs})

    async def stream(self, call: Call) -> Answer:
        return event_stream(self._events(), named=False)

    async def _events(self) -> AsyncGenerator[JsonObject, None]:
        try:
            while True:
                self.runs += 1
                yield {"n": self.runs}
                await asyncio.sleep(0.005)
        finally:
            self.cancelled.set()

    def app(self) -> ServiceApp:
        hot = [
            HotRoute("POST", "/run", self.run, "run", keyed=True, watched=True),
            HotRoute("POST", "/verify", self.run, "verify", keyed=True),
            HotRoute("POST", "/stream", self.stream, "stream", watched=True),
        ]
        return build_app(ServiceSettings(), kind="agent", title="work", hot=hot)

    async def until_runs(self, number: int) -> None:
        async with asyncio.timeout(10):
            while self.runs < number:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    transport = HttpTransport()
    yield transport
    await transport.aclose()


def call(transport: HttpTransport, url: str, *, key: str = "") -> "asyncio.Task[Reply]":
    headers = {"idempotency-key": key} if key else {}
    return asyncio.create_task(transport.send("POST", url, headers=headers, body=b"{}"))


async def leave(task: "asyncio.Task[Reply]") -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_call_whose_client_left_without_a_retry_is_cancelled(
    serve: Serve, work: Work, transport: HttpTransport, key: str
) -> None:
    app = work.app()
    async with serve(app) as url:
        first = call(transport, url + "/run", key=key)
        await work.until_runs(1)
        await leave(first)
        await asyncio.wait_for(work.cancelled.wait(), 10)
        async with asyncio.timeout(10):
            while app.edge is None or app.edge.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    assert 'rollmill_request_seconds_count{method="POST",route="/run",status="499"} 1\n' in app.meters.text()


async def test_a_retry_that_joins_keeps_the_call_alive(
    serve: Serve, work: Work, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "DISCONNECT_GRACE_SECONDS", 0.8)
    async with serve(work.app()) as url:
        first = call(transport, url + "/run", key="k")
        await work.until_runs(1)
        await leave(first)
        retry = call(transport, url + "/run", key="k")
        await asyncio.sleep(2.0)  # well beyond the grace time
        assert not work.cancelled.is_set()
        work.gate.set()
        assert (await retry).json() == {"runs": 1}


async def test_when_the_retry_leaves_too_the_call_is_cancelled(
    serve: Serve, work: Work, transport: HttpTransport
) -> None:
    async with serve(work.app()) as url:
        first = call(transport, url + "/run", key="k")
        await work.until_runs(1)
        await leave(first)
        retry = call(transport, url + "/run", key="k")
        await asyncio.sleep(0.1)
        await leave(retry)
        await asyncio.wait_for(work.cancelled.wait(), 10)
    assert work.runs == 1


async def test_a_retry_after_the_answer_gets_it_again(serve: Serve, work: Work, transport: HttpTransport) -> None:
    async with serve(work.app()) as url:
        first = call(transport, url + "/verify", key="k")
        await work.until_runs(1)
        await leave(first)
        work.gate.set()
        assert (await call(transport, url + "/verify", key="k")).json() == {"runs": 1}
    assert not work.cancelled.is_set()


async def test_a_stream_ends_when_its_reader_leaves(serve: Serve, work: Work, transport: HttpTransport) -> None:
    async with serve(work.app()) as url:
        async with transport.stream("POST", url + "/stream", headers={}, body=b"{}") as reply:
            assert (await anext(reply.chunks)).startswith(b'data: {"n":1}')
        await asyncio.wait_for(work.cancelled.wait(), 10)
        settled = work.runs
        await asyncio.sleep(0.05)
        assert work.runs == settled


async def test_a_connection_serves_many_calls_one_after_the_other(
    serve: Serve, work: Work, transport: HttpTransport
) -> None:
    work.gate.set()
    async with serve(work.app()) as url:
        for number in range(1, 21):
            assert (await call(transport, url + "/run", key=str(number))).json() == {"runs": number}
    assert not work.cancelled.is_set()
