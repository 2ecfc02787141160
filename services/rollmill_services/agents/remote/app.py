from rollmill.server import ServiceApp, agent_app
from rollmill_services.agents.remote.agent import Remote, RemoteSettings


def create_app(settings: RemoteSettings | None = None) -> ServiceApp:
    """Build the remote agent's application."""
    return agent_app(Remote(settings or RemoteSettings.from_environment()))
