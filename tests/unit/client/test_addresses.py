import asyncio
from ipaddress import ip_address

import pytest

from rollmill.client.addresses import is_never_a_service, may_be_service
from rollmill.client.resolving import GuardedResolver


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "::1", "10.1.2.3", "172.17.0.2", "192.168.1.5", "fd00::1", "::ffff:10.0.0.1", "localhost"),
        *("weather_agent", "weather-1", "HEAD", "head.default.svc.cluster.local", "head.default.svc", "box.local"),
    ],
)
def test_this_machine_and_private_places_may_be_services(host: str) -> None:
    assert may_be_service(host, ())


@pytest.mark.parametrize(
    "host",
    [
        *("8.8.8.8", "2001:4860::1", "169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "0.0.0.0", "::"),
        *("224.0.0.1", "example.org", "metadata.google.internal", "local.example.org", "x.localhost.example.org"),
    ],
)
def test_public_and_link_local_places_may_not(host: str) -> None:
    assert not may_be_service(host, ())


def test_other_places_can_be_allowed_but_never_where_clouds_keep_credentials() -> None:
    allowed = ("gpu.example.org", ".lab.example.org", "100.64.0.1", "169.254.169.254")

    for host in ("gpu.example.org", "GPU.example.org.", "a.lab.example.org", "100.64.0.1"):
        assert may_be_service(host, allowed)
    for host in ("example.org", "evil-gpu.example.org", "lab.example.org", "evillab.example.org", "169.254.169.254"):
        assert not may_be_service(host, allowed)


class FakeNames:
    """Finds given addresses, or nothing."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        await asyncio.sleep(0)
        if not self.addresses:
            raise OSError(-2, "Name or service not known")
        return self.addresses


@pytest.mark.parametrize("host", ["100.64.0.1", "100.127.255.254", "2606:4700::7"])
def test_a_network_can_be_allowed_but_never_where_clouds_keep_credentials(host: str) -> None:
    assert not may_be_service(host, ())
    assert may_be_service(host, ("100.64.0.0/10", "2606:4700::/32"))
    assert not may_be_service(host, ("100.63.0.0/16", "8.8.8.0/24"))
    assert not may_be_service("169.254.169.254", ("169.254.0.0/16", "0.0.0.0/0"))


async def test_a_name_is_not_followed_to_where_no_service_can_be() -> None:
    names = FakeNames("169.254.169.254", "10.0.0.1", "fe80::1%2")
    assert await GuardedResolver(names).addresses("evil") == ["10.0.0.1"]
    with pytest.raises(OSError, match="no address at which a service can be"):
        await GuardedResolver(FakeNames("169.254.169.254")).addresses("evil")


async def test_a_name_is_asked_for_once_by_many_and_again_later() -> None:
    names, now = FakeNames("10.0.0.1"), [0.0]
    resolver = GuardedResolver(names, clock=lambda: now[0])

    async with asyncio.TaskGroup() as group:
        found = [group.create_task(resolver.addresses("agent")) for _ in range(100)]
    assert {tuple(task.result()) for task in found} == {("10.0.0.1",)}
    assert names.asked == ["agent"]
    names.addresses, now[0] = ["10.0.0.2"], 11.0
    assert await resolver.addresses("agent") == ["10.0.0.2"]


async def test_a_name_that_was_not_found_is_asked_for_again_at_once() -> None:
    names = FakeNames()
    resolver = GuardedResolver(names)
    with pytest.raises(OSError, match="not known"):
        await resolver.addresses("agent")
    names.addresses = ["10.0.0.1"]
    assert await resolver.addresses("agent") == ["10.0.0.1"]


async def test_one_caller_who_gives_up_does_not_spoil_the_question_of_the_others() -> None:
    resolver = GuardedResolver(FakeNames("10.0.0.1"))
    first, second = (asyncio.create_task(resolver.addresses("agent")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ["10.0.0.1"]


async def test_addresses_are_their_own() -> None:
    names = FakeNames()
    assert await GuardedResolver(names).addresses("127.0.0.1") == ["127.0.0.1"]
    assert await GuardedResolver(names).addresses("::1") == ["::1"]
    assert names.asked == []


def test_public_addresses_are_only_refused_by_the_head() -> None:
    assert not is_never_a_service(ip_address("8.8.8.8"))
