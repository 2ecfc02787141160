import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.client.breaker import THRESHOLD, Breaker
from rollmill.client.directory import HeadDirectory, Replica, StaticDirectory, choose
from rollmill.client.transport import Reply
from rollmill.contracts.json import dumps
from rollmill.contracts.services import Instance, ServiceList
from rollmill.errors import ConnectError, ServiceNotFoundError, UnauthorizedError
from rollmill.server.calls import problem_answer
from rollmill.testing import FakeClock, FakeTransport
from rollmill.testing.transport import SentCall


def instance(number: int, *, name: str = "s", state: str = "ready", capacity: int | None = None) -> Instance:
    fields = {"name": name, "instance": f"{name}{number}", "kind": "model", "url": f"http://{name}{number}"}
    return Instance.model_validate(fields | {"state": state, "capacity": capacity})


def replica(number: int, *, in_flight: int = 0, suspect: bool = False, state: str = "ready") -> Replica:
    breaker = Breaker(clock=lambda: 0.0)
    for _ in range(THRESHOLD if suspect else 0):
        breaker.failed(probe=False, unreachable=True)
    return Replica(instance(number, state=state), in_flight=in_flight, breaker=breaker)


def pick(replicas: list[Replica], *, avoid: set[str] | None = None, seed: int = 0) -> str:
    chosen = choose(replicas, avoid=avoid or set(), rng=random.Random(seed))
    assert chosen is not None
    return chosen.info.instance


def test_of_none_none_is_chosen() -> None:
    assert choose([], avoid=(), rng=random.Random(0)) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_less_loaded_of_two_wins(seed: int) -> None:
    assert pick([replica(1, in_flight=3), replica(2, in_flight=2)], seed=seed) == "s2"


def test_two_random_choices_spare_the_most_loaded_and_reach_all_others() -> None:
    replicas = [replica(n, in_flight=n) for n in range(5)]
    chosen = {pick(replicas, seed=seed) for seed in range(200)}
    assert chosen == {"s0", "s1", "s2", "s3"}


def test_load_is_relative_to_capacity() -> None:
    small = Replica(instance(1, capacity=2), in_flight=2)
    large = Replica(instance(2, capacity=100), in_flight=50)
    assert pick([small, large]) == "s2"


@pytest.mark.parametrize("seed", range(10))
def test_draining_suspect_and_avoided_replicas_are_passed_over(seed: int) -> None:
    replicas = [replica(1, state="draining"), replica(2, suspect=True), replica(3), replica(4, in_flight=9)]
    assert pick(replicas, avoid={"s3"}, seed=seed) == "s4"


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=5), st.integers(0, 99))
@settings(max_examples=100)
def test_some_replica_is_always_better_than_none(kinds: list[tuple[bool, bool, bool]], seed: int) -> None:
    replicas = [
        replica(n, suspect=suspect, state="draining" if draining else "ready")
        for n, (suspect, draining, _) in enumerate(kinds)
    ]
    avoid = {f"s{n}" for n, (_, _, avoided) in enumerate(kinds) if avoided}
    chosen = pick(replicas, avoid=avoid, seed=seed)
    if (False, False, False) in kinds:
        assert kinds[int(chosen[1:])] == (False, False, False)


async def test_a_static_directory_names_what_it_knows() -> None:
    directory = StaticDirectory([instance(1), instance(1, name="other")])
    assert (await directory.pick("s")).url == "http://s1"
    assert [i.name for i in await directory.services()] == ["s", "other"]
    with pytest.raises(ServiceNotFoundError, match="'nope'; registered: other, s"):
        await directory.pick("nope")


class Head:
    """What a head would answer; may be away."""

    def __init__(self, *instances: Instance) -> None:
        self.instances = list(instances)
        self.away = False

    def __call__(self, call: SentCall) -> Reply:
        if self.away:
            raise ConnectError("head is away")
        return Reply(200, {}, ServiceList(services=self.instances).model_dump_json().encode())


