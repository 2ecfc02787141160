import asyncio
from typing import ClassVar

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rows import content_text
from rollmill.openai import function_call, new_response, normalize_input, text_message
from rollmill.openai.items import as_json_text
from rollmill.openai.requests import merge_extra_body
from rollmill.server.model import Model
from rollmill_services.models.scripted.answers import Call, Known, load_answers
from rollmill_services.models.scripted.draws import Draws, RepeatCounter, input_digest
from rollmill_services.models.scripted.script import (
    Conversation,
    begun,
    callable_tools,
    closing_message,
    conversation_of,
    first_calls,
    offered_actions,
    reading_call,
    reading_tool,
)
from rollmill_services.models.scripted.settings import ScriptedSettings

_ANSWER_SKILL = 0.6
_CHARACTERS_PER_TOKEN = 4


class Scripted(Model):
    """A model without weights, for demonstrations, tests and benchmarks.

    What it answers is a function of its seed, the request's input, and the request's own seed; without the last, of
    how often this replica has seen the input, so that the repeats of a task differ.
    """

    Settings: ClassVar[type[ServiceSettings]] = ScriptedSettings

    def __init__(self, settings: ScriptedSettings | None = None) -> None:
        settings = settings or ScriptedSettings()
        super().__init__(settings)
        self._paths = settings.answers
        self._skill = settings.skill
        self._seed = settings.seed
        self._delay = settings.delay_seconds
        self._answers: dict[bytes, Known] = {}
        self._repeats = RepeatCounter()

    async def startup(self) -> None:
        """Read the task files.

        Raises:
            ConfigError: a file cannot be read, or holds something else than tasks; names file and line.
        """
        mean = _ANSWER_SKILL if self._skill is None else self._skill
        self._answers = await asyncio.to_thread(load_answers, self._paths, mean_skill=mean, seed=self._seed)

    async def respond(self, request: JsonObject) -> JsonObject:
        """Answer from the task files when the input is there, else play the script.

        Raises:
            InputError: the request's input, or its `metadata.extra_body`, is malformed.
        """
        items = normalize_input(request.get("input"))
        if self._delay:
            await asyncio.sleep(self._delay)
        digest = input_digest(items)
        output = self._looked_up(request, items, digest) if self._answers else None
        if output is None:
            output = self._play(request, conversation_of(items), digest)
        usage = {"input_tokens": _tokens(items), "output_tokens": _tokens(output)}
        return new_response(output, request=request, model=request.get("model") or "scripted", usage=usage)

    def _looked_up(self, request: JsonObject, items: list[JsonObject], digest: bytes) -> list[JsonObject] | None:
        question, made = begun(items)
        known = self._answers.get(input_digest(question) if made else digest)
        return _step_taken(known, made, self._draws(request, digest)) if known else None

    def _play(self, request: JsonObject, conversation: Conversation, digest: bytes) -> list[JsonObject]:
        tools = callable_tools(request)
        if tools and conversation.output is None:
            draws = self._draws(request, digest)
            calls = first_calls(conversation, tools, draws, wrong=self._slips(digest, draws))
            if calls:
                return calls
        elif tools and (tool := reading_tool(conversation, tools)):
            return [reading_call(tool, self._draws(request, digest))]
        elif not tools and (actions := offered_actions(conversation)):
            action = self._draws(request, digest).pick("action", actions)
            return [text_message(f"<action>{action}</action>")]
        return [closing_message(conversation)]

    def _draws(self, request: JsonObject, digest: bytes) -> Draws:
        seed = merge_extra_body(request).get("seed")
        if isinstance(seed, int):
            return Draws(b"seeded", self._seed, digest, seed)
        return Draws(b"repeat", self._seed, digest, self._repeats.seen_before(digest))

    def _slips(self, digest: bytes, draws: Draws) -> bool:
        if self._skill is None:
            return False
        return draws.unit("right") >= Draws(b"task", self._seed, digest).beta("skill", self._skill)


def _step_taken(known: Known, made: list[Call], draws: Draws) -> list[JsonObject] | None:
    step = known.step(draws, made)
    if step is None or isinstance(step, str):
        return None if step is None else [text_message(step)]
    name, arguments = step
    return [function_call(name, dumps(arguments).decode(), f"call_{draws.identity('step')}")]


def _tokens(items: list[JsonObject]) -> int:
    characters = sum(_characters(item) for item in items)
    return max(1, -(-characters // _CHARACTERS_PER_TOKEN))


def _characters(item: JsonObject) -> int:
    said = len(content_text(item["content"])) if "content" in item else 0
    return said + sum([len(as_json_text(item[key])) for key in ("name", "arguments", "output") if key in item])
