from rollmill.server import ServiceApp, model_app
from rollmill_services.models.scripted.model import Scripted
from rollmill_services.models.scripted.settings import ScriptedSettings


def create_app(settings: ScriptedSettings | None = None) -> ServiceApp:
    """Build the `scripted` model service; settings come from the environment when none are given."""
    return model_app(Scripted(settings or ScriptedSettings.from_environment()))
