from rollmill.server import AgentSettings, ServiceApp, agent_app
from rollmill_services.agents.single_turn.agent import SingleTurn


def create_app(settings: AgentSettings | None = None) -> ServiceApp:
    """Build the single-turn agent's application."""
    return agent_app(SingleTurn(settings or AgentSettings.from_environment()))
