"""Streams of Chat Completions chunks: synthesised from a completion, and converted live from Responses events."""

import time
from collections.abc import AsyncIterator, Iterator

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import UpstreamError
from rollmill.openai.events import pieces
from rollmill.openai.items import TOKEN_FIELDS, as_object, reasoning_text
from rollmill.openai.messages import message_reasoning
from rollmill.openai.results import chat_id, check_error, check_failed, finish_reason
from rollmill.openai.usage import usage_to_chat

_TEXT_DELTAS = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
    "response.reasoning_summary_text.delta": "reasoning_content",
    "response.reasoning_text.delta": "reasoning_content",
}
_FINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


def chat_chunks(completion: JsonObject, *, include_usage: bool) -> Iterator[JsonObject]:
    """Yield the stream of chunks that adds up to this chat completion.

    Args:
        completion: a finished chat completion.
        include_usage: end with a chunk that has the usage and no choices, as `stream_options` asks for.
    """
    head = _head(completion)
    for choice in completion.get("choices") or []:
        index = choice.get("index") or 0
        message = as_object(choice.get("message"))
        logprobs = choice.get("logprobs")
        for delta in _message_deltas(message):
            if delta.get("content"):  # log-probs stand beside the text they belong to, the rest with the end
                yield _chunk(head, delta, index=index, logprobs=logprobs)
                logprobs = None
            else:
                yield _chunk(head, delta, index=index)
        last = {key: message[key] for key in TOKEN_FIELDS if key in message}
        yield _chunk(head, last, index=index, finish=choice.get("finish_reason") or "stop", logprobs=logprobs)
    if include_usage:
        yield {**head, "choices": [], "usage": completion.get("usage")}


def _head(completion: JsonObject) -> JsonObject:
    return {
        "id": completion.get("id") or "",
        "object": "chat.completion.chunk",
        "created": completion.get("created") or int(time.time()),
        "model": completion.get("model") or "",
    }


def _chunk(
    head: JsonObject, delta: JsonObject, *, index: int = 0, finish: str | None = None, logprobs: JsonValue = None
) -> JsonObject:
    return {**head, "choices": [{"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}]}


def _message_deltas(message: JsonObject) -> Iterator[JsonObject]:
    yield {"role": "assistant", "content": ""}
    texts = {"reasoning_content": message_reasoning(message)}
    texts |= {field: message.get(field) or "" for field in ("content", "refusal")}
    for field, text in texts.items():
        for piece in pieces(text):
            yield {field: piece}
    for index, call in enumerate(message.get("tool_calls") or []):
        function = as_object(call.get("function"))
        yield _call_opening(index, call.get("id"), function.get("name"))
        for piece in pieces(function.get("arguments") or ""):
            yield _call_arguments(index, piece)


def _call_opening(index: int, call_id: JsonValue, name: JsonValue) -> JsonObject:
    call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    return {"tool_calls": [call]}


def _call_arguments(index: int, text: str) -> JsonObject:
    return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


class _Conversion:
    """State of one live conversion of events to chunks."""

    def __init__(self) -> None:
        self._head: JsonObject = {}
        self._calls: dict[int, int] = {}
        """Position among the tool calls, by the output index of the item."""
        self._spoken: set[int] = set()
        """Output indexes of the items of which some text or arguments were sent."""
        self._last_part: dict[str, tuple[JsonValue, ...]] = {}
        """The part that last sent text, by the field of the delta that it went to."""
        self.ended = False

    def chunks(self, event: JsonObject) -> Iterator[JsonObject]:
        """Yield what one event is in Chat Completions."""
        check_error(event)
        kind = event.get("type")
        if kind == "response.created":
            self._head = _event_head(as_object(event.get("response")))
            yield _chunk(self._head, {"role": "assistant", "content": ""})
        elif kind in _TEXT_DELTAS:
            yield self._text(event, _TEXT_DELTAS[kind], event.get("delta") or "")
        elif kind == "response.output_item.added":
            yield from self._item_added(event, as_object(event.get("item")))
        elif kind == "response.function_call_arguments.delta":
            yield self._arguments(event, event.get("delta") or "")
        elif kind == "response.output_item.done":
            yield from self._unsaid(event, as_object(event.get("item")))
        elif kind in _FINAL:
            self.ended = True
            yield from self._closing(as_object(event.get("response")))

    def _text(self, event: JsonObject, field: str, text: str) -> JsonObject:
        """Return the chunk for some text; texts of different items and reasoning parts are lines of one string."""
        part: tuple[JsonValue, ...] = (event.get("output_index"), event.get("summary_index"))
        if field == "reasoning_content":
            part = (*part, event.get("content_index"))
        self._spoken.add(event.get("output_index") or 0)
        if self._last_part.setdefault(field, part) != part:
            self._last_part[field] = part
            text = "\n" + text
        logprobs = event.get("logprobs")
        return _chunk(self._head, {field: text}, logprobs={"content": logprobs, "refusal": None} if logprobs else None)

    def _item_added(self, event: JsonObject, item: JsonObject) -> Iterator[JsonObject]:
        if item.get("type") == "function_call":
            index = self._calls.setdefault(event.get("output_index") or 0, len(self._calls))
            yield _chunk(self._head, _call_opening(index, item.get("call_id"), item.get("name")))

    def _arguments(self, event: JsonObject, text: str) -> JsonObject:
        output_index = event.get("output_index") or 0
        self._spoken.add(output_index)
        return _chunk(self._head, _call_arguments(self._calls.get(output_index, 0), text))

    def _unsaid(self, event: JsonObject, item: JsonObject) -> Iterator[JsonObject]:
        """Yield what an engine that streams whole items, without deltas, has not sent yet."""
        if (event.get("output_index") or 0) in self._spoken:
            return
        kind = item.get("type")
        if kind == "function_call" and item.get("arguments"):
            if (event.get("output_index") or 0) not in self._calls:
                yield from self._item_added(event, item)
            yield self._arguments(event, item["arguments"])
        elif kind == "reasoning" and (reasoning := reasoning_text(item)):
            yield self._text(event, "reasoning_content", reasoning)
        elif kind == "message":
            for part in map(as_object, item.get("content") or []):
                for field, source in (("content", "text"), ("refusal", "refusal")):
                    if part.get(source):
                        yield self._text(event, field, part[source])

    def _closing(self, response: JsonObject) -> Iterator[JsonObject]:
        check_failed(response)
        tokens: JsonObject = {}
        for item in map(as_object, response.get("output") or []):
            tokens |= {key: item[key] for key in TOKEN_FIELDS if item.get(key) is not None}
        yield _chunk(self._head, tokens, finish=finish_reason(response, has_calls=bool(self._calls)))
        yield {**self._head, "choices": [], "usage": usage_to_chat(response.get("usage"))}


def _event_head(response: JsonObject) -> JsonObject:
    created = int(response.get("created_at") or time.time())
    return _head({"id": chat_id(response), "created": created, "model": response.get("model")})


async def chunks_from_events(
    events: AsyncIterator[JsonObject], *, include_usage: bool = True
) -> AsyncIterator[JsonObject]:
    """Convert a live stream of Responses events to chat chunks, each as soon as its event is there.

    Args:
        events: from `response.created` to `response.completed`.
        include_usage: end with a chunk that has the usage and no choices.

    Raises:
        UpstreamError: the stream reports a failure, or stops before its last event.
    """
    conversion = _Conversion()
    async for event in events:
        for chunk in conversion.chunks(event):
            if chunk["choices"] or include_usage:
                yield chunk
    if not conversion.ended:
        raise UpstreamError("the stream of events stopped before its end", retryable=True)
