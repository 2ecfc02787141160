"""Recorded programs get their recorded verdicts."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from rollmill.contracts.json import JsonObject, canonical
from rollmill.contracts.rollouts import Rollout
from rollmill.errors import ConfigError
from rollmill.openai import normalize_input
from rollmill.server.sessions import Session
from rollmill_services.resources.code_tests.sandbox import Limits, Sandbox
from rollmill_services.resources.code_tests.verifier import CodeTests, CodeTestsSettings

RECORDED = Path(__file__).parents[2].parent / "shared/data/recorded/code_gen"


def has_sandbox() -> bool:
    try:
        asyncio.run(Sandbox(Limits()).check())
    except ConfigError:
        return False
    return True


pytestmark = [
    pytest.mark.recorded,
    pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded rollouts here"),
    pytest.mark.skipif(shutil.which("bwrap") is None or not has_sandbox(), reason="no sandbox can be made here"),
]


def rows(name: str) -> list[JsonObject]:
    return [json.loads(line) for line in (RECORDED / name).read_text(encoding="utf-8").splitlines()]


def question(row: JsonObject) -> bytes:
    return canonical(normalize_input(row["responses_create_params"]["input"]))


async def test_every_recorded_program_gets_its_recorded_reward() -> None:
    recordings = {question(row): row for row in rows("rollouts.jsonl")}
    verifier = CodeTests(CodeTestsSettings(cpu_seconds=10, wall_seconds=60.0))
    await verifier.startup()

    rewards = []
    for task in rows("tasks.jsonl"):
        recording = recordings[question(task)]
        graded = await verifier.verify(Rollout({**task, "response": recording["response"]}), Session("s", {}))
        rewards.append((graded.reward, recording["reward"]))
        assert graded.details["extracted_model_code"].strip() == recording["extracted_model_code"].strip()

    assert [ours for ours, _ in rewards] == [theirs for _, theirs in rewards]
    assert {theirs for _, theirs in rewards} == {0.0, 1.0}
