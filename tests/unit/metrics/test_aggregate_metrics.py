import math

import pytest

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import Row
from rollmill.errors import InputError
from rollmill.metrics import RolloutTable, aggregate_metrics, aggregate_table
from rollmill.metrics.aggregate import agent_metrics, iter_group_metrics


def row(task: int, index: int, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, **fields}


ROWS = [
    row(1, 0, reward=0.0, answer="b"),
    row(0, 1, reward=1.0, answer="a"),
    row(0, 0, reward=0.0, answer="c"),
]


def test_it_gives_statistics_per_task_over_all_rollouts_and_every_mean_as_key_metric() -> None:
    result = aggregate_metrics(ROWS)

    assert list(result) == ["group_level_metrics", "agent_metrics", "key_metrics"]
    assert [entry["_ng_task_index"] for entry in result["group_level_metrics"]] == [0, 1]
    assert [entry["mean/reward"] for entry in result["group_level_metrics"]] == [0.5, 0.0]
    assert result["agent_metrics"]["mean/reward"] == pytest.approx(1 / 3)
    assert result["key_metrics"] == {"mean/reward": result["agent_metrics"]["mean/reward"]}


def test_a_task_entry_counts_what_was_sent_as_what_was_expected() -> None:
    entry = aggregate_metrics(ROWS)["group_level_metrics"][0]

    assert (entry["num_rollouts"], entry["expected_num_rollouts"], entry["missing_num_rollouts"]) == (2, 2, 0)
    assert entry["reward_profile_completion_pct"] == 100.0
    assert [info["rollout_id"] for info in entry["rollout_infos"]] == ["0:0", "0:1"]


def test_no_rows_give_empty_metrics_and_call_no_hook() -> None:
    def refuse(_: object) -> JsonObject:
        raise AssertionError("called without rows")

    result = aggregate_metrics([], compute_metrics=refuse, get_key_metrics=refuse)

    assert result == {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}


def test_compute_metrics_gets_whole_rows_grouped_by_task_in_key_order() -> None:
    seen: list[list[list[Row]]] = []

    def compute(tasks: list[list[Row]]) -> JsonObject:
        seen.append(tasks)
        return {}

    aggregate_metrics(iter(ROWS), compute_metrics=compute)

    assert seen == [[[ROWS[2], ROWS[1]], [ROWS[0]]]]


def test_per_task_metrics_are_merged_by_index_and_the_rest_into_the_agents() -> None:
    def compute(tasks: list[list[Row]]) -> JsonObject:
        per_task = [{"_ng_task_index": 1, "solved": False}, {"_ng_task_index": 77, "solved": True}]
        return {"per_task_metrics": per_task, "direct": {"count": 3}, "mean/reward": 9.0}

    result = aggregate_metrics(ROWS, compute_metrics=compute)

    assert ["solved" in entry for entry in result["group_level_metrics"]] == [False, True]
    assert result["group_level_metrics"][1]["mean/reward"] == 0.0
    assert result["agent_metrics"]["direct"] == {"count": 3}
    assert "per_task_metrics" not in result["agent_metrics"]
    assert result["key_metrics"] == {"mean/reward": 9.0}


def test_the_hooks_own_object_is_not_changed() -> None:
    own: JsonObject = {"per_task_metrics": [{"_ng_task_index": 0, "solved": True}], "x": 1}

    aggregate_metrics(ROWS, compute_metrics=lambda _: own)

    assert own == {"per_task_metrics": [{"_ng_task_index": 0, "solved": True}], "x": 1}


def test_an_environment_chooses_its_key_metrics() -> None:
    result = aggregate_metrics(ROWS, get_key_metrics=lambda metrics: {"best": metrics["max/reward"]})

    assert result["key_metrics"] == {"best": 1.0}


def test_undefined_values_of_an_environment_are_left_out_at_any_depth() -> None:
    def compute(_: list[list[Row]]) -> JsonObject:
        per_task = [{"_ng_task_index": 0, "ratio": math.nan, "kept": None}]
        return {"ratio": math.inf, "by_kind": [{"a": math.nan, "b": 1.5}], "per_task_metrics": per_task}

    result = aggregate_metrics(ROWS, compute_metrics=compute, get_key_metrics=lambda _: {"ratio": math.nan, "n": 1})

    assert "ratio" not in result["agent_metrics"]
    assert result["agent_metrics"]["by_kind"] == [{"b": 1.5}]
    assert "ratio" not in result["group_level_metrics"][0]
    assert result["group_level_metrics"][0]["kept"] is None
    assert result["key_metrics"] == {"n": 1}


def test_per_task_metrics_may_be_null() -> None:
    result = aggregate_metrics(ROWS, compute_metrics=lambda _: {"per_task_metrics": None})

    assert "per_task_metrics" not in result["agent_metrics"]


def test_rows_without_a_key_or_with_a_bad_reward_are_errors() -> None:
    with pytest.raises(InputError, match="rollout 2: _ng_rollout_index"):
        aggregate_metrics([row(0, 0), {"_ng_task_index": 0}])
    with pytest.raises(InputError, match="rollout 0:0: the reward"):
        aggregate_metrics([row(0, 0, reward=math.inf)])


def test_a_table_gives_the_same_and_can_be_read_task_by_task() -> None:
    table = RolloutTable()
    for rollout in ROWS:
        table.add(rollout)

    result = aggregate_table(table)

    assert result == aggregate_metrics(ROWS)
    assert list(iter_group_metrics(table)) == result["group_level_metrics"]
    assert agent_metrics(table) == result["agent_metrics"]


def test_every_row_sent_counts_also_when_a_key_comes_twice() -> None:
    result = aggregate_metrics([row(0, 0, reward=1.0), row(0, 0, reward=0.0)])

    assert result["group_level_metrics"][0]["num_rollouts"] == 2
    assert result["agent_metrics"]["mean/reward"] == 0.5
