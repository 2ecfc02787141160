"""Rows and message logs as chat messages: what a chat template is given."""

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import PARAMS, Row
from rollmill.errors import InputError
from rollmill.openai.items import TEXT_PARTS, as_object, bad_input, input_items
from rollmill.openai.messages import messages_from_input

_KEPT = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


def prompt_messages(row: Row) -> list[JsonObject]:
    """Return the messages of a row's request.

    Raises:
        InputError: `responses_create_params.input` is missing or has no form as text messages.
    """
    return _conversation(row, [])


def rollout_messages(rollout: Rollout) -> list[JsonObject]:
    """Return the whole conversation of a finished rollout; without any output its last message is an empty answer.

    Raises:
        InputError: the row has no input, or something in it has no form as text messages.
    """
    output = rollout.response.get("output")
    messages = _conversation(rollout.row, [*map(as_object, output)] if isinstance(output, list) else [])
    if messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages


def _conversation(row: Row, output: list[JsonObject]) -> list[JsonObject]:
    params = as_object(row.get(PARAMS))
    if not params.get("input"):
        raise bad_input(f"/{PARAMS}/input", "the reward model scores a conversation and needs its beginning")
    messages = chat_messages(messages_from_input([*input_items(params["input"]), *output]), f"/{PARAMS}/input")
    system = params.get("instructions")
    return [{"role": "system", "content": str(system)}, *messages] if system else messages


def chat_messages(value: JsonValue, pointer: str) -> list[JsonObject]:
    """Check a conversation and reduce its messages to what templates know, their content to a string.

    Raises:
        InputError: it is not a list of messages with a role, or holds something that is not text.
    """
    if not isinstance(value, list) or not value:
        raise bad_input(pointer, "must be a list of at least one message")
    return [_message(message, f"{pointer}/{index}") for index, message in enumerate(value)]


def _message(message: JsonValue, pointer: str) -> JsonObject:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or not role:
        raise bad_input(f"{pointer}/role", "every message needs a role")
    kept = {name: message[name] for name in _KEPT if message.get(name)}
    refusal = message.get("refusal")
    return {**kept, "content": _text(message.get("content") or refusal, f"{pointer}/content")}


def _text(content: JsonValue, pointer: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_input(pointer, "must be text")
    parts = [as_object(part) for part in content]
    if any(part.get("type", "text") not in TEXT_PARTS or not isinstance(part.get("text"), str) for part in parts):
        raise bad_input(pointer, "a reward model reads text: images and files cannot be scored")
    return "".join(part["text"] for part in parts)


def conversations_of(body: JsonObject, name: str) -> list[JsonValue]:
    """Return the list that a request must have under a name.

    Raises:
        InputError: it is missing or not a list.
    """
    value = body.get(name)
    if not isinstance(value, list):
        fault = {"pointer": f"/{name}", "detail": "must be a list"}
        raise InputError(f"{name} must be a list", errors=[fault])
    return value
