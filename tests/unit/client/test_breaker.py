import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.client.breaker import BASE_SECONDS, CAP_SECONDS, THRESHOLD, Breaker
from rollmill.client.directory import StaticDirectory
from rollmill.client.retry import RetryPolicy
from rollmill.client.service_client import PATIENCE_SECONDS, ServiceClient
from rollmill.client.transport import Reply
from rollmill.context import CallContext, reset_context, set_context
from rollmill.contracts.services import Instance
from rollmill.errors import ConnectError, OverloadedError, RollmillError, ToolFailedError, UpstreamError
from rollmill.server.calls import problem_answer
from rollmill.testing import FakeClock, FakeTransport
from rollmill.testing.transport import SentCall


def longest(low: float, high: float) -> float:
    return high


def breaker_of(clock: FakeClock) -> Breaker:
    return Breaker(clock=clock, uniform=longest)


def fail(breaker: Breaker, times: int = THRESHOLD) -> None:
    for _ in range(times):
        probe = breaker.begin()
        breaker.failed(probe=probe, unreachable=True)


def test_failures_in_a_row_open_it_and_an_answer_in_between_starts_the_count_again() -> None:
    breaker = breaker_of(FakeClock())
    fail(breaker, THRESHOLD - 1)
    breaker.succeeded()
    fail(breaker, THRESHOLD - 1)
    assert (breaker.state, breaker.admits) == ("closed", True)
    fail(breaker, 1)
    assert (breaker.state, breaker.admits, breaker.wait_seconds) == ("open", False, BASE_SECONDS)


def test_after_its_time_one_probe_passes_and_its_success_closes_it() -> None:
    clock = FakeClock()
    breaker = breaker_of(clock)
    fail(breaker)
    clock.advance(BASE_SECONDS)
    assert (breaker.state, breaker.admits) == ("half-open", True)
    assert breaker.begin()
    assert not breaker.admits
    assert not breaker.begin()  # a call that had no other choice is no second probe
    breaker.succeeded()
    assert (breaker.state, breaker.admits) == ("closed", True)


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_cap() -> None:
    clock = FakeClock()
    breaker = breaker_of(clock)
    fail(breaker)
    waits = []
    for _ in range(8):
        waits.append(breaker.wait_seconds)
        clock.advance(breaker.wait_seconds)
        fail(breaker, 1)
    assert waits == [1.0, 2.0, 4.0, 8.0, CAP_SECONDS, CAP_SECONDS, CAP_SECONDS, CAP_SECONDS]


def test_a_probe_that_tells_nothing_lets_the_next_call_probe() -> None:
    clock = FakeClock()
    breaker = breaker_of(clock)
    fail(breaker)
    clock.advance(BASE_SECONDS)
    breaker.ended(probe=breaker.begin())
    assert (breaker.state, breaker.admits) == ("half-open", True)


def test_late_failures_of_calls_sent_before_it_opened_do_not_keep_it_open() -> None:
    clock = FakeClock()
    breaker = breaker_of(clock)
    fail(breaker)
    clock.advance(BASE_SECONDS / 2)
    for _ in range(100):
        breaker.failed(probe=False, unreachable=True)
    assert breaker.wait_seconds == BASE_SECONDS / 2


@given(st.lists(st.sampled_from(["begin", "fail", "succeed", "end", "wait"]), max_size=60))
@settings(max_examples=150)
def test_never_more_than_one_probe_is_out_and_time_always_leads_back_to_one(steps: list[str]) -> None:
    clock = FakeClock()
    breaker = breaker_of(clock)
    out: list[bool] = []
    for step in steps:
        if step == "wait":
            clock.advance(CAP_SECONDS / 4)
        elif step == "begin":
            out.append(breaker.begin())
        elif out:
            probe = out.pop()
            if step == "fail":
                breaker.failed(probe=probe, unreachable=False)
            elif step == "succeed":
                breaker.succeeded()
            breaker.ended(probe=probe)
        assert breaker.admits == (breaker.wait_seconds == 0)
    for probe in out:
        breaker.ended(probe=probe)
    clock.advance(CAP_SECONDS)
    assert breaker.admits


