from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Digests, Manifest, Scoring
from rollmill.cli.main import build_cli
from rollmill.contracts.json import JsonValue, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import AgentProgress


def row(task: int, index: int, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, "q": task, **fields}


def write(path: Path, *rows: Row) -> None:
    path.write_bytes(b"".join(dumps(entry) + b"\n" for entry in rows))


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """Three tasks with two rollouts each: never, once and always solved."""
    files = RunFiles.at(tmp_path / "x.jsonl")
    keys = [(task, index) for task in range(3) for index in range(2)]
    write(files.inputs, *(row(task, index) for task, index in keys))
    write(files.rollouts, *(row(task, index, reward=float(task + index >= 2)) for task, index in keys))
    return files


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), ["select", *map(str, arguments)])


def select(files: RunFiles, text: str, *options: str | Path) -> tuple[Result, list[JsonValue]]:
    output = files.rollouts.with_name("chosen.jsonl")
    result = run("--rollouts", files.rollouts, "--filter", text, "--output", output, *options)
    return result, [loads(line) for line in output.read_bytes().splitlines()] if output.exists() else []


def test_the_chosen_tasks_are_written_as_they_were(files: RunFiles) -> None:
    result, chosen = select(files, "0.1 < mean_reward < 0.9")

    assert result.exit_code == 0
    assert result.stdout == f"{files.rollouts.with_name('chosen.jsonl')}\n"
    assert result.stderr == "1 of 3 tasks chosen\n"
    assert chosen == [{"agent_ref": {"name": "solver"}, "q": 1}]


def test_choosing_no_task_is_a_warning(files: RunFiles) -> None:
    result, chosen = select(files, "mean_reward > 5")

    assert result.exit_code == 0
    assert "0 of 3 tasks chosen" in result.stderr
    assert "warning: the filter chooses no task" in result.stderr
    assert chosen == []
    assert files.rollouts.with_name("chosen.jsonl").read_bytes() == b""


def test_a_wrong_filter_is_shown_with_its_place(files: RunFiles) -> None:
    result, _ = select(files, "reward > 0.5")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(
        "error: filter, character 1: unknown name 'reward'; did you mean 'mean_reward'?\n  reward > 0.5\n  ^\nthere is task, "
    )
    assert not files.rollouts.with_name("chosen.jsonl").exists()


def test_a_filter_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    result = run("--rollouts", tmp_path / "no.jsonl", "--filter", "1 +", "--output", tmp_path / "o.jsonl")

    assert "no arithmetic" in result.stderr


def test_an_existing_output_is_replaced_only_when_asked(files: RunFiles) -> None:
    select(files, "task == 0")
    refused, before = select(files, "task == 1")
    replaced, after = select(files, "task == 1", "--overwrite")

    assert (refused.exit_code, replaced.exit_code) == (1, 0)
    assert "--overwrite" in refused.stderr
    assert [entry["q"] for entry in before] == [0]
    assert [entry["q"] for entry in after] == [1]


def test_the_files_of_the_run_are_never_the_output(files: RunFiles) -> None:
    for path in (files.rollouts, files.inputs, files.manifest):
        result = run("--rollouts", files.rollouts, "--filter", "task == 0", "--output", path, "--overwrite")
        assert result.exit_code == 1
        assert "one of the run's own files" in result.stderr


def test_input_rows_elsewhere_are_named(files: RunFiles, tmp_path: Path) -> None:
    elsewhere = files.inputs.rename(tmp_path / "rows.jsonl")
    without, _ = select(files, "task == 2")
    result, chosen = select(files, "task == 2", "--inputs", elsewhere)

    assert without.exit_code == 1
    assert "--inputs" in without.stderr
    assert result.exit_code == 0
    assert [entry["q"] for entry in chosen] == [2]


def test_the_pass_rate_is_of_the_score_of_the_environment(files: RunFiles) -> None:
    keys = [(task, index) for task in range(3) for index in range(2)]
    write(files.rollouts, *(row(task, index, reward=0.5, accuracy=float(task == 1)) for task, index in keys))
    by_reward, _ = select(files, "pass_rate == 1", "--overwrite")
    Manifest(
        run_id="x",
        digests=Digests(input="", overrides=""),
        agents={"solver": AgentProgress(expected=6, completed=6)},
        scoring={"solver": Scoring(score_fields=["accuracy"])},
    ).write(files.manifest)
    by_accuracy, chosen = select(files, "pass_rate == 1", "--overwrite")

    assert "0 of 3" in by_reward.stderr
    assert "1 of 3" in by_accuracy.stderr
    assert [entry["q"] for entry in chosen] == [1]


def test_a_run_that_still_goes_on_can_be_selected_from(files: RunFiles) -> None:
    write(files.rollouts, row(0, 0, reward=0.0))
    with files.rollouts.open("ab") as file:
        file.write(b'{"_ng_task_index": 1, "_ng')
    result, chosen = select(files, "num_rollouts >= 1")

    assert "1 of 1 tasks chosen" in result.stderr
    assert [entry["q"] for entry in chosen] == [0]
