"""Recorded programs get their recorded verdicts."""

import pytest
from tests.recorded import RECORDED, question, recorded_rows
from tests.sandboxes import needs_sandbox

from rollmill.contracts.rollouts import Rollout
from rollmill.server.sessions import Session
from rollmill_services.resources.code_tests.verifier import CodeTests, CodeTestsSettings

pytestmark = [
    pytest.mark.recorded,
    pytest.mark.skipif(not (RECORDED / "code_gen").is_dir(), reason="no recorded rollouts here"),
    needs_sandbox,
]


async def test_every_recorded_program_gets_its_recorded_reward() -> None:
    recordings = {question(row): row for row in recorded_rows("code_gen", "rollouts.jsonl")}
    verifier = CodeTests(CodeTestsSettings(cpu_seconds=10, wall_seconds=60.0))
    await verifier.startup()

    rewards = []
    for task in recorded_rows("code_gen", "tasks.jsonl"):
        recording = recordings[question(task)]
        graded = await verifier.verify(Rollout({**task, "response": recording["response"]}), Session("s", {}))
        rewards.append((graded.reward, recording["reward"]))
        assert graded.details["extracted_model_code"].strip() == recording["extracted_model_code"].strip()

    assert [ours for ours, _ in rewards] == [theirs for _, theirs in rewards]
    assert {theirs for _, theirs in rewards} == {0.0, 1.0}
