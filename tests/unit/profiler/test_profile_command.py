from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest
from rollmill.cli.profile import profile
from rollmill.contracts.json import JsonValue, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.errors import InputError


def row(task: int, index: int, agent: str = "solver", **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": agent}, **fields}


def write(path: Path, *rows: Row) -> None:
    path.write_bytes(b"".join(dumps(entry) + b"\n" for entry in rows))


def run(*arguments: str | Path, terminal: bool = False) -> Result:
    app = typer.Typer()
    app.command()(profile)
    env = {"FORCE_COLOR": "1" if terminal else "", "COLUMNS": "160", "TERM": "xterm"}
    return CliRunner().invoke(app, list(map(str, arguments)), env=env)


INPUTS = [row(0, 0), row(0, 1), row(1, 0), row(1, 1), row(2, 0, "a[b]"), row(2, 1, "a[b]")]
ROLLOUTS = [
    row(0, 0, reward=1.0),
    row(0, 1, reward=0.0),
    row(1, 0, reward=1.0),
    row(1, 1, reward=1.0),
    row(2, 0, "a[b]", reward=0.25),
    row(2, 1, "a[b]", reward=0.25),
]


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    files = RunFiles.at(tmp_path / "x.jsonl")
    write(files.inputs, *INPUTS)
    write(files.rollouts, *ROLLOUTS)
    return files


def test_it_writes_the_two_files_and_prints_a_plain_table(files: RunFiles) -> None:
    result = run("--rollouts", files.rollouts, "--inputs", files.inputs)

    assert result.exit_code == 0
    assert result.stdout == (
        "agent   tasks  rollouts  reward  std   min   max  complete\n"
        "a[b]        1         2    0.25    0  0.25  0.25    100.0%\n"
        "solver      2         4    0.75  0.5     0     1    100.0%\n"
    )
    assert result.stderr == f"wrote {files.reward_profiling} and {files.agent_metrics}\n"
    tasks = [loads(line) for line in files.reward_profiling.read_bytes().splitlines()]
    assert [task["mean/reward"] for task in tasks] == [0.5, 1.0, 0.25]
    assert [agent["mean/reward"] for agent in loads(files.agent_metrics.read_bytes())] == [0.25, 0.75]


def test_the_input_rows_are_found_by_the_name_of_the_rollouts(files: RunFiles) -> None:
    assert run("--rollouts", files.rollouts).exit_code == 0


def test_a_terminal_is_shown_the_distribution_of_task_means(files: RunFiles) -> None:
    result = run("--rollouts", files.rollouts, terminal=True)

    assert "task means 0 to 1" in result.stdout
    assert "·····█···█" in result.stdout
    assert "··█·······" in result.stdout
    assert "a[b]" in result.stdout


def test_the_bars_span_rewards_outside_of_0_to_1(files: RunFiles) -> None:
    write(files.inputs, row(0, 0), row(1, 0), row(2, 0), row(3, 0))
    write(files.rollouts, row(0, 0, reward=-4), row(1, 0, reward=6), row(2, 0, reward=6), row(3, 0, reward=6))

    result = run("--rollouts", files.rollouts, terminal=True)

    assert "task means -4 to 6" in result.stdout
    assert "▃········█" in result.stdout


def test_missing_rollouts_need_allow_partial(files: RunFiles) -> None:
    write(files.rollouts, *ROLLOUTS[:3])

    result = run("--rollouts", files.rollouts)

    assert result.exit_code == 1
    assert isinstance(result.exception, InputError)
    assert "1:1, 2:0, 2:1" in result.exception.detail
    assert "--allow-partial" in result.exception.detail
    assert result.exception.extensions["count"] == 3
    assert not files.reward_profiling.exists()


def test_a_partial_profile_says_how_complete_it_is(files: RunFiles) -> None:
    write(files.rollouts, *ROLLOUTS[:3])

    result = run("--rollouts", files.rollouts, "--allow-partial")

    assert result.exit_code == 0
    assert "a[b]        0         0       -       -    -    -      0.0%\n" in result.stdout
    assert "75.0%" in result.stdout
    assert "partial: 3 of 6 rollouts are finished\n" in result.stderr


def test_a_run_that_has_not_written_anything_yet_has_an_empty_profile(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    digests = Digests(input="", overrides="")
    Manifest(run_id="x", counts=Counts(expected=4), digests=digests).write(files.manifest)

    result = run("--rollouts", files.rollouts, "--allow-partial")

    assert result.exit_code == 0
    assert result.stdout == "agent  tasks  rollouts  reward  std  min  max  complete\n"
    assert "partial: 0 of 4" in result.stderr
    refused = run("--rollouts", files.rollouts)
    assert isinstance(refused.exception, InputError)
    assert "4 of 4 rollouts were not started yet" in refused.exception.detail
    assert "--allow-partial" in refused.exception.detail


def test_missing_files_are_named_with_the_fix(tmp_path: Path) -> None:
    result = run("--rollouts", tmp_path / "x.jsonl")

    assert isinstance(result.exception, InputError)
    assert "x_materialized_inputs.jsonl: no such file" in result.exception.detail
    assert "--inputs" in result.exception.detail

    write(tmp_path / "i.jsonl", *INPUTS)
    result = run("--rollouts", tmp_path / "x.jsonl", "--inputs", tmp_path / "i.jsonl")
    assert isinstance(result.exception, InputError)
    assert "x.jsonl: No such file" in result.exception.detail


@pytest.mark.parametrize("options", [[], ["--allow-partial"]])
def test_faults_that_a_partial_profile_would_not_help_do_not_suggest_one(files: RunFiles, options: list[str]) -> None:
    write(files.rollouts, *ROLLOUTS[:2], ROLLOUTS[0])
    duplicate = run("--rollouts", files.rollouts, *options)
    write(files.rollouts, *ROLLOUTS[:2], row(9, 0))
    extra = run("--rollouts", files.rollouts, *options)

    assert (duplicate.exit_code, extra.exit_code) == (1, 1)
    assert str(duplicate.exception) == "duplicate keys in the rollouts: 0:0"
    assert str(extra.exception) == "rollouts with no input row: 9:0"


def test_an_output_that_is_no_jsonl_file_is_refused(tmp_path: Path) -> None:
    result = run("--rollouts", tmp_path / "x.json")

    assert isinstance(result.exception, InputError)
    assert ".jsonl" in result.exception.detail
