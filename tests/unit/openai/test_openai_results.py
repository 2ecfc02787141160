import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import answer_text
from rollmill.errors import UpstreamError, is_retryable
from rollmill.openai import (
    chat_completion_to_response,
    function_call,
    new_response,
    response_to_chat_completion,
    text_message,
)
from rollmill.openai.results import check_error

TOKENS: JsonObject = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}


def completion(message: JsonObject, *, finish: str = "stop", **more: object) -> JsonObject:
    choice = {"index": 0, "finish_reason": finish, "logprobs": None, "message": {"role": "assistant"} | message}
    whole: JsonObject = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m"}
    return whole | {"choices": [choice]} | more


def tool_call(call_id: str, name: str = "f", arguments: str = "{}") -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def converted(message: JsonObject, *, finish: str = "stop", **more: object) -> JsonObject:
    response = chat_completion_to_response(completion(message, finish=finish, **more), {"input": "x"})
    Response.model_validate(response)
    return response


def test_a_new_response_is_what_the_openai_client_expects() -> None:
    request: JsonObject = {
        "input": "x",
        "instructions": "be brief",
        "temperature": 0.3,
        "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "f"},
        "metadata": {"team": "a"},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 9,
    }
    response = new_response(
        [text_message("hi"), function_call("f", "{}")],
        request=request,
        model="m",
        usage={"input_tokens": 2, "output_tokens": 3},
    )
    parsed = Response.model_validate(response)

    assert parsed.output_text == "hi"
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == 5
    assert parsed.instructions == "be brief"
    assert parsed.temperature == 0.3
    assert parsed.status == "completed"
    assert parsed.id.startswith("resp_")
    assert response["tools"][0] == {"type": "function", "name": "f", "parameters": None, "strict": None}


def test_a_new_response_needs_nothing_but_its_output() -> None:
    response = new_response([], request={"model": "from-request"}, model="")

    assert Response.model_validate(response).usage is None
    assert response["model"] == "from-request"


def test_an_incomplete_new_response_says_that_the_length_limit_was_reached() -> None:
    response = new_response([text_message("h")], request={}, model="m", status="incomplete")

    assert Response.model_validate(response).incomplete_details is not None
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None


def test_text_becomes_a_message_and_ids_and_times_are_kept() -> None:
    response = converted({"content": "hello"})

    assert answer_text(response) == "hello"
    assert response["id"] == "resp_1"
    assert response["created_at"] == 1_700_000_000
    assert response["model"] == "m"


def test_parallel_calls_keep_their_order_and_ids_and_follow_the_text() -> None:
    calls = [tool_call("a"), tool_call("b", "g", '{"x": 1}')]
    response = converted({"content": "wait", "tool_calls": calls}, finish="tool_calls")
    back = response_to_chat_completion(response)

    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
    assert [item["call_id"] for item in response["output"][1:]] == ["a", "b"]
    assert back["choices"][0]["message"]["tool_calls"] == calls
    assert back["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_without_text_makes_no_empty_message() -> None:
    assert [item["type"] for item in converted({"content": None, "tool_calls": [tool_call("a")]})["output"]] == [
        "function_call"
    ]


def test_arguments_that_an_engine_sends_as_an_object_become_text() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}

    assert converted({"tool_calls": [call]})["output"][0]["arguments"] == '{"x":1}'


def test_an_empty_answer_is_one_empty_message() -> None:
    assert answer_text(converted({"content": ""})) == ""
    assert converted({"content": None})["output"][0]["type"] == "message"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_becomes_an_item_of_its_own_and_comes_back(field: str) -> None:
    response = converted({"content": "42", field: "because"})

    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response_to_chat_completion(response)["choices"][0]["message"]["reasoning_content"] == "because"


def test_a_refusal_becomes_a_refusal_part_and_comes_back() -> None:
    response = converted({"content": None, "refusal": "no"})
    message = response_to_chat_completion(response)["choices"][0]["message"]

    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "no"}]
    assert message == {"role": "assistant", "content": None, "refusal": "no"}


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_cut_answer_is_incomplete_both_ways(finish: str, reason: str) -> None:
    response = converted({"content": "hal"}, finish=finish)

    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert response["output"][-1]["status"] == "incomplete"
    assert response_to_chat_completion(response)["choices"][0]["finish_reason"] == finish


def test_an_answer_cut_while_reasoning_is_incomplete_too() -> None:
    response = converted({"content": None, "reasoning_content": "hm"}, finish="length")

    assert response["status"] == "incomplete"
    assert response["output"][0]["type"] == "reasoning"


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_a_generation_that_the_engine_broke_off_is_a_retryable_failure(finish: str) -> None:
    with pytest.raises(UpstreamError) as failed:
        converted({"content": "hal"}, finish=finish)

    assert is_retryable(failed.value)


@pytest.mark.parametrize("choices", [None, [], ["x"]])
def test_a_completion_without_choices_is_a_retryable_failure(choices: object) -> None:
    with pytest.raises(UpstreamError, match="no choices") as failed:
        chat_completion_to_response({"choices": choices}, {})

    assert is_retryable(failed.value)


