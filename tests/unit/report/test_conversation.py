"""Model output is hostile: whatever a rollout holds is shown as text, and only so much of it."""

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import Row
from rollmill.report.conversation import ITEMS, ROOM, anchor, cut, rollout_details


def row(*output: JsonValue, prompt: JsonValue = "What is 6 x 7?", **fields: JsonValue) -> Row:
    return {
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "agent_ref": {"name": "solver"},
        "responses_create_params": {"input": prompt},
        "response": {"output": list(output), "usage": {"output_tokens": 12}},
        "reward": 0.0,
        **fields,
    }


def shown(of: Row) -> Element:
    return ElementTree.fromstring(rollout_details("3:1", of))


def text(element: Element | None) -> str:
    assert element is not None
    return "".join(element.itertext())


def turns(of: Row) -> list[tuple[str, str]]:
    """Who says what."""
    return [
        (str(turn.findtext("h4")), text(turn.find("pre")))
        for turn in shown(of).iter("li")
        if turn.find("h4") is not None
    ]


def message(content: JsonValue, role: str = "assistant") -> JsonObject:
    return {"type": "message", "role": role, "content": content}


def test_a_conversation_is_told_turn_by_turn() -> None:
    conversation = row(
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Multiply."}]},
        {"type": "function_call", "name": "multiply", "arguments": '{"a": 6, "b": 7}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        message([{"type": "output_text", "text": "It is 42."}, {"type": "refusal", "refusal": "No more."}]),
        prompt=[{"role": "system", "content": "Be short."}, message("What is 6 x 7?", "user")],
    )

    assert turns(conversation) == [
        ("system", "Be short."),
        ("user", "What is 6 x 7?"),
        ("reasoning", "Multiply."),
        ("calls multiply", '{"a": 6, "b": 7}'),
        ("tool output", "42"),
        ("assistant", "It is 42.\nNo more."),
    ]


def test_instructions_and_a_plain_prompt_are_turns_too() -> None:
    plain = row(message("42"))
    plain["responses_create_params"]["instructions"] = "Be short."

    assert turns(plain)[:2] == [("system", "Be short."), ("user", "What is 6 x 7?")]


def test_what_is_not_known_is_shown_as_json() -> None:
    unknown = row({"type": "web_search_call", "query": "x"}, 7, None, message([{"type": "input_image", "url": "u"}]))

    assert turns(unknown)[1:] == [
        ("web_search_call", '{"type":"web_search_call","query":"x"}'),
        ("item", "7"),
        ("item", "null"),
        ("assistant", '{"type":"input_image","url":"u"}'),
    ]


def test_the_fields_of_the_verifier_are_a_table() -> None:
    details = shown(row(message("42"), extracted_answer="42", correct=False, judge={"votes": [1, 0]}))

    fields = {str(line.findtext("th")): text(line.find("td")) for line in details.iter("tr")}
    assert fields == {
        "reward": "0.0",
        "extracted_answer": "42",
        "correct": "false",
        "judge": '{"votes":[1,0]}',
        "usage": '{"output_tokens":12}',
    }


def test_the_anchor_is_inside_so_that_a_link_opens_the_rollout() -> None:
    details = shown(row(message("42")))

    assert details.tag == "details"
    assert details.get("id") is None
    assert [element.get("id") for element in details if element.tag != "summary"] == [anchor("3:1")] == ["rollout-3-1"]
    assert text(details.find("summary")) == "Task 3, rollout 1reward 0.000solver"


HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></details></body><script src=//evil></script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "[click](javascript:alert(1))",
    "<!-- --> ]]> &lt;script&gt;",
    "<svg/onload=alert(1)>",
    "<style>*{display:none}</style>",
]


