from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.errors import InputError
from rollmill.ids import new_id

PROMPT_TOKEN_IDS = "prompt_token_ids"
GENERATION_TOKEN_IDS = "generation_token_ids"
GENERATION_LOG_PROBS = "generation_log_probs"
TOKEN_FIELDS = (PROMPT_TOKEN_IDS, GENERATION_TOKEN_IDS, GENERATION_LOG_PROBS)
"""What a training engine tells about its tokens; it rides on the last output item of a turn."""

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_NOT_MEANING = frozenset({"id", "status", "annotations", "logprobs", *TOKEN_FIELDS})


def text_message(text: str) -> JsonObject:
    """Build an assistant message as an output item."""
    return output_message([{"type": "output_text", "text": text, "annotations": []}])


def output_message(content: list[JsonObject]) -> JsonObject:
    """Build an assistant message of `output_text` and `refusal` parts."""
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def function_call(name: str, arguments: str, call_id: str | None = None) -> JsonObject:
    """Build a function call as an output item; `arguments` is JSON text as the model wrote it."""
    return {
        "id": new_id("fc_"),
        "type": "function_call",
        "call_id": call_id or new_id("call_"),
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def reasoning_item(text: str) -> JsonObject:
    """Build a reasoning output item whose summary is the text."""
    return {
        "id": new_id("rs_"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}],
        "encrypted_content": None,
    }


def item_type(item: JsonObject) -> str:
    """Return the type of an item; one without a type is a message."""
    return str(item.get("type") or "message")


def reasoning_text(item: JsonObject) -> str:
    """Return what a reasoning item says: its content where an engine gives it, else its summary."""
    parts = item.get("content") or item.get("summary") or []
    if isinstance(parts, str):
        return parts
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and part.get("text"))


def as_json_text(value: JsonValue) -> str:
    """Return a string as it is and any other value as JSON text; null is empty."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value).decode()


def as_object(value: JsonValue) -> JsonObject:
    """Return an object as it is and anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def drop_nulls(value: JsonObject) -> JsonObject:
    """Return the object without its null members."""
    return {key: member for key, member in value.items() if member is not None}


def bad_input(pointer: str, detail: str) -> InputError:
    """Return the error for one wrong place of a request."""
    return InputError(f"{pointer}: {detail}", errors=[{"pointer": pointer, "detail": detail}])


def input_items(value: JsonValue) -> list[JsonObject]:
    """Return the items of a request's `input`, where a string stands for one user message.

    Raises:
        InputError: it is neither a string nor a list of objects.
    """
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise bad_input("/input", "must be a string or a list of items")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise bad_input(f"/input/{index}", "must be an object")
    return value


def normalize_input(value: JsonValue) -> list[JsonObject]:
    """Return the items of an `input` in one canonical form, so that inputs of equal meaning are equal.

    A string becomes one user message, items without a type become messages, text content becomes a plain
    string; ids, statuses, nulls, annotations, log-probs and token ids are dropped. Call ids stay, because they
    link calls to outputs.

    Raises:
        InputError: the input is neither a string nor a list of objects.
    """
    return [_canonical_item(item) for item in input_items(value)]


def _canonical_item(item: JsonObject) -> JsonObject:
    canonical = _meaning(item)
    canonical["type"] = item_type(item)
    for field in ("content", "output"):
        if isinstance(canonical.get(field), list):
            canonical[field] = _canonical_content(canonical[field])
    if isinstance(canonical.get("summary"), list):
        canonical["summary"] = [_canonical_part(part) for part in canonical["summary"]]
    return canonical


def _canonical_content(parts: list[JsonValue]) -> str | list[JsonValue]:
    canonical = [_canonical_part(part) for part in parts]
    if all(isinstance(part, dict) and part.get("type") == "text" for part in canonical):
        return "".join(str(part.get("text", "")) for part in canonical)
    return canonical


def _canonical_part(part: JsonValue) -> JsonValue:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return part
    canonical = _meaning(part)
    if part.get("type") in TEXT_PARTS:
        canonical["type"] = "text"
    return canonical


def _meaning(value: JsonObject) -> JsonObject:
    return {key: member for key, member in value.items() if member is not None and key not in _NOT_MEANING}
