from pathlib import Path

import pytest

from rollmill.artifacts.task_rows import write_task_rows
from rollmill.collection.expansion import Expansion, expand
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.errors import InputError


class Files:
    def __init__(self, folder: Path) -> None:
        self.tasks, self.inputs, self.output = folder / "t.jsonl", folder / "i.jsonl", folder / "out" / "chosen.jsonl"

    def materialize(self, *tasks: Row, **options: JsonValue) -> None:
        self.tasks.write_bytes(b"".join(dumps(task) + b"\n" for task in tasks))
        rows = expand(self.tasks, Expansion(agent="solver", **options))
        self.inputs.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))

    def chosen(self, *tasks: int) -> list[JsonObject]:
        write_task_rows(self.inputs, self.output, tasks)
        return [loads(line) for line in self.output.read_bytes().splitlines()]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def task(name: str, **params: JsonValue) -> Row:
    return {"responses_create_params": {"input": name, **params}, "agent_ref": {"name": "solver"}, "answer": name}


A, B, C = task("a"), task("b", temperature=0.5), task("c")


def test_chosen_tasks_are_written_once_as_they_were_in_their_order(files: Files) -> None:
    files.materialize(A, B, C, num_repeats=3)

    assert files.chosen(2, 0) == [A, C]
    assert files.chosen() == []


def test_what_was_chosen_can_be_collected_again(files: Files) -> None:
    files.materialize(A, B, C, num_repeats=2)
    files.chosen(1, 2)

    again = list(expand(files.output, Expansion(num_repeats=1)))
    assert [(row["_ng_task_index"], row["answer"]) for row in again] == [(0, "b"), (1, "c")]


def test_the_seeds_that_a_run_added_are_taken_out(files: Files) -> None:
    own = task("own", metadata={"extra_body": '{"top_k":5}', "user": "me"})
    files.materialize(A, own, num_repeats=2, add_seed=True)

    assert files.chosen(0, 1) == [A, own]


def test_seeds_of_the_tasks_themselves_stay(files: Files) -> None:
    fixed = task("fixed", metadata={"extra_body": '{"seed":0}'})
    files.materialize(fixed, num_repeats=2)
    twice = files.chosen(0)
    files.materialize(fixed)  # one repeat: its seed 0 may be its own

    assert twice == files.chosen(0) == [fixed]


@pytest.mark.parametrize("odd", ["not JSON", "[1]", 7, None])
def test_odd_metadata_stays_as_it_is(files: Files, odd: JsonValue) -> None:
    row = task("odd", metadata={"extra_body": odd})
    files.materialize(row, num_repeats=2)

    assert files.chosen(0) == [row]


def test_a_torn_last_line_is_left_out(files: Files) -> None:
    files.materialize(A, B, num_repeats=2)
    files.inputs.write_bytes(files.inputs.read_bytes()[:-20])

    assert files.chosen(0, 1) == [A, B]


def test_a_task_without_an_input_row_is_an_error_and_nothing_is_written(files: Files) -> None:
    files.materialize(A)

    with pytest.raises(InputError, match="no input row of task 3, 9"):
        files.chosen(9, 0, 3)
    with pytest.raises(InputError, match="18, 19 and 10 more"):
        files.chosen(*range(10, 30))
    assert not files.output.exists()
    assert list(files.output.parent.iterdir()) == []


def test_a_row_without_keys_is_named(files: Files) -> None:
    files.inputs.write_text('{"_ng_task_index": 0, "_ng_rollout_index": 0}\n{"_ng_task_index": "x"}\n')

    with pytest.raises(InputError, match="input row 2: _ng_task_index must be an integer"):
        files.chosen(5)


def test_a_file_that_is_not_there_is_named(files: Files) -> None:
    with pytest.raises(InputError, match=r"i\.jsonl: No such file"):
        files.chosen(0)
