from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from rollmill.artifacts.run_store import RunStore
from rollmill.server.app import ServiceApp, build_app
from rollmill.server.background import background
from rollmill.server.runtime import Runtime
from rollmill_services.collector.routes import router
from rollmill_services.collector.runs import Runs
from rollmill_services.collector.settings import CollectorSettings


def create_app(settings: CollectorSettings | None = None) -> ServiceApp:
    """Build the collector: runs over HTTP."""
    settings = settings or CollectorSettings.from_environment()

    @asynccontextmanager
    async def lifespan(runtime: Runtime) -> AsyncIterator[None]:
        runs = Runs(
            RunStore(settings.data_dir),
            runtime.client,
            topology_digest=settings.topology_digest,
            max_runs=settings.max_runs,
        )
        app.state.runs = runs
        runtime.meters.extend(runs.meters)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(runs.close)
            if settings.recover:
                await stack.enter_async_context(background(runs.recover(), name="recovery"))
            yield

    app = build_app(settings, kind="collector", title="rollmill collector", routers=[router], lifespan=lifespan)
    return app
