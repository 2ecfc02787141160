from rollmill.config.settings import ServiceSettings
from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.string_match.verifier import StringMatch


def create_app(settings: ServiceSettings | None = None) -> ServiceApp:
    """Build the `string_match` resources service; settings come from the environment when none are given."""
    return resources_app(StringMatch(settings or ServiceSettings.from_environment()))
