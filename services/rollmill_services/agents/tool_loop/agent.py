from typing import ClassVar

from pydantic import Field

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.openai.items import input_items
from rollmill.server.agent import Agent, AgentSettings, Episode


class ToolLoopSettings(AgentSettings):
    """Settings of the tool loop."""

    max_steps: int = Field(default=16, ge=1, le=1000)
    """Most model calls in one rollout; the last one's tool calls, if any, are not made."""


class ToolLoop(Agent):
    """Calls the model, makes the tool calls that it asks for, and repeats until it asks for none."""

    Settings: ClassVar[type[AgentSettings]] = ToolLoopSettings

    def __init__(self, settings: ToolLoopSettings) -> None:
        super().__init__(settings)
        self._max_steps = settings.max_steps

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        """Run the loop. A request that names no tools is given those that the resources server declares."""
        start = input_items(request.get("input"))
        if request.get("tools") is None and episode.tools:
            request = {**request, "tools": episode.tools}
        done: list[JsonObject] = []
        usage: JsonObject | None = None
        for step in range(1, self._max_steps + 1):
            response = await episode.respond({**request, "input": [*start, *done]})
            output = response.get("output") or []
            done += output
            usage = add_usage(usage, response.get("usage"))
            calls = [item for item in output if item.get("type") == "function_call"]
            if not calls or step == self._max_steps or response.get("incomplete_details"):
                return {**response, "output": done, "usage": usage}
            for call in calls:
                done.append(await _answer(call, episode))
        raise AssertionError("the loop returns on its last step")


async def _answer(call: JsonObject, episode: Episode) -> JsonObject:
    text = await episode.call_tool(str(call.get("name", "")), str(call.get("arguments") or ""))
    return {"type": "function_call_output", "call_id": call.get("call_id"), "output": text}


def add_usage(total: JsonObject | None, usage: JsonValue) -> JsonObject | None:
    """Add the numbers of one call's `usage` to the sum so far, nested details too; None when neither has any."""
    if not isinstance(usage, dict):
        return total
    summed = dict(total or {})
    for name, value in usage.items():
        if isinstance(value, dict):
            summed[name] = add_usage(summed.get(name), value)
        elif isinstance(value, int | float):
            summed[name] = (summed.get(name) or 0) + value
        else:
            summed.setdefault(name, value)
    return summed
