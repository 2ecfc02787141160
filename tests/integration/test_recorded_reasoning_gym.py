"""Recorded answers get their recorded scores, and tasks made here are graded here."""

import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.recorded import RECORDED, question, recorded_rows

from rollmill.artifacts.reader import read_jsonl
from rollmill.contracts.rollouts import Rollout
from rollmill.openai import text_message
from rollmill.server.sessions import Session
from rollmill_services.resources.reasoning_gym.verifier import ReasoningGym

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")


@pytest.fixture
async def verifier() -> AsyncIterator[ReasoningGym]:
    environment = ReasoningGym()
    yield environment
    await environment.shutdown()


@pytest.mark.recorded
@pytest.mark.skipif(not (RECORDED / "reasoning_gym").is_dir(), reason="no recorded rollouts here")
async def test_every_recorded_answer_gets_its_recorded_score(verifier: ReasoningGym) -> None:
    tasks = {question(task): task for task in recorded_rows("reasoning_gym", "tasks.jsonl")}
    recordings = recorded_rows("reasoning_gym", "rollouts.jsonl")
    for recording in recordings:
        row = {**tasks[question(recording)], "response": recording["response"]}
        verdict = await verifier.verify(Rollout(row), Session("s", row))
        assert verdict.reward == recording["reward"]
        assert {name: recording[name] for name in verdict.details} == verdict.details

    assert {recording["reward"] for recording in recordings} == {0.0, 1.0}


def make(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    module = "rollmill_services.resources.reasoning_gym.make_tasks"
    return subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, timeout=100)


async def test_tasks_that_the_command_makes_accept_their_own_answers(verifier: ReasoningGym, tmp_path: Path) -> None:
    path = tmp_path / "new/tasks.jsonl"
    options = ["--size", "3", "--seed", "5", "--agent", "some", "--config", '{"min_numbers": 2, "max_numbers": 2}']
    made = make("gcd", "--output", str(path), *options)
    assert made.returncode == 0, made.stderr

    tasks = list(read_jsonl(path))
    assert [task["agent_ref"] for task in tasks] == [{"name": "some"}] * 3
    for task in tasks:
        await verifier.seed_session(Session("s", task), task)
        answered = {**task, "response": {"output": [text_message(f"<answer>{task['answer']}</answer>")]}}
        assert (await verifier.verify(Rollout(answered), Session("s", task))).reward == 1.0


@pytest.mark.parametrize("arguments", [["no_family"], ["gcd", "--config", '{"no_setting": 1}']])
def test_a_wrong_family_or_setting_is_told_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    made = make(*arguments, "--output", str(tmp_path / "tasks.jsonl"))

    assert made.returncode == 2
    assert b"Traceback" not in made.stderr
    assert made.stderr.splitlines()[-1].startswith(b"make_tasks: error: ")
