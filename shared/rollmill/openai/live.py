"""Live conversion of a stream of chat chunks to Responses events."""

import time
from collections.abc import AsyncIterator, Iterator

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import UpstreamError
from rollmill.openai.events import EventWriter, PartPlace, item_id
from rollmill.openai.items import (
    GENERATION_LOG_PROBS,
    GENERATION_TOKEN_IDS,
    as_object,
    function_call,
    output_message,
    reasoning_item,
    text_message,
)
from rollmill.openai.messages import message_reasoning
from rollmill.openai.results import check_error, check_finish, finished, new_response
from rollmill.openai.tokens import logprob_entries, part_logprobs, token_fields
from rollmill.openai.usage import usage_from_chat

_GROWING = (GENERATION_TOKEN_IDS, GENERATION_LOG_PROBS)


class _OpenPart:
    """The part that text is being appended to; its item is a message or a reasoning item."""

    def __init__(self, item: JsonObject, place: PartPlace, part: JsonObject) -> None:
        self.item = item
        self.place = place
        self.part = part
        self.field = "refusal" if part["type"] == "refusal" else "text"
        self.pieces: list[str] = []
        self.logprobs: list[JsonObject] = []

    def complete(self) -> JsonObject:
        """Return the part with all of its text."""
        self.part[self.field] = "".join(self.pieces)
        if self.logprobs:
            self.part["logprobs"] = self.logprobs
        return self.part


class _OpenCall:
    """A function call whose arguments are being appended to."""

    def __init__(self, item: JsonObject, output_index: int) -> None:
        self.item = item
        self.output_index = output_index
        self.pieces: list[str] = []