@pytest.mark.parametrize("payload", HOSTILE)
def test_hostile_text_stays_text_wherever_it_is(payload: str) -> None:
    everywhere = row(
        message(payload, role=payload),
        {"type": "function_call", "name": payload, "arguments": payload},
        {"type": "function_call_output", "output": payload},
        {"type": "reasoning", "summary": [{"text": payload}]},
        {"type": payload},
        {payload: payload},
        prompt=payload,
        agent_ref={"name": payload},
        **{payload: payload},
    )
    page = rollout_details("3:1", everywhere)
    details = ElementTree.fromstring(page)

    elements = {element.tag for element in details.iter()}
    assert elements <= {
        "details",
        "summary",
        "span",
        "bdi",
        "div",
        "ol",
        "li",
        "h4",
        "pre",
        "table",
        "tbody",
        "tr",
        "th",
        "td",
    }
    attributes = {name for element in details.iter() for name in element.attrib}
    assert attributes <= {"class", "id", "dir", "scope", "tabindex"}
    assert text(details).count(payload) >= 8


def test_terminal_escapes_and_reordering_characters_are_made_visible() -> None:
    ((_, said),) = turns(row(message("\x1b[2Jgone \u202etxt.exe\u202c \x07"), prompt=None))

    assert said == r"\x1b[2Jgone \u202etxt.exe\u202c \x07"


def test_right_to_left_text_keeps_its_direction_and_turns_nothing_else() -> None:
    details = shown(row(message("שלום עולם"), prompt=None))

    (pre,) = (pre for turn in details.iter("li") for pre in turn.iter("pre"))
    assert pre.get("dir") == "auto"
    assert pre.text == "שלום עולם"


def test_lone_surrogates_do_not_break_the_page() -> None:
    ((_, said),) = turns(row(message("a\ud800b"), prompt=None))

    assert said == r"a\ud800b"


def test_a_long_text_is_cut_and_its_length_told() -> None:
    long = "a" * 2_500_000 + "b" * 2_500_000
    page = rollout_details("3:1", row(message(long), answer=long))
    ((_, said),) = [turn for turn in turns(row(message(long), prompt=None))]

    assert len(page) < 12_000
    assert f"{len(long) - ROOM:,} of 5,000,000 characters left out" in said
    assert said.startswith("aaa")
    assert said.endswith("bbb")


def test_a_long_conversation_is_cut_in_the_middle() -> None:
    long = row(*(message(f"turn {at} " + "x" * 5000) for at in range(1000)), prompt=None)
    page = rollout_details("3:1", long)

    said = turns(long)
    assert len(said) == 2 * ITEMS
    assert said[ITEMS - 1][1].startswith(f"turn {ITEMS - 1} ")
    assert said[ITEMS][1].startswith(f"turn {1000 - ITEMS} ")
    assert "940 items left out" in page
    assert len(page) < 120_000


def test_many_fields_are_cut() -> None:
    page = rollout_details("3:1", row(message("x"), **{f"field_{at}": at for at in range(500)}))

    assert "442 fields left out" in page
    assert len(page) < 20_000


def test_deeply_nested_values_are_told_of() -> None:
    deep: JsonValue = []
    for _ in range(400):
        deep = [deep]

    assert turns(row({"type": "odd", "value": deep}))[-1] == ("odd", "(nested too deeply to be shown)")


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"response": None, "responses_create_params": None},
        {"response": [], "responses_create_params": "x", "agent_ref": 7, "reward": "high"},
        {"response": {"output": "just text"}},
        {"response": {"output": {"a": 1}}, "responses_create_params": {"input": 7, "instructions": {"b": 2}}},
        {"response": {"output": [{"type": "message", "content": 5}, {"type": "reasoning", "summary": 5}, {"type": 9}]}},
        {"response": {"output": [{"type": "reasoning", "content": [None, 1, {"text": 7}]}], "usage": "many"}},
        {"response": {"output": [{"type": "function_call"}, {"type": "message", "content": [None, "a", ["b"]]}]}},
    ],
)
def test_rows_of_any_shape_can_be_shown(odd: Row) -> None:
    assert shown(odd).tag == "details"


def test_a_rollout_without_a_conversation_says_so() -> None:
    assert "no conversation" in text(shown({"reward": 1.0}))


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 12, 1000])
def test_a_text_is_cut_to_its_room(length: int) -> None:
    whole = "".join(chr(97 + at % 26) for at in range(length))
    start, left_out, end = cut(whole, 10)

    assert len(start) + left_out + len(end) == length
    assert len(start) + len(end) <= 10
    assert whole.startswith(start)
    assert whole.endswith(end)
