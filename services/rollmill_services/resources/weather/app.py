from rollmill.config.settings import ServiceSettings
from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.weather.verifier import Weather


def create_app(settings: ServiceSettings | None = None) -> ServiceApp:
    """Build the `weather` resources service; settings come from the environment when none are given."""
    return resources_app(Weather(settings or ServiceSettings.from_environment()))
