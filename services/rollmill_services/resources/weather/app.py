from fastapi import FastAPI

from rollmill.config.settings import ServiceSettings
from rollmill.server import resources_app
from rollmill_services.resources.weather.verifier import Weather


def create_app(settings: ServiceSettings | None = None) -> FastAPI:
    """Build the `weather` resources service; settings come from the environment when none are given."""
    return resources_app(Weather(settings or ServiceSettings.from_environment()))
