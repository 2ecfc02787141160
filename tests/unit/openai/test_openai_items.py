import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from rollmill.contracts.json import JsonObject
from rollmill.errors import InputError
from rollmill.openai import function_call, normalize_input, text_message
from rollmill.openai.items import reasoning_item, reasoning_text


def test_built_items_are_what_the_openai_client_expects() -> None:
    assert ResponseOutputMessage.model_validate(text_message("hi")).content[0].type == "output_text"
    assert ResponseFunctionToolCall.model_validate(function_call("f", "{}", "call_1")).call_id == "call_1"
    assert ResponseReasoningItem.model_validate(reasoning_item("why")).summary[0].text == "why"


def test_function_calls_without_an_id_get_ids_of_their_own() -> None:
    first, second = function_call("f", "{}"), function_call("f", "{}")

    assert first["call_id"] != second["call_id"]
    assert first["id"] != second["id"]


def test_reasoning_text_prefers_the_content_over_the_summary() -> None:
    summary = [{"type": "summary_text", "text": "short"}]

    assert reasoning_text({"summary": summary}) == "short"
    assert reasoning_text({"summary": summary, "content": [{"type": "reasoning_text", "text": "long"}]}) == "long"
    assert reasoning_text({"summary": [], "content": "plain"}) == "plain"
    assert reasoning_text({}) == ""


def test_a_string_input_equals_one_user_message() -> None:
    assert normalize_input("hi") == [{"type": "message", "role": "user", "content": "hi"}]
    assert normalize_input("hi") == normalize_input([{"role": "user", "content": "hi"}])
    assert normalize_input("hi") == normalize_input(
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "status": None}]
    )


def test_an_output_message_equals_the_same_message_sent_back_as_input() -> None:
    sent = {"role": "assistant", "content": "answer"}
    returned = text_message("answer") | {"prompt_token_ids": [1], "generation_token_ids": [2]}
    returned["content"][0]["logprobs"] = [{"token": "a", "logprob": -0.1}]

    assert normalize_input([sent]) == normalize_input([returned])


def test_several_text_parts_are_one_string() -> None:
    content = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}, "c"]

    assert normalize_input([{"role": "user", "content": content}])[0]["content"] == "abc"
    assert normalize_input([{"role": "user", "content": []}])[0]["content"] == ""


def test_function_calls_keep_name_arguments_and_call_id_only() -> None:
    call = function_call("add", '{"a": 1}', "call_7")
    output = {"type": "function_call_output", "call_id": "call_7", "output": "2", "id": "x", "status": "completed"}

    assert normalize_input([call, output]) == [
        {"type": "function_call", "name": "add", "arguments": '{"a": 1}', "call_id": "call_7"},
        {"type": "function_call_output", "call_id": "call_7", "output": "2"},
    ]


def test_a_tool_output_in_parts_equals_the_same_output_as_text() -> None:
    parts = [{"type": "input_text", "text": "42"}]

    assert normalize_input([{"type": "function_call_output", "call_id": "c", "output": parts}]) == normalize_input(
        [{"type": "function_call_output", "call_id": "c", "output": "42"}]
    )


def test_reasoning_and_images_are_kept_without_ids_and_nulls() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": None, "file_id": None}

    assert normalize_input(
        [reasoning_item("why"), {"role": "user", "content": [image, {"type": "text", "text": "?"}]}]
    ) == [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "data:image/png;base64,AA"},
                {"type": "text", "text": "?"},
            ],
        },
    ]


@pytest.mark.parametrize("value", [None, 3, {"role": "user"}])
def test_an_input_that_is_no_list_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="/input"):
        normalize_input(value)


def test_an_item_that_is_no_object_is_refused_by_its_position() -> None:
    with pytest.raises(InputError, match="/input/1"):
        normalize_input([{"role": "user", "content": "a"}, "b"])


def test_parts_of_unknown_shape_stay_as_they_are() -> None:
    assert normalize_input([{"role": "user", "content": [7]}])[0]["content"] == [7]


_TEXT = st.text(max_size=12)
_NOISE: st.SearchStrategy[JsonObject] = st.fixed_dictionaries(
    {}, optional={"id": _TEXT, "status": st.sampled_from(["completed", None]), "annotations": st.just([])}
)
_MESSAGES = st.builds(
    lambda role, text, noise: {"role": role, "content": text} | noise,
    st.sampled_from(["user", "assistant", "system"]),
    _TEXT,
    _NOISE,
)


@settings(max_examples=60)
@given(st.lists(_MESSAGES, max_size=5))
def test_normalizing_is_idempotent_and_blind_to_noise(messages: list[JsonObject]) -> None:
    once = normalize_input(messages)

    assert normalize_input(once) == once
    assert once == normalize_input([{"role": m["role"], "content": m["content"]} for m in messages])
