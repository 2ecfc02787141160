"""The stream of events that a Responses request with `stream: true` is answered with."""

from collections.abc import Iterator
from typing import NamedTuple

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.openai.items import TOKEN_FIELDS, as_object, item_type

_PIECE = 256
"""Characters of one synthesised delta."""
_FINAL_EVENTS = {"incomplete": "response.incomplete", "failed": "response.failed"}


class PartKind(NamedTuple):
    """How the stream speaks of one kind of part."""

    delta: str
    """Prefix of the events with the text."""
    part: str = "response.content_part"
    """Prefix of the events that open and close the part."""
    position: str = "content_index"
    """Field that holds the part's position within the item."""
    text: str = "text"
    """Field that holds the text."""
    lists: tuple[str, ...] = ()
    """Further fields of the part, empty lists at first."""


_KINDS = {
    "output_text": PartKind("response.output_text", lists=("annotations", "logprobs")),
    "refusal": PartKind("response.refusal", text="refusal"),
    "reasoning_text": PartKind("response.reasoning_text"),
    "summary_text": PartKind(
        "response.reasoning_summary_text", part="response.reasoning_summary_part", position="summary_index"
    ),
}


class PartPlace(NamedTuple):
    """Where a part stands: the item's position and id, and the part's position within the item."""

    output_index: int
    item_id: str
    part_index: int


class EventWriter:
    """Makes events in order, numbered from 0."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, kind: str, **fields: JsonValue) -> JsonObject:
        """Return the next event."""
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def opening(self, response: JsonObject) -> Iterator[JsonObject]:
        """Yield the two events that open a stream."""
        unfinished: JsonObject = {
            "status": "in_progress",
            "output": [],
            "usage": None,
            "completed_at": None,
            "incomplete_details": None,
            "error": None,
        }
        yield self.event("response.created", response={**response, **unfinished})
        yield self.event("response.in_progress", response={**response, **unfinished})

    def closing(self, response: JsonObject) -> JsonObject:
        """Return the event that ends a stream, which holds the whole response."""
        kind = _FINAL_EVENTS.get(str(response.get("status")), "response.completed")
        return self.event(kind, response=response)

    def item_added(self, output_index: int, item: JsonObject) -> JsonObject:
        """Return the event that announces an item, empty for now."""
        blank = {key: value for key, value in item.items() if key not in TOKEN_FIELDS}
        for field in ("content", "summary"):
            if isinstance(blank.get(field), list):
                blank[field] = []
        if "arguments" in blank:
            blank["arguments"] = ""
        if "status" in blank:
            blank["status"] = "in_progress"
        return self.event("response.output_item.added", output_index=output_index, item=blank)

    def item_done(self, output_index: int, item: JsonObject) -> JsonObject:
        """Return the event that hands over a whole item."""
        return self.event("response.output_item.done", output_index=output_index, item=item)

    def part_added(self, place: PartPlace, part_type: str) -> JsonObject:
        """Return the event that announces a part, empty for now."""
        kind = _KINDS[part_type]
        blank = {"type": part_type, kind.text: "", **{name: [] for name in kind.lists}}
        return self._of_part(f"{kind.part}.added", kind, place, part=blank)

    def part_delta(self, place: PartPlace, part_type: str, text: str, logprobs: JsonValue = None) -> JsonObject:
        """Return the event that appends text to a part."""
        kind = _KINDS[part_type]
        more = {"logprobs": logprobs or []} if part_type == "output_text" else {}
        return self._of_part(f"{kind.delta}.delta", kind, place, delta=text, **more)

    def part_done(self, place: PartPlace, part: JsonObject) -> Iterator[JsonObject]:
        """Yield the events that end a part: its whole text, then the whole part."""
        kind = _KINDS[part["type"]]
        more = {"logprobs": part.get("logprobs") or []} if part["type"] == "output_text" else {}
        yield self._of_part(f"{kind.delta}.done", kind, place, **{kind.text: part.get(kind.text) or ""}, **more)
        yield self._of_part(f"{kind.part}.done", kind, place, part=part)

    def arguments_delta(self, output_index: int, item: JsonObject, text: str) -> JsonObject:
        """Return the event that appends to a function call's arguments."""
        place = {"output_index": output_index, "item_id": item_id(item)}
        return self.event("response.function_call_arguments.delta", **place, delta=text)

    def arguments_done(self, output_index: int, item: JsonObject) -> JsonObject:
        """Return the event with a function call's whole arguments."""
        place = {"output_index": output_index, "item_id": item_id(item), "name": item.get("name")}
        return self.event("response.function_call_arguments.done", **place, arguments=item.get("arguments") or "")

    def _of_part(self, event: str, kind: PartKind, place: PartPlace, **fields: JsonValue) -> JsonObject:
        position = {"output_index": place.output_index, "item_id": place.item_id, kind.position: place.part_index}
        return self.event(event, **position, **fields)


def item_id(item: JsonObject) -> str:
    """Return the id by which events refer to an item; function calls may have only their call id."""
    return str(item.get("id") or item.get("call_id") or "")


def response_events(response: JsonObject) -> Iterator[JsonObject]:
    """Yield the stream of events that ends in this finished response."""
    writer = EventWriter()
    yield from writer.opening(response)
    for index, item in enumerate(response.get("output") or []):
        yield writer.item_added(index, item)
        yield from _item_events(writer, index, item)
        yield writer.item_done(index, item)
    yield writer.closing(response)


def _item_events(writer: EventWriter, index: int, item: JsonObject) -> Iterator[JsonObject]:
    if item_type(item) == "function_call":
        for piece in pieces(item.get("arguments") or ""):
            yield writer.arguments_delta(index, item, piece)
        yield writer.arguments_done(index, item)
        return
    for field in ("summary", "content"):
        parts = item.get(field)
        for part_index, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from _part_events(writer, PartPlace(index, item_id(item), part_index), as_object(part))


def _part_events(writer: EventWriter, place: PartPlace, part: JsonObject) -> Iterator[JsonObject]:
    part_type = part.get("type")
    if part_type not in _KINDS:
        return  # the item's last event carries it
    yield writer.part_added(place, part_type)
    for piece in pieces(part.get(_KINDS[part_type].text) or ""):
        yield writer.part_delta(place, part_type, piece)
    yield from writer.part_done(place, part)


def pieces(text: str) -> Iterator[str]:
    """Cut a text into the deltas of a synthesised stream; an empty text has none."""
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]
