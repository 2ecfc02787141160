from rollmill.config.settings import ServiceSettings
from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.multi_step_tools.verifier import MultiStepTools


def create_app(settings: ServiceSettings | None = None) -> ServiceApp:
    """Build the `multi_step_tools` resources service; settings come from the environment when none are given."""
    return resources_app(MultiStepTools(settings or ServiceSettings.from_environment()))
