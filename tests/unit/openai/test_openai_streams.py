"""Streams are judged by the real client: it must parse them and end with the object that they were made from."""

from collections.abc import AsyncIterator, Callable, Iterable

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from rollmill.contracts.json import JsonObject, dumps
from rollmill.errors import UpstreamError, is_retryable
from rollmill.openai import (
    chat_chunks,
    chat_completion_to_response,
    chunks_from_events,
    events_from_chat_chunks,
    function_call,
    new_response,
    response_events,
    response_to_chat_completion,
    text_message,
)
from rollmill.openai.items import output_message, reasoning_item

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
TOKENS: JsonObject = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": [-0.5, -0.1]}
USAGE: JsonObject = {"input_tokens": 5, "output_tokens": 7}


def respond(*output: JsonObject, status: str = "completed") -> JsonObject:
    return new_response(list(output), request={}, model="m", usage=USAGE, status=status)


def client(parts: Iterable[JsonObject]) -> OpenAI:
    """A real client whose server sends these parts as a stream."""
    body = b"".join(b"data: " + dumps(part) + b"\n\n" for part in parts) + b"data: [DONE]\n\n"

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    http = httpx.Client(transport=httpx.MockTransport(answer))
    # Some releases of the client are typed against another copy of httpx, and take this one all the same.
    return OpenAI(api_key="k", base_url="http://model/v1", http_client=http)  # type: ignore[arg-type, unused-ignore]


def final_response(events: Iterable[JsonObject]) -> JsonObject:
    with client(events) as openai, openai.responses.stream(model="m", input="x") as stream:
        return stream.get_final_response().to_dict()


def final_completion(chunks: Iterable[JsonObject]) -> JsonObject:
    with client(chunks) as openai, openai.chat.completions.stream(model="m", messages=[]) as stream:
        return stream.get_final_completion().to_dict()


def parsed(response: JsonObject) -> JsonObject:
    """What the client makes of a whole response."""
    return Response.model_validate(response).to_dict()


async def stream_of(parts: Iterable[JsonObject]) -> AsyncIterator[JsonObject]:
    for part in parts:
        yield part


async def gathered(parts: AsyncIterator[JsonObject]) -> list[JsonObject]:
    return [part async for part in parts]


RESPONSES: dict[str, Callable[[], JsonObject]] = {
    "text": lambda: respond(text_message("hello")),
    "long text": lambda: respond(text_message("word " * 400)),
    "empty text": lambda: respond(text_message("")),
    "nothing": lambda: respond(),
    "refusal": lambda: respond(output_message([{"type": "refusal", "refusal": "no"}])),
    "parallel calls": lambda: respond(text_message("wait"), function_call("f", '{"a": 1}'), function_call("g", "")),
    "reasoning": lambda: respond(reasoning_item("because"), text_message("42") | TOKENS),
    "reasoning content": lambda: respond(
        {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        text_message("42"),
    ),
    "cut": lambda: respond(text_message("hal"), status="incomplete"),
}


def without_parsing_aids(value: object) -> object:
    """Drop the fields that only the streaming helper adds: `parsed`, `parsed_arguments`, a tool call's `index`."""
    if isinstance(value, dict):
        kept = {key: member for key, member in value.items() if not key.startswith("parsed")}
        kept = {key: member for key, member in kept.items() if key != "index" or "function" not in kept}
        return {key: without_parsing_aids(member) for key, member in kept.items()}
    return [without_parsing_aids(member) for member in value] if isinstance(value, list) else value


WHOLE = [name for name in RESPONSES if name != "cut"]
"""The streaming helpers raise on purpose when an answer is cut."""


@pytest.mark.parametrize("name", WHOLE)
def test_the_client_ends_with_the_response_that_the_events_were_made_from(name: str) -> None:
    response = RESPONSES[name]()

    assert without_parsing_aids(final_response(response_events(response))) == parsed(response)


@pytest.mark.parametrize("name", list(RESPONSES))
def test_every_event_is_legal_and_numbered(name: str) -> None:
    events = list(response_events(RESPONSES[name]()))

    for event in events:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]


