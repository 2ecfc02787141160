from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.reasoning_gym.verifier import ReasoningGym, ReasoningGymSettings


def create_app(settings: ReasoningGymSettings | None = None) -> ServiceApp:
    """Build the `reasoning_gym` resources service; settings come from the environment when none are given."""
    return resources_app(ReasoningGym(settings or ReasoningGymSettings.from_environment()))
