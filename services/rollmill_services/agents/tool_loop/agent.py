from typing import ClassVar

from rollmill.contracts.json import JsonObject
from rollmill.server.agent import Agent, AgentSettings, Episode
from rollmill.server.transcript import ToolCallingSettings, Transcript


class ToolLoopSettings(ToolCallingSettings):
    """Settings of the tool loop."""


class ToolLoop(Agent):
    """Calls the model, makes the tool calls that it asks for, and repeats until it asks for none."""

    Settings: ClassVar[type[AgentSettings]] = ToolLoopSettings

    def __init__(self, settings: ToolLoopSettings) -> None:
        super().__init__(settings)
        self._limits = settings

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        """Run the loop. A request that names no tools is given those that the resources server declares."""
        if request.get("tools") is None and episode.tools:
            request = {**request, "tools": episode.tools}
        transcript = Transcript(request, max_output_tokens=self._limits.max_output_tokens)
        await transcript.work(episode, self._limits)
        return transcript.response(finished=not transcript.calls)
