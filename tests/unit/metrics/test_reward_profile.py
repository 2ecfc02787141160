import math
from collections.abc import Iterator
from itertools import product

import pytest

from rollmill.contracts.json import JsonValue
from rollmill.contracts.rows import Row
from rollmill.errors import InputError
from rollmill.metrics import RewardProfile, RolloutTable, TaskInputs, build_profile, profile_table


def row(task: int, index: int, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, **fields}


def profile_of(*rollouts: Row) -> RewardProfile:
    inputs = [row(rollout["_ng_task_index"], rollout["_ng_rollout_index"]) for rollout in rollouts]
    return build_profile(inputs, rollouts)


def test_a_task_row_has_its_members_in_the_classic_order() -> None:
    inputs = [row(0, 0, question="2+2"), row(0, 1, question="2+2")]
    rollouts = [
        row(0, 1, reward=0.0, correct=False, response={"usage": {"output_tokens": 8}}),
        row(0, 0, reward=1.0, correct=True, response={"usage": {"output_tokens": 6}}),
    ]

    task = build_profile(inputs, rollouts).tasks[0]

    fields = ["reward", "correct", "output_tokens"]
    statistics = [f"{name}/{field}" for name in ("mean", "max", "min", "median", "std") for field in fields]
    assert list(task) == [
        "_ng_task_index",
        *statistics,
        "sample",
        "num_rollouts",
        "expected_num_rollouts",
        "missing_num_rollouts",
        "reward_profile_completion_pct",
        "rollout_infos",
    ]
    assert task["mean/reward"] == 0.5
    assert task["std/reward"] == pytest.approx(math.sqrt(0.5), rel=1e-15)
    assert task["median/output_tokens"] == 7.0


def test_tasks_are_sorted_by_index_and_rollouts_within_a_task_too() -> None:
    tasks = profile_of(row(10, 1), row(2, 0), row(10, 0), row(0, 3)).tasks

    assert [task["_ng_task_index"] for task in tasks] == [0, 2, 10]
    assert [info["rollout_id"] for info in tasks[2]["rollout_infos"]] == ["10:0", "10:1"]


def test_rollout_infos_give_reward_then_usage_then_other_fields_as_they_were() -> None:
    rollout = row(3, 1, turns=2, reward=1.0, correct=True, response={"usage": {"input_tokens": 5, "total_tokens": 9}})

    [info] = profile_of(rollout).tasks[0]["rollout_infos"]

    assert list(info.items()) == [
        ("rollout_id", "3:1"),
        ("_ng_task_index", 3),
        ("_ng_rollout_index", 1),
        ("reward", 1.0),
        ("input_tokens", 5),
        ("total_tokens", 9),
        ("turns", 2),
        ("correct", 1),
    ]


