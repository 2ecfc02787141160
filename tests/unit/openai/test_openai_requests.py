import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.contracts.json import JsonObject
from rollmill.errors import InputError
from rollmill.openai import chat_request_to_responses, responses_request_to_chat
from rollmill.openai.requests import merge_extra_body

SCHEMA: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}}
FLAT_TOOL: JsonObject = {
    "type": "function",
    "name": "weather",
    "description": "Look it up.",
    "parameters": SCHEMA,
    "strict": True,
}
NESTED_TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "weather", "description": "Look it up.", "parameters": SCHEMA, "strict": True},
}


def user(text: str) -> JsonObject:
    return {"type": "message", "role": "user", "content": text}


def call(call_id: str, arguments: str = "{}") -> JsonObject:
    return {"type": "function_call", "call_id": call_id, "name": "weather", "arguments": arguments}


def output(call_id: str, text: str) -> JsonObject:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def assistant(text: str) -> JsonObject:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def messages(*items: JsonObject) -> list[JsonObject]:
    converted: list[JsonObject] = responses_request_to_chat({"input": list(items)})["messages"]
    return converted


def test_a_string_input_and_instructions_become_two_messages() -> None:
    assert responses_request_to_chat({"input": "hi", "instructions": "be brief", "model": "m"}) == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
    }


def test_system_and_developer_messages_keep_their_roles_both_ways() -> None:
    chat = {"messages": [{"role": role, "content": role} for role in ("system", "developer", "user")]}

    assert [item["role"] for item in chat_request_to_responses(chat)["input"]] == ["system", "developer", "user"]
    assert responses_request_to_chat(chat_request_to_responses(chat)) == chat


def test_consecutive_calls_become_one_message_whose_content_is_the_text_before_them() -> None:
    found = messages(user("?"), assistant("let me see"), call("a"), call("b"), output("a", "1"), output("b", "2"))

    assert found[1]["content"] == "let me see"
    assert [made["id"] for made in found[1]["tool_calls"]] == ["a", "b"]
    assert found[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]


def test_calls_answered_one_after_another_stay_separate_turns() -> None:
    found = messages(user("?"), call("a"), output("a", "1"), call("b"), output("b", "2"))

    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant", "tool"]
    assert found[1]["content"] is None


def test_nothing_stands_between_a_message_with_calls_and_its_tool_messages() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    found = messages(user("?"), call("a"), thought, assistant("and"), call("b"), output("a", "1"), output("b", "2"))

    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool"]
    assert found[1]["content"] == "and"
    assert found[1]["reasoning_content"] == "hm"


def test_two_assistant_messages_in_a_row_stay_two() -> None:
    assert [message["content"] for message in messages(assistant("a"), assistant("b"))] == ["a", "b"]


def test_reasoning_goes_with_the_message_that_follows_it() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}

    assert messages(user("?"), thought, assistant("42"))[1] == {
        "role": "assistant",
        "content": "42",
        "reasoning_content": "hm",
    }


