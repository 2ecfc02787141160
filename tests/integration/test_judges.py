"""Judges as services: what a run does when its judge is down, and how its rollouts get their verdicts afterwards."""

import importlib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.reader import read_jsonl
from rollmill.cli.main import build_cli
from rollmill.config.topology import grading_services, load_topology
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout
from rollmill.openai import text_message
from rollmill.server.sessions import Session
from rollmill_services.resources.llm_judge.verifier import LlmJudge, LlmJudgeSettings

JUDGE_EXAMPLE = Path(__file__).parents[2] / "examples/judge"
TOPOLOGY = """
services:
  policy: {kind: model, use: scripted, settings: {answers: ["FOLDER/judged.jsonl"], skill: 0.6}}
  judge: JUDGE
  judging: {kind: resources, use: llm_judge, settings: {judge: judge}}
  solver: {kind: agent, use: single_turn, settings: {model: policy, resources: judging}}
"""
TOY = '{kind: model, use: "toy_judge:ToyJudge"}'
DOWN = '{kind: model, use: openai_compatible, settings: {base_url: "http://127.0.0.1:9/v1", model: m, max_retries: 0}}'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_HOME", str(tmp_path / "home"))
    for name in ("ROLLMILL_TOKEN", "ROLLMILL_HEAD_URL", "ROLLMILL_DEBUG", "ROLLMILL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(JUDGE_EXAMPLE))


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), [str(word) for word in words])


def topology(folder: Path, judge: str) -> Path:
    path = folder / "t.yaml"
    path.write_text(TOPOLOGY.replace("FOLDER", str(JUDGE_EXAMPLE)).replace("JUDGE", judge))
    return path


def collect(folder: Path, judge: str, output: str) -> RunFiles:
    words: list[str | Path] = [
        "--input",
        JUDGE_EXAMPLE / "judged.jsonl",
        "--agent",
        "solver",
        "--embedded",
        "--num-repeats",
        "2",
    ]
    options: list[str | Path] = ["--max-attempts", "1", "--add-seed", "--output", folder / output]
    result = run("collect", "-c", topology(folder, judge), *words, *options)
    assert result.exit_code == (0 if judge == TOY else 3), result.output
    return RunFiles.at(folder / output)


def by_key(path: Path) -> dict[tuple[int, int], JsonObject]:
    return {(row["_ng_task_index"], row["_ng_rollout_index"]): row for row in read_jsonl(path)}


def test_a_judge_that_is_down_fails_rollouts_that_get_their_verdicts_when_it_is_up_again(tmp_path: Path) -> None:
    judged = collect(tmp_path, TOY, "judged.jsonl")
    source = collect(tmp_path, DOWN, "x.jsonl")

    failed = by_key(source.failures)
    assert (len(failed), source.rollouts.read_bytes()) == (24, b"")
    for row in failed.values():
        assert row["_ng_failure_class"] == "judge_failed"
        assert "reward" not in row
        told = row["failure"]
        assert (told["boundary"], told["type"], told["phase"]) == ("model", "judge_failed", "verify")
        assert told["retryable"]
        assert told["detail"].startswith("the judge 'judge' failed: ")
    words: list[str | Path] = ["--failed-only", "--rollouts", source.rollouts, "--output", tmp_path / "y.jsonl"]
    result = run("reverify", "-c", topology(tmp_path, TOY), *words)

    assert result.exit_code == 0, result.output
    graded = by_key(tmp_path / "y.jsonl")
    rewards = {key: row["reward"] for key, row in graded.items()}
    assert {key: row["response"] for key, row in graded.items()} == {key: r["response"] for key, r in failed.items()}
    assert rewards == {key: row["reward"] for key, row in by_key(judged.rollouts).items()}
    assert set(rewards.values()) > {0.0, 1.0}
    merged = run("aggregate", "--input-glob", tmp_path / "[xy].jsonl", "--output", tmp_path / "all.jsonl")
    assert merged.exit_code == 0, merged.output
    assert "24 of 24 rollouts" in merged.stderr


async def test_the_examples_judge_knows_its_right_answers_from_its_wrong_ones() -> None:
    toy = importlib.import_module("toy_judge").ToyJudge()

    class Models:
        async def respond(self, name: str, request: JsonObject) -> JsonObject:
            answer: JsonObject = await toy.respond(request)
            return answer

    verifier = LlmJudge(LlmJudgeSettings(judge="judge"))
    verifier.models = Models()
    for row in read_jsonl(JUDGE_EXAMPLE / "judged.jsonl"):
        for kind, texts in row["scripted_answers"].items():
            for text in texts:
                rollout = Rollout({**row, "response": {"output": [text_message(text)]}})
                reward = (await verifier.verify(rollout, Session("s", row))).reward
                assert (reward == 1.0) is (kind == "right"), (row["responses_create_params"], text)


def test_the_judge_is_among_what_grades(tmp_path: Path) -> None:
    assert set(grading_services(load_topology(topology(tmp_path, TOY)))) == {"judge", "judging", "solver"}


def test_a_judge_that_is_not_in_the_topology_is_told_before_anything_runs(tmp_path: Path) -> None:
    path = topology(tmp_path, TOY)
    path.write_text(path.read_text().replace("{judge: judge}", "{judge: jugde}"))

    result = run("validate", "-c", path)

    assert result.exit_code == 1
    assert "jugde" in result.stderr
