"""Runs a whole topology inside this process: every service's real application, no ports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollmill.client.service_client import ServiceClient
from rollmill.config.loading import find_service
from rollmill.config.topology import Topology, grading_services, service_settings, startup_order
from rollmill.errors import ConfigError
from rollmill.observability.tracing import NO_TRACER, Tracer
from rollmill.server.app import ServiceApp
from rollmill.server.in_process import run_in_process


@asynccontextmanager
async def embedded(
    topology: Topology, *, grading_only: bool = False, only: str = "", tracer: Tracer = NO_TRACER
) -> AsyncIterator[ServiceClient]:
    """Start the services of a topology, one replica each, and hand out the client that reaches them.

    Args:
        topology: what to start.
        grading_only: leave out the models that only agents ask.
        only: start just this resources service and the services that it asks.
        tracer: of all of them.

    Raises:
        ConfigError: a service cannot be built or started; names it.
    """
    order = grading_services(topology, only) if grading_only or only else startup_order(topology)
    apps = {name: _build(topology, name) for name in order}
    async with run_in_process(apps, tracer=tracer) as client:
        yield client


def _build(topology: Topology, name: str) -> ServiceApp:
    app = find_service(topology.services[name].use).factory(service_settings(topology, name))
    if not isinstance(app, ServiceApp):
        raise ConfigError(f"services.{name}: its factory returns {type(app).__name__}, not an app made by build_app")
    return app
