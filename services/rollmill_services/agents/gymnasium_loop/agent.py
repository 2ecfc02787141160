from typing import ClassVar

from pydantic import Field

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import answer_text
from rollmill.errors import UpstreamError
from rollmill.openai.items import as_json_text
from rollmill.server.agent import Agent, AgentSettings, Episode
from rollmill.server.transcript import Transcript


class GymnasiumLoopSettings(AgentSettings):
    """Settings of the Gymnasium loop."""

    max_steps: int = Field(default=32, ge=1, le=10_000)
    """Most actions in one rollout."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Most tokens that the model may write in one rollout, all its answers together; not set means no such limit."""


class GymnasiumLoop(Agent):
    """Shows the model an observation, takes what it writes as its action, and repeats until the episode is over."""

    Settings: ClassVar[type[AgentSettings]] = GymnasiumLoopSettings

    def __init__(self, settings: GymnasiumLoopSettings) -> None:
        super().__init__(settings)
        self._max_steps = settings.max_steps
        self._max_output_tokens = settings.max_output_tokens

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        """Play one episode. The observations are in the output, as messages of the user.

        An answer that was truncated is no action: what it was going to be is not known.
        """
        transcript = Transcript({"input": [], **request}, max_output_tokens=self._max_output_tokens)
        seen = await episode.reset()
        over = False
        for _ in range(self._max_steps):
            transcript.hear(_text(seen))
            await transcript.ask(episode)
            if transcript.truncated:
                return transcript.response(finished=False)
            seen = await episode.step(answer_text({"output": transcript.answer}))
            over = bool(seen.get("terminated") or seen.get("truncated"))
            if over or transcript.cut:
                break
        transcript.hear(_text(seen))
        return transcript.response(finished=over)


def _text(seen: JsonObject) -> str:
    if "observation" not in seen:
        raise UpstreamError("the environment's answer has no `observation`", boundary="resources", retryable=False)
    return as_json_text(seen["observation"])
