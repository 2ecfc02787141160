import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.conftest import Serve

from rollmill.client.http import HttpTransport
from rollmill.client.transport import Reply
from rollmill.config.settings import ServiceSettings
from rollmill.errors import ConnectionLostError, OverloadedError, UpstreamError, UpstreamTimeoutError
from rollmill.server import build_app
from rollmill.server.calls import Answer, Call, HotRoute
from rollmill.testing import FaultPlan, FaultyProxy
from rollmill.testing.proxy import FAULTS, STORM_CALLS, Fault

BODY = b'{"text": "' + b"x" * 1000 + b'"}'
Spoil = Callable[..., Awaitable[FaultyProxy]]


class Behind:
    """A service that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def answer(self, call: Call) -> Answer:
        self.calls += 1
        return Answer(call.body)


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture
async def upstream(serve: Serve, behind: Behind) -> AsyncIterator[str]:
    routes = [HotRoute("POST", path, behind.answer, "Answer") for path in ("/a", "/b")]
    async with serve(build_app(ServiceSettings(), kind="model", title="echo", hot=routes)) as url:
        yield url


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    transport = HttpTransport()
    yield transport
    await transport.aclose()


async def _call(transport: HttpTransport, proxy: FaultyProxy, path: str = "/a", seconds: float = 20.0) -> Reply:
    headers = {"content-type": "application/json"}
    return await transport.send("POST", proxy.url + path, headers=headers, body=BODY, timeout=seconds)


def _always(fault: Fault, limit: int = 1) -> FaultPlan:
    return FaultPlan(1, 1.0, (fault,), limit)


async def test_calls_pass_as_they_are_over_one_connection(upstream: str, transport: HttpTransport) -> None:
    async with FaultyProxy(FaultPlan(1, 0.0), upstream).open() as proxy:
        for _ in range(3):
            assert (await _call(transport, proxy)).body == BODY
        assert proxy.plan.counts.total() == 0


@pytest.mark.parametrize(
    ("fault", "reached"), [("dropped before", 0), ("answer lost", 1), ("half an answer", 1), ("garbage", 1)]
)
async def test_a_broken_connection_is_a_lost_one_and_the_next_call_passes(
    upstream: str, transport: HttpTransport, behind: Behind, fault: Fault, reached: int
) -> None:
    async with FaultyProxy(_always(fault), upstream).open() as proxy:
        with pytest.raises(ConnectionLostError):
            await _call(transport, proxy)
        assert behind.calls == reached
        assert (await _call(transport, proxy)).body == BODY


async def test_a_call_that_is_dropped_after_it_was_sent_may_have_arrived(
    upstream: str, transport: HttpTransport
) -> None:
    async with FaultyProxy(_always("dropped after"), upstream).open() as proxy:
        with pytest.raises(ConnectionLostError):
            await _call(transport, proxy)


async def test_a_slow_answer_is_whole(upstream: str, transport: HttpTransport) -> None:
    async with FaultyProxy(_always("slow"), upstream, drip_seconds=0.001).open() as proxy:
        assert (await _call(transport, proxy)).body == BODY


async def test_refusals_reach_nobody_and_a_storm_lasts(upstream: str, transport: HttpTransport, behind: Behind) -> None:
    async with FaultyProxy(_always("error 500"), upstream).open() as proxy:
        error = (await _call(transport, proxy)).error()
        assert (type(error), error.extensions["upstream_status"]) == (UpstreamError, 500)
    async with FaultyProxy(_always("429 storm"), upstream, retry_after_seconds=0.5).open() as proxy:
        for _ in range(STORM_CALLS):
            error = (await _call(transport, proxy)).error()
            assert (isinstance(error, OverloadedError), error.retry_after) == (True, 0.5)
        assert behind.calls == 0
        assert (await _call(transport, proxy)).ok


async def test_only_the_paths_that_are_named_are_spoiled(upstream: str, transport: HttpTransport) -> None:
    async with FaultyProxy(_always("error 500"), upstream, paths=("/b",)).open() as proxy:
        assert (await _call(transport, proxy, "/a")).status == 200
        assert (await _call(transport, proxy, "/b")).status == 500


async def test_a_wire_that_is_cut_answers_nobody(upstream: str, transport: HttpTransport, behind: Behind) -> None:
    async with FaultyProxy(FaultPlan(1, 0.0), upstream).open() as proxy:
        proxy.cut = True
        with pytest.raises(UpstreamTimeoutError):
            await _call(transport, proxy, seconds=0.2)
        proxy.cut = False
        assert (await _call(transport, proxy)).ok
        assert behind.calls == 1


async def test_closing_cuts_what_is_under_way(upstream: str, transport: HttpTransport) -> None:
    proxy = FaultyProxy(_always("slow"), upstream, drip_seconds=60.0)
    async with proxy.open():
        call = asyncio.create_task(_call(transport, proxy))
        while not proxy.plan.counts:  # noqa: ASYNC110 (a fake tells nobody)
            await asyncio.sleep(0.005)
    with pytest.raises(ConnectionLostError):
        await call


def test_the_same_seed_spoils_the_same_calls() -> None:
    first, again, other = (FaultPlan(seed, 0.5) for seed in (1, 1, 2))
    decisions = [[plan.next() for _ in range(200)] for plan in (first, again, other)]
    assert decisions[0] == decisions[1] != decisions[2]
    assert set(first.counts) == set(FAULTS)


def test_a_plan_ends_at_its_limit() -> None:
    plan = FaultPlan(1, 1.0, ("slow",), limit=3)
    assert [plan.next() for _ in range(5)] == ["slow"] * 3 + [None] * 2
