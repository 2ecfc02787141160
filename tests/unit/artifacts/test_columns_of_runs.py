"""The columns of a run, and the file that keeps them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.column_writer import main
from rollmill.artifacts.columns import RunColumns, open_column_file, read_columns, update_column_file
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Digests, Manifest, Scoring
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.contracts.json import JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import AgentProgress, RunState
from rollmill.errors import InputError


def row(task: int, index: int, agent: str | None = "a", **fields: JsonValue) -> Row:
    ref = {"agent_ref": {"name": agent}} if agent else {}
    return {"_ng_task_index": task, "_ng_rollout_index": index, **ref, **fields}


def rollout(task: int, index: int, agent: str | None = "a", **fields: JsonValue) -> Row:
    usage = {"usage": {"output_tokens": 10 * task + index}}
    return row(task, index, agent, reward=float(index % 2), extracted_answer=f"{index}", response=usage, **fields)


def append(path: Path, *rows: Row) -> None:
    with path.open("ab") as file:
        file.write(b"".join(dumps(entry) + b"\n" for entry in rows))


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles.at(tmp_path / "x.jsonl")


def manifest(files: RunFiles, state: RunState = "finished", **scoring: Scoring) -> None:
    Manifest(
        run_id="x",
        state=state,
        digests=Digests(input="", overrides=""),
        agents={"a": AgentProgress(expected=9)},
        scoring=scoring,
    ).write(files.manifest)


def covered(files: RunFiles) -> int | None:
    """How many rollouts the column file has; None when it cannot be used."""
    found = open_column_file(files, AnswerFields())
    return found.rows if found else None


def same(left: RunColumns, right: RunColumns) -> bool:
    assert left.frame.equals(right.frame)
    assert (left.fields, left.integer_fields) == (right.fields, right.integer_fields)
    assert (left.usage_fields, left.columns.refused) == (right.usage_fields, right.columns.refused)
    assert left.columns.offsets.tolist() == right.columns.offsets.tolist()
    return left.columns.end == right.columns.end


def test_the_frame_has_one_row_per_rollout_and_the_columns_that_statistics_need(files: RunFiles) -> None:
    output = [{"type": "message"}, {"type": "function_call_output", "output": '{"error": 1}'}]
    full = {"response": {"output": output, "incomplete_details": {"reason": "x"}, "usage": {"output_tokens": 3}}}
    append(files.rollouts, row(1, 0, "b", reward=0.5, extracted_answer="A", _rollmill={"seconds": 2.5}, **full))
    append(files.rollouts, row(0, 0, None, reward=1))

    columns = read_columns(files)

    frame = columns.frame
    assert frame.dtypes.astype(str).to_dict() == {
        "_ng_task_index": "int64",
        "_ng_rollout_index": "int64",
        "agent": "category",
        "turns": "float64",
        "tool_errors": "float64",
        "seconds": "float64",
        "reward": "float64",
        "output_tokens": "float64",
        "answer": "category",
        "truncated": "bool",
    }
    assert frame.iloc[0].to_dict() == {
        "_ng_task_index": 1,
        "_ng_rollout_index": 0,
        "agent": "b",
        "turns": 1.0,
        "tool_errors": 1.0,
        "seconds": 2.5,
        "reward": 0.5,
        "output_tokens": 3.0,
        "answer": "A",
        "truncated": True,
    }
    assert frame.iloc[1][["agent", "answer", "turns", "output_tokens"]].isna().all()
    assert (columns.fields, columns.usage_fields) == (["reward", "output_tokens"], ["output_tokens"])
    assert columns.integer_fields == {"output_tokens"}


def test_fields_that_are_called_like_our_columns_stay_metrics(files: RunFiles) -> None:
    own = {"turns": 7, "answer": 3, "truncated": True, "agent": 2}
    append(files.rollouts, {**row(0, 0, reward=1.0, extracted_answer="A"), **own})

    update_column_file(files)
    for columns in (read_columns(files), read_columns(files)):
        assert columns.frame["turns"].tolist() == [7.0]
        assert columns.frame["answer"].tolist() == ["A"]
        assert columns.frame["agent"].tolist() == ["a"]
        assert columns.fields == ["reward", "turns"]
        assert columns.table().fields == ["reward", "turns", "answer", "truncated", "agent"]
        assert columns.table().frame()["answer"].tolist() == [3.0]


@settings(max_examples=25)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_file_that_was_extended_piece_by_piece_is_the_same_as_one_made_at_once(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], data: st.DataObject
) -> None:
    files = RunFiles.at(tmp_path_factory.mktemp("run") / "x.jsonl")
    extra = st.dictionaries(
        st.sampled_from(["score", "late", "turns"]), st.integers(0, 3) | st.floats(0, 1) | st.none()
    )
    for number, size in enumerate(pieces):
        agents = st.sampled_from(["a", "b", None])
        append(files.rollouts, *(rollout(number, i, data.draw(agents), **data.draw(extra)) for i in range(size)))
        update_column_file(files)
    extended = read_columns(files)
    files.metrics_parquet.unlink()

    assert same(extended, read_columns(files))
    update_column_file(files)
    assert same(extended, read_columns(files))


def test_a_column_file_that_is_behind_is_completed_from_the_rollouts(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0), rollout(0, 1))
    update_column_file(files)
    append(files.rollouts, rollout(1, 0, "b", late=1), rollout(1, 1))

    columns = read_columns(files)

    assert columns.frame["_ng_task_index"].tolist() == [0, 0, 1, 1]
    assert np.array_equal(columns.frame["late"], [np.nan, np.nan, 1, np.nan], equal_nan=True)
    assert covered(files) == 2


@pytest.mark.parametrize("state", ["finished", "running"])
def test_what_was_read_of_a_finished_run_is_written_back(files: RunFiles, state: RunState) -> None:
    append(files.rollouts, rollout(0, 0), rollout(0, 1))
    manifest(files, state)

    first = read_columns(files)

    assert covered(files) == (2 if state == "finished" else None)
    assert same(first, read_columns(files))


def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0))
    manifest(files)
    files.metrics_parquet.mkdir()

    assert len(read_columns(files)) == 1


def replace_rollouts(files: RunFiles) -> None:
    files.rollouts.unlink()
    append(files.rollouts, *(rollout(5, i) for i in range(4)))


def shrink(files: RunFiles) -> None:
    os.truncate(files.rollouts, files.rollouts.read_bytes().rindex(b"\n", 0, -1) + 1)


def change_the_last_line(files: RunFiles) -> None:
    content = files.rollouts.read_bytes()
    files.rollouts.write_bytes(content[:-20] + content[-20:].replace(b"2", b"7"))


def tear(files: RunFiles) -> None:
    os.truncate(files.metrics_parquet, files.metrics_parquet.stat().st_size - 10)


def empty(files: RunFiles) -> None:
    files.metrics_parquet.write_bytes(b"")


def no_state(files: RunFiles) -> None:
    pq.write_table(pq.read_table(files.metrics_parquet).replace_schema_metadata(None), files.metrics_parquet)


@pytest.mark.parametrize("damage", [replace_rollouts, shrink, change_the_last_line, tear, empty, no_state])
def test_a_column_file_that_is_wrong_is_never_trusted_and_made_anew(files: RunFiles, damage: object) -> None:
    append(files.rollouts, *(rollout(0, i) for i in range(3)))
    update_column_file(files)
    assert callable(damage)
    damage(files)

    assert covered(files) is None
    columns = read_columns(files)
    update_column_file(files)

    assert covered(files) == len(columns) == files.rollouts.read_bytes().count(b"\n")
    assert same(columns, read_columns(files))


def test_other_answer_fields_make_the_column_file_anew(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0, own="mine"))
    manifest(files)
    assert read_columns(files).frame["answer"].tolist() == ["0"]

    manifest(files, a=Scoring(answer_field="own"))

    assert read_columns(files).frame["answer"].tolist() == ["mine"]
    assert open_column_file(files, AnswerFields({"a": "own"})) is not None


def test_refused_rollouts_are_counted_with_the_failures_also_after_they_were_stored(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0))
    with files.rollouts.open("ab") as file:
        file.write(b'{"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": NaN}\n')
    append(files.rollouts, rollout(0, 2))
    marks: Row = {"_ng_failure_class": "timeout", "failure": {"boundary": "model"}}
    append(files.failures, row(1, 0, **marks), row(1, 0, **marks), row(1, 1, "b", failure="odd"))
    manifest(files)

    for columns in (read_columns(files), read_columns(files)):
        assert columns.frame["_ng_rollout_index"].tolist() == [0, 2]
        assert columns.columns.refused == ("0:1",)
        assert columns.failures == {
            "by_class": {"timeout": 2, "unclassified": 1, "reward-not-finite": 1},
            "by_boundary": {"model": 2, "unknown": 1, "resources": 1},
        }
        assert columns.failures_by_agent["b"].to_json()["by_class"] == {"unclassified": 1}


def test_what_is_expected_is_in_the_manifest_or_else_in_the_input_rows(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0))
    assert read_columns(files).expected == {}
    append(files.inputs, row(0, 0), row(0, 1, "b"), row(1, 0, "b"), row(1, 1, None))
    assert read_columns(files).expected == {"a": 1, "b": 2}
    manifest(files)
    assert read_columns(files).expected == {"a": 9}


def test_a_run_that_has_only_begun_is_empty_and_one_that_is_not_there_is_an_error(files: RunFiles) -> None:
    with pytest.raises(InputError, match=r"x\.jsonl: No such file"):
        read_columns(files)
    manifest(files, "running")

    columns = read_columns(files)

    assert (len(columns), columns.fields, len(columns.frame), columns.failures["by_class"]) == (0, [], 0, {})
    files.rollouts.touch()
    update_column_file(files)
    assert not files.metrics_parquet.exists()


def test_single_rollouts_are_read_by_their_ids(files: RunFiles) -> None:
    append(files.rollouts, *(rollout(task, i, text=f"{task}-{i}") for task in range(3) for i in range(2)))
    columns = read_columns(files)

    found = columns.rows(["2:1", "0:0", "9:9"])

    assert {key: entry["text"] for key, entry in found.items()} == {"2:1": "2-1", "0:0": "0-0"}
    files.rollouts.write_bytes(b"shorter")
    with pytest.raises(InputError, match="was changed while it was read"):
        columns.rows(["2:1"])


def test_people_can_read_the_column_file(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0), rollout(0, 1, score=0.5))
    update_column_file(files)

    table = pq.read_table(files.metrics_parquet)

    assert table.column_names[:4] == ["_ng_task_index", "_ng_rollout_index", "agent", "answer"]
    assert table.column("score").to_pylist() == [None, 0.5]
    assert table.column("agent").to_pylist() == ["a", "a"]


def test_the_process_of_the_collector_writes_the_column_file(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0), rollout(0, 1))
    command = [sys.executable, "-m", "rollmill.artifacts.column_writer", str(files.rollouts)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert covered(files) == 2
    with pytest.raises(InputError):
        main("x.txt")


def test_reading_columns_is_no_part_of_starting_up() -> None:
    code = (
        "import sys, rollmill, rollmill.cli, rollmill.profiling, rollmill.collection.collector\n"
        "import rollmill_services.profiler.app, rollmill_services.collector.app\n"
        "assert not {'pandas', 'numpy', 'pyarrow'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
