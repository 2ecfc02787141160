from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from rollmill.server.app import ServiceApp


@asynccontextmanager
async def asgi_client(app: ServiceApp) -> AsyncIterator[httpx.AsyncClient]:
    """Start an application in this process and hand out an HTTP client for it."""
    async with app.running():
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            yield client
