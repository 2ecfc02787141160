import socket
from ipaddress import ip_address

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

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


class FakeResolver(AbstractResolver):
    """Finds given addresses."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses
        self.closed = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self._addresses
        ]

    async def close(self) -> None:
        self.closed = True


async def test_a_name_is_not_followed_to_where_no_service_can_be() -> None:
    inner = FakeResolver("169.254.169.254", "10.0.0.1", "fe80::1%2")
    resolver = GuardedResolver(inner)
    assert [result["host"] for result in await resolver.resolve("evil")] == ["10.0.0.1"]
    await resolver.close()
    assert inner.closed
    with pytest.raises(OSError, match="no address at which a service can be"):
        await GuardedResolver(FakeResolver("169.254.169.254")).resolve("evil")


def test_public_addresses_are_only_refused_by_the_head() -> None:
    assert not is_never_a_service(ip_address("8.8.8.8"))
