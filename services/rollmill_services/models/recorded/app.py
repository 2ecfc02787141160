from rollmill.server import ServiceApp, model_app
from rollmill_services.models.recorded.model import Recorded
from rollmill_services.models.recorded.settings import RecordedSettings


def create_app(settings: RecordedSettings | None = None) -> ServiceApp:
    """Build the `recorded` model service; settings come from the environment when none are given."""
    return model_app(Recorded(settings or RecordedSettings.from_environment()))
