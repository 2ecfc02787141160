"""`rollmill reverify` from end to end: real environments, stored rollouts, and no model anywhere."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.artifacts.reader import read_jsonl
from rollmill.cli.main import build_cli
from rollmill.config.topology import Topology, grading_services, load_topology
from rollmill.contracts.json import JsonObject, dumps
from rollmill_services.resources.string_match.verifier import StringMatch

COLLECTED = """
services:
  policy: {kind: model, use: scripted, settings: {answers: [tasks.jsonl], skill: 0.5}}
  words: {kind: resources, use: string_match}
  solver: {kind: agent, use: single_turn, settings: {model: policy, resources: words}}
"""
BROKEN_MODEL = COLLECTED.replace("answers: [tasks.jsonl], skill: 0.5", "answers: [no_such_file.jsonl]")
STATEFUL = """
services:
  policy: {kind: model, use: scripted}
  counting: {kind: resources, use: counter}
  counter_agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: counting}}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_HOME", str(tmp_path / "home"))
    for name in ("ROLLMILL_TOKEN", "ROLLMILL_HEAD_URL", "ROLLMILL_DEBUG", "ROLLMILL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def source(tmp_path: Path) -> RunFiles:
    """Forty rollouts of ten tasks, half of them right."""
    tasks = [
        {"responses_create_params": {"input": f"What is the name of {n}?"}, "expected_answer": f"name {n}"}
        for n in range(10)
    ]
    (tmp_path / "tasks.jsonl").write_bytes(b"".join(dumps(task) + b"\n" for task in tasks))
    (tmp_path / "t.yaml").write_text(COLLECTED)
    return collect(tmp_path)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), [str(word) for word in words])


def collect(folder: Path, *, output: str = "x.jsonl") -> RunFiles:
    words: list[str | Path] = [
        "collect",
        "-c",
        folder / "t.yaml",
        "--input",
        folder / "tasks.jsonl",
        "--agent",
        "solver",
    ]
    result = run(*words, "--embedded", "--num-repeats", "4", "--max-attempts", "1", "--output", folder / output)
    assert result.exit_code in (0, 3), result.output
    return RunFiles.at(folder / output)


def reverify(source: RunFiles, *options: str | Path, topology: str = "t.yaml", output: str = "y.jsonl") -> Result:
    folder = source.rollouts.parent
    words: list[str | Path] = [
        "reverify",
        "-c",
        folder / topology,
        "--rollouts",
        source.rollouts,
        "--output",
        folder / output,
    ]
    return run(*words, *options)


def by_key(path: Path) -> dict[tuple[int, int], JsonObject]:
    return {(row["_ng_task_index"], row["_ng_rollout_index"]): row for row in read_jsonl(path)}


def manifest_of(files: RunFiles) -> Manifest:
    manifest = read_manifest(files.manifest)
    assert manifest is not None
    return manifest


def test_the_same_verifier_gives_the_same_rewards_and_needs_no_model(source: RunFiles) -> None:
    folder = source.rollouts.parent
    (folder / "broken.yaml").write_text(BROKEN_MODEL)

    result = reverify(source, topology="broken.yaml")

    assert (result.exit_code, result.stdout) == (0, f"{folder / 'y.jsonl'}\n"), result.output
    assert "0 of 40 rewards changed: 0 up, 0 down" in result.stderr
    assert "flip rate 0.00 %" in result.stderr
    old, new = by_key(source.rollouts), by_key(folder / "y.jsonl")
    assert new == old
    assert 0 < sum(row["reward"] for row in new.values()) < 40
    was, is_now = manifest_of(source), manifest_of(RunFiles.at(folder / "y.jsonl"))
    assert is_now.verifiers == was.verifiers
    assert was.verifiers["solver"].name == f"{StringMatch.__module__}:StringMatch"
    assert (is_now.digests, is_now.reverified is None) == (was.digests, False)


def test_a_change_of_the_references_changes_the_rewards(source: RunFiles) -> None:
    rows = [{**row, "expected_answer": "something else"} for row in read_jsonl(source.inputs)]
    other = source.rollouts.with_name("other_inputs.jsonl")
    other.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
    right = sum(row["reward"] for row in read_jsonl(source.rollouts))

    result = reverify(source, "--inputs", other)

    assert result.exit_code == 0, result.output
    assert f"{right:.0f} of 40 rewards changed: 0 up, {right:.0f} down" in result.stderr
    assert {row["reward"] for row in read_jsonl(source.rollouts.with_name("y.jsonl"))} == {0.0}


