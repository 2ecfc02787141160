from rollmill.server import ServiceApp, agent_app
from rollmill_services.agents.gymnasium_loop.agent import GymnasiumLoop, GymnasiumLoopSettings


def create_app(settings: GymnasiumLoopSettings | None = None) -> ServiceApp:
    """Build the Gymnasium loop's application."""
    return agent_app(GymnasiumLoop(settings or GymnasiumLoopSettings.from_environment()))