def test_reasoning_without_text_is_left_out() -> None:
    assert messages(user("?"), {"type": "reasoning", "summary": [], "encrypted_content": "x"}) == [
        {"role": "user", "content": "?"}
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_chat_reasoning_becomes_a_reasoning_item(field: str) -> None:
    items = chat_request_to_responses({"messages": [{"role": "assistant", "content": "42", field: "hm"}]})["input"]

    assert items[0] == {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert items[1]["content"] == "42"


def test_refusals_survive_both_ways() -> None:
    chat = {"messages": [{"role": "assistant", "content": None, "refusal": "no"}]}

    assert responses_request_to_chat(chat_request_to_responses(chat)) == chat


def test_an_assistant_message_that_says_nothing_stays_a_turn() -> None:
    chat = {"messages": [{"role": "assistant", "content": ""}, {"role": "user", "content": "?"}]}

    assert responses_request_to_chat(chat_request_to_responses(chat)) == chat


def test_token_ids_ride_on_the_last_item_of_a_turn() -> None:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    made = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    chat = {"messages": [{"role": "assistant", "content": "x", "tool_calls": [made]} | tokens]}
    request = chat_request_to_responses(chat)

    assert "prompt_token_ids" not in request["input"][0]
    assert request["input"][1]["generation_token_ids"] == [3]
    assert responses_request_to_chat(request) == chat


def test_images_and_files_are_passed_through_in_the_other_shape() -> None:
    parts = [
        {"type": "input_text", "text": "what is it?"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "low"},
        {"type": "input_file", "file_id": "file_1"},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]
    chat = responses_request_to_chat({"input": [{"role": "user", "content": parts}]})

    assert chat["messages"][0]["content"] == [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]
    assert chat_request_to_responses(chat)["input"][0]["content"] == parts


def test_a_single_text_part_becomes_a_plain_string_for_engines_that_take_no_lists() -> None:
    assert messages({"role": "user", "content": [{"type": "input_text", "text": "hi"}]})[0]["content"] == "hi"
    assert messages({"role": "user", "content": []})[0]["content"] == ""


def test_tool_outputs_of_other_types_become_text() -> None:
    found = messages(call("a"), {"type": "function_call_output", "call_id": "a", "output": {"t": 1}})
    listed = messages(call("a"), output("a", "") | {"output": [{"type": "input_text", "text": "x"}]})

    assert found[1]["content"] == '{"t":1}'
    assert listed[1]["content"] == "x"


@pytest.mark.parametrize("tool", [FLAT_TOOL, NESTED_TOOL])
def test_tools_in_either_shape_become_the_right_one(tool: JsonObject) -> None:
    assert responses_request_to_chat({"input": "x", "tools": [tool]})["tools"] == [NESTED_TOOL]
    assert chat_request_to_responses({"messages": [], "tools": [tool]})["tools"] == [FLAT_TOOL]


def test_null_fields_of_a_tool_are_dropped() -> None:
    tool = {"type": "function", "name": "f", "parameters": None, "description": None, "strict": None}

    assert responses_request_to_chat({"input": "x", "tools": [tool]})["tools"] == [
        {"type": "function", "function": {"name": "f"}}
    ]


@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
        ),
    ],
)
def test_tool_choice_is_converted_both_ways(flat: object, nested: object) -> None:
    chat = responses_request_to_chat({"input": "x", "tools": [FLAT_TOOL], "tool_choice": flat})
    back = chat_request_to_responses({"messages": [], "tools": [NESTED_TOOL], "tool_choice": nested})

    assert chat["tool_choice"] == nested
    assert back["tool_choice"] == flat
    assert (
        responses_request_to_chat({"input": "x", "tools": [FLAT_TOOL], "tool_choice": nested})["tool_choice"] == nested
    )


def test_fields_about_tools_are_left_out_when_there_are_none() -> None:
    request = {"input": "x", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}

    assert set(responses_request_to_chat(request)) == {"messages"}


def test_sampling_fields_pass_both_ways_and_the_length_limit_changes_its_name() -> None:
    shared = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["\n"], "user": "u", "stream": True, "top_k": 5}
    chat = responses_request_to_chat({"input": "x", "max_output_tokens": 7, **shared})

    assert chat == {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 7, **shared}
    assert chat_request_to_responses(chat) == {"input": [user("x")], "max_output_tokens": 7, **shared}
    assert chat_request_to_responses({"messages": [], "max_tokens": 9})["max_output_tokens"] == 9


def test_response_formats_reasoning_effort_and_verbosity_are_converted_both_ways() -> None:
    chat = {
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}},
        "verbosity": "low",
        "reasoning_effort": "high",
        "logprobs": True,
        "top_logprobs": 2,
    }
    request = chat_request_to_responses(chat)

    assert request["text"] == {
        "format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True},
        "verbosity": "low",
    }
    assert request["reasoning"] == {"effort": "high"}
    assert request["include"] == ["message.output_text.logprobs"]
    assert responses_request_to_chat(request) == chat


def test_json_object_format_keeps_its_shape() -> None:
    chat = {"messages": [], "response_format": {"type": "json_object"}}

    assert responses_request_to_chat(chat_request_to_responses(chat)) == chat


