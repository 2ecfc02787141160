from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.code_tests.verifier import CodeTests, CodeTestsSettings


def create_app(settings: CodeTestsSettings | None = None) -> ServiceApp:
    """Build the `code_tests` resources service; settings come from the environment when none are given."""
    return resources_app(CodeTests(settings or CodeTestsSettings.from_environment()))
