"""Chat messages to Responses input items and back.

One assistant message of Chat Completions is a run of items in Responses: reasoning, text, function calls. Chat
engines demand that all calls of a turn stand in one message and that the tool messages follow it directly.
"""

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.openai.items import (
    TEXT_PARTS,
    TOKEN_FIELDS,
    as_json_text,
    as_object,
    bad_input,
    drop_nulls,
    item_type,
    reasoning_text,
)

_PLAIN_ROLES = frozenset({"system", "developer", "user"})
_CHAT_PARTS = frozenset({"image_url", "input_audio", "file", "video_url", "audio_url"})


class AssistantTurn:
    """Gathers the output items of one assistant turn into one chat message."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[JsonObject] = []
        self._tokens: JsonObject = {}

    def __bool__(self) -> bool:
        return bool(self._texts or self._refusals or self._reasoning or self._calls)

    def takes(self, item: JsonObject) -> bool:
        """Say whether the item continues this turn; text or reasoning after text starts another one.

        Once there are calls everything up to their outputs belongs to them: nothing may stand between a message
        with calls and the tool messages that answer it.
        """
        said = self._texts or self._refusals
        return bool(self._calls) or not said or item_type(item) == "function_call"

    def add(self, item: JsonObject, pointer: str = "") -> None:
        """Take in a reasoning item, an assistant message or a function call; other items are ignored.

        Raises:
            InputError: the message has content that an assistant cannot say in Chat Completions.
        """
        match item_type(item):
            case "reasoning":
                if text := reasoning_text(item):
                    self._reasoning.append(text)
            case "function_call":
                self._calls.append(_tool_call(item))
            case "message":
                self._add_content(item.get("content"), pointer)
            case _:
                return
        self._tokens.update({key: item[key] for key in TOKEN_FIELDS if item.get(key) is not None})

    def _add_content(self, content: JsonValue, pointer: str) -> None:
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        texts = []
        for index, part in enumerate(map(as_object, parts)):
            if part.get("type") == "refusal":
                self._refusals.append(str(part.get("refusal") or ""))
            elif part.get("type") in TEXT_PARTS:
                texts.append(str(part.get("text") or ""))
            else:
                raise bad_input(f"{pointer}/content/{index}", f"an assistant cannot say {part.get('type')!r} parts")
        if texts or not parts:
            self._texts.append("".join(texts))

    def message(self) -> JsonObject:
        """Return the chat message of the turn."""
        silent = not self._texts and (self._calls or self._refusals)
        message: JsonObject = {"role": "assistant", "content": None if silent else "\n".join(self._texts)}
        if self._refusals:
            message["refusal"] = "\n".join(self._refusals)
        if self._reasoning:
            message["reasoning_content"] = "\n".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return message | self._tokens


def _tool_call(item: JsonObject) -> JsonObject:
    function = {"name": item.get("name"), "arguments": as_json_text(item.get("arguments"))}
    return {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}


def messages_from_input(items: list[JsonObject]) -> list[JsonObject]:
    """Convert Responses input items to chat messages.

    Raises:
        InputError: an item or a part has no form in Chat Completions; the pointer names it.
    """
    messages: list[JsonObject] = []
    turn = AssistantTurn()
    for index, item in enumerate(items):
        pointer = f"/input/{index}"
        if _is_assistants(item):
            if not turn.takes(item):
                messages.append(turn.message())
                turn = AssistantTurn()
            turn.add(item, pointer)
            continue
        if turn:
            messages.append(turn.message())
            turn = AssistantTurn()
        messages.append(_other_message(item, pointer))
    if turn:
        messages.append(turn.message())
    return messages


def _is_assistants(item: JsonObject) -> bool:
    kind = item_type(item)
    return kind in ("reasoning", "function_call") or (kind == "message" and item.get("role") == "assistant")


def _other_message(item: JsonObject, pointer: str) -> JsonObject:
    kind = item_type(item)
    if kind == "function_call_output":
        output = item.get("output")
        content = _chat_content(output, f"{pointer}/output") if isinstance(output, list) else as_json_text(output)
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    if kind != "message":
        raise bad_input(f"{pointer}/type", f"{kind!r} items have no form in Chat Completions")
    role = item.get("role")
    if role not in _PLAIN_ROLES:
        raise bad_input(f"{pointer}/role", f"unknown role {role!r}")
    return {"role": role, "content": _chat_content(item.get("content"), f"{pointer}/content")}


def _chat_content(content: JsonValue, pointer: str) -> JsonValue:
    if not isinstance(content, list):
        return content or ""
    parts = [_chat_part(part, f"{pointer}/{index}") for index, part in enumerate(content)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]  # every engine's template takes a string, not every one takes a list
    return parts or ""


def _chat_part(part: JsonValue, pointer: str) -> JsonObject:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS:
        return {"type": "text", "text": part.get("text") or ""}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        image = {"url": part["image_url"], "detail": part.get("detail")}
        return {"type": "image_url", "image_url": drop_nulls(image)}
    if kind == "input_file":
        file = {key: part.get(key) for key in ("file_id", "file_data", "filename")}
        return {"type": "file", "file": drop_nulls(file)}
    if kind in _CHAT_PARTS:
        return dict(part)
    raise bad_input(pointer, f"a part of type {kind!r} has no form in Chat Completions")


def input_from_messages(messages: JsonValue) -> list[JsonObject]:
    """Convert chat messages to Responses input items.

    Raises:
        InputError: it is not a list of messages, or a role is unknown; the pointer names it.
    """
    if not isinstance(messages, list):
        raise bad_input("/messages", "must be a list of messages")
    items: list[JsonObject] = []
    for index, message in enumerate(messages):
        items.extend(_items_of(message, f"/messages/{index}"))
    return items


def _items_of(message: JsonValue, pointer: str) -> list[JsonObject]:
    role = message.get("role") if isinstance(message, dict) else None
    if role in _PLAIN_ROLES:
        return [{"type": "message", "role": role, "content": _responses_content(message.get("content"), "input_text")}]
    if role == "tool":
        output = _responses_content(message.get("content"), "input_text")
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}]
    if role == "assistant":
        return _assistant_items(message)
    raise bad_input(f"{pointer}/role", f"unknown role {role!r}")


def _assistant_items(message: JsonObject) -> list[JsonObject]:
    items: list[JsonObject] = []
    if reasoning := message_reasoning(message):
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
    if message.get("content"):
        content = _responses_content(message["content"], "output_text")
        items.append({"type": "message", "role": "assistant", "content": content})
    if message.get("refusal"):
        refusal = {"type": "refusal", "refusal": message["refusal"]}
        items.append({"type": "message", "role": "assistant", "content": [refusal]})
    for call in message.get("tool_calls") or []:
        function = as_object(as_object(call).get("function"))
        items.append(
            {
                "type": "function_call",
                "call_id": as_object(call).get("id"),
                "name": function.get("name"),
                "arguments": as_json_text(function.get("arguments")),
            }
        )
    if not items:
        items.append({"type": "message", "role": "assistant", "content": ""})
    items[-1] |= {key: message[key] for key in TOKEN_FIELDS if message.get(key) is not None}
    return items


def message_reasoning(message: JsonObject) -> str:
    """Return the reasoning text of a chat message or delta, under either of the names that engines use."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning if isinstance(reasoning, str) else ""


def _responses_content(content: JsonValue, text_type: str) -> JsonValue:
    if not isinstance(content, list):
        return content or ""
    return [_responses_part(part, text_type) for part in content if isinstance(part, dict)]


def _responses_part(part: JsonObject, text_type: str) -> JsonObject:
    match part.get("type"):
        case "text":
            return {"type": text_type, "text": part.get("text") or ""}
        case "image_url":
            image = part.get("image_url")
            source = image if isinstance(image, dict) else {"url": image}
            return {"type": "input_image", "image_url": source.get("url"), "detail": source.get("detail") or "auto"}
        case "file":
            return {"type": "input_file", **as_object(part.get("file"))}
        case _:
            return dict(part)
