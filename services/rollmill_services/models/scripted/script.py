"""What the model does without an answer to look up: call the declared tool, then say what it returned."""

import re
from dataclasses import dataclass

from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import content_text
from rollmill.openai import function_call, text_message
from rollmill.openai.items import as_json_text, as_object
from rollmill_services.models.scripted.arguments import ArgumentWriter
from rollmill_services.models.scripted.draws import Draws
from rollmill_services.models.scripted.numeric import whole_numbers
from rollmill_services.models.scripted.schemas import flattened, required_properties, schema_type

_MOST_CALLS = 32
_QUOTED_CHARACTERS = 2000
_ACTIONS = re.compile(r"^Actions: (\w+(?:, \w+)*)\.", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said and done since the last user message."""

    text: str
    """The last user message; empty when there is none."""
    called: tuple[str, ...]
    """Names of the tools called since, in order."""
    output: str | None
    """What the last tool returned; None before any tool has returned."""


def conversation_of(items: list[JsonObject]) -> Conversation:
    """Read a normalised input."""
    called: list[str] = []
    output: str | None = None
    text = ""
    for item in reversed(items):
        if item["type"] == "function_call":
            called.insert(0, str(item.get("name")))
        elif item["type"] == "function_call_output" and output is None:
            output = _text_of(item.get("output"))
        elif item.get("role") == "user":
            text = content_text(item.get("content"))
            break
    return Conversation(text, tuple(called), output)


def begun(items: list[JsonObject]) -> tuple[list[JsonObject], list[tuple[str, JsonObject]]]:
    """Split a normalised input behind its last user message: what was asked, and the calls made since."""
    last = max((nth for nth, item in enumerate(items) if item.get("role") == "user"), default=-1)
    calls = [item for item in items[last + 1 :] if item["type"] == "function_call"]
    return items[: last + 1], [(str(call.get("name")), _parsed(call.get("arguments"))) for call in calls]


def callable_tools(request: JsonObject) -> list[JsonObject]:
    """Return the function tools that a request lets the model call."""
    tools = request.get("tools")
    if not isinstance(tools, list) or request.get("tool_choice") == "none":
        return []
    return [tool for tool in tools if isinstance(tool, dict) and "name" in tool and tool.get("type") == "function"]


def first_calls(conversation: Conversation, tools: list[JsonObject], draws: Draws, *, wrong: bool) -> list[JsonObject]:
    """Return the calls of the first turn.

    The first tool is called once; when all it needs is one integer and the user's message has several, it is called
    once for each of them. A wrong turn has one number changed, or no call when the tool needs no number.
    """
    first = tools[0]
    numbers = whole_numbers(conversation.text)
    if wrong:
        if not _needs_whole_numbers(first):
            return []
        numbers = _one_changed(numbers or [1], draws)
    if len(numbers) > 1 and _counts(first):
        writers = [ArgumentWriter(conversation.text, [number], draws) for number in numbers[:_MOST_CALLS]]
    else:
        writers = [ArgumentWriter(conversation.text, numbers, draws)]
    return [_call(first, writer, draws, nth) for nth, writer in enumerate(writers)]


def reading_tool(conversation: Conversation, tools: list[JsonObject]) -> JsonObject | None:
    """Return the second tool when it tells the result of several calls of the first and was not called yet."""
    if len(tools) < 2 or conversation.called.count(tools[0]["name"]) < 2 or tools[1]["name"] in conversation.called:
        return None
    return tools[1] if _counts(tools[0]) and not _required(tools[1]) else None


def reading_call(tool: JsonObject, draws: Draws) -> JsonObject:
    """Return the call of a tool that needs no arguments."""
    return _call(tool, ArgumentWriter("", [], draws), draws, 0)


def offered_actions(conversation: Conversation) -> list[str]:
    """Return the actions that the user's message offers in a line such as `Actions: left, right.`; none in most."""
    offered = _ACTIONS.findall(conversation.text)
    return offered[-1].split(", ") if offered else []


def closing_message(conversation: Conversation) -> JsonObject:
    """Return the message that ends the rollout."""
    if conversation.output is not None:
        name = conversation.called[-1] if conversation.called else "tool"
        return text_message(f"The {name} result is: {conversation.output[:_QUOTED_CHARACTERS]}")
    if conversation.text:
        return text_message(f"I have no answer to this: {conversation.text[:_QUOTED_CHARACTERS]}")
    return text_message("There is nothing to answer.")


def _call(tool: JsonObject, writer: ArgumentWriter, draws: Draws, nth: int) -> JsonObject:
    arguments = dumps(writer.arguments(tool.get("parameters"))).decode()
    return function_call(str(tool["name"]), arguments, f"call_{draws.identity(f'call {nth}')}")


def _required(tool: JsonObject) -> dict[str, str]:
    """Return the types of a tool's required parameters."""
    root = tool.get("parameters")
    if not isinstance(root, dict):
        return {}
    required = required_properties(flattened(root, root))
    return {name: schema_type(flattened(schema, root)) for name, schema in required.items()}


def _counts(tool: JsonObject) -> bool:
    return list(_required(tool).values()) == ["integer"]


def _needs_whole_numbers(tool: JsonObject) -> bool:
    return "integer" in _required(tool).values()


def _one_changed(numbers: list[int], draws: Draws) -> list[int]:
    place = draws.whole("slip place", 0, len(numbers) - 1)
    return [number + draws.whole("slip", 1, 3) if nth == place else number for nth, number in enumerate(numbers)]


def _parsed(arguments: JsonValue) -> JsonObject:
    try:
        return as_object(loads(as_json_text(arguments)))
    except ValueError:
        return {}


def _text_of(output: JsonValue) -> str:
    return content_text(output) if isinstance(output, list) else as_json_text(output)