def directory_of(
    answer: Callable[[SentCall], Reply], **options: float
) -> tuple[HeadDirectory, FakeTransport, FakeClock]:
    transport, clock = FakeTransport(answer), FakeClock()
    directory = HeadDirectory(
        transport, "http://head/", headers=lambda: {"authorization": "Bearer t"}, clock=clock, **options
    )
    return directory, transport, clock


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_head_is_asked_with_the_token_and_its_answer_is_used_for_a_while() -> None:
    directory, transport, clock = directory_of(Head(instance(1)))
    for _ in range(3):
        assert (await directory.pick("s")).url == "http://s1"
    assert [call.url for call in transport.calls] == ["http://head/v1/services"]
    assert transport.calls[0].headers["authorization"] == "Bearer t"
    clock.advance(1.1)
    await directory.pick("s")
    await settle()
    assert len(transport.calls) == 2


async def test_a_refresh_keeps_what_is_known_about_a_replica() -> None:
    directory, _, clock = directory_of(Head(instance(1)))
    known = await directory.pick("s")
    known.in_flight = 7
    clock.advance(2)
    await directory.pick("s")
    await settle()
    assert await directory.pick("s") is known


async def test_while_the_head_is_away_its_last_answer_is_kept() -> None:
    head = Head(instance(1))
    directory, _, clock = directory_of(head)
    await directory.pick("s")
    head.away = True
    for _ in range(3):
        clock.advance(5)
        assert (await directory.pick("s")).url == "http://s1"
        await settle()
    with pytest.raises(ConnectError, match="away"):
        await directory.services()
    head.away = False
    assert [i.instance for i in await directory.services()] == ["s1"]


async def test_a_suspected_replica_makes_the_head_be_asked_again() -> None:
    head = Head(instance(1), instance(2))
    directory, _, _ = directory_of(head)
    first = await directory.pick("s")
    head.instances = [i for i in head.instances if i.instance != first.info.instance]
    directory.suspect(first)
    await directory.pick("s")
    await settle()
    assert len(await directory.replicas("s")) == 1


async def test_pick_waits_for_a_service_that_is_not_there_yet() -> None:
    head = Head()
    transport = FakeTransport(head)
    directory = HeadDirectory(transport, "http://head", headers=dict, wait_seconds=30)
    waiting = asyncio.create_task(directory.pick("s"))
    while len(transport.calls) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    head.instances.append(instance(1))
    assert (await asyncio.wait_for(waiting, 10)).url == "http://s1"
    await directory.aclose()


async def test_a_service_that_does_not_appear_is_not_found() -> None:
    directory, _, _ = directory_of(Head(instance(1)), wait_seconds=0.0)
    with pytest.raises(ServiceNotFoundError, match="registered: s"):
        await directory.pick("other")


async def test_each_caller_gets_an_error_of_its_own_when_the_head_never_answered() -> None:
    head = Head()
    head.away = True
    directory, _, _ = directory_of(head, wait_seconds=0.0)
    caught = []
    for name in ("a", "b"):
        with pytest.raises(ConnectError) as error:
            await directory.pick(name)
        error.value.extensions["service"] = name
        caught.append(error.value)
    assert [error.extensions["service"] for error in caught] == ["a", "b"]


async def test_a_head_that_refuses_the_token_is_named() -> None:
    answer = problem_answer(UnauthorizedError("no token"))
    refused = Reply(401, {"content-type": "application/problem+json"}, answer.body)
    directory, _, _ = directory_of(lambda _: refused, wait_seconds=0.0)
    with pytest.raises(UnauthorizedError):
        await directory.pick("s")


@pytest.mark.parametrize("body", [b"<html>", dumps({"services": [{"name": "x"}]})])
async def test_a_strange_answer_of_the_head_is_no_crash(body: bytes) -> None:
    directory, _, _ = directory_of(lambda _: Reply(200, {}, body), wait_seconds=0.0)
    with pytest.raises(Exception, match=r"not JSON|no live service"):
        await directory.pick("s")
