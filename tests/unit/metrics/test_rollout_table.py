import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import InputError
from rollmill.metrics.numeric import numeric_fields
from rollmill.metrics.table import KeyTable, RolloutTable


def rollout(task: int, index: int, **fields: JsonValue) -> JsonObject:
    return {"_ng_task_index": task, "_ng_rollout_index": index, **fields}


def table_of(*rows: JsonObject) -> RolloutTable:
    table = RolloutTable()
    for row in rows:
        table.add(row)
    return table


def test_the_frame_has_the_keys_the_agent_and_a_column_per_field() -> None:
    table = table_of(
        rollout(4, 1, reward=1.0, agent_ref={"name": "b"}), rollout(2, 0, reward=0.0, agent_ref={"name": "a"})
    )

    frame = table.frame()

    assert len(table) == 2
    assert list(frame.columns) == ["_ng_task_index", "_ng_rollout_index", "agent_ref", "reward"]
    assert frame["_ng_task_index"].tolist() == [4, 2]
    assert frame["_ng_rollout_index"].tolist() == [1, 0]
    assert frame["agent_ref"].tolist() == ["b", "a"]
    assert frame["reward"].tolist() == [1.0, 0.0]


def test_missing_values_are_nan_before_between_and_after_present_ones() -> None:
    table = table_of(
        rollout(0, 0, a=1), rollout(0, 1, b=2), rollout(0, 2), rollout(0, 3, a=4, b=5), rollout(0, 4), rollout(0, 5)
    )

    frame = table.frame()

    assert frame["a"].fillna(-1).tolist() == [1, -1, -1, 4, -1, -1]
    assert frame["b"].fillna(-1).tolist() == [-1, 2, -1, 5, -1, -1]


values = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False)
sparse_rows = st.lists(st.dictionaries(st.sampled_from("abcd"), values, max_size=4), max_size=30)


@settings(max_examples=60)
@given(sparse_rows)
def test_the_frame_holds_exactly_the_numeric_fields_of_every_row(bodies: list[JsonObject]) -> None:
    rows = [rollout(0, index, **body) for index, body in enumerate(bodies)]
    frame = table_of(*rows).frame()

    for index, row in enumerate(rows):
        held = {name: frame[name].iloc[index] for name in frame.columns[3:] if not math.isnan(frame[name].iloc[index])}
        assert held == numeric_fields(row)


def test_fields_are_in_order_of_first_appearance() -> None:
    assert table_of(rollout(0, 0, z=1, a=1), rollout(0, 1, m=1, z=1)).fields == ["z", "a", "m"]


def test_fields_of_usage_are_told_apart_also_when_the_top_level_has_them_too() -> None:
    table = table_of(rollout(0, 0, reward=1, tokens=1, response={"usage": {"tokens": 2, "other": "text"}}))

    assert table.usage_fields == ["tokens"]


def test_a_field_is_an_integer_field_until_it_has_a_fraction_or_a_value_no_double_holds_exactly() -> None:
    table = table_of(
        rollout(0, 0, count=1, flag=True, score=1, huge=1), rollout(0, 1, count=2, score=0.5, huge=2**53 + 1)
    )

    assert table.integer_fields == {"count", "flag"}


def test_rows_can_be_added_after_a_frame_was_made_and_the_frame_stays_as_it_was() -> None:
    table = table_of(rollout(0, 0, reward=1.0))
    before = table.frame()

    table.add(rollout(0, 1, reward=0.0))

    assert before["reward"].tolist() == [1.0]
    assert table.frame()["reward"].tolist() == [1.0, 0.0]


def test_an_empty_table_has_an_empty_frame() -> None:
    frame = RolloutTable().frame()

    assert len(frame) == 0
    assert list(frame.columns) == ["_ng_task_index", "_ng_rollout_index", "agent_ref"]


@pytest.mark.parametrize("agent", [None, "name", {}, {"name": ""}, {"name": 3}, 7])
def test_a_row_that_names_no_agent_has_a_missing_agent(agent: JsonValue) -> None:
    assert table_of(rollout(0, 0, agent_ref=agent)).frame()["agent_ref"].isna().tolist() == [True]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"_ng_rollout_index": 0}, "rollout 2: _ng_task_index must be an integer >= 0, got None"),
        ({"_ng_task_index": 0}, "rollout 2: _ng_rollout_index must be an integer >= 0, got None"),
        ({"_ng_task_index": True, "_ng_rollout_index": 0}, "rollout 2: _ng_task_index must be"),
        ({"_ng_task_index": 0, "_ng_rollout_index": -1}, "rollout 2: _ng_rollout_index must be"),
        ({"_ng_task_index": 2**63, "_ng_rollout_index": 0}, "rollout 2: an index is larger than"),
    ],
)
def test_a_row_without_a_valid_key_is_refused_by_position(row: JsonObject, message: str) -> None:
    table = table_of(rollout(0, 0))

    with pytest.raises(InputError, match=message):
        table.add(row)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 10**400])
def test_a_reward_that_is_not_finite_is_refused_with_its_key_and_leaves_the_table_as_it_was(reward: float) -> None:
    table = table_of(rollout(0, 0, reward=1.0))

    with pytest.raises(InputError, match="rollout 7:3: the reward must be a finite number"):
        table.add(rollout(7, 3, reward=reward, other=1))

    assert len(table) == 1
    assert table.fields == ["reward"]


def test_a_rollout_without_a_reward_is_accepted() -> None:
    assert table_of(rollout(0, 0, reward=None), rollout(0, 1)).fields == []


def test_one_rollout_and_field_costs_eight_bytes() -> None:
    def bytes_of(table: RolloutTable) -> int:
        return sum(column.buffer_info()[1] * column.itemsize for column in table._columns.values())

    assert bytes_of(table_of(*(rollout(0, index, reward=0.5, turns=2) for index in range(1000)))) == 16_000


def test_a_key_table_says_what_its_rows_are_called() -> None:
    with pytest.raises(InputError, match=r"^input row 1: "):
        KeyTable("input row").check({})