def test_null_fields_and_fields_that_chat_does_not_know_are_dropped() -> None:
    request = {"input": "x", "background": None, "include": None, "metadata": None, "truncation": "auto", "store": None}

    assert set(responses_request_to_chat(request)) == {"messages"}


def test_extra_body_is_merged_into_the_top_level() -> None:
    metadata = {"extra_body": '{"seed": 4, "temperature": 0.0}', "team": "a"}
    chat = responses_request_to_chat({"input": "x", "temperature": 1.0, "metadata": metadata})

    assert chat["seed"] == 4
    assert chat["temperature"] == 0.0
    assert chat["metadata"] == {"team": "a"}
    assert metadata["extra_body"]  # the caller's own request is left alone


def test_metadata_that_held_only_the_extra_body_disappears() -> None:
    assert merge_extra_body({"metadata": {"extra_body": '{"seed": 4}'}}) == {"seed": 4}
    assert merge_extra_body({"metadata": {"team": "a"}, "user": None}) == {"metadata": {"team": "a"}}


@pytest.mark.parametrize("text", ["{", "[1]", 3, '"x"'])
def test_an_extra_body_that_is_no_object_is_refused(text: object) -> None:
    with pytest.raises(InputError, match="/metadata/extra_body"):
        merge_extra_body({"metadata": {"extra_body": text}})


@pytest.mark.parametrize(
    ("request_", "pointer"),
    [
        ({}, "/input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "/previous_response_id"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "/tools/0/type"),
        ({"input": "x", "tools": ["weather"]}, "/tools"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "/input/0/type"),
        ({"input": [{"role": "narrator", "content": "x"}]}, "/input/0/role"),
        ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "/input/0/content/0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "/input/0/content/0"),
        ({"input": [{"role": "assistant", "content": [{"type": "input_image"}]}]}, "/input/0/content/0"),
    ],
)
def test_what_chat_cannot_express_is_refused_by_its_place(request_: JsonObject, pointer: str) -> None:
    with pytest.raises(InputError) as refused:
        responses_request_to_chat(request_)

    assert refused.value.extensions["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("request_", "pointer"),
    [
        ({}, "/messages"),
        ({"messages": [{"role": "narrator"}]}, "/messages/0/role"),
        ({"messages": ["x"]}, "/messages/0/role"),
        ({"messages": [], "n": 2}, "/n"),
    ],
)
def test_what_responses_cannot_express_is_refused_by_its_place(request_: JsonObject, pointer: str) -> None:
    with pytest.raises(InputError) as refused:
        chat_request_to_responses(request_)

    assert refused.value.extensions["errors"][0]["pointer"] == pointer


_TEXT = st.text(min_size=1, max_size=8)


@st.composite
def _turns(draw: st.DrawFn) -> list[JsonObject]:
    """One user message and an assistant turn, which may think, speak and call tools that are then answered."""
    turn: JsonObject = {"role": "assistant", "content": draw(_TEXT)}
    if draw(st.booleans()):
        turn["reasoning_content"] = draw(_TEXT)
    answers = []
    calls = draw(st.lists(st.tuples(st.uuids(), _TEXT), max_size=3))
    if calls:
        turn["content"] = draw(st.none() | _TEXT)
        turn["tool_calls"] = [
            {"id": str(number), "type": "function", "function": {"name": "f", "arguments": text}}
            for number, text in calls
        ]
        answers = [{"role": "tool", "tool_call_id": str(number), "content": draw(_TEXT)} for number, _ in calls]
    return [{"role": "user", "content": draw(_TEXT)}, turn, *answers]


@settings(max_examples=80)
@given(st.lists(_turns(), min_size=1, max_size=3), st.fixed_dictionaries({}, optional={"seed": st.integers(0, 9)}))
def test_a_chat_request_survives_the_way_to_responses_and_back(
    turns: list[list[JsonObject]], sampling: JsonObject
) -> None:
    chat = {"messages": [message for turn in turns for message in turn], "tools": [NESTED_TOOL], **sampling}

    assert responses_request_to_chat(chat_request_to_responses(chat)) == chat
