import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rollmill.client.directory import Replica, StaticDirectory
from rollmill.client.retry import RetryPolicy
from rollmill.client.service_client import ServiceClient
from rollmill.client.transport import Reply
from rollmill.context import CallContext, from_unix, reset_context, set_context
from rollmill.contracts.services import Instance
from rollmill.errors import (
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    InputError,
    OverloadedError,
    RollmillError,
    ServiceNotFoundError,
)
from rollmill.server.calls import problem_answer
from rollmill.testing import FakeClock, FakeTransport
from rollmill.testing.transport import SentCall

OK = Reply(200, {}, b"{}")


def refusal(error: RollmillError) -> Reply:
    answer = problem_answer(error)
    return Reply(answer.status, {name.decode(): value.decode() for name, value in answer.headers}, answer.body)


def script(*steps: Reply | RollmillError) -> Callable[[SentCall], Reply]:
    left = list(steps)

    def answer(_: SentCall) -> Reply:
        step = left.pop(0)
        if isinstance(step, RollmillError):
            raise step
        return step

    return answer


class Setting:
    """A client of a service with three replicas and scripted answers."""

    def __init__(self, *steps: Reply | RollmillError, token: str = "") -> None:
        self.transport = FakeTransport(script(*steps))
        self.clock = FakeClock()
        instances = [Instance(name="s", instance=f"s{n}", kind="agent", url=f"http://s{n}") for n in range(3)]
        self.directory = StaticDirectory(instances, seed=1)
        self.client = ServiceClient(
            self.transport,
            self.directory,
            token=token,
            policy=RetryPolicy(max_attempts=4),
            sleep=self.clock.sleep,
            uniform=lambda low, high: low,
        )

    @property
    def hosts(self) -> list[str]:
        return [call.url.removesuffix("/x") for call in self.transport.calls]


@contextmanager
def serving(context: CallContext) -> Iterator[None]:
    token = set_context(context)
    try:
        yield
    finally:
        reset_context(token)


async def test_a_call_carries_token_key_and_content_type() -> None:
    setting = Setting(OK, token="secret")
    await setting.client.call("s", "/x", b"{}", key="k", headers={"x-extra": "1"})
    assert dict(setting.transport.calls[0].headers) == {
        "authorization": "Bearer secret",
        "content-type": "application/json",
        "idempotency-key": "k",
        "x-extra": "1",
    }


async def test_request_id_deadline_and_trace_travel_on() -> None:
    setting = Setting(OK)
    deadline = time.time() + 60
    with serving(CallContext("req", from_unix(deadline), "00-trace")):
        await setting.client.call("s", "/x")
    headers = setting.transport.calls[0].headers
    assert headers["x-request-id"] == "req"
    assert headers["traceparent"] == "00-trace"
    assert float(headers["x-rollmill-deadline"]) == pytest.approx(deadline, abs=0.001)


async def test_a_timeout_makes_the_deadline_sooner_never_later() -> None:
    setting = Setting(OK, OK)
    soon = time.time() + 60
    with serving(CallContext("req", from_unix(soon))):
        await setting.client.call("s", "/x", timeout=600)
        await setting.client.call("s", "/x", timeout=1)
    first, second = (float(call.headers["x-rollmill-deadline"]) for call in setting.transport.calls)
    assert first == pytest.approx(soon, abs=0.001)
    assert second < soon - 50


async def test_a_failed_connect_is_retried_on_other_replicas() -> None:
    setting = Setting(ConnectError("a"), ConnectError("b"), OK)
    assert await setting.client.call("s", "/x") is OK
    assert len(set(setting.hosts)) == 3


async def test_a_lost_connection_with_a_key_is_retried_on_the_same_replica() -> None:
    setting = Setting(ConnectionLostError("a"), ConnectionLostError("b"), OK)
    await setting.client.call("s", "/x", key="k")
    assert len(set(setting.hosts)) == 1
    assert [call.headers["idempotency-key"] for call in setting.transport.calls] == ["k"] * 3


async def test_when_that_replica_is_dead_the_retry_goes_elsewhere() -> None:
    setting = Setting(ConnectionLostError("a"), ConnectError("dead"), OK)
    await setting.client.call("s", "/x", key="k")
    first, again, other = setting.hosts
    assert first == again != other