def test_a_message_is_opened_filled_and_closed_in_order() -> None:
    events = list(response_events(respond(text_message("x" * 300))))

    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert "".join(event.get("delta", "") for event in events) == "x" * 300


def test_a_cut_response_ends_with_the_event_that_says_so() -> None:
    response = RESPONSES["cut"]()
    with client(response_events(response)) as openai:
        events = list(openai.responses.create(model="m", input="x", stream=True))

    assert events[-1].type == "response.incomplete"
    assert events[-1].response.to_dict() == parsed(response)


def test_items_that_are_announced_carry_no_token_ids() -> None:
    events = list(response_events(RESPONSES["reasoning"]()))
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]

    assert all("prompt_token_ids" not in item for item in added)
    assert events[-1]["response"]["output"][-1].items() >= TOKENS.items()


def test_items_and_parts_of_unknown_type_are_handed_over_whole() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    odd = output_message([{"type": "hologram"}])
    done = [e["item"] for e in response_events(respond(search, odd)) if e["type"] == "response.output_item.done"]

    assert done == [search, odd]


@pytest.mark.parametrize("name", WHOLE)
def test_the_client_ends_with_the_completion_that_the_chunks_were_made_from(name: str) -> None:
    completion = response_to_chat_completion(RESPONSES[name]())
    final = final_completion(chat_chunks(completion, include_usage=True))
    message = {key: value for key, value in completion["choices"][0]["message"].items() if value is not None}

    found = without_parsing_aids(final["choices"][0]["message"])
    assert isinstance(found, dict)
    assert {key: value for key, value in found.items() if value is not None} == {"content": ""} | message
    assert final["choices"][0]["finish_reason"] == completion["choices"][0]["finish_reason"]
    assert final["usage"] == completion["usage"]
    assert final["id"] == completion["id"]


def test_usage_is_only_streamed_on_demand() -> None:
    completion = response_to_chat_completion(RESPONSES["text"]())

    assert list(chat_chunks(completion, include_usage=True))[-1]["choices"] == []
    assert all(chunk["choices"] for chunk in chat_chunks(completion, include_usage=False))


def test_log_probs_are_streamed_once_beside_the_text() -> None:
    completion = response_to_chat_completion(RESPONSES["long text"]())
    completion["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": -1.0}], "refusal": None}
    chunks = list(chat_chunks(completion, include_usage=False))

    assert [bool(chunk["choices"][0]["logprobs"]) for chunk in chunks].count(True) == 1
    for chunk in chat_chunks(response_to_chat_completion(RESPONSES["text"]()), include_usage=True):
        ChatCompletionChunk.model_validate(chunk)


@pytest.mark.parametrize("name", list(RESPONSES))
async def test_events_converted_to_chunks_add_up_to_the_same_answer(name: str) -> None:
    response = RESPONSES[name]()
    chunks = await gathered(chunks_from_events(stream_of(response_events(response))))
    events = await gathered(events_from_chat_chunks(stream_of(chunks), {}))
    final = events[-1]["response"]

    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    for event in events:
        EVENT.validate_python(event)
    assert response_to_chat_completion(final) == response_to_chat_completion(response)


async def test_events_from_chunks_equal_the_response_from_the_whole_completion() -> None:
    completion = response_to_chat_completion(RESPONSES["reasoning"]())
    events = await gathered(events_from_chat_chunks(stream_of(chat_chunks(completion, include_usage=True)), {}))
    streamed, whole = events[-1]["response"], chat_completion_to_response(completion, {})
    random_fields = {"id", "completed_at"}

    assert streamed["id"] == whole["id"]
    assert streamed.keys() == whole.keys()
    for key in streamed.keys() - {*random_fields, "output"}:
        assert streamed[key] == whole[key], key
    for ours, theirs in zip(streamed["output"], whole["output"], strict=True):
        assert {**ours, "id": ""} == {**theirs, "id": ""}
    assert without_parsing_aids(final_response(events)) == parsed(streamed)