def test_rollouts_whose_grading_failed_are_graded_without_running_them_again_and_merged(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(COLLECTED.replace("string_match", "mcqa"))
    choice: JsonObject = {"options": {"A": "yes", "B": "no"}, "expected_answer": "B"}
    tasks: list[JsonObject] = [{"responses_create_params": {"input": f"Is {n} odd?"}, **choice} for n in range(4)]
    tasks[3]["template_metadata"] = {"output_regex": "("}  # only the search itself finds out
    (tmp_path / "tasks.jsonl").write_bytes(b"".join(dumps(task) + b"\n" for task in tasks))
    source = collect(tmp_path)
    ungraded = by_key(source.failures)
    assert set(ungraded) == {(3, n) for n in range(4)}
    mended = [
        {**row, "template_metadata": None} if row["_ng_task_index"] == 3 else row for row in read_jsonl(source.inputs)
    ]
    source.inputs.write_bytes(b"".join(dumps(row) + b"\n" for row in mended))

    result = reverify(source, "--failed-only")

    assert result.exit_code == 0, result.output
    assert "no rollout had a reward before" in result.stderr
    graded = by_key(tmp_path / "y.jsonl")
    assert {key: row["response"] for key, row in graded.items()} == {
        key: row["response"] for key, row in ungraded.items()
    }
    merged = run("aggregate", "--input-glob", tmp_path / "[xy].jsonl", "--output", tmp_path / "all.jsonl")
    assert merged.exit_code == 0, merged.output
    assert "2 shards: 16 of 16 rollouts" in merged.stderr
    assert run("profile", "--rollouts", tmp_path / "all.jsonl").exit_code == 0


def test_what_cannot_be_graded_is_exit_code_3_with_a_failures_file(source: RunFiles) -> None:
    rows = [
        {**row, "expected_answer": None} if row["_ng_task_index"] == 2 else row for row in read_jsonl(source.inputs)
    ]
    source.inputs.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))

    result = reverify(source)

    assert result.exit_code == 3
    assert "4 rollouts could not be graded" in result.stderr
    failures = [row["failure"] for row in read_jsonl(source.rollouts.with_name("y_failures.jsonl"))]
    assert {(failure["boundary"], failure["type"]) for failure in failures} == {("resources", "invalid-request")}
    rows = [{**row, "expected_answer": "x"} if row["_ng_task_index"] == 2 else row for row in rows]
    source.inputs.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
    assert "made from other rollouts" in reverify(source, "--resume").stderr


def test_an_environment_that_needs_its_session_is_refused_and_forced_into_an_unsafe_file(tmp_path: Path) -> None:
    tasks = Path(__file__).parents[2] / "examples" / "data" / "counter.jsonl"
    (tmp_path / "t.yaml").write_text(STATEFUL)
    words: list[str | Path] = [
        "collect",
        "-c",
        tmp_path / "t.yaml",
        "--input",
        tasks,
        "--agent",
        "counter",
        "--embedded",
    ]
    assert run(*words, "--limit", "3", "--output", tmp_path / "x.jsonl").exit_code == 0
    source = RunFiles.at(tmp_path / "x.jsonl")

    refused, forced = reverify(source), reverify(source, "--force")

    assert refused.exit_code == 1
    assert "counting (of counter_agent) says 'unsupported'" in refused.stderr
    assert (forced.exit_code, forced.stdout) == (0, f"{tmp_path / 'unsafe_y.jsonl'}\n"), forced.output
    assert not (tmp_path / "y.jsonl").exists()


@pytest.mark.parametrize(
    "words", [[], ["-c", "t.yaml", "--head", "http://h"], ["-c", "t.yaml", "--resume", "--overwrite"]]
)
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    assert run("reverify", "--rollouts", "x.jsonl", "--output", "y.jsonl", *words).exit_code == 2


def test_a_signal_stops_cleanly_and_a_resume_completes(source: RunFiles) -> None:
    folder = source.rollouts.parent
    (folder / "slow_words.py").write_text(
        "import asyncio\n"
        "from rollmill_services.resources.string_match.verifier import StringMatch\n"
        "class Slow(StringMatch):\n"
        "    async def verify(self, rollout, session):\n"
        "        await asyncio.sleep(0.1)\n"
        "        return await super().verify(rollout, session)\n"
    )
    (folder / "slow.yaml").write_text(COLLECTED.replace("string_match}", '"slow_words:Slow"}'))
    command = [sys.executable, "-m", "rollmill", "reverify", "-c", "slow.yaml", "--rollouts", "x.jsonl"]
    output = folder / "y.jsonl"
    words = ["--output", "y.jsonl", "--concurrency", "2"]
    with subprocess.Popen([*command, *words], cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(1500):
            if process.poll() is not None or (output.exists() and output.stat().st_size):
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        process.terminate()
        _, told = process.communicate(timeout=30)

    assert process.returncode == 1, told
    assert "--resume" in told
    assert manifest_of(RunFiles.at(output)).state == "interrupted"
    assert 0 < len(by_key(output)) < 40
    assert reverify(source, "--resume").exit_code == 0
    assert by_key(output).keys() == by_key(source.rollouts).keys()


def test_only_what_grades_is_started(source: RunFiles) -> None:
    def services(text: str) -> list[str]:
        path = source.rollouts.with_name("some.yaml")
        path.write_text(text)
        topology: Topology = load_topology(path)
        return grading_services(topology)

    assert services(COLLECTED) == ["words", "solver"]