async def test_a_lost_connection_without_a_key_is_not_retried() -> None:
    setting = Setting(ConnectionLostError("a"))
    with pytest.raises(ConnectionLostError) as caught:
        await setting.client.call("s", "/x")
    assert caught.value.extensions["service"] == "s"
    assert len(setting.hosts) == 1


async def test_overload_waits_as_long_as_the_server_asks_and_goes_elsewhere() -> None:
    setting = Setting(refusal(OverloadedError("busy", retry_after=7)), OK)
    await setting.client.call("s", "/x")
    assert setting.clock.slept == [7.0]
    assert len(set(setting.hosts)) == 2
    assert setting.client.retries.values == {("s", "overloaded"): 1}


async def test_a_pinned_call_stays_on_its_replica() -> None:
    setting = Setting(ConnectError("a"), refusal(OverloadedError("busy")), OK)
    replica = (await setting.directory.replicas("s"))[2]
    await setting.client.call("s", "/x", replica=replica)
    assert setting.hosts == ["http://s2"] * 3


async def test_retries_are_bounded() -> None:
    setting = Setting(*[ConnectError(str(n)) for n in range(9)])
    with pytest.raises(ConnectError, match="3"):
        await setting.client.call("s", "/x")
    assert len(setting.hosts) == 4
    assert setting.client.retries.values == {("s", "connect-failed"): 3}


async def test_no_retry_would_start_after_the_deadline() -> None:
    setting = Setting(refusal(OverloadedError("busy", retry_after=30)), OK)
    with pytest.raises(OverloadedError):
        await setting.client.call("s", "/x", timeout=5)
    assert setting.clock.slept == []


async def test_a_wall_clock_that_is_set_meanwhile_changes_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(refusal(OverloadedError("busy")), OK, OK)
    wall_clock = time.time
    with serving(CallContext("r").sooner(60)):
        for jump in (3600.0, -3600.0):
            monkeypatch.setattr(time, "time", lambda jump=jump: wall_clock() + jump)
            await setting.client.call("s", "/x")
            left = float(setting.transport.calls[-1].headers["x-rollmill-deadline"]) - time.time()
            assert 0 < left <= 60.001
    assert len(setting.hosts) == 3


async def test_a_call_that_a_service_took_for_late_is_sent_again_with_the_time_of_the_new_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall_clock = time.time

    def jump(_: SentCall) -> Reply:
        monkeypatch.setattr(time, "time", lambda: wall_clock() + 3600)
        return refusal(DeadlineError("late", refused=True))

    setting = Setting(OK)
    setting.transport = FakeTransport(lambda call: OK if time.time() > wall_clock() + 60 else jump(call))
    client = ServiceClient(setting.transport, setting.directory, sleep=setting.clock.sleep)
    with serving(CallContext("r").sooner(60)):
        assert await client.call("s", "/x") is OK
    first, second = (float(call.headers["x-rollmill-deadline"]) for call in setting.transport.calls)
    assert second - first == pytest.approx(3600, abs=1)


async def test_nothing_is_sent_after_the_deadline() -> None:
    setting = Setting(OK)
    with serving(CallContext("r", time.monotonic() - 1)), pytest.raises(DeadlineError):
        await setting.client.call("s", "/x")
    assert setting.hosts == []


async def test_the_servers_own_error_comes_back_as_its_class_and_names_the_service() -> None:
    setting = Setting(refusal(InputError("bad", errors=[{"pointer": "/a", "detail": "b"}])))
    with pytest.raises(InputError, match="bad") as caught:
        await setting.client.call("s", "/x")
    assert caught.value.extensions["service"] == "s"
    assert caught.value.extensions["errors"] == [{"pointer": "/a", "detail": "b"}]


async def test_an_unknown_service_is_not_retried() -> None:
    setting = Setting()
    with pytest.raises(ServiceNotFoundError):
        await setting.client.call("nope", "/x")
    assert setting.clock.slept == []


async def test_calls_in_flight_are_counted_while_they_last() -> None:
    seen: list[int] = []
    replicas: list[Replica] = []

    def answer(_: SentCall) -> Reply:
        seen.append(sum(replica.in_flight for replica in replicas))
        raise InputError("x")

    directory = StaticDirectory([Instance(name="s", instance="s0", kind="agent", url="http://s0")])
    replicas.extend(await directory.replicas("s"))
    with pytest.raises(InputError):
        await ServiceClient(FakeTransport(answer), directory).call("s", "/x")
    assert seen == [1]
    assert replicas[0].in_flight == 0