def chunk(delta: JsonObject, *, finish: str | None = None, **more: object) -> JsonObject:
    choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish} | more
    return {"id": "chatcmpl-7", "created": 1, "model": "m", "choices": [choice]}


async def test_interleaved_calls_are_told_apart_by_their_index() -> None:
    def piece(index: int, arguments: str, **more: object) -> JsonObject:
        return chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments} | more}]})

    opening = [{"index": n, "id": f"call_{n}", "function": {"name": f"f{n}"}} for n in (0, 1)]
    parts = [chunk({"tool_calls": opening}), piece(0, '{"a'), piece(1, "{"), piece(0, '": 1}'), piece(1, "}")]
    events = await gathered(events_from_chat_chunks(stream_of([*parts, chunk({}, finish="tool_calls")]), {}))
    output = events[-1]["response"]["output"]

    assert [(item["call_id"], item["name"], item["arguments"]) for item in output] == [
        ("call_0", "f0", '{"a": 1}'),
        ("call_1", "f1", "{}"),
    ]
    assert without_parsing_aids(final_response(events)) == parsed(events[-1]["response"])


async def test_calls_without_an_index_are_told_apart_by_their_id() -> None:
    parts = [
        chunk({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]}),
        chunk({"tool_calls": [{"function": {"arguments": "}"}}]}),
        chunk({"tool_calls": [{"id": "b", "function": {"name": "", "arguments": "{}"}}]}),
        chunk({"tool_calls": [{"id": "b", "function": {"name": "late"}}]}, finish="tool_calls"),
    ]
    events = await gathered(events_from_chat_chunks(stream_of(parts), {}))

    assert [(item["name"], item["arguments"]) for item in events[-1]["response"]["output"]] == [
        ("f", "{}"),
        ("late", "{}"),
    ]


async def test_token_ids_and_log_probs_of_all_chunks_are_gathered() -> None:
    def logprobs(token: str) -> JsonObject:
        return {"content": [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []}]}

    parts = [
        chunk({"content": "a"}, token_ids=[3], logprobs=logprobs("a")) | {"prompt_token_ids": [1, 2]},
        chunk({"content": "b"}, token_ids=[4], logprobs=logprobs("b"), finish="length"),
    ]
    events = await gathered(events_from_chat_chunks(stream_of(parts), {}))
    response = events[-1]["response"]
    item = response["output"][0]

    assert events[-1]["type"] == "response.incomplete"
    assert item.items() >= {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4]}.items()
    assert item["generation_log_probs"] == [-0.5, -0.5]
    assert [entry["token"] for entry in item["content"][0]["logprobs"]] == ["a", "b"]
    assert item["status"] == "incomplete"
    for event in events:
        EVENT.validate_python(event)


async def test_events_come_as_soon_as_their_chunk_is_there() -> None:
    sent: list[str] = []

    async def chunks() -> AsyncIterator[JsonObject]:
        for text in ("a", "b", ""):
            sent.append(text)
            yield chunk({"content": text}, finish=None if text else "stop")

    seen = []
    async for event in events_from_chat_chunks(chunks(), {}):
        if event["type"] == "response.output_text.delta":
            seen.append((event["delta"], len(sent)))

    assert seen == [("a", 1), ("b", 2)]


async def test_an_empty_stream_of_text_is_an_empty_message() -> None:
    events = await gathered(events_from_chat_chunks(stream_of([chunk({}, finish="stop")]), {}))

    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


@pytest.mark.parametrize("parts", [[], [chunk({"content": "a"})]])
async def test_chunks_that_stop_early_are_a_retryable_failure(parts: list[JsonObject]) -> None:
    with pytest.raises(UpstreamError, match="stopped") as failed:
        await gathered(events_from_chat_chunks(stream_of(parts), {}))

    assert is_retryable(failed.value)


