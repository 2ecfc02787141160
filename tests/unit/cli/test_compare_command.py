from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Digests, Manifest, Scoring, Verifier
from rollmill.cli.compare import describe, verdict
from rollmill.cli.main import build_cli
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads

VERIFIER = Verifier(resources="words", name="m:V", version="1")


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> JsonObject:
    made = {"value": value, "low": low, "high": high, "method": "analytic", "tasks_used": 4, "tasks_total": 4}
    return {name: number for name, number in made.items() if number is not None}


def result(
    value: float | None = 0.25, low: float | None = 0.1, high: float | None = 0.4, **more: JsonValue
) -> JsonObject:
    return {
        "tasks": {"both": 4, "only_a": 1, "only_b": 0},
        "mean_a": estimate(0.5, 0.25, 0.75),
        "mean_b": estimate(0.75),
        "difference": estimate(value, low, high),
        "p_value": 0.004,
        "mcnemar": {"only_a_solved": 0, "only_b_solved": 1, "p_value": 1.0},
        "wins": {"a": 0, "b": 1, "ties": 3},
        "moved_most": [
            {"task": 7, "mean_a": 0.0, "mean_b": 1.0, "difference": 1.0},
            {"task": 8, "mean_a": 0.5, "mean_b": 0.5, "difference": 0.0},
        ],
        **more,
    }


def test_a_comparison_is_a_table_with_intervals_and_a_verdict() -> None:
    lines = describe("solver", result()).splitlines()

    assert lines[0] == "solver: 4 tasks in both runs, 1 only in A, 0 only in B"
    assert [line.split() for line in lines[1:5]] == [
        ["A", "B"],
        ["mean", "0.5000", "[0.2500,", "0.7500]", "0.7500"],
        ["tasks", "won", "(3", "ties)", "0", "1"],
        ["solved", "by", "one", "only", "(McNemar", "p", "=", "1)", "0", "1"],
    ]
    assert lines[5] == "B - A = +0.2500 [+0.1000, +0.4000], p = 0.004: B is better"
    assert [line.split() for line in lines[6:]] == [
        ["moved", "most:"],
        ["task", "A", "B", "B", "-", "A"],
        ["7", "0", "1", "+1.0000"],
    ]


@pytest.mark.parametrize(
    ("low", "high", "p", "words"),
    [
        (0.1, 0.4, 0.004, ": B is better"),
        (-0.4, -0.1, 0.004, ": B is worse"),
        (0.001, 0.4, 0.06, ": B is better, though barely"),
        (-0.1, 0.4, 0.2, ": no difference is shown, the interval holds 0"),
        (None, None, 0.2, ": too few tasks to tell chance from a difference"),
    ],
)
def test_the_verdict_is_told_in_words(low: float | None, high: float | None, p: float, words: str) -> None:
    assert verdict(result(0.1, low, high, p_value=p)).endswith(words)


def test_no_common_task_is_no_verdict() -> None:
    nothing = result(None, None, None, mean_a=estimate(None), mean_b=estimate(None), moved_most=[], p_value=None)

    assert "nothing can be said" in describe("", nothing)
    assert describe("", nothing).startswith("-: 4 tasks")


def write(folder: Path, name: str, rewards: dict[int, list[float]], *, agent: str = "solver", **fields: object) -> str:
    files = RunFiles.at(folder / f"{name}.jsonl")
    rows = [
        {
            "_ng_task_index": task,
            "_ng_rollout_index": index,
            "agent_ref": {"name": agent} if agent else None,
            "reward": reward,
            "style": 1 - reward,
        }
        for task, found in rewards.items()
        for index, reward in enumerate(found)
    ]
    files.rollouts.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
    values: JsonObject = {
        "run_id": name,
        "state": "finished",
        "digests": Digests(input="i", overrides="o"),
        "verifiers": {agent: VERIFIER},
        **fields,
    }
    Manifest(**values).write(files.manifest)
    return str(files.rollouts)


def run(*words: str) -> Result:
    return CliRunner().invoke(build_cli(), ["compare", *words])


BAD: dict[int, list[float]] = {task: [0.0, 0.0, float(task % 2)] for task in range(8)}
GOOD: dict[int, list[float]] = {task: [1.0, 1.0, float(task % 2)] for task in range(1, 9)}


