from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import Incidental, ServiceRef
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row


class PhaseTimeouts(BaseModel):
    """Longest time for one call of each phase of a rollout, in seconds; the rollout's own deadline bounds them all."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed_seconds: float = Field(default=300.0, gt=0)
    model_seconds: float = Field(default=1800.0, gt=0)
    """Longer than the model service's own time for its engine."""
    tool_seconds: float = Field(default=300.0, gt=0)
    """The model is told of a tool that takes longer, and the rollout goes on."""
    verify_seconds: float = Field(default=600.0, gt=0)


class AgentSettings(ServiceSettings):
    """Settings of every agent: which services it talks to."""

    model: Annotated[str, ServiceRef("model")] = Field(min_length=1)
    """Name of the model service."""
    resources: Annotated[str, ServiceRef("resources")] = Field(min_length=1)
    """Name of the resources service."""
    timeouts: Annotated[PhaseTimeouts, Incidental()] = PhaseTimeouts()


class Episode(Protocol):
    """What an agent can do during one rollout. One session on one resources replica stands behind it."""

    @property
    def tools(self) -> list[JsonObject]:
        """Definitions of the tools that the resources server declares."""

    async def respond(self, request: JsonObject) -> JsonObject:
        """Send a Responses request to the model and return its Responses object."""

    async def call_tool(self, name: str, arguments: str) -> str:
        """Call a declared tool with JSON text as arguments and return the output for the model.

        Bad arguments, undeclared names and the tool's own errors come back as text that the model can read.
        """

    async def verify(self, row: Row) -> Row:
        """Have a row with its `response` graded and return the verified row."""


class Agent(ABC):
    """Drives the loop of one rollout. Subclass it and write `respond`; override `run` for anything unusual.

    It knows nothing of HTTP: a test calls it with `rollmill.testing.FakeEpisode`.
    """

    Settings: ClassVar[type[AgentSettings]] = AgentSettings

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings

    @abstractmethod
    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        """Work on a Responses request until it is done.

        Returns:
            The last Responses object, its `output` holding every item of the loop in order, tool outputs too.
        """

    async def run(self, row: Row, episode: Episode) -> Row:
        """Run one rollout: respond to the row's request, then have it verified."""
        params = row.get(rows.PARAMS)
        response = await self.respond(dict(params) if isinstance(params, dict) else {}, episode)
        return await episode.verify({**row, rows.RESPONSE: response})
