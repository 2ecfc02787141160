from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.math_answer.verifier import MathAnswer, MathAnswerSettings


def create_app(settings: MathAnswerSettings | None = None) -> ServiceApp:
    """Build the `math_answer` resources service; settings come from the environment when none are given."""
    return resources_app(MathAnswer(settings or MathAnswerSettings.from_environment()))
