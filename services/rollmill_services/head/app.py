from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollmill.client.http import HttpTransport
from rollmill.client.service_client import auth_headers
from rollmill.config.tokens import service_tokens
from rollmill.server.app import ServiceApp, build_app
from rollmill.server.runtime import Runtime
from rollmill_services.head.assets import Assets
from rollmill_services.head.gate import PageGate
from rollmill_services.head.gateway import Gateway
from rollmill_services.head.page_routes import router as page_router
from rollmill_services.head.probing import Probes
from rollmill_services.head.registry import Registry
from rollmill_services.head.routes import router, targets
from rollmill_services.head.sessions import PageSessions
from rollmill_services.head.settings import HeadSettings


def create_app(settings: HeadSettings | None = None) -> ServiceApp:
    """Build the head: the registry of live services, and the page that shows what they do."""
    settings = settings or HeadSettings.from_environment()
    tokens = service_tokens(settings)
    secret = settings.session_secret.get_secret_value() if settings.session_secret else ""
    registry = Registry(
        lease_seconds=settings.lease_seconds,
        allowed_hosts=settings.allowed_hosts,
        max_instances=settings.max_instances,
    )
    sessions = PageSessions(tokens, secret=secret, seconds=settings.page_session_seconds)

    @asynccontextmanager
    async def lifespan(_: Runtime) -> AsyncIterator[None]:
        transport = HttpTransport(ca_file=settings.tls_ca_file)
        app.state.gateway = Gateway(
            transport, registry, lambda: auth_headers(tokens.shown), most_calls=settings.page_connections
        )
        app.state.probes = Probes(transport)
        try:
            yield
        finally:
            await transport.aclose()

    routers = [router, targets, page_router]
    app = build_app(settings, kind="head", title="rollmill head", routers=routers, lifespan=lifespan)
    app.around = lambda edge: PageGate(edge, sessions, tokens)
    app.state.registry = registry
    app.state.sessions = sessions
    app.state.assets = Assets()
    app.runtime.meters.extend(registry.meters)
    return app
