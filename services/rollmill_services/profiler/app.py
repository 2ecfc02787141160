from rollmill.artifacts.run_store import RunStore
from rollmill.observability.meters import Gauge
from rollmill.server.app import ServiceApp, build_app
from rollmill_services.profiler.profiler import Profiler
from rollmill_services.profiler.rollout_routes import router as rollout_router
from rollmill_services.profiler.rollouts import Rollouts
from rollmill_services.profiler.routes import router
from rollmill_services.profiler.settings import ProfilerSettings
from rollmill_services.profiler.slots import Slots


def create_app(settings: ProfilerSettings | None = None) -> ServiceApp:
    """Build the profiler: reward statistics over HTTP."""
    settings = settings or ProfilerSettings.from_environment()
    app = build_app(settings, kind="profiler", title="rollmill profiler", routers=[router, rollout_router])
    store = RunStore(settings.data_dir)
    app.state.profiler = Profiler(store, max_rows=settings.max_rows)
    app.state.rollouts = Rollouts(store)
    app.state.slots = slots = Slots(settings.max_profiles, timeout_seconds=settings.request_timeout_seconds)
    waiting = Gauge("rollmill_profiles_waiting", "Profiles that wait for a thread.", read=lambda: {(): slots.waiting})
    app.runtime.meters.append(waiting)
    return app
