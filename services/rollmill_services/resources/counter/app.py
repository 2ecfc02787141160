from rollmill.config.settings import ServiceSettings
from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.counter.verifier import Counter


def create_app(settings: ServiceSettings | None = None) -> ServiceApp:
    """Build the `counter` resources service; settings come from the environment when none are given."""
    return resources_app(Counter(settings or ServiceSettings.from_environment()))
