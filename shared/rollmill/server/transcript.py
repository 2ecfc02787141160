import asyncio
from contextlib import nullcontext

from pydantic import Field

from rollmill.client.services import error_output
from rollmill.contracts.json import JsonObject
from rollmill.openai import new_response
from rollmill.openai.items import as_json_text, as_object, input_items, item_type
from rollmill.openai.usage import add_usage
from rollmill.server.agent import AgentSettings, Episode

_NOT_MADE = error_output("not made: this rollout has used up its tool calls")
_CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


class ToolCallingSettings(AgentSettings):
    """Settings of every agent whose model calls tools."""

    max_steps: int = Field(default=16, ge=1, le=1000)
    """Most model calls until it asks for no tool; the last one's tool calls, if any, are not made."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Most tokens that the model may write in one rollout, all its answers together; not set means no such limit."""
    parallel_tool_calls: int = Field(default=8, ge=1, le=256)
    """Most calls of one answer that run at the same time; 1 makes them one after the other, as the model wrote them."""
    max_tool_calls: int = Field(default=256, ge=1, le=100_000)
    """Most tool calls made in one rollout; the model is told of those that were not."""


class Transcript:
    """What was said and done in one rollout: its items in order, its usage in sum, within a budget of tokens.

    Args:
        request: the Responses request that the rollout starts from.
        max_output_tokens: most tokens that the model may write in all its answers together, as its `usage` tells;
            None for no such limit.

    Raises:
        InputError: the request's input is neither a string nor a list of objects.
    """

    def __init__(self, request: JsonObject, *, max_output_tokens: int | None = None) -> None:
        self.start = input_items(request.get("input"))
        """The input that the rollout starts from."""
        self.items: list[JsonObject] = []
        """What came after it."""
        self._request = request
        self._budget = max_output_tokens
        self._usage: JsonObject | None = None
        self._last: JsonObject = {}
        self._made = 0

    @property
    def truncated(self) -> bool:
        """Whether the last answer is not whole."""
        return bool(self._last.get("incomplete_details"))

    @property
    def cut(self) -> bool:
        """Whether the last answer is not whole, or the tokens are used up."""
        return self.truncated or self._left() == 0

    @property
    def answer(self) -> list[JsonObject]:
        """The output items of the last answer."""
        return self._last.get("output") or []

    @property
    def calls(self) -> list[JsonObject]:
        """The function calls of the last answer."""
        return [item for item in self.answer if item_type(item) == "function_call"]

    async def ask(self, episode: Episode) -> None:
        """Send the model everything so far and add what it answers."""
        request = {**self._request, "input": [*self.start, *self.items]}
        left = self._left()
        if left is not None:
            own = request.get("max_output_tokens")
            request["max_output_tokens"] = min(own, left) if isinstance(own, int) else left
        self._last = await episode.respond(request)
        self.items += self.answer
        self._usage = add_usage(self._usage, self._last.get("usage"))

    def hear(self, text: str) -> None:
        """Add a message of the user."""
        self.items.append({"type": "message", "role": "user", "content": text})

    async def work(self, episode: Episode, settings: ToolCallingSettings) -> None:
        """Ask the model and make the tool calls that it asks for, until it asks for none or a limit is reached."""
        await self.ask(episode)
        for _ in range(settings.max_steps - 1):
            if self.cut or not self.calls:
                return
            await self._make_calls(episode, settings)
            await self.ask(episode)

    async def _make_calls(self, episode: Episode, settings: ToolCallingSettings) -> None:
        """Make the function calls of the last answer, several at once, and add their outputs in its order."""
        calls = self.calls
        allowed = calls[: settings.max_tool_calls - self._made]
        self._made += len(allowed)
        if len(allowed) == 1:  # by far the most frequent; no task is needed
            outputs = [await _made(episode, allowed[0])]
        else:
            gate = asyncio.Semaphore(settings.parallel_tool_calls)
            outputs = await _all([asyncio.create_task(_made(episode, call, gate)) for call in allowed])
        outputs += [_NOT_MADE] * (len(calls) - len(allowed))
        for call, text in zip(calls, outputs, strict=True):
            self.items.append({"type": "function_call_output", "call_id": call.get("call_id"), "output": text})

    def response(self, *, finished: bool) -> JsonObject:
        """Return the last answer as that to the whole rollout: with every item after the start, and all usage.

        Args:
            finished: whether there was nothing left to do; if not, and the tokens are used up, the answer says so.
        """
        cut = _CUT if not finished and self._left() == 0 and not self.truncated else {}
        last = self._last or new_response([], request=self._request, model="")
        return {**last, **cut, "output": self.items, "usage": self._usage}

    def _left(self) -> int | None:
        if self._budget is None:
            return None
        used = as_object(self._usage).get("output_tokens")
        return max(0, self._budget - used) if isinstance(used, int) else self._budget


async def _made(episode: Episode, call: JsonObject, gate: asyncio.Semaphore | None = None) -> str:
    """Make one function call, when the gate lets it through, and return its output."""
    async with gate or nullcontext():
        return await episode.call_tool(str(call.get("name", "")), as_json_text(call.get("arguments")))


async def _all(tasks: list[asyncio.Task[str]]) -> list[str]:
    """Wait for all; when one fails, or the caller is cancelled, the others are cancelled and waited for."""
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    failed = [error for task in tasks if not task.cancelled() and (error := task.exception())]
    if failed:
        raise failed[0]
    return [task.result() for task in tasks]
