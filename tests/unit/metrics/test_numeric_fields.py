import math

import pytest

from rollmill.contracts.json import JsonValue
from rollmill.metrics.numeric import numeric_fields


def test_ints_floats_and_booleans_of_the_top_level_are_numeric_fields() -> None:
    fields = numeric_fields({"reward": 0.5, "turns": 3, "correct": True, "late": False})

    assert fields == {"reward": 0.5, "turns": 3, "correct": 1, "late": 0}
    assert [type(value) for value in fields.values()] == [float, int, int, int]


@pytest.mark.parametrize("value", ["1", None, [1], {"a": 1}, math.nan, math.inf, -math.inf, 10**400, -(10**400)])
def test_anything_that_is_not_a_finite_double_is_left_out(value: JsonValue) -> None:
    assert numeric_fields({"x": value, "response": {"usage": {"y": value}}, "reward_components": {"z": value}}) == {}


def test_the_largest_ints_that_fit_a_double_are_kept() -> None:
    assert numeric_fields({"x": 10**308}) == {"x": 10**308}


def test_keys_are_not_metrics_wherever_they_stand() -> None:
    keys = {"_ng_task_index": 1, "_ng_rollout_index": 2, "_ng_attempt_index": 1}

    assert numeric_fields({**keys, "reward": 1.0, "response": {"usage": keys}}) == {"reward": 1.0}


def test_usage_is_merged_over_the_top_level() -> None:
    fields = numeric_fields({"total_tokens": 1, "reward": 1.0, "response": {"usage": {"total_tokens": 9, "hit": True}}})

    assert fields == {"total_tokens": 9, "reward": 1.0, "hit": 1}
    assert list(fields) == ["total_tokens", "reward", "hit"]


def test_a_usage_field_that_is_no_number_does_not_hide_one_of_the_top_level() -> None:
    assert numeric_fields({"total_tokens": 1, "response": {"usage": {"total_tokens": None}}}) == {"total_tokens": 1}


def test_nested_details_of_usage_are_ignored() -> None:
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}

    assert numeric_fields({"response": {"usage": usage}}) == {"input_tokens": 5}


@pytest.mark.parametrize("response", [None, [], "text", {}, {"usage": None}, {"usage": [1]}])
def test_a_row_without_usage_has_only_its_own_fields(response: JsonValue) -> None:
    assert numeric_fields({"reward": 1, "response": response}) == {"reward": 1}


def test_each_reward_component_is_a_field_of_its_own() -> None:
    row = {"reward": 0.75, "reward_components": {"format": 1, "answer": 0.5, "note": "ok"}}

    assert numeric_fields(row) == {"reward": 0.75, "reward_components/format": 1, "reward_components/answer": 0.5}


@pytest.mark.parametrize("components", [None, [0.5], 3])
def test_reward_components_of_another_shape_are_no_components(components: JsonValue) -> None:
    assert [name for name in numeric_fields({"reward_components": components}) if "/" in name] == []
