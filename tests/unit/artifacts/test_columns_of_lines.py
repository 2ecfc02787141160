"""What lines mean as columns: the fast way against the slow one, and that against what the classic table says."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.chunks import ANSWER_CHARACTERS, Chunk
from rollmill.artifacts.column_arrays import Columns, columns_of, joined
from rollmill.artifacts.input_lines import InputLines
from rollmill.artifacts.rollout_lines import RolloutLines
from rollmill.artifacts.rollout_rows import AnswerFields, chunk_of_rows
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import Row, agent_name
from rollmill.metrics.table import RolloutTable

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "text", "7", "ümlaut", "NaN"])
)
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from("ab"), SCALARS, max_size=2)
USAGE = st.dictionaries(st.sampled_from(["input_tokens", "details", "score"]), VALUES, max_size=3)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | st.none(),
        "role": st.sampled_from(["assistant", "user"]) | VALUES,
        "output": st.sampled_from(['{"error": "x"}', '{"error": null}', '{"a": {"error": 1}}', "error"]) | VALUES,
    },
)
RESPONSES = VALUES | st.fixed_dictionaries(
    {},
    optional={
        "usage": USAGE | VALUES,
        "output": st.lists(ITEMS | VALUES, max_size=5) | st.lists(ITEMS, max_size=5) | VALUES,
        "incomplete_details": VALUES,
    },
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "agent_ref": st.sampled_from([{"name": "a"}, {"name": "b", "type": "x"}, {"name": 3}]) | VALUES,
        "reward": st.floats(-1e9, 1e9) | st.booleans() | VALUES,
        "score": VALUES,
        "late": SCALARS,
        "extracted_answer": VALUES,
        "own_answer": VALUES,
        "response": RESPONSES,
        "reward_components": st.dictionaries(st.sampled_from(["x", 'quo"te']), VALUES, max_size=2) | VALUES,
        "reward_components/x": SCALARS,
        "_ng_attempt_index": SCALARS,
        "_rollmill": st.fixed_dictionaries({"seconds": SCALARS}) | VALUES,
        "back\\slash": SCALARS,
    },
)
ROWS = st.lists(FIELDS, min_size=1, max_size=12).map(
    lambda rows: [{"_ng_task_index": i // 3, "_ng_rollout_index": i % 3, **row} for i, row in enumerate(rows)]
)
ANSWERS = AnswerFields({"b": "own_answer", "": None})


def lines_of(rows: list[Row]) -> tuple[list[bytes], list[int]]:
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]  # orjson writes no huge ints
    return lines, np.cumsum([0, *map(len, lines)])[:-1].tolist()


def fast(rows: list[Row], answers: AnswerFields | None = None) -> Columns:
    return columns_of(RolloutLines(answers or AnswerFields()).chunk(*lines_of(rows)))


def row(index: int, **fields: JsonValue) -> Row:
    return {"_ng_task_index": 0, "_ng_rollout_index": index, **fields}


@settings(max_examples=200)
@given(ROWS, ROWS)
def test_the_fast_way_and_the_slow_way_give_the_same(first: list[Row], second: list[Row]) -> None:
    lines = RolloutLines(ANSWERS)
    for rows in (first, second):  # the second time with what was learned from the first
        assert lines.chunk(*lines_of(rows)) == chunk_of_rows(*lines_of(rows), ANSWERS)


@settings(max_examples=100)
@given(ROWS, st.integers(1, 5))
def test_columns_hold_the_numbers_of_the_classic_table_however_the_lines_are_cut(rows: list[Row], cut: int) -> None:
    table, finite = RolloutTable(), []
    for entry in map(loads, lines_of(rows)[0]):
        table.add(entry)
        finite.append(entry)
    lines = RolloutLines(ANSWERS)
    parts = [columns_of(lines.chunk(*lines_of(finite[i : i + cut]))) for i in range(0, len(finite), cut)]

    columns = joined(parts)

    frame = table.frame()
    assert list(columns.fields) == table.fields
    assert frozenset(columns.fields) - columns.inexact == table.integer_fields
    for name, values in columns.fields.items():
        assert np.array_equal(values, frame[name].to_numpy(), equal_nan=True), name
    assert columns.tasks.tolist() == [entry["_ng_task_index"] for entry in finite]
    assert [columns.agents.names[code] if code >= 0 else None for code in columns.agents.codes] == [
        agent_name(entry) for entry in finite
    ]


def test_usage_wins_over_the_top_level_and_components_get_a_prefix() -> None:
    columns = fast([row(0, score=1, reward=1.0, response={"usage": {"score": 2}}, reward_components={"x": 0.5})])

    assert {name: values.tolist() for name, values in columns.fields.items()} == {
        "score": [2.0],
        "reward": [1.0],
        "reward_components/x": [0.5],
    }
    assert columns.usage == {"score"}
    assert columns.inexact == {"reward", "reward_components/x"}


def test_text_where_a_number_was_before_is_a_missing_value() -> None:
    columns = fast([row(0, score=1), row(1, score="two"), row(2, score=3), row(3, score=None), row(4, score={"x": 1})])

    assert np.array_equal(columns.fields["score"], [1, np.nan, 3, np.nan, np.nan], equal_nan=True)
    assert columns.inexact == frozenset()


def test_a_number_where_text_was_before_is_found() -> None:
    lines = RolloutLines(AnswerFields())
    lines.chunk(*lines_of([row(0, score="one"), row(1, score="two")]))

    columns = columns_of(lines.chunk(*lines_of([row(2, score="three"), row(3, score=4)])))

    assert np.array_equal(columns.fields["score"], [np.nan, 4], equal_nan=True)


def test_the_timing_of_the_collector_is_seconds_and_no_metric() -> None:
    columns = fast([row(0, _rollmill={"seconds": 1.5, "started_at": 3.0, "attempt": 0}), row(1)])

    assert columns.fields == {}
    assert np.array_equal(columns.seconds, [1.5, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (None, (False, None, None)),
        ({"output": None}, (False, None, None)),
        ({"output": []}, (False, 0, 0)),
        ({"incomplete_details": {"reason": "max_output_tokens"}, "output": [{"type": "message"}]}, (True, 1, 0)),
        ({"output": [{"type": "reasoning"}, {"type": "message", "role": "assistant"}]}, (False, 1, 0)),
        (
            {
                "output": [
                    {"type": "function_call", "name": "f"},
                    {"type": "function_call", "name": "g"},
                    {"type": "function_call_output", "output": '{"error": "no city"}'},
                    {"type": "function_call_output", "output": '{"temperature": 3, "errors": []}'},
                    {"type": "message", "role": "assistant", "content": "error"},
                    {"type": "message", "role": "user", "content": "and?"},
                    {"type": "message", "role": "assistant", "content": "done"},
                ]
            },
            (False, 3, 1),
        ),
        ({"output": [{"type": "function_call_output", "output": '{"error": null}'}]}, (False, 0, 0)),
        ({"output": [{"type": "function_call_output", "output": ["error"]}]}, (False, 0, 0)),
        ({"output": [{"type": "function_call_output", "output": "[error"}]}, (False, 0, 0)),
    ],
)
def test_turns_tool_errors_and_truncation_are_counted(
    response: JsonObject | None, expected: tuple[bool, int | None, int | None]
) -> None:
    columns = fast([row(0, reward=1.0, response=response)])

    found = [None if math.isnan(values[0]) else values[0] for values in (columns.turns, columns.tool_errors)]
    assert (bool(columns.truncated[0]), *found) == expected


def test_answers_are_text_json_or_a_hash_and_empty_ones_are_none() -> None:
    long = "x" * (ANSWER_CHARACTERS + 1)
    given_answers = ["A", "A", 42, ["b", 1], {"b": 1, "a": 2}, None, "", long, long + "y", False]
    columns = fast([row(i, extracted_answer=answer) for i, answer in enumerate(given_answers)])

    found = [columns.answers.names[code] if code >= 0 else None for code in columns.answers.codes]

    assert found[:7] == ["A", "A", "42", '["b",1]', '{"a":2,"b":1}', None, None]
    assert found[7] != found[8]
    assert all(text is not None and len(text) == 17 for text in found[7:9])
    assert found[9] == "false"


def test_each_agent_has_its_own_answer_field() -> None:
    rows = [
        row(i, agent_ref={"name": name}, extracted_answer="default", own="mine", letter=1)
        for i, name in enumerate(["a", "b", "c"])
    ]

    columns = fast(rows, AnswerFields({"b": "own", "c": None}))

    assert [columns.answers.names[code] if code >= 0 else None for code in columns.answers.codes] == [
        "default",
        "mine",
        None,
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]\n", "a row must be a JSON object, got list"),
        (b'{"a": tru}\n', "not valid JSON"),
        (b'{"a": "\xff"}\n', "not valid JSON"),
        (b'{"a": NaN}\n', "not valid JSON"),
        (b'{"reward": 1.0}\n', "_ng_task_index must be an integer >= 0, got None"),
        (b'{"_ng_task_index": 0, "_ng_rollout_index": true}\n', "_ng_rollout_index must be an integer >= 0, got True"),
        (b'{"_ng_task_index": -1, "_ng_rollout_index": 0}\n', "_ng_task_index must be an integer >= 0, got -1"),
        (b'{"_ng_task_index": 9223372036854775808, "_ng_rollout_index": 0}\n', "an index is larger than"),
    ],
)
@pytest.mark.parametrize("kind", [RolloutLines(AnswerFields()), InputLines()], ids=["rollouts", "inputs"])
def test_a_wrong_line_is_told_with_where_it_is(kind: RolloutLines | InputLines, line: bytes, reason: str) -> None:
    good = dumps(row(0, reward=1.0)) + b"\n"

    chunk = kind.chunk([good, line, good], [0, 100, 200])

    assert chunk.count == 1
    assert chunk.fault is not None
    offset, told = chunk.fault
    assert offset == 100
    assert told.startswith(reason)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
def test_a_reward_that_is_no_finite_number_is_refused_and_counted(number: str) -> None:
    good = dumps(row(0, reward=1.0))
    bad = dumps(row(1))[:-1] + f',"reward":{number}}}'.encode()

    chunk = RolloutLines(AnswerFields()).chunk([good, bad, good.replace(b'ex":0}', b'ex":2}')], [0, 100, 300])

    assert (chunk.count, chunk.refused, chunk.fault) == (2, ["0:1"], None)
    assert columns_of(chunk).offsets.tolist() == [0, 300]


def test_many_unlike_rows_are_read_all_the_same() -> None:
    rows = [row(i, **{f"field_{i}_{j}": j for j in range(3)}) for i in range(400)]

    columns = fast(rows)

    assert len(columns.fields) == 1200
    assert columns.fields["field_399_2"][399] == 2.0
    assert np.isnan(columns.fields["field_399_2"][:399]).all()


def test_parts_without_rollouts_join_to_nothing() -> None:
    for columns in (joined([]), joined([columns_of(Chunk()), columns_of(Chunk(end=7))])):
        assert (len(columns), columns.fields, columns.agents.names) == (0, {}, [])
    assert columns.end == 7