async def test_a_broken_off_or_failing_chunk_stream_is_an_error() -> None:
    with pytest.raises(UpstreamError, match="broke the generation off"):
        await gathered(events_from_chat_chunks(stream_of([chunk({}, finish="abort")]), {}))
    with pytest.raises(UpstreamError, match="out of memory"):
        await gathered(events_from_chat_chunks(stream_of([{"error": {"message": "out of memory"}}]), {}))


async def test_events_that_stop_early_are_a_retryable_failure() -> None:
    events = list(response_events(RESPONSES["text"]()))[:-1]
    with pytest.raises(UpstreamError, match="stopped") as failed:
        await gathered(chunks_from_events(stream_of(events)))

    assert is_retryable(failed.value)


async def test_a_failed_or_failing_event_stream_is_an_error() -> None:
    failed = respond(status="failed") | {"error": {"code": "server_error", "message": "boom"}}
    with pytest.raises(UpstreamError, match="boom"):
        await gathered(chunks_from_events(stream_of(response_events(failed))))
    with pytest.raises(UpstreamError, match="bang"):
        await gathered(chunks_from_events(stream_of([{"type": "error", "message": "bang"}])))


async def test_usage_of_converted_events_is_left_out_when_nobody_wants_it() -> None:
    events = stream_of(response_events(RESPONSES["text"]()))

    assert all(part["choices"] for part in await gathered(chunks_from_events(events, include_usage=False)))


async def test_whole_items_without_deltas_are_not_lost() -> None:
    response = respond(
        reasoning_item("why"),
        text_message("42"),
        output_message([{"type": "refusal", "refusal": "no"}]),
        function_call("f", "{}"),
    )
    kept = ("response.created", "response.output_item.done", "response.completed")
    events = [event for event in response_events(response) if event["type"] in kept]
    final = final_completion(await gathered(chunks_from_events(stream_of(events))))
    message = final["choices"][0]["message"]

    assert (message["content"], message["refusal"], message["reasoning_content"]) == ("42", "no", "why")
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_texts_of_several_messages_are_streamed_as_lines() -> None:
    response = respond(reasoning_item("p"), text_message("a"), reasoning_item("q"), text_message("b"))
    final = final_completion(await gathered(chunks_from_events(stream_of(response_events(response)))))

    assert final["choices"][0]["message"]["content"] == "a\nb"
    assert final["choices"][0]["message"]["reasoning_content"] == "p\nq"


_TEXT = st.text(min_size=1, max_size=6)
_DELTAS = st.one_of(
    _TEXT.map(lambda text: {"content": text}),
    _TEXT.map(lambda text: {"reasoning_content": text}),
    _TEXT.map(lambda text: {"refusal": text}),
    st.tuples(st.integers(0, 2), _TEXT).map(
        lambda pair: {
            "tool_calls": [{"index": pair[0], "id": f"c{pair[0]}", "function": {"name": "f", "arguments": pair[1]}}]
        }
    ),
)


@settings(max_examples=60)
@given(st.lists(_DELTAS, max_size=8))
async def test_any_sequence_of_deltas_becomes_a_legal_stream_that_ends_in_its_response(
    deltas: list[JsonObject],
) -> None:
    parts = [*map(chunk, deltas), chunk({}, finish="stop")]
    events = await gathered(events_from_chat_chunks(stream_of(parts), {}))

    for event in events:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert without_parsing_aids(final_response(events)) == parsed(events[-1]["response"])
    for call_id in ("c0", "c1", "c2"):
        sent = [
            call["function"]["arguments"] for d in deltas for call in d.get("tool_calls", []) if call["id"] == call_id
        ]
        got = [i["arguments"] for i in events[-1]["response"]["output"] if i.get("call_id") == call_id]
        assert "".join(sent) == "".join(got)
