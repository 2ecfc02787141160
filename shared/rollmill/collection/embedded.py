"""Runs a whole topology inside this process: every service's real application, no ports."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from rollmill._version import __version__
from rollmill.client.asgi import AsgiTransport
from rollmill.client.directory import StaticDirectory
from rollmill.client.service_client import ServiceClient
from rollmill.config.loading import find_service
from rollmill.config.settings import ServiceSettings
from rollmill.config.topology import Topology, service_settings, startup_order
from rollmill.contracts.services import Instance
from rollmill.errors import ConfigError
from rollmill.server.app import ServiceApp


@asynccontextmanager
async def embedded(topology: Topology) -> AsyncIterator[ServiceClient]:
    """Start the services of a topology, one replica each, and hand out the client that reaches them.

    Raises:
        ConfigError: a service cannot be built or started; names it.
    """
    apps = {name: _build(topology, name) for name in startup_order(topology)}
    urls = {name: f"http://{name}.embedded" for name in apps}
    directory = StaticDirectory(_instance(name, urls[name], app) for name, app in apps.items())
    client = ServiceClient(AsgiTransport({urls[name]: app for name, app in apps.items()}), directory)

    @asynccontextmanager
    async def connect(_: ServiceSettings) -> AsyncIterator[ServiceClient]:
        yield client

    async with AsyncExitStack() as stack:
        for app in apps.values():
            app.connector = connect
            await stack.enter_async_context(app.running())
        yield client


def _build(topology: Topology, name: str) -> ServiceApp:
    app = find_service(topology.services[name].use).factory(service_settings(topology, name))
    if not isinstance(app, ServiceApp):
        raise ConfigError(f"services.{name}: its factory returns {type(app).__name__}, not an app made by build_app")
    return app


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
