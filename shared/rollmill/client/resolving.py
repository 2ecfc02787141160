import socket
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from rollmill.client.addresses import is_never_a_service


class GuardedResolver(AbstractResolver):
    """Finds the addresses of a host and leaves out those where no service can be.

    So a name that was registered, and later points to a cloud's metadata address, is not followed there.

    Args:
        inner: finds the addresses; the system's own way when None.
    """

    def __init__(self, inner: AbstractResolver | None = None) -> None:
        self._inner = inner or aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a host name.

        Raises:
            OSError: it has no address, or none where a service can be.
        """
        found = await self._inner.resolve(host, port, family)
        allowed = [result for result in found if not is_never_a_service(ip_address(result["host"].partition("%")[0]))]
        if not allowed:
            raise OSError(None, f"{host} has no address at which a service can be")
        return allowed

    async def close(self) -> None:
        """Release what resolving needs."""
        await self._inner.close()
