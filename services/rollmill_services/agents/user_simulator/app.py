from rollmill.server import ServiceApp, agent_app
from rollmill_services.agents.user_simulator.agent import UserSimulator, UserSimulatorSettings


def create_app(settings: UserSimulatorSettings | None = None) -> ServiceApp:
    """Build the user simulator's application."""
    return agent_app(UserSimulator(settings or UserSimulatorSettings.from_environment()))
