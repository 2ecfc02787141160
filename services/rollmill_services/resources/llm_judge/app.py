from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.llm_judge.verifier import LlmJudge, LlmJudgeSettings


def create_app(settings: LlmJudgeSettings | None = None) -> ServiceApp:
    """Build the `llm_judge` resources service; settings come from the environment when none are given."""
    return resources_app(LlmJudge(settings or LlmJudgeSettings.from_environment()))
