"""Building services: the base classes that authors subclass, and the applications that serve them."""

from typing import TYPE_CHECKING

from rollmill._lazy import lazy_exports

if TYPE_CHECKING:
    from rollmill.server.agent import Agent, AgentSettings, Episode
    from rollmill.server.agent_host import agent_app
    from rollmill.server.app import ServiceApp, build_app
    from rollmill.server.environment import Environment, EnvironmentSettings, Step
    from rollmill.server.model import Model
    from rollmill.server.model_host import model_app
    from rollmill.server.resources import Resources
    from rollmill.server.resources_host import resources_app
    from rollmill.server.sessions import Session
    from rollmill.server.tools import ToolError, tool

__all__ = [
    "Agent",
    "AgentSettings",
    "Environment",
    "EnvironmentSettings",
    "Episode",
    "Model",
    "Resources",
    "ServiceApp",
    "Session",
    "Step",
    "ToolError",
    "agent_app",
    "build_app",
    "model_app",
    "resources_app",
    "tool",
]

_NAMES = {
    "Agent": "rollmill.server.agent",
    "AgentSettings": "rollmill.server.agent",
    "Environment": "rollmill.server.environment",
    "EnvironmentSettings": "rollmill.server.environment",
    "Episode": "rollmill.server.agent",
    "Model": "rollmill.server.model",
    "Resources": "rollmill.server.resources",
    "ServiceApp": "rollmill.server.app",
    "Session": "rollmill.server.sessions",
    "Step": "rollmill.server.environment",
    "ToolError": "rollmill.server.tools",
    "agent_app": "rollmill.server.agent_host",
    "build_app": "rollmill.server.app",
    "model_app": "rollmill.server.model_host",
    "resources_app": "rollmill.server.resources_host",
    "tool": "rollmill.server.tools",
}
__getattr__ = lazy_exports(__name__, _NAMES)