def test_two_runs_are_compared_and_the_answer_goes_to_stdout(tmp_path: Path) -> None:
    result = run(write(tmp_path, "a", BAD), write(tmp_path, "b", GOOD))

    assert result.exit_code == 0, result.output
    assert "solver: 7 tasks in both runs, 1 only in A, 1 only in B" in result.stdout
    assert "B is better" in result.stdout
    assert result.stderr == ""
    worse = run(str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl"))
    assert (worse.exit_code, "B is worse" in worse.stdout) == (0, True)
    same = run(str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl"))
    assert (same.exit_code, "no difference is shown" in same.stdout) == (0, True)


def test_the_whole_comparison_can_be_had_as_json(tmp_path: Path) -> None:
    result = run(write(tmp_path, "a", BAD), write(tmp_path, "b", GOOD), "--json")

    found = loads(result.stdout)
    assert found["agents"]["solver"]["tasks"] == {"both": 7, "only_a": 1, "only_b": 1}
    assert found["agents"]["solver"]["difference"]["value"] == pytest.approx(2 / 3)
    assert (found["a"]["run_id"], found["a"]["rollouts"], found["b"]["file"]) == ("a", 24, "b.jsonl")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"digests": Digests(input="j", overrides="o")}, "the dataset (the task file)"),
        ({"verifiers": {"solver": VERIFIER.model_copy(update={"version": "2"})}}, "the verifier of solver (1 and 2)"),
    ],
)
def test_runs_of_another_dataset_or_verifier_are_refused_unless_forced(
    tmp_path: Path, other: JsonObject, told: str
) -> None:
    paths = write(tmp_path, "a", BAD), write(tmp_path, "b", GOOD, **other)

    refused, forced = run(*paths), run(*paths, "--force")

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert told in refused.stderr
    assert "--force" in refused.stderr
    assert (forced.exit_code, f"warning: compared although they differ in {told}" in forced.stderr) == (0, True)


def test_what_may_differ_is_noted(tmp_path: Path) -> None:
    paths = write(tmp_path, "a", BAD), write(tmp_path, "b", GOOD, digests=Digests(input="i", overrides="x"))

    assert "note: they differ in repeats, seeds, limit" in run(*paths).stderr
    (tmp_path / "b_manifest.json").unlink()
    result = run(*paths)
    assert (result.exit_code, "there is no" in result.stderr) == (0, True)
    assert "b_manifest.json" in result.stderr


def test_the_score_is_the_one_that_the_environment_chose(tmp_path: Path) -> None:
    styled: JsonObject = {"scoring": {"solver": Scoring(score_fields=["style"])}}
    paths = write(tmp_path, "a", BAD, **styled), write(tmp_path, "b", GOOD, **styled)

    assert "B is worse" in run(*paths).stdout


def test_rollouts_that_name_no_agent_are_compared_too(tmp_path: Path) -> None:
    result = run(write(tmp_path, "a", BAD, agent=""), write(tmp_path, "b", GOOD, agent=""))

    assert result.stdout.startswith("-: 7 tasks in both runs")


def test_runs_with_no_agent_or_no_task_in_common_are_told(tmp_path: Path) -> None:
    a, b = write(tmp_path, "a", BAD), write(tmp_path, "b", GOOD, agent="other")
    c = write(tmp_path, "c", {100: [1.0]})

    strangers, apart = run(a, b), run(a, c)

    assert (strangers.exit_code, "no agent is in both runs: solver in" in strangers.stderr) == (1, True)
    assert (apart.exit_code, "nothing can be said" in apart.stdout) == (0, True)


@pytest.mark.parametrize("words", [["a.jsonl"], ["a.jsonl", "b.jsonl", "--surprise"]])
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    assert run(*words).exit_code == 2


def test_a_file_that_is_not_there_or_damaged_is_one_line(tmp_path: Path) -> None:
    a = write(tmp_path, "a", BAD)
    (tmp_path / "broken.jsonl").write_bytes(b"{]\n")

    missing, broken = run(a, str(tmp_path / "none.jsonl")), run(a, str(tmp_path / "broken.jsonl"))

    assert (missing.exit_code, "none.jsonl" in missing.stderr) == (1, True)
    assert (broken.exit_code, "broken.jsonl:1" in broken.stderr) == (1, True)
    assert "Traceback" not in missing.stderr + broken.stderr
