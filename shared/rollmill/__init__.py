"""Rollmill turns tasks into graded rollouts of LLM agents and profiles their rewards."""

from typing import TYPE_CHECKING

from rollmill._lazy import lazy_exports
from rollmill._version import __version__

if TYPE_CHECKING:
    from rollmill.artifacts.reader import read_rollouts
    from rollmill.client.control import AsyncCollectorClient, AsyncProfilerClient, CollectorClient, ProfilerClient
    from rollmill.collection.collector import CollectionPlan, Collector
    from rollmill.collection.library import collect
    from rollmill.config.settings import ServiceSettings
    from rollmill.contracts.failures import Failure
    from rollmill.contracts.rollouts import Rollout, Verdict
    from rollmill.contracts.runs import RunOptions, RunRequest, RunStatus
    from rollmill.errors import InputError, RollmillError
    from rollmill.grading.objectives import MultiRewardSettings, Objective, Objectives, group_normalised
    from rollmill.profiling import Profile, profile
    from rollmill.server import (
        Agent,
        AgentSettings,
        Environment,
        EnvironmentSettings,
        Episode,
        Model,
        Resources,
        Session,
        Step,
        ToolError,
        agent_app,
        model_app,
        resources_app,
        tool,
    )

_NAMES = {
    "Agent": "rollmill.server.agent",
    "AgentSettings": "rollmill.server.agent",
    "AsyncCollectorClient": "rollmill.client.control",
    "AsyncProfilerClient": "rollmill.client.control",
    "CollectionPlan": "rollmill.collection.collector",
    "Collector": "rollmill.collection.collector",
    "CollectorClient": "rollmill.client.control",
    "Environment": "rollmill.server.environment",
    "EnvironmentSettings": "rollmill.server.environment",
    "Episode": "rollmill.server.agent",
    "Failure": "rollmill.contracts.failures",
    "InputError": "rollmill.errors",
    "Model": "rollmill.server.model",
    "MultiRewardSettings": "rollmill.grading.objectives",
    "Objective": "rollmill.grading.objectives",
    "Objectives": "rollmill.grading.objectives",
    "Profile": "rollmill.profiling",
    "ProfilerClient": "rollmill.client.control",
    "Resources": "rollmill.server.resources",
    "RollmillError": "rollmill.errors",
    "Rollout": "rollmill.contracts.rollouts",
    "RunOptions": "rollmill.contracts.runs",
    "RunRequest": "rollmill.contracts.runs",
    "RunStatus": "rollmill.contracts.runs",
    "ServiceSettings": "rollmill.config.settings",
    "Session": "rollmill.server.sessions",
    "Step": "rollmill.server.environment",
    "ToolError": "rollmill.server.tools",
    "Verdict": "rollmill.contracts.rollouts",
    "agent_app": "rollmill.server.agent_host",
    "collect": "rollmill.collection.library",
    "group_normalised": "rollmill.grading.objectives",
    "model_app": "rollmill.server.model_host",
    "profile": "rollmill.profiling",
    "read_rollouts": "rollmill.artifacts.reader",
    "resources_app": "rollmill.server.resources_host",
    "tool": "rollmill.server.tools",
}
__getattr__ = lazy_exports(__name__, _NAMES)

__all__ = [
    "Agent",
    "AgentSettings",
    "AsyncCollectorClient",
    "AsyncProfilerClient",
    "CollectionPlan",
    "Collector",
    "CollectorClient",
    "Environment",
    "EnvironmentSettings",
    "Episode",
    "Failure",
    "InputError",
    "Model",
    "MultiRewardSettings",
    "Objective",
    "Objectives",
    "Profile",
    "ProfilerClient",
    "Resources",
    "RollmillError",
    "Rollout",
    "RunOptions",
    "RunRequest",
    "RunStatus",
    "ServiceSettings",
    "Session",
    "Step",
    "ToolError",
    "Verdict",
    "__version__",
    "agent_app",
    "collect",
    "group_normalised",
    "model_app",
    "profile",
    "read_rollouts",
    "resources_app",
    "tool",
]
