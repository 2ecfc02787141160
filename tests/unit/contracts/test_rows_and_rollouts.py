import math

import pytest

from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, JsonValue, canonical, dumps, loads
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import InputError


def answer(text: JsonValue) -> JsonObject:
    return {"output": [{"type": "message", "role": "assistant", "content": text}]}


def test_a_row_key_needs_two_indices() -> None:
    assert str(rows.row_key({"_ng_task_index": 3, "_ng_rollout_index": 1})) == "3:1"


@pytest.mark.parametrize("value", [None, True, -1, "0", 1.0])
def test_a_wrong_index_is_named(value: JsonValue) -> None:
    with pytest.raises(ValueError, match="_ng_rollout_index must be an integer >= 0"):
        rows.row_key({"_ng_task_index": 0, "_ng_rollout_index": value})


@pytest.mark.parametrize(
    ("row", "name"),
    [({"agent_ref": {"name": "a"}}, "a"), ({"agent_ref": {"name": ""}}, None), ({"agent_ref": "a"}, None), ({}, None)],
)
def test_the_agent_of_a_row(row: JsonObject, name: str | None) -> None:
    assert rows.agent_name(row) == name


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (0, True),
        (1.5, True),
        (True, True),
        (math.nan, False),
        (math.inf, False),
        ("1", False),
        (None, False),
        (10**400, False),
    ],
)
def test_only_finite_numbers_are_rewards(value: JsonValue, valid: bool) -> None:
    assert rows.valid_reward(value) is valid


def test_the_answer_text_joins_all_assistant_messages_and_skips_the_rest() -> None:
    output = [
        {"type": "reasoning", "summary": [{"text": "thinking"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"text": "b"}]},
        {"type": "function_call", "name": "f"},
        {"type": "message", "role": "user", "content": "not this"},
        {"role": "assistant", "content": "c"},
        "torn",
    ]
    assert rows.answer_text({"output": output}) == "ab\nc"


@pytest.mark.parametrize(
    "response", [{}, {"output": None}, {"output": "text"}, answer(None), answer([None, {"text": 1}])]
)
def test_a_strange_response_has_an_empty_text(response: JsonObject) -> None:
    assert rows.answer_text(response) == ""


def test_fields_are_read_from_the_top_and_then_from_the_verifier_metadata() -> None:
    rollout = Rollout({"a": 1, "verifier_metadata": {"a": 2, "b": 3}})
    assert (rollout.field("a"), rollout.field("b"), rollout.field("c", 4)) == (1, 3, 4)


def test_a_missing_required_field_is_named_by_pointer() -> None:
    with pytest.raises(InputError, match="'expected_answer'") as caught:
        Rollout({"expected_answer": None}).require("expected_answer")
    assert caught.value.extensions["errors"][0]["pointer"] == "/expected_answer"


def test_a_rollout_without_a_response_has_an_empty_one() -> None:
    assert Rollout({"response": "torn"}).response == {}
    assert Rollout({"response": answer("42")}).text == "42"


def test_a_verdict_is_merged_into_the_row_without_changing_it() -> None:
    row = {"id": 1, "extracted": "old"}
    verified = Verdict(True, {"extracted": "new", "reward": 9}, {"format": 0.5}).merged_into(row)
    assert verified == {"id": 1, "extracted": "new", "reward": 1.0, "reward_components": {"format": 0.5}}
    assert isinstance(verified["reward"], float)
    assert row == {"id": 1, "extracted": "old"}


def test_light_rows_keep_only_the_usage_of_the_response() -> None:
    row = {"reward": 1.0, "responses_create_params": {"input": "x"}, "response": {"output": [], "usage": {"t": 1}}}
    assert rows.light_row(row) == {"reward": 1.0, "response": {"usage": {"t": 1}}}
    assert rows.light_row({"reward": 0.0}) == {"reward": 0.0}


def test_equal_values_have_equal_canonical_bytes() -> None:
    assert canonical({"b": 1, "a": [2]}) == canonical({"a": [2], "b": 1})
    assert loads(dumps({"a": "é"})) == {"a": "é"}
