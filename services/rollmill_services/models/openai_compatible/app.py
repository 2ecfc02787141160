from rollmill.server import ServiceApp, model_app
from rollmill_services.models.openai_compatible.model import OpenAICompatible
from rollmill_services.models.openai_compatible.settings import OpenAICompatibleSettings


def create_app(settings: OpenAICompatibleSettings | None = None) -> ServiceApp:
    """Build the service; without arguments its settings come from the environment."""
    return model_app(OpenAICompatible(settings or OpenAICompatibleSettings.from_environment()))
