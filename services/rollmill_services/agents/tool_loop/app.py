from rollmill.server import ServiceApp, agent_app
from rollmill_services.agents.tool_loop.agent import ToolLoop, ToolLoopSettings


def create_app(settings: ToolLoopSettings | None = None) -> ServiceApp:
    """Build the tool loop's application."""
    return agent_app(ToolLoop(settings or ToolLoopSettings.from_environment()))
