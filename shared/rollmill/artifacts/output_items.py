"""What the output items of a response say about how a rollout went."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from rollmill.contracts.json import JsonValue, dumps

NOTHING = Raw(b"null")


class Item(msgspec.Struct, gc=False):
    """What counts of an output item."""

    type: str | None = None
    role: str | None = None
    output: Raw = NOTHING


def loose_items(output: JsonValue) -> list[Item] | None:
    """Return the items of any `response.output`; None when it is no list."""
    if not isinstance(output, list):
        return None
    return [
        Item(_text(item.get("type")), _text(item.get("role")), Raw(dumps(item.get("output"))))
        for item in output
        if isinstance(item, dict)
    ]


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


class _Error(msgspec.Struct):
    error: Raw = NOTHING


_ERRORS: "msgspec.json.Decoder[_Error]" = msgspec.json.Decoder(_Error)
_TEXTS: "msgspec.json.Decoder[str]" = msgspec.json.Decoder(str)


def steps(items: Sequence[Item] | None) -> tuple[int | None, int | None]:
    """Count the turns of a rollout and the errors of its tools; both None when its output is unknown.

    A turn is what the model says up to the next thing that it is told: the output of a tool, or a message that is
    not the assistant's. A tool's error is an output whose text is a JSON object with a member `error` that is not null.
    """
    if items is None:
        return None, None
    turns = errors = 0
    speaking = False
    for item in items:
        if item.type == "function_call_output":
            speaking = False
            errors += _is_error(item.output)
        elif item.role is not None and item.role != "assistant":
            speaking = False
        elif not speaking:
            speaking = True
            turns += 1
    return turns, errors


def _is_error(output: Raw) -> bool:
    text = bytes(output)
    if b"error" not in text:
        return False
    try:
        return bytes(_ERRORS.decode(_TEXTS.decode(text)).error) != b"null"
    except (msgspec.MsgspecError, ValueError):
        return False  # no text, or text that is no JSON object
