import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from rollmill._version import __version__
from rollmill.client.service_client import auth_headers
from rollmill.client.transport import Transport
from rollmill.contracts.services import Heartbeat, Lease, Registration
from rollmill.errors import NotFoundError, RollmillError
from rollmill.server.runtime import Runtime

log = structlog.get_logger(__name__)

HEARTBEATS_PER_LEASE = 3
RETRY_SECONDS = 0.5
TIMEOUT_SECONDS = 3.0
"""With the pause before the next try this is shorter than a caller waits for a service that the head does not know."""


@dataclass(slots=True)
class Registrar:
    """Keeps one service registered at the head: registers, renews, registers again after the head restarted."""

    runtime: Runtime
    transport: Transport
    in_flight: Callable[[], int]
    _instance: str = ""
    _lease_seconds: float = 10.0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _failing: bool = False

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            self._wake.clear()  # before the heartbeat: a change during it asks for another one
            try:
                await self._renew()
                self._failing = False
                pause = self._lease_seconds / HEARTBEATS_PER_LEASE
            except (RollmillError, ValueError) as error:  # ValueError: the answer is no lease
                self._report(error)
                pause = RETRY_SECONDS * random.uniform(0.5, 1.5)
            await self._pause(pause)

    async def register(self) -> None:
        """Register now.

        Raises:
            RollmillError: the head refused or cannot be reached.
        """
        settings = self.runtime.settings
        registration = Registration(
            name=settings.name,
            kind=self.runtime.kind,
            url=settings.advertise_url.rstrip("/"),
            version=__version__,
            capabilities=self.runtime.capabilities,
        )
        answer = await self._send("POST", "", registration.model_dump_json())
        lease = Lease.model_validate_json(answer)
        self._instance, self._lease_seconds = lease.instance, lease.lease_seconds
        log.info("registered", head=settings.head_url, instance=lease.instance, url=registration.url)

    @property
    def registered(self) -> bool:
        """Whether the head took the last registration or heartbeat."""
        return bool(self._instance) and not self._failing

    async def leave(self) -> None:
        """Drop the registration, as far as the head can be told."""
        if not self._instance:
            return
        try:
            await self._send("DELETE", self._own_path(), "")
        except RollmillError as error:
            log.info("deregistration_failed", error=str(error))
        self._instance = ""

    def announce(self) -> None:
        """Send the next heartbeat now, because the state changed."""
        self._wake.set()

    async def _renew(self) -> None:
        if not self._instance:
            await self.register()
            return
        settings = self.runtime.settings
        beat = Heartbeat(
            in_flight=self.in_flight(),
            capacity=settings.max_in_flight,
            state="draining" if self.runtime.not_ready == "draining" else "ready",
        )
        try:
            await self._send("PUT", self._own_path(), beat.model_dump_json())
        except NotFoundError:
            await self.register()

    async def _send(self, method: str, path: str, body: str) -> bytes:
        settings = self.runtime.settings
        headers = {"content-type": "application/json", **auth_headers(self.runtime.tokens.shown)}
        url = settings.head_url.rstrip("/") + "/v1/services" + path
        reply = await self.transport.send(method, url, headers=headers, body=body.encode(), timeout=TIMEOUT_SECONDS)
        if not reply.ok:
            raise reply.error()
        return reply.body

    def _own_path(self) -> str:
        return f"/{self.runtime.settings.name}/{self._instance}"

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _report(self, error: Exception) -> None:
        if not self._failing:
            log.warning("registration_failed", head=self.runtime.settings.head_url, error=str(error))
        self._failing = True