def test_usage_survives_both_ways_with_its_details() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    response = converted({"content": "x"}, usage=usage)

    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 6
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    assert response_to_chat_completion(response)["usage"] == usage


def test_usage_without_details_gets_zeros_and_no_usage_stays_none() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": None}

    assert converted({"content": "x"}, usage=usage)["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert converted({"content": "x"})["usage"] is None
    assert "usage" not in response_to_chat_completion(converted({"content": "x"}))


def test_token_ids_on_the_message_ride_on_the_last_item_and_come_back() -> None:
    response = converted({"content": "x", "tool_calls": [tool_call("a")]} | TOKENS)

    assert response["output"][-1].items() >= TOKENS.items()
    assert "prompt_token_ids" not in response["output"][0]
    assert response_to_chat_completion(response)["choices"][0]["message"].items() >= TOKENS.items()


def test_token_ids_on_choice_and_completion_are_found_and_log_probs_derived() -> None:
    answer = completion({"content": "x"}, prompt_token_ids=[1, 2])
    answer["choices"][0] |= {"token_ids": [3], "logprobs": {"content": [{"token": "x", "logprob": -0.5}]}}
    output = chat_completion_to_response(answer, {})["output"]

    assert output[-1].items() >= TOKENS.items()


def test_tokens_written_as_ids_are_read_as_ids() -> None:
    answer = completion({"content": "x"})
    entries = [{"token": "token_id:7", "logprob": -0.1}, {"token": "token_id:8", "logprob": -0.2}]
    answer["choices"][0]["logprobs"] = {"content": entries}
    item = chat_completion_to_response(answer, {})["output"][-1]

    assert item["generation_token_ids"] == [7, 8]
    assert item["generation_log_probs"] == [-0.1, -0.2]


def test_ordinary_log_probs_stand_on_the_text_part_and_come_back() -> None:
    answer = completion({"content": "é"})
    other = {"token": "e", "logprob": -2.0, "bytes": [101]}
    answer["choices"][0]["logprobs"] = {"content": [{"token": "é", "logprob": -0.1, "top_logprobs": [other]}]}
    response = chat_completion_to_response(answer, {})
    entry = response["output"][0]["content"][0]["logprobs"][0]
    back = response_to_chat_completion(response)

    Response.model_validate(response)
    assert entry == {"token": "é", "logprob": -0.1, "bytes": [195, 169], "top_logprobs": [other]}
    assert "generation_log_probs" not in response["output"][0]
    assert ChatCompletion.model_validate(back).choices[0].logprobs is not None


def test_several_messages_of_a_response_are_lines_of_one_content() -> None:
    response = new_response([text_message("a"), text_message("b")], request={}, model="m")

    assert response_to_chat_completion(response)["choices"][0]["message"]["content"] == "a\nb"


def test_items_that_are_not_the_assistants_are_left_out_of_a_completion() -> None:
    output = [text_message("a"), {"type": "message", "role": "user", "content": "b"}, {"type": "web_search_call"}]
    message = response_to_chat_completion(new_response(output, request={}, model="m"))["choices"][0]["message"]

    assert message["content"] == "a"


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ({"code": "server_error", "message": "boom"}, True),
        ({"code": "invalid_prompt", "message": "boom"}, False),
        (None, True),
    ],
)
def test_a_failed_response_is_an_error_and_not_an_empty_answer(error: JsonObject | None, retryable: bool) -> None:
    response = new_response([], request={}, model="m", status="failed") | {"error": error}
    with pytest.raises(UpstreamError) as failed:
        response_to_chat_completion(response)

    assert is_retryable(failed.value) is retryable


@pytest.mark.parametrize(
    ("part", "retryable"),
    [
        ({"error": {"message": "boom", "code": 500}}, True),
        ({"error": {"message": "boom", "code": 429}}, True),
        ({"error": {"message": "boom", "code": 400}}, False),
        ({"error": "boom"}, True),
        ({"type": "error", "message": "boom", "code": "context_length_exceeded"}, False),
    ],
)
def test_an_error_within_a_stream_says_whether_a_retry_can_help(part: JsonObject, retryable: bool) -> None:
    with pytest.raises(UpstreamError, match="boom") as failed:
        check_error(part)

    assert is_retryable(failed.value) is retryable


_TEXT = st.text(min_size=1, max_size=8)
_CALLS = st.lists(st.builds(tool_call, st.uuids().map(str), _TEXT, _TEXT), max_size=3)


@settings(max_examples=80)
@given(st.none() | _TEXT, st.none() | _TEXT, _CALLS, st.sampled_from(["stop", "length", "content_filter"]))
def test_a_completion_survives_the_way_to_a_response_and_back(
    text: str | None, reasoning: str | None, calls: list[JsonObject], finish: str
) -> None:
    finish = "tool_calls" if calls and finish == "stop" else finish
    message: JsonObject = {"role": "assistant", "content": text if text or calls else "", "refusal": None}
    message |= {"reasoning_content": reasoning} if reasoning else {}
    message |= {"tool_calls": calls} if calls else {}
    before = completion(message, finish=finish)
    after = response_to_chat_completion(chat_completion_to_response(before, {}))

    ChatCompletion.model_validate(after)
    assert after == before
