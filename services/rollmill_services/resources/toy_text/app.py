from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.toy_text.environment import ToyText, ToyTextSettings


def create_app(settings: ToyTextSettings | None = None) -> ServiceApp:
    """Build the `toy_text` resources service; settings come from the environment when none are given."""
    return resources_app(ToyText(settings or ToyTextSettings.from_environment()))
