"""One rollout as HTML: its conversation and what the verifier said. Everything in it was written by a model or a task,
so all of it is shown as text, and only so much of it."""

from collections.abc import Iterator, Sequence
from typing import Final

from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import Row
from rollmill.openai.items import as_json_text, as_object, item_type, reasoning_text
from rollmill.report.markup import Markup, tag
from rollmill.report.numbers import count, number, plural

ROOM: Final = 4000
"""Most characters shown of a text."""
ROOM_OF_ALL: Final = 40_000
"""Most characters shown of a conversation, roughly: each of its texts gets its share, but not less than `LEAST`."""
LEAST: Final = 400
ITEMS: Final = 30
"""Most items shown of the start of a conversation, and most of its end."""
_FIELD_ROOM: Final = 600
_FIELDS: Final = 60
_NAME: Final = 200
_NOT_FIELDS: Final = frozenset(
    {rows.PARAMS, rows.RESPONSE, rows.AGENT_REF, rows.TASK_INDEX, rows.ROLLOUT_INDEX, rows.ATTEMPT_INDEX}
)
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_CALLS: Final = frozenset({"function_call", "mcp_call", "custom_tool_call"})


def anchor(rollout_id: str) -> str:
    """Return the name that links to a rollout go to."""
    return f"rollout-{rollout_id.replace(':', '-')}"


def rollout_details(rollout_id: str, row: Row) -> Markup:
    """Make the section of one rollout, closed at first.

    Args:
        rollout_id: `"t:r"`.
        row: its line of the rollouts file, of any shape.
    """
    task, _, repeat = rollout_id.partition(":")
    agent = rows.agent_name(row) or "no agent"
    # The anchor is inside: a browser that follows a link to it opens what it is in.
    return tag(
        "details",
        tag(
            "summary",
            tag("span", f"Task {task}, rollout {repeat}", class_="which"),
            tag("span", _reward(row), class_="reward"),
            tag("bdi", agent, class_="agent"),
        ),
        tag(
            "div",
            tag("ol", _turns(row), class_="turns"),
            tag("h4", "Verifier and other fields"),
            _fields(row),
            id=anchor(rollout_id),
            class_="rollout",
        ),
    )


def cut(text: str, room: int) -> tuple[str, int, str]:
    """Return the start of a text, how many characters are left out, and its end; all of a short text is its start.

    Args:
        text: any text.
        room: characters to keep, three quarters of them of the start; at least 2.
    """
    left_out = len(text) - room
    if left_out <= 0:
        return text, 0, ""
    tail = room // 4
    return text[: room - tail], left_out, text[len(text) - tail :]


def prose(text: str, room: int = ROOM) -> Markup:
    """Show a text as it is; of a long one, its start and end, and its length."""
    start, left_out, end = cut(text, room)
    note = tag("span", f"\n… {count(left_out)} of {count(len(text))} characters left out …\n", class_="cut")
    return tag("pre", start, note if left_out else None, end, dir="auto")


def _reward(row: Row) -> str:
    return f"reward {number(row.get(rows.REWARD))}"


def _turns(row: Row) -> Iterator[Markup]:
    items = list(_items(row))
    left_out = max(0, len(items) - 2 * ITEMS)
    room = min(ROOM, max(LEAST, ROOM_OF_ALL // max(len(items) - left_out, 1)))
    for index, item in enumerate(items):
        if index < ITEMS or index >= ITEMS + left_out:
            yield _turn(item, room)
        elif index == ITEMS:
            yield tag("li", f"… {plural(left_out, 'item')} left out …", class_="cut")
    if not items:
        yield tag("li", "There is no conversation in this rollout.", class_="cut")


def _items(row: Row) -> Iterator[JsonValue]:
    """Yield the items of the request and of the response, in order."""
    params = as_object(row.get(rows.PARAMS))
    if params.get("instructions"):
        yield {"role": "system", "content": params["instructions"]}
    for source in (params.get("input"), as_object(row.get(rows.RESPONSE)).get("output")):
        if isinstance(source, list):
            yield from source
        elif source:
            yield {"role": "user", "content": source}


def _turn(item: JsonValue, room: int) -> Markup:
    who, what, style = _told(item)
    return tag("li", tag("h4", who[:_NAME], dir="auto"), prose(what, room), class_=f"turn {style}")


def _told(item: JsonValue) -> tuple[str, str, str]:
    """Return who says what in an item, and how it is styled."""
    if not isinstance(item, dict):
        return "item", _json(item), "other"
    kind = item_type(item)
    if kind == "message":
        role = str(item.get("role") or "assistant")
        return role, _content(item.get("content")), role if role in _ROLES else "other"
    if kind == "reasoning":
        return "reasoning", reasoning_text(_safe_reasoning(item)) or "(not shown by the model)", "reasoning"
    if kind in _CALLS:
        return f"calls {item.get('name')}", _text(item.get("arguments", item.get("input"))), "call"
    if kind.endswith("_output"):
        return "tool output", _content(item.get("output")), "output"
    return kind, _json(item), "other"


def _safe_reasoning(item: JsonObject) -> JsonObject:
    content = item.get("content") or item.get("summary")
    return {"content": content if isinstance(content, str | list) else []}


def _content(content: JsonValue) -> str:
    if isinstance(content, str):
        return content
    parts: Sequence[JsonValue] = content if isinstance(content, list) else [content]
    return "\n".join(_part(part) for part in parts if part is not None)


def _part(part: JsonValue) -> str:
    if isinstance(part, dict):
        for name in ("text", "refusal"):
            if isinstance(part.get(name), str):
                return str(part[name])
    return _json(part)


def _fields(row: Row) -> Markup:
    named = [(name, value) for name, value in row.items() if name not in _NOT_FIELDS]
    usage = as_object(row.get(rows.RESPONSE)).get("usage")
    if usage:
        named.append(("usage", usage))
    lines = [
        tag("tr", tag("th", name[:_NAME], scope="row", dir="auto"), tag("td", prose(_text(value), _FIELD_ROOM)))
        for name, value in named[:_FIELDS]
    ]
    more = len(named) - _FIELDS
    if more > 0:
        lines.append(tag("tr", tag("td", f"… {plural(more, 'field')} left out …", colspan=2, class_="cut")))
    return tag("div", tag("table", tag("tbody", lines), class_="fields"), class_="scroll", tabindex=0)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: JsonValue) -> str:
    try:
        return as_json_text(value) if value is not None else "null"
    except TypeError:
        return "(nested too deeply to be shown)"
