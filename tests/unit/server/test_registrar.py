import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr

from rollmill.client.asgi import AsgiTransport
from rollmill.client.transport import Reply
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import loads
from rollmill.contracts.services import Instance
from rollmill.errors import ConnectError
from rollmill.server.registration import Registrar
from rollmill.server.runtime import Runtime
from rollmill.testing import FakeTransport
from rollmill.testing.transport import SentCall
from rollmill_services.head.app import create_app
from rollmill_services.head.registry import Registry
from rollmill_services.head.settings import HeadSettings

SETTINGS = ServiceSettings(
    name="weather", head_url="http://head/", advertise_url="http://weather:1/", token=SecretStr("t"), max_in_flight=7
)


class Setting:
    """A registrar and a real head in the same process."""

    def __init__(self, *, lease_seconds: float = 1.0) -> None:
        self.lease_seconds = lease_seconds
        self.app = create_app(HeadSettings(token=SecretStr("t"), lease_seconds=lease_seconds))
        self.runtime = Runtime(SETTINGS, "resources", {"tools": []}, not_ready="")
        self.registrar = Registrar(self.runtime, AsgiTransport({"http://head": self.app}), lambda: 3)

    @property
    def known(self) -> list[Instance]:
        registry: Registry = self.app.state.registry
        return registry.services()

    def restart_head(self) -> None:
        self.app.state.registry = Registry(lease_seconds=self.lease_seconds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.registrar.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until(self, wanted: bool) -> None:
        async with asyncio.timeout(10):
            while bool(self.known) != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_service_registers_and_keeps_its_lease_by_heartbeats() -> None:
    setting = Setting()
    async with setting.running():
        await setting.until(True)
        instance = setting.known[0].instance
        await asyncio.sleep(2.5)  # several leases
        assert [i.instance for i in setting.known] == [instance]
        assert setting.registrar.registered
    found = setting.known[0]
    assert (found.name, found.kind, found.url, found.capabilities) == (
        "weather",
        "resources",
        "http://weather:1",
        {"tools": []},
    )
    assert (found.in_flight, found.capacity, found.state) == (3, 7, "ready")


async def test_it_registers_again_after_the_head_restarted() -> None:
    setting = Setting()
    async with setting.running():
        await setting.until(True)
        setting.restart_head()
        assert setting.known == []
        await setting.until(True)


async def test_it_leaves_at_shutdown_and_leaving_twice_is_no_error() -> None:
    setting = Setting(lease_seconds=60)
    async with setting.running():
        await setting.until(True)
    await setting.registrar.leave()
    assert setting.known == []
    await setting.registrar.leave()


async def test_draining_is_announced_at_once() -> None:
    setting = Setting(lease_seconds=600)
    setting.runtime.on_drain.append(setting.registrar.announce)
    async with setting.running():
        await setting.until(True)
        setting.runtime.drain()
        async with asyncio.timeout(10):
            while setting.known[0].state != "draining":  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_draining_during_a_heartbeat_is_announced_by_another_one() -> None:
    beats: list[str] = []
    runtime = Runtime(SETTINGS, "resources", not_ready="")

    def head(call: SentCall) -> Reply:
        if call.method == "PUT":
            beats.append(loads(call.body)["state"])
            if len(beats) == 1:
                runtime.drain()  # while the first heartbeat, which said ready, is under way
        return Reply(200, {}, b'{"instance": "i", "lease_seconds": %d}' % (1 if not beats else 600))

    registrar = Registrar(runtime, FakeTransport(head), lambda: 0)
    runtime.on_drain.append(registrar.announce)
    task = asyncio.create_task(registrar.run())
    async with asyncio.timeout(10):
        while len(beats) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    assert beats == ["ready", "draining"]


@pytest.mark.parametrize("first", [b"<html>captive portal</html>", b"{}", None])
async def test_a_head_that_is_away_or_strange_is_asked_again(first: bytes | None) -> None:
    calls: list[str] = []
    registered = asyncio.Event()

    def head(call: SentCall) -> Reply:
        calls.append(call.method)
        if len(calls) == 1:
            if first is None:
                raise ConnectError("away")
            return Reply(200, {}, first)
        registered.set()
        return Reply(200, {}, b'{"instance": "i", "lease_seconds": 600}')

    task = asyncio.create_task(Registrar(Runtime(SETTINGS, "model"), FakeTransport(head), lambda: 0).run())
    await asyncio.wait_for(registered.wait(), 10)
    task.cancel()
    assert calls == ["POST", "POST"]
