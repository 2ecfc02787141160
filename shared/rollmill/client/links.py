from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from rollmill.client.directory import Directory, HeadDirectory, StaticDirectory
from rollmill.client.service_client import ServiceClient, auth_headers
from rollmill.config.settings import ServiceSettings

Connector: TypeAlias = Callable[[ServiceSettings], AbstractAsyncContextManager[ServiceClient]]
"""Opens a service's way to the others. The embedded mode gives its applications another one."""


@asynccontextmanager
async def connect_over_network(settings: ServiceSettings) -> AsyncIterator[ServiceClient]:
    """Open a client over HTTP that finds services through the head, if there is one."""
    token = settings.token.get_secret_value() if settings.token else ""
    async with open_client(settings.head_url, token) as client:
        yield client


@asynccontextmanager
async def open_client(head_url: str, token: str) -> AsyncIterator[ServiceClient]:
    """Open a client over HTTP; without a head it knows no services."""
    from rollmill.client.http import HttpTransport  # aiohttp takes 0.1 s to import; the embedded mode does without

    transport = HttpTransport()
    head = HeadDirectory(transport, head_url, headers=auth_headers(token)) if head_url else None
    directory: Directory = head or StaticDirectory()
    try:
        yield ServiceClient(transport, directory, token=token)
    finally:
        if head is not None:
            await head.aclose()
        await transport.aclose()
