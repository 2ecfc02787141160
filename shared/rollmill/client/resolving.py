import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from typing import Final, TypeAlias

from rollmill.client.addresses import is_never_a_service

LookUp: TypeAlias = Callable[[str], Awaitable[list[str]]]
"""Finds the addresses of a host name; raises OSError."""

KEPT_SECONDS: Final = 10.0
"""A thousand connections at once ask for a name once; one that moves is found again soon."""


class GuardedResolver:
    """Finds the addresses of a host and leaves out those where no service can be.

    So a name that was registered, and later points to a cloud's metadata address, is not followed there.

    Args:
        look_up: finds the addresses of a name; the system's own way when None.
        clock: monotonic seconds.
    """

    def __init__(self, look_up: LookUp | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._look_up = look_up or _system
        self._clock = clock
        self._found: dict[str, tuple[float, asyncio.Task[list[str]]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """Resolve a host name; an address is its own.

        Raises:
            OSError: it has no address, or none where a service can be.
        """
        if _is_address(host):
            return [host]
        moment, task = self._found.get(host, (0.0, None))
        if task is None or self._clock() - moment > KEPT_SECONDS:
            task = asyncio.create_task(self._allowed(host))
            task.add_done_callback(partial(self._forget_failed, host))
            self._found[host] = (self._clock(), task)
        return await asyncio.shield(task)

    async def _allowed(self, host: str) -> list[str]:
        found = await self._look_up(host)
        allowed = [address for address in found if not is_never_a_service(ip_address(address.partition("%")[0]))]
        if not allowed:
            raise OSError(None, f"{host} has no address at which a service can be")
        return allowed

    def _forget_failed(self, host: str, task: "asyncio.Task[list[str]]") -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed and self._found.get(host, (0.0, None))[1] is task:
            del self._found[host]


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def _system(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
