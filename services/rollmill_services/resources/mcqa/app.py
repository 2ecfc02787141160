from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.mcqa.verifier import Mcqa, McqaSettings


def create_app(settings: McqaSettings | None = None) -> ServiceApp:
    """Build the `mcqa` resources service; settings come from the environment when none are given."""
    return resources_app(Mcqa(settings or McqaSettings.from_environment()))
