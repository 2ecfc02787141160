from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.structured_output.verifier import StructuredOutput, StructuredOutputSettings


def create_app(settings: StructuredOutputSettings | None = None) -> ServiceApp:
    """Build the `structured_output` resources service; settings come from the environment when none are given."""
    return resources_app(StructuredOutput(settings or StructuredOutputSettings.from_environment()))
