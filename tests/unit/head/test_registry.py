import pytest

from rollmill.contracts.services import Heartbeat, Registration
from rollmill.errors import ConflictError, NotFoundError, ServiceNotFoundError
from rollmill.testing import FakeClock
from rollmill_services.head.registry import Registry


def registration(name: str = "weather", *, kind: str = "resources", url: str = "http://a:1") -> Registration:
    return Registration.model_validate({"name": name, "kind": kind, "url": url, "version": "1"})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def registry(clock: FakeClock) -> Registry:
    return Registry(lease_seconds=10, clock=clock)


def test_a_lease_expires_without_heartbeats(registry: Registry, clock: FakeClock) -> None:
    registry.register(registration())
    clock.advance(10)
    assert len(registry.services()) == 1
    clock.advance(0.1)
    assert registry.services() == []


def test_a_heartbeat_renews_the_lease_and_brings_news(registry: Registry, clock: FakeClock) -> None:
    lease = registry.register(registration())
    clock.advance(9)
    renewed = registry.renew("weather", lease.instance, Heartbeat(in_flight=3, capacity=8, state="draining"))
    assert renewed == lease
    clock.advance(9)
    found = registry.services()[0]
    assert (found.in_flight, found.capacity, found.state, found.lease_age_seconds) == (3, 8, "draining", 9.0)


def test_an_expired_lease_cannot_be_renewed(registry: Registry, clock: FakeClock) -> None:
    lease = registry.register(registration())
    clock.advance(11)
    with pytest.raises(NotFoundError, match="register again"):
        registry.renew("weather", lease.instance, Heartbeat())


def test_a_lease_belongs_to_its_name(registry: Registry) -> None:
    lease = registry.register(registration())
    with pytest.raises(NotFoundError):
        registry.renew("other", lease.instance, Heartbeat())
    registry.remove("other", lease.instance)
    assert len(registry.services()) == 1


def test_an_instance_that_comes_back_on_its_url_replaces_its_former_self(registry: Registry) -> None:
    old = registry.register(registration())
    new = registry.register(registration())
    assert [i.instance for i in registry.services()] == [new.instance]
    assert old.instance != new.instance


def test_replicas_share_a_name(registry: Registry) -> None:
    registry.register(registration(url="http://a:1"))
    registry.register(registration(url="http://a:2"))
    assert [i.url for i in registry.service("weather")] == ["http://a:1", "http://a:2"]


def test_a_name_has_one_kind(registry: Registry, clock: FakeClock) -> None:
    registry.register(registration())
    with pytest.raises(ConflictError, match="is registered as resources, not as model"):
        registry.register(registration(kind="model", url="http://b:1"))
    assert len(registry.services()) == 1
    clock.advance(11)
    registry.register(registration(kind="model", url="http://b:1"))


def test_removing_is_repeatable(registry: Registry) -> None:
    lease = registry.register(registration())
    registry.remove("weather", lease.instance)
    registry.remove("weather", lease.instance)
    assert registry.services() == []


def test_services_are_listed_by_name_and_kind(registry: Registry) -> None:
    registry.register(registration("b"))
    registry.register(registration("a", url="http://a:2"))
    registry.register(registration("m", kind="model", url="http://a:3"))
    assert [i.name for i in registry.services()] == ["a", "b", "m"]
    assert [i.name for i in registry.services("model")] == ["m"]


def test_an_unknown_service_is_named(registry: Registry) -> None:
    with pytest.raises(ServiceNotFoundError, match="'nope'"):
        registry.service("nope")
