import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rollmill.client.connection import Answer, Connection
from rollmill.client.os_reason import os_reason
from rollmill.client.resolving import GuardedResolver
from rollmill.client.tls import client_tls
from rollmill.errors import ConnectError

KEEPALIVE_SECONDS: Final = 30.0
"""Below the servers' 75 s, so that the client, not the server, drops an idle connection."""
_CLOSING_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where connections lead to."""

    url: str
    """Scheme, host and port, as in messages; equal for equal origins."""
    host: str
    port: int
    tls: bool


class Pool:
    """The open connections of one event loop, the idle ones kept for the next call to the same origin.

    Args:
        connect_timeout_seconds: longest wait for a connection, its TLS included.
        ca_file: authorities (PEM) that certificates are checked against, instead of the system's.
    """

    def __init__(self, *, connect_timeout_seconds: float, ca_file: Path | None) -> None:
        self._connect_timeout = connect_timeout_seconds
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._resolver = GuardedResolver()
        self._open: set[Connection] = set()
        self._idle: dict[str, dict[Connection, float]] = {}
        """By origin, those that fell idle first in front, with the moment they did."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    def idle(self, origin: Origin) -> Connection | None:
        """Take the connection that was used last, if there is one."""
        idle = self._idle.get(origin.url)
        while idle:
            connection, since = idle.popitem()
            if not connection.closed and asyncio.get_running_loop().time() - since < KEEPALIVE_SECONDS:
                return connection
            connection.abort()
        return None

    async def connect(self, origin: Origin) -> Connection:
        """Open a connection.

        Raises:
            ConnectError: in vain, or not in time.
        """
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._connect(origin)
        except TimeoutError:
            raise ConnectError(f"{origin.url}: no connection in time") from None
        except ssl.SSLCertVerificationError as error:
            reason = f"certificate verify failed: {error.verify_message}"
            raise ConnectError(f"{origin.url}: {reason}", retryable=False) from error
        except OSError as error:
            raise ConnectError(f"{origin.url}: {os_reason(error)}") from error

    def give_back(self, origin: Origin, connection: Connection, answer: Answer) -> None:
        """Keep a connection for the next call, or close it when it cannot carry one."""
        if not connection.can_go_on(answer):
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(origin.url, {})[connection] = loop.time()
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEEPALIVE_SECONDS, self._sweep)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in tuple(self._open):
            connection.close()
        self._idle.clear()
        if self._open:
            self._empty.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING_SECONDS):
                    await self._empty.wait()

    async def _connect(self, origin: Origin) -> Connection:
        if origin.tls and self._tls is None:
            self._tls = client_tls(self._ca_file)
        failed: OSError | None = None
        for address in await self._resolver.addresses(origin.host):
            try:
                return await self._connect_to(address, origin)
            except OSError as error:
                failed = failed or error
        raise failed or OSError(None, f"{origin.host} has no address")

    async def _connect_to(self, address: str, origin: Origin) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(Connection, origin.url, partial(self._forget, origin.url)),
            address,
            origin.port,
            ssl=self._tls if origin.tls else None,
            server_hostname=origin.host if origin.tls else None,
        )
        self._open.add(connection)
        return connection

    def _forget(self, origin: str, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.get(origin, {}).pop(connection, None)
        if not self._open:
            self._empty.set()

    def _sweep(self) -> None:
        """Close what was idle for long, and look again as long as anything is idle."""
        loop = asyncio.get_running_loop()
        for origin, idle in list(self._idle.items()):
            for connection, since in list(idle.items()):
                if loop.time() - since < KEEPALIVE_SECONDS:
                    break
                del idle[connection]
                connection.abort()
            if not idle:
                del self._idle[origin]
        self._sweeper = loop.call_later(KEEPALIVE_SECONDS, self._sweep) if self._idle else None
