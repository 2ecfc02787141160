from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from rollmill.client.directory import Directory, HeadDirectory, StaticDirectory
from rollmill.client.http import HttpTransport
from rollmill.client.service_client import ServiceClient, auth_headers
from rollmill.config.settings import ServiceSettings
from rollmill.config.tokens import Tokens, service_tokens

Connector: TypeAlias = Callable[[ServiceSettings], AbstractAsyncContextManager[ServiceClient]]
"""Opens a service's way to the others. The embedded mode gives its applications another one."""


@asynccontextmanager
async def connect_over_network(settings: ServiceSettings) -> AsyncIterator[ServiceClient]:
    """Open a client over HTTP that finds services through the head, if there is one."""
    async with open_client(settings.head_url, service_tokens(settings), ca_file=settings.tls_ca_file) as client:
        yield client


@asynccontextmanager
async def open_client(
    head_url: str, token: str | Tokens, *, ca_file: Path | None = None
) -> AsyncIterator[ServiceClient]:
    """Open a client over HTTP; without a head it knows no services. `ca_file` as in `HttpTransport`."""
    tokens = token if isinstance(token, Tokens) else Tokens(token)
    transport = HttpTransport(ca_file=ca_file)
    head = HeadDirectory(transport, head_url, headers=lambda: auth_headers(tokens.shown)) if head_url else None
    directory: Directory = head or StaticDirectory()
    try:
        yield ServiceClient(transport, directory, token=tokens)
    finally:
        if head is not None:
            await head.aclose()
        await transport.aclose()