def test_rollout_infos_leave_out_what_a_rollout_does_not_have() -> None:
    infos = profile_of(row(0, 0, reward=1, a=3), row(0, 1, b=0.5)).tasks[0]["rollout_infos"]

    assert infos[0] == {"rollout_id": "0:0", "_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1, "a": 3}
    assert infos[1] == {"rollout_id": "0:1", "_ng_task_index": 0, "_ng_rollout_index": 1, "b": 0.5}
    assert type(infos[0]["a"]) is int


def test_an_environments_own_rollout_id_is_a_metric_and_does_not_replace_the_rollouts_id() -> None:
    task = profile_of(row(0, 0, rollout_id=99)).tasks[0]

    assert task["rollout_infos"][0]["rollout_id"] == "0:0"
    assert task["mean/rollout_id"] == 99.0


def test_the_sample_is_the_tasks_first_input_row_without_its_indices() -> None:
    inputs = [row(0, 1, question="first", nested={"a": 1}), row(0, 0, question="second")]

    task = build_profile(inputs, [row(0, 0), row(0, 1)]).tasks[0]

    assert task["sample"] == {"agent_ref": {"name": "solver"}, "question": "first", "nested": {"a": 1}}


def test_one_rollout_has_a_std_of_zero_for_the_fields_it_has() -> None:
    lone, pair = profile_of(row(0, 0, reward=0.3), row(1, 0, reward=0.3, extra=1), row(1, 1, reward=0.3)).tasks

    assert lone["std/reward"] == 0.0
    assert "std/extra" not in lone
    assert pair["std/reward"] == 0.0
    assert "std/extra" not in pair  # one value among two rollouts: undefined, and not the only std of the group
    assert pair["mean/extra"] == 1.0


def test_two_rollouts_that_share_no_field_have_no_std_at_all() -> None:
    task = profile_of(row(0, 0, a=1), row(0, 1, b=2)).tasks[0]

    assert [name for name in task if name.startswith("std/")] == []


def test_a_field_that_no_rollout_of_a_task_has_is_left_out_of_its_row() -> None:
    task = profile_of(row(0, 0, reward=1.0), row(1, 0, reward=1.0, extra=1)).tasks[0]

    assert [name for name in task if "extra" in name] == []


def test_sums_beyond_the_range_of_doubles_are_left_out_and_nothing_else() -> None:
    task = profile_of(row(0, 0, reward=1e308), row(0, 1, reward=1e308)).tasks[0]

    assert "mean/reward" not in task
    assert task["max/reward"] == task["min/reward"] == 1e308


def test_tasks_without_numeric_fields_still_have_rows() -> None:
    task = profile_of(row(0, 0), row(0, 1)).tasks[0]

    assert task["num_rollouts"] == 2
    assert len(task["rollout_infos"]) == 2
    assert [name for name in task if "/" in name] == []


def test_agents_have_their_own_statistics_and_are_sorted_by_name() -> None:
    rollouts = [
        row(0, 0, reward=1.0, agent_ref={"name": "zeta", "type": "agents"}),
        row(1, 0, reward=0.0, agent_ref={"name": "alpha"}),
        row(2, 0, reward=0.5, agent_ref={"name": "zeta"}),
    ]

    agents = build_profile(rollouts, rollouts).agents

    assert [agent["agent_ref"] for agent in agents] == [{"name": "alpha"}, {"name": "zeta"}]
    assert [agent["mean/reward"] for agent in agents] == [0.0, 0.75]
    assert agents[0]["std/reward"] == 0.0
    assert agents[1]["std/reward"] == pytest.approx(math.sqrt(0.125))


def test_a_task_that_two_agents_attempted_is_one_task() -> None:
    rollouts = [row(0, 0, reward=1.0, agent_ref={"name": "a"}), row(0, 1, reward=0.0, agent_ref={"name": "b"})]

    profile = build_profile(rollouts, rollouts)

    assert [task["mean/reward"] for task in profile.tasks] == [0.5]
    assert [agent["mean/reward"] for agent in profile.agents] == [1.0, 0.0]


def test_the_agent_is_the_input_rows_and_else_the_rollouts_own() -> None:
    inputs = [row(0, 0, agent_ref={"name": "asked"}), row(1, 0, agent_ref=None), row(2, 0, agent_ref=None)]
    rollouts = [row(0, 0, agent_ref=None), row(1, 0, agent_ref={"name": "told"}), row(2, 0, agent_ref=None)]

    profile = build_profile(inputs, [{**rollout, "reward": 1.0} for rollout in rollouts])

    assert [agent["agent_ref"]["name"] for agent in profile.agents] == ["asked", "told"]
    assert len(profile.tasks) == 3


def test_a_partial_profile_says_how_complete_each_task_and_the_run_are() -> None:
    inputs = [row(task, index) for task, index in product(range(3), range(4))]
    rollouts = [*(row(0, index, reward=1.0) for index in range(4)), row(1, 2, reward=0.0)]

    profile = build_profile(inputs, rollouts, allow_partial=True)

    done, begun = profile.tasks  # task 2 has no rollout, so it has no row
    assert (done["num_rollouts"], done["expected_num_rollouts"], done["missing_num_rollouts"]) == (4, 4, 0)
    assert done["reward_profile_completion_pct"] == 100.0
    assert (begun["num_rollouts"], begun["expected_num_rollouts"], begun["missing_num_rollouts"]) == (1, 4, 3)
    assert begun["reward_profile_completion_pct"] == 25.0
    assert profile.completion == {
        "expected_rollouts": 12,
        "completed_rollouts": 5,
        "missing_rollouts": 7,
        "extra_rollouts": 0,
        "complete_tasks": 1,
        "partial_tasks": 1,
        "missing_tasks": 1,
        "reward_profile_completion_pct": pytest.approx(100 * 5 / 12),
    }


def test_nothing_at_all_is_an_empty_and_complete_profile() -> None:
    profile = build_profile([], [])

    assert profile.tasks == profile.agents == []
    assert profile.completion["reward_profile_completion_pct"] == 100.0


def test_missing_rollouts_are_an_error_unless_partial_profiles_are_allowed() -> None:
    inputs = [row(0, 0), row(0, 1)]

    with pytest.raises(InputError, match=r"input rows with no rollout .*: 0:1$"):
        build_profile(inputs, [row(0, 0)])

    assert build_profile(inputs, [row(0, 0)], allow_partial=True).completion["missing_rollouts"] == 1


@pytest.mark.parametrize("allow_partial", [False, True])
def test_rollouts_with_no_input_row_are_an_error(allow_partial: bool) -> None:
    with pytest.raises(InputError, match=r"rollouts with no input row: 1:0, 2:5$"):
        build_profile([row(0, 0), row(0, 1)], [row(2, 5), row(0, 0), row(1, 0)], allow_partial=allow_partial)


def test_duplicate_keys_are_an_error_on_either_side() -> None:
    with pytest.raises(InputError, match=r"duplicate keys in the input rows: 0:0$"):
        build_profile([row(0, 0), row(0, 0), row(0, 0)], [row(0, 0)])
    with pytest.raises(InputError, match=r"duplicate keys in the rollouts: 0:1$"):
        build_profile([row(0, 0), row(0, 1)], [row(0, 1), row(0, 0), row(0, 1)])


def test_an_error_shows_the_first_ten_keys_in_key_order_and_counts_the_rest() -> None:
    with pytest.raises(InputError) as caught:
        build_profile([], [row(task, 0) for task in reversed(range(12))])

    shown = [f"{task}:0" for task in range(10)]
    assert caught.value.detail == f"rollouts with no input row: {', '.join(shown)} and 2 more"
    assert caught.value.extensions == {"keys": shown, "count": 12}


def test_rows_without_a_key_and_rewards_that_are_not_finite_are_errors() -> None:
    with pytest.raises(InputError, match="input row 2: _ng_task_index"):
        build_profile([row(0, 0), {}], [])
    with pytest.raises(InputError, match="rollout 1: _ng_task_index"):
        build_profile([row(0, 0)], [{}])
    with pytest.raises(InputError, match="rollout 0:0: the reward"):
        build_profile([row(0, 0)], [row(0, 0, reward=math.nan)])


def test_a_profile_of_growing_collectors_stays_as_it_was() -> None:
    inputs, rollouts = TaskInputs(), RolloutTable()
    for index in range(2):
        inputs.add(row(0, index))
    rollouts.add(row(0, 0, reward=1.0))
    early = profile_table(inputs, rollouts, allow_partial=True)

    inputs.add(row(0, 2))
    rollouts.add(row(0, 1, reward=0.0))
    late = profile_table(inputs, rollouts, allow_partial=True)

    assert (early.tasks[0]["mean/reward"], early.tasks[0]["expected_num_rollouts"]) == (1.0, 2)
    assert (late.tasks[0]["mean/reward"], late.tasks[0]["expected_num_rollouts"]) == (0.5, 3)
    assert len(inputs) == 3


def test_a_profile_larger_than_one_chunk_of_rows_is_whole() -> None:
    rollouts = [row(task, index, reward=float(task % 3), only_even=1) for task in range(2500) for index in range(2)]
    for rollout in rollouts[4::4]:
        del rollout["only_even"]

    tasks = profile_of(*rollouts).tasks

    assert [task["_ng_task_index"] for task in tasks] == list(range(2500))
    assert [task["mean/reward"] for task in tasks] == [float(task % 3) for task in range(2500)]
    infos = [info for task in tasks for info in task["rollout_infos"]]
    assert [info["rollout_id"] for info in infos] == [f"{task}:{index}" for task in range(2500) for index in range(2)]
    assert [info.get("only_even") for info in infos] == [rollout.get("only_even") for rollout in rollouts]


def leaves(value: JsonValue) -> Iterator[JsonValue]:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if members is None:
        yield value
    else:
        for member in members:
            yield from leaves(member)


def test_every_value_is_plain_json_and_none_is_undefined() -> None:
    rollouts = [row(0, 0, reward=1, a=0.5), row(0, 1, reward=True, b=1e308), row(1, 0, b=1e308), row(1, 1, b=1e308)]
    profile = profile_of(*rollouts)

    for value in leaves([*profile.tasks, *profile.agents, profile.completion]):
        assert type(value) in (int, float, str)
        assert not isinstance(value, float) or math.isfinite(value)
