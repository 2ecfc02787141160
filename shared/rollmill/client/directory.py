import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from rollmill.client.breaker import Breaker
from rollmill.client.transport import Transport
from rollmill.contracts.services import Instance, ServiceList
from rollmill.errors import RollmillError, ServiceNotFoundError

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Replica:
    """One instance of a service, with what this process knows about it."""

    info: Instance
    in_flight: int = 0
    """Calls that this process has open there."""
    breaker: Breaker = field(default_factory=Breaker)

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return self.info.url


class Directory(Protocol):
    """Finds the live replicas of a service."""

    async def pick(self, name: str, *, avoid: Collection[str] = ()) -> Replica:
        """Return the replica to send the next call to; those in `avoid` (instance ids) only if there is no other.

        Raises:
            ServiceNotFoundError: none is live.
        """

    async def replicas(self, name: str) -> Sequence[Replica]:
        """Return every known replica of a service, maybe none."""

    async def services(self) -> list[Instance]:
        """Return every known instance of every service."""

    def suspect(self, replica: Replica) -> None:
        """Note that a replica could not be reached: what is known about the service may be out of date."""


def choose(replicas: Sequence[Replica], *, avoid: Collection[str], rng: random.Random) -> Replica | None:
    """Choose the less loaded of two random replicas that are ready, not to be avoided, and whose breaker admits a call.

    When no replica is all of that, the conditions are dropped one by one: better a suspect replica than none.
    """
    if len(replicas) == 1:
        return replicas[0]
    ready = [r for r in replicas if r.info.state == "ready"] or list(replicas)
    wanted = [r for r in ready if r.info.instance not in avoid] or ready
    good = [r for r in wanted if r.breaker.admits] or [r for r in ready if r.breaker.admits] or wanted
    if not good:
        return None
    pair = rng.sample(good, 2) if len(good) > 1 else good
    return min(pair, key=lambda r: r.in_flight / (r.info.capacity or 1))


class StaticDirectory:
    """A fixed set of replicas: the embedded mode, and tests."""

    def __init__(self, instances: Iterable[Instance] = (), *, seed: int | None = None) -> None:
        self._replicas: dict[str, list[Replica]] = {}
        for instance in instances:
            self._replicas.setdefault(instance.name, []).append(Replica(instance))
        self._rng = random.Random(seed)

    async def pick(self, name: str, *, avoid: Collection[str] = ()) -> Replica:
        """See `Directory.pick`."""
        replicas = self._replicas.get(name, [])
        chosen = choose(replicas, avoid=avoid, rng=self._rng) if replicas else None
        if chosen is None:
            raise _missing(name, self._replicas)
        return chosen

    async def replicas(self, name: str) -> Sequence[Replica]:
        """See `Directory.replicas`."""
        return self._replicas.get(name, [])

    async def services(self) -> list[Instance]:
        """See `Directory.services`."""
        return [replica.info for replicas in self._replicas.values() for replica in replicas]

    def suspect(self, replica: Replica) -> None:
        """See `Directory.suspect`. The set is fixed: nothing to do."""


class HeadDirectory:
    """Asks the head, and keeps its last answer: a head that is away stops nothing.

    Args:
        transport: how to reach the head.
        head_url: its base URL.
        headers: sent with every request (the token).
        refresh_seconds: how old an answer may be before it is asked for again in the background.
        wait_seconds: how long `pick` waits for a service that is not there yet.
    """

    def __init__(
        self,
        transport: Transport,
        head_url: str,
        *,
        headers: Mapping[str, str],
        refresh_seconds: float = 1.0,
        wait_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._url = head_url.rstrip("/") + "/v1/services"
        self._headers = dict(headers)
        self._refresh_seconds = refresh_seconds
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._replicas: dict[str, list[Replica]] = {}
        self._asked = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._error: RollmillError | None = None
        self._rng = random.Random()

    async def pick(self, name: str, *, avoid: Collection[str] = ()) -> Replica:
        """See `Directory.pick`."""
        replicas = await self.replicas(name)
        if not replicas:
            replicas = await self._wait_for(name)
        chosen = choose(replicas, avoid=avoid, rng=self._rng)
        if chosen is None:
            raise self._failure() or _missing(name, self._replicas)
        return chosen

    async def replicas(self, name: str) -> Sequence[Replica]:
        """See `Directory.replicas`. Waits for the head only when it never answered."""
        if self._clock() - self._asked > self._refresh_seconds:
            refreshing = self._refresh()
            if not self._replicas:
                await asyncio.shield(refreshing)
        return self._replicas.get(name, [])

    async def services(self) -> list[Instance]:
        """Return what the head knows now.

        Raises:
            RollmillError: the head cannot be asked.
        """
        await asyncio.shield(self._refresh())
        if error := self._failure():
            raise error
        return [replica.info for replicas in self._replicas.values() for replica in replicas]

    def suspect(self, replica: Replica) -> None:
        """See `Directory.suspect`. The head is asked again with the next call."""
        self._asked = float("-inf")

    async def aclose(self) -> None:
        """Stop a refresh in progress."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])

    async def _wait_for(self, name: str) -> Sequence[Replica]:
        until = self._clock() + self._wait_seconds
        while self._clock() < until:
            await asyncio.shield(self._refresh())
            if found := self._replicas.get(name):
                return found
            await asyncio.sleep(0.1)
        return []

    def _refresh(self) -> "asyncio.Task[None]":
        if self._refreshing is None or self._refreshing.done():
            self._asked = self._clock()
            self._refreshing = asyncio.create_task(self._ask())
        return self._refreshing

    def _failure(self) -> RollmillError | None:
        """A fresh copy of the last error: whoever catches it may add to it."""
        error = self._error
        return type(error)(error.detail, **error.extensions) if error is not None else None

    async def _ask(self) -> None:
        try:
            reply = await self._transport.send("GET", self._url, headers=self._headers, timeout=5.0)
            if not reply.ok:
                raise reply.error()
            self._take(ServiceList.model_validate(reply.json()).services)
            self._error = None
        except (RollmillError, ValueError) as error:
            if self._error is None:
                log.warning("head_unreachable", url=self._url, error=str(error))
            self._error = error if isinstance(error, RollmillError) else None

    def _take(self, instances: list[Instance]) -> None:
        known = {r.info.instance: r for replicas in self._replicas.values() for r in replicas}
        fresh: dict[str, list[Replica]] = {}
        for instance in instances:
            replica = known.get(instance.instance) or Replica(instance, breaker=Breaker(clock=self._clock))
            replica.info = instance
            fresh.setdefault(instance.name, []).append(replica)
        self._replicas = fresh


def _missing(name: str, known: Iterable[str]) -> ServiceNotFoundError:
    names = ", ".join(sorted(known)) or "none"
    return ServiceNotFoundError(f"no live service is called {name!r}; registered: {names}", service=name)
