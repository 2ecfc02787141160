"""Recorded answers, validated against the schemas that their prompts hold, get their recorded rewards."""

import json

import pytest
from tests.recorded import RECORDED, recorded_rows

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import content_text
from rollmill.server.sessions import Session
from rollmill_services.resources.structured_output.verifier import StructuredOutput

pytestmark = [
    pytest.mark.recorded,
    pytest.mark.skipif(not (RECORDED / "structured_outputs").is_dir(), reason="no recorded rollouts here"),
]


def schema_of(row: JsonObject) -> JsonObject:
    """Find the first JSON object of the prompt: the properties that are asked for."""
    prompt = "\n".join(content_text(message["content"]) for message in row["responses_create_params"]["input"])
    start = prompt.index('{"')
    properties, _ = json.JSONDecoder().raw_decode(prompt[start:])
    return {"type": "object", "properties": properties}


async def test_every_recorded_answer_gets_its_recorded_reward() -> None:
    verifier = StructuredOutput()
    rewards, lenient = [], []
    for row in recorded_rows("structured_outputs", "rollouts.jsonl"):
        graded = {**row, "schema_str": schema_of(row)}
        verdict = await verifier.verify(Rollout(graded), Session("s", {}))
        rewards.append((verdict.reward, row["reward"]))
        unfenced = await verifier.verify(Rollout({**graded, "allow_fenced": True}), Session("s", {}))
        lenient.append(unfenced.details["error_type"])
    await verifier.shutdown()

    assert [ours for ours, _ in rewards] == [theirs for _, theirs in rewards]
    assert {theirs for _, theirs in rewards} == {0.0, 1.0}
    assert sorted(map(str, lenient)) == ["None", "None", "None", "validation", "validation"]  # as the README says


async def test_every_recorded_task_is_accepted() -> None:
    verifier = StructuredOutput()
    for task in recorded_rows("structured_outputs", "tasks.jsonl"):
        await verifier.seed_session(Session("s", task), task)
    await verifier.shutdown()