class LiveResponse:
    """Grows a Responses object out of chat chunks and says what happened in events.

    Args:
        request: the Responses request that is being answered.
    """

    def __init__(self, request: JsonObject) -> None:
        self._request = request
        self._writer = EventWriter()
        self._response: JsonObject = {}
        self._open: _OpenPart | None = None
        self._calls: dict[JsonValue, _OpenCall] = {}
        self._tokens: JsonObject = {}
        self._usage: JsonObject | None = None
        self._finish: JsonValue = None

    def take(self, chunk: JsonObject) -> Iterator[JsonObject]:
        """Yield the events that one chunk stands for.

        Raises:
            UpstreamError: the chunk reports an error.
        """
        check_error(chunk)
        if not self._response:
            yield from self._start(chunk)
        self._usage = usage_from_chat(chunk.get("usage")) or self._usage
        choices = chunk.get("choices") or [{}]
        choice = as_object(choices[0])
        delta = as_object(choice.get("delta"))
        self._gather_tokens(token_fields(delta, choice, chunk))
        yield from self._deltas(delta, logprob_entries(choice))
        if choice.get("finish_reason"):
            check_finish(choice["finish_reason"])
            self._finish = choice["finish_reason"]

    def end(self) -> Iterator[JsonObject]:
        """Yield the events that close everything that is open, and the response.

        Raises:
            UpstreamError: the stream stopped before a finish reason came.
        """
        if self._finish is None:
            raise UpstreamError("the stream of chunks stopped before its end", retryable=True)
        if not self._response["output"]:
            yield from self._part_for("output_text")
        self._response["output"][-1] |= self._tokens
        self._response |= {"status": "completed", "completed_at": int(time.time()), "usage": self._usage}
        finished(self._response, self._finish)
        yield from self._close_part()
        yield from self._close_calls()
        yield self._writer.closing(self._response)

    def _start(self, chunk: JsonObject) -> Iterator[JsonObject]:
        self._response = new_response(
            [], request=self._request, model=str(chunk.get("model") or ""), status="in_progress"
        )
        identity = str(chunk.get("id") or "").removeprefix("chatcmpl-")
        self._response["id"] = f"resp_{identity}" if identity else self._response["id"]
        self._response["created_at"] = chunk.get("created") or self._response["created_at"]
        yield from self._writer.opening(self._response)

    def _gather_tokens(self, found: JsonObject) -> None:
        for field, value in found.items():
            if field in _GROWING:
                self._tokens.setdefault(field, []).extend(value)
            else:
                self._tokens.setdefault(field, value)

    def _deltas(self, delta: JsonObject, entries: list[JsonObject]) -> Iterator[JsonObject]:
        if reasoning := message_reasoning(delta):
            yield from self._text("summary_text", reasoning, [])
        if isinstance(content := delta.get("content"), str) and content:
            yield from self._text("output_text", content, part_logprobs(entries))
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            yield from self._text("refusal", refusal, [])
        for call in map(as_object, delta.get("tool_calls") or []):
            yield from self._call(call)

    def _text(self, part_type: str, text: str, logprobs: list[JsonObject]) -> Iterator[JsonObject]:
        yield from self._part_for(part_type)
        if self._open is not None:
            self._open.pieces.append(text)
            self._open.logprobs.extend(logprobs)
            yield self._writer.part_delta(self._open.place, part_type, text, logprobs)

    def _part_for(self, part_type: str) -> Iterator[JsonObject]:
        """Open a part of this type in a new item, unless the open one already is of it."""
        if self._open is not None and self._open.part["type"] == part_type:
            return
        yield from self._close_part()
        item, field = _new_item(part_type)
        index = self._append(item)
        place = PartPlace(index, item_id(item), 0)
        self._open = _OpenPart(item, place, item[field][0])
        yield self._writer.item_added(index, item)
        yield self._writer.part_added(place, part_type)

    def _append(self, item: JsonObject) -> int:
        self._response["output"].append(item)
        return len(self._response["output"]) - 1

    def _close_part(self) -> Iterator[JsonObject]:
        if self._open is None:
            return
        opened, self._open = self._open, None
        yield from self._writer.part_done(opened.place, opened.complete())
        yield self._writer.item_done(opened.place.output_index, opened.item)

    def _call(self, delta: JsonObject) -> Iterator[JsonObject]:
        """Take in a piece of a tool call; calls stay open to the end, since engines may interleave them."""
        function = as_object(delta.get("function"))
        key = _call_key(delta, self._calls)
        call = self._calls.get(key)
        if call is None:
            yield from self._close_part()
            item = function_call(str(function.get("name") or ""), "", delta.get("id"))
            call = self._calls[key] = _OpenCall(item, self._append(item))
            yield self._writer.item_added(call.output_index, item)
        elif function.get("name"):
            call.item["name"] = call.item["name"] or function["name"]
        if arguments := function.get("arguments"):
            call.pieces.append(arguments)
            yield self._writer.arguments_delta(call.output_index, call.item, arguments)

    def _close_calls(self) -> Iterator[JsonObject]:
        for call in self._calls.values():
            call.item["arguments"] = "".join(call.pieces)
            yield self._writer.arguments_done(call.output_index, call.item)
            yield self._writer.item_done(call.output_index, call.item)


def _new_item(part_type: str) -> tuple[JsonObject, str]:
    if part_type == "summary_text":
        return reasoning_item(""), "summary"
    if part_type == "refusal":
        return output_message([{"type": "refusal", "refusal": ""}]), "content"
    return text_message(""), "content"


def _call_key(delta: JsonObject, calls: dict[JsonValue, _OpenCall]) -> JsonValue:
    """Return what tells a call from the others: its index, or for engines that leave it out, a new id."""
    if delta.get("index") is not None:
        return delta["index"]
    call_id = delta.get("id")
    known = [key for key, call in calls.items() if call_id is None or call.item["call_id"] == call_id]
    return known[-1] if known else len(calls)


async def events_from_chat_chunks(chunks: AsyncIterator[JsonObject], request: JsonObject) -> AsyncIterator[JsonObject]:
    """Convert a live stream of chat chunks to Responses events, each as soon as its chunk is there.

    Args:
        chunks: the chunks of one answer, with `stream_options.include_usage` where usage is wanted.
        request: the Responses request that is being answered.

    Raises:
        UpstreamError: a chunk reports an error, or the stream stops before a finish reason came.
    """
    live = LiveResponse(request)
    async for chunk in chunks:
        for event in live.take(chunk):
            yield event
    for event in live.end():
        yield event
