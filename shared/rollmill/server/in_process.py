from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from rollmill._version import __version__
from rollmill.client.asgi import AsgiTransport
from rollmill.client.directory import StaticDirectory
from rollmill.client.service_client import ServiceClient
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.services import Instance
from rollmill.observability.tracing import NO_TRACER, Tracer
from rollmill.server.app import ServiceApp

EMBEDDED_DOMAIN = ".embedded"
"""Ends the host of every URL that only this process can reach."""


@asynccontextmanager
async def run_in_process(apps: Mapping[str, ServiceApp], *, tracer: Tracer = NO_TRACER) -> AsyncIterator[ServiceClient]:
    """Start applications in this process, in the given order, and hand out the client that reaches them by name.

    The applications reach each other the same way: no ports, one replica each.
    """
    urls = {name: f"http://{name}{EMBEDDED_DOMAIN}" for name in apps}
    directory = StaticDirectory(_instance(name, urls[name], app) for name, app in apps.items())
    client = ServiceClient(AsgiTransport({urls[name]: app for name, app in apps.items()}), directory)

    @asynccontextmanager
    async def connect(_: ServiceSettings) -> AsyncIterator[ServiceClient]:
        yield client

    async with AsyncExitStack() as stack:
        for app in apps.values():
            app.connector = connect
            app.runtime.tracer = tracer
            await stack.enter_async_context(app.running())
        yield client


def _instance(name: str, url: str, app: ServiceApp) -> Instance:
    runtime = app.runtime
    return Instance(
        name=name,
        instance=name,
        kind=runtime.kind,
        url=url,
        version=__version__,
        capabilities=runtime.capabilities,
    )
