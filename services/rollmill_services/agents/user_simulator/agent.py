from typing import Annotated, ClassVar

from pydantic import Field

from rollmill.config.settings_refs import ServiceRef
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import Row
from rollmill.errors import InputError
from rollmill.openai.items import as_object
from rollmill.server.agent import Agent, AgentSettings, Episode
from rollmill.server.transcript import ToolCallingSettings, Transcript
from rollmill_services.agents.user_simulator.user import User

INSTRUCTIONS = "user_instructions"
_FAULT = {"pointer": f"/{INSTRUCTIONS}", "detail": "must be text"}


class UserSimulatorSettings(ToolCallingSettings):
    """Settings of the user simulator; `max_steps` counts from one message of the user to the next."""

    user_model: Annotated[str, ServiceRef("model")] = Field(min_length=1)
    """Name of the model service that plays the user."""
    max_turns: int = Field(default=10, ge=1, le=1000)
    """Most messages of the user."""
    max_user_tokens: int = Field(default=1024, ge=1)
    """Most tokens of one message of the user."""
    stop_phrase: str = Field(default="###STOP###", min_length=1)
    """The user ends the conversation with it."""


class UserSimulator(Agent):
    """Lets the model talk with a user that a second model plays, and make tool calls in between."""

    Settings: ClassVar[type[AgentSettings]] = UserSimulatorSettings

    def __init__(self, settings: UserSimulatorSettings) -> None:
        super().__init__(settings)
        self._limits = settings

    async def run(self, row: Row, episode: Episode) -> Row:
        """Run one conversation and have it verified; `user_turns` and `user_ended` tell how it went.

        Raises:
            InputError: the row has no `user_instructions`.
        """
        instructions = Rollout(row).require(INSTRUCTIONS)
        if not isinstance(instructions, str):
            raise InputError(f"'{INSTRUCTIONS}' must be text", errors=[_FAULT])
        request = as_object(row.get(rows.PARAMS))
        if request.get("tools") is None and episode.tools:
            request = {**request, "tools": episode.tools}
        user = User(self._limits.user_model, instructions, self._limits.stop_phrase, self._limits.max_user_tokens)
        transcript = Transcript({"input": [], **request}, max_output_tokens=self._limits.max_output_tokens)
        turns, ended = await self._talk(transcript, user, episode)
        response = transcript.response(finished=ended != "cut_off")
        return await episode.verify({**row, rows.RESPONSE: response, "user_turns": turns, "user_ended": ended})

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        """Refuse: who the user is stands in a row, and a plain request has none.

        Raises:
            InputError: always.
        """
        raise InputError("this agent needs a whole row with 'user_instructions': send it to /run")

    async def _talk(self, transcript: Transcript, user: User, episode: Episode) -> tuple[int, str]:
        """Let the two talk; return how many messages the user wrote, and what ended it.

        A message of the user in the row's own input opens the conversation; where there is none, the simulated user.
        """
        turns = int(any(item.get("role") == "user" for item in transcript.start))
        if turns:
            await transcript.work(episode, self._limits)
        while turns < self._limits.max_turns and not transcript.cut and not transcript.calls:
            text, ended = await user.reply([*transcript.start, *transcript.items], episode)
            if text:
                transcript.hear(text)
            if ended:
                return turns, ended
            turns += 1
            await transcript.work(episode, self._limits)
        return turns, "cut_off" if transcript.cut else "max_steps" if transcript.calls else "max_turns"
