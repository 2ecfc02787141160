from rollmill.server.app import ServiceApp, build_app
from rollmill_services.head.registry import Registry
from rollmill_services.head.routes import router, targets
from rollmill_services.head.settings import HeadSettings


def create_app(settings: HeadSettings | None = None) -> ServiceApp:
    """Build the head: the registry of live services."""
    settings = settings or HeadSettings.from_environment()
    app = build_app(settings, kind="head", title="rollmill head", routers=[router, targets])
    app.state.registry = Registry(
        lease_seconds=settings.lease_seconds,
        allowed_hosts=settings.allowed_hosts,
        max_instances=settings.max_instances,
    )
    app.runtime.meters.extend(app.state.registry.meters)
    return app
