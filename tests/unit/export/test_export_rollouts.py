import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.files import RunFiles
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import InputError
from rollmill.export.rollouts import MOST_CHARACTERS, sample_rollouts, shorten


def write(path: Path, *rows: JsonObject) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def keyed(task_index: int, index: int, /, **more: JsonValue) -> JsonObject:
    return {"_ng_task_index": task_index, "_ng_rollout_index": index, **more}


def test_a_few_rollouts_are_all_there_by_task_and_index(files: RunFiles) -> None:
    sample = sample_rollouts(files.rollouts, 10)

    assert sample.columns == ["task", "rollout", "agent", "reward", "output_tokens", "prompt_text", "answer_text"]
    assert sample.rows == [
        [0, 0, "solver", 1.0, 0, "question 0", "answer 0:0 | done"],
        [0, 1, "solver", 0.0, 1, "question 0", "answer 0:1 | done"],
        [1, 0, "solver", 1.0, 10, "question 1", "answer 1:0 | done"],
        [1, 1, "solver", 1.0, 11, "question 1", "answer 1:1 | done"],
    ]
    assert sample.total == 4


def test_what_a_rollout_lacks_is_an_empty_cell(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", keyed(0, 0, reward=1), keyed(1, 0, extra=True, response=None))

    sample = sample_rollouts(path, 10)

    assert sample.columns == ["task", "rollout", "agent", "reward", "extra", "prompt_text", "answer_text"]
    assert sample.rows == [[0, 0, None, 1, None, "", ""], [1, 0, None, None, 1, "", ""]]


def test_a_field_named_like_a_column_does_not_make_it_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", keyed(0, 0, task=7, rollout=8, agent=9, prompt_text=1, answer=5))

    sample = sample_rollouts(path, 10)

    assert sample.columns == ["task", "rollout", "agent", "answer", "prompt_text", "answer_text"]
    assert sample.rows == [[0, 0, None, 5, "", ""]]


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ("just text", "just text"),
        ([{"role": "system", "content": "be short"}, {"role": "user", "content": "why?"}], "why?"),
        ([{"role": "user", "content": [{"type": "input_text", "text": "why?"}]}], "why?"),
        ([{"role": "user", "content": "first"}, {"role": "user", "content": "second"}], "first"),
        ([{"role": "system", "content": "be short"}], ""),
        (["odd", {"role": "user"}], ""),
        (None, ""),
    ],
)
def test_the_prompt_is_what_the_user_asked_first(tmp_path: Path, given: JsonValue, prompt: str) -> None:
    path = write(tmp_path / "x.jsonl", keyed(0, 0, responses_create_params={"input": given}))

    assert sample_rollouts(path, 10).rows[0][3] == prompt


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    text = "question" + "x" * 100_000 + "result"

    short = shorten(text)

    assert len(short) <= MOST_CHARACTERS
    assert short.startswith("questionxxx")
    assert short.endswith("xxxresult")
    assert " … " in short
    assert shorten("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS


def test_a_torn_last_line_is_left_out(files: RunFiles) -> None:
    with files.rollouts.open("a") as file:
        file.write('{"_ng_task_index": 9')

    assert sample_rollouts(files.rollouts, 10).total == 4


@pytest.mark.parametrize(("line", "told"), [("{}", "_ng_task_index must be an integer"), ("[]", "x.jsonl:5")])
def test_a_line_that_is_no_rollout_is_an_error_that_names_the_file(files: RunFiles, line: str, told: str) -> None:
    with files.rollouts.open("a") as file:
        file.write(line + "\n")

    with pytest.raises(InputError, match=rf"x\.jsonl.*{told}|{told}"):
        sample_rollouts(files.rollouts, 10)


def test_an_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    sample = sample_rollouts(write(tmp_path / "x.jsonl"), 10)

    assert (sample.rows, sample.total) == ([], 0)


@settings(max_examples=40, deadline=None)
@given(total=st.integers(0, 60), most=st.integers(1, 70), seed=st.integers(0, 5))
def test_a_sample_is_as_large_as_it_can_be_and_holds_no_rollout_twice(
    tmp_path_factory: pytest.TempPathFactory, total: int, most: int, seed: int
) -> None:
    rows = [keyed(position, 0) for position in reversed(range(total))]
    path = write(tmp_path_factory.mktemp("run") / "x.jsonl", *rows)

    sample = sample_rollouts(path, most, seed=seed)
    tasks = [row[0] for row in sample.rows]

    assert sample.total == total
    assert len(tasks) == min(total, most)
    assert tasks == sorted(set(tasks), key=lambda task: task or 0)
    assert sample_rollouts(path, most, seed=seed) == sample


def test_every_rollout_is_as_likely_to_be_in_the_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *(keyed(task, 0) for task in range(20)))
    drawn = [row[0] for seed in range(400) for row in sample_rollouts(path, 5, seed=seed).rows]

    counts = [drawn.count(task) for task in range(20)]

    assert min(counts) > 60  # 100 are expected of each; five standard deviations are 43
    assert max(counts) < 145
