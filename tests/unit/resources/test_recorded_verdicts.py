import json
from pathlib import Path

import pytest

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import content_text
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill.server.tools import declared_tools
from rollmill_services.resources.counter.verifier import Counter
from rollmill_services.resources.instruction_following.verifier import InstructionFollowing
from rollmill_services.resources.mcqa.verifier import Mcqa
from rollmill_services.resources.multi_step_tools.verifier import MultiStepTools
from rollmill_services.resources.string_match.verifier import StringMatch
from rollmill_services.resources.weather.verifier import Weather

RECORDED = Path(__file__).parents[3].parent / "shared/data/recorded"

pytestmark = [
    pytest.mark.recorded,
    pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded rollouts here"),
]


def lines(path: Path) -> list[JsonObject]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def asked(row: JsonObject) -> str:
    given = row["responses_create_params"]["input"]
    return given if isinstance(given, str) else "\n".join(content_text(message["content"]) for message in given)


def joined(folder: str) -> list[tuple[JsonObject, JsonObject]]:
    """Pairs of a recorded rollout and the row that a verifier gets for it."""
    by_question = {asked(task): task for task in lines(RECORDED / folder / "tasks.jsonl")}
    rollouts = lines(RECORDED / folder / "rollouts.jsonl")
    return [(row, {**by_question[asked(row)], "response": row["response"]}) for row in rollouts]


async def replay(resources: Resources, row: JsonObject) -> Verdict:
    """Seed a session, make the recorded tool calls, and verify."""
    session = Session("s", row)
    await resources.seed_session(session, row)
    tools = declared_tools(resources)
    for item in row["response"]["output"]:
        if item["type"] == "function_call":
            await tools[item["name"]].call(session, json.loads(item["arguments"]))
    verdict = await resources.verify(Rollout(row), session)
    assert isinstance(verdict, Verdict)
    return verdict


@pytest.mark.parametrize(
    ("folder", "resources"),
    [
        ("mcqa", Mcqa()),
        ("string_match", StringMatch()),
        ("example_single_tool_call", Weather()),
        ("example_session_state_mgmt", Counter()),
        ("example_multi_step", MultiStepTools()),
        ("instruction_following", InstructionFollowing()),
    ],
    ids=["mcqa", "string_match", "weather", "counter", "multi_step_tools", "instruction_following"],
)
async def test_the_verdicts_equal_the_recorded_ones(folder: str, resources: Resources) -> None:
    pairs = joined(folder)

    assert pairs
    for recorded, row in pairs:
        verdict = await replay(resources, row)
        assert verdict.reward == recorded["reward"]
        told = verdict.details.keys() & recorded.keys()
        assert {name: verdict.details[name] for name in told} == {name: recorded[name] for name in told}