class Peers:
    """Two replicas that are up or down, and what they were asked."""

    def __init__(self, *names: str) -> None:
        self.down: dict[str, RollmillError] = {}
        self.transport = FakeTransport(self._answer)
        instances = [Instance(name="s", instance=n, kind="model", url=f"http://{n}.test") for n in names]
        self.directory = StaticDirectory(instances, seed=1)
        self.clock = FakeClock()
        policy = RetryPolicy(base_seconds=0.0)
        self.client = ServiceClient(self.transport, self.directory, policy=policy, sleep=self.clock.sleep)

    def _answer(self, call: SentCall) -> Reply:
        name = call.url.removeprefix("http://").partition(".")[0]
        error = self.down.get(name)
        if isinstance(error, ConnectError):
            raise error
        if error is not None:
            answer = problem_answer(error)
            return Reply(answer.status, {"content-type": "application/problem+json"}, answer.body)
        return Reply(200, {}, b"{}")

    def asked(self, name: str) -> int:
        return sum(call.url.startswith(f"http://{name}.") for call in self.transport.calls)


async def peers_of(*names: str) -> Peers:
    peers = Peers(*names)
    for replica in await peers.directory.replicas("s"):
        replica.breaker = breaker_of(peers.clock)
    return peers


async def test_a_dead_replica_gets_no_traffic_and_one_probe_when_its_time_is_over() -> None:
    peers = await peers_of("a", "b")
    peers.down["a"] = ConnectError("refused")
    for _ in range(50):
        await peers.client.call("s", "/x")
    assert peers.asked("a") == THRESHOLD

    peers.clock.advance(BASE_SECONDS)
    for _ in range(50):
        await peers.client.call("s", "/x")
    assert peers.asked("a") == THRESHOLD + 1

    peers.down.clear()
    peers.clock.advance(CAP_SECONDS)
    for _ in range(50):
        await peers.client.call("s", "/x")
    assert peers.asked("a") > THRESHOLD + 10


async def test_a_replica_that_answers_that_it_failed_is_left_alone_too() -> None:
    peers = await peers_of("a", "b")
    peers.down["a"] = UpstreamError("engine gone")
    failures = 0
    for _ in range(50):
        try:
            await peers.client.call("s", "/x")
        except UpstreamError:
            failures += 1
    assert failures == peers.asked("a") == THRESHOLD


@pytest.mark.parametrize(
    "error",
    [
        OverloadedError("busy", retryable=False),
        ToolFailedError("tool broke"),
        UpstreamError("engine", boundary="model"),
    ],
)
async def test_load_tools_and_services_behind_say_nothing_about_the_replica(error: RollmillError) -> None:
    peers = await peers_of("a")
    peers.down["a"] = error
    for _ in range(2 * THRESHOLD):
        with pytest.raises(RollmillError):
            await peers.client.call("s", "/x")
    [replica] = await peers.directory.replicas("s")
    assert replica.breaker.state == "closed"


async def test_the_only_replica_is_waited_for_and_never_refused() -> None:
    peers = await peers_of("a")
    peers.down["a"] = ConnectError("refused")
    with pytest.raises(ConnectError):
        await peers.client.call("s", "/x")
    assert peers.asked("a") == 4
    assert 0 < peers.clock.now <= PATIENCE_SECONDS

    began = peers.clock.now
    with pytest.raises(ConnectError):
        await peers.client.call("s", "/x")
    assert peers.asked("a") == 8
    assert peers.clock.now - began == pytest.approx(PATIENCE_SECONDS)

    peers.down.clear()
    await peers.client.call("s", "/x")
    [replica] = await peers.directory.replicas("s")
    assert replica.breaker.state == "closed"


async def test_a_call_with_little_time_left_does_not_spend_it_waiting() -> None:
    peers = await peers_of("a")
    [replica] = await peers.directory.replicas("s")
    fail(replica.breaker)
    token = set_context(CallContext().sooner(0.2))
    try:
        await peers.client.call("s", "/x")
    finally:
        reset_context(token)
    assert peers.clock.slept == []
