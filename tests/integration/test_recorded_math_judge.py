"""The judge fallback of `math_answer`, with a judge that repeats the recorded verdicts."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from rollmill.client.service_client import ServiceClient
from rollmill.collection.embedded import embedded
from rollmill.config.settings import ServiceSettings
from rollmill.config.topology import Topology, parse_topology
from rollmill.contracts.json import JsonObject, canonical
from rollmill.contracts.rows import Row, answer_text
from rollmill.contracts.runs import RunOptions
from rollmill.openai import normalize_input
from rollmill.testing import FakeModel, judge_answer

if TYPE_CHECKING:
    from tests.integration.conftest import Collect, NetworkTopology

Services: TypeAlias = Callable[[Topology], AbstractAsyncContextManager[ServiceClient]]
RECORDED = Path(__file__).parents[2].parent / "shared/data/recorded/math_with_judge"
TOPOLOGY = f"""
services:
  policy: {{kind: model, use: recorded, settings: {{rollouts: ["{RECORDED / "rollouts.jsonl"}"]}}}}
  judge: {{kind: model, use: "{__name__}:RecordedJudge"}}
  math: {{kind: resources, use: math_answer, settings: {{judge: judge, verify_timeout_seconds: 90}}}}
  solver: {{kind: agent, use: single_turn, settings: {{model: policy, resources: math}}}}
"""

pytestmark = [
    pytest.mark.recorded,
    pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded rollouts here"),
]


def recorded_rows() -> list[JsonObject]:
    return [json.loads(line) for line in (RECORDED / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()]


def recorded_verdicts() -> dict[str, str]:
    """What the recorded judge said, by the reference answer that it was shown first."""
    told = [(row["expected_answer"], said) for row in recorded_rows() for said in row["judge_evaluations"] or []]
    return {expected: answer_text(said["response"]) for expected, said in told}


def repeat(request: JsonObject) -> str:
    """Give the recorded verdict on the first answer that is shown, in the words that are asked for now."""
    prompt = request["input"][-1]["content"]
    shown = {json.loads(text).strip("\\()") for text in re.findall(r'^(?:First|Second) answer: (".*")$', prompt, re.M)}
    [said] = [said for expected, said in recorded_verdicts().items() if expected.strip("\\()") in shown]
    return f"{said}\n{judge_answer(request, '[[A=B]]' in said)}"


class RecordedJudge(FakeModel):
    """Repeats the recorded verdicts."""

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        super().__init__(repeat, settings)


class GenerousJudge(FakeModel):
    """Says yes to whatever it is asked."""

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        super().__init__(lambda request: judge_answer(request, True), settings)


@pytest.fixture(params=["embedded", "over sockets"])
def services(request: pytest.FixtureRequest, network_topology: "NetworkTopology") -> Services:
    """Start a topology, in this process or each service behind a socket of its own, and hand out a client."""

    @asynccontextmanager
    async def over_sockets(topology: Topology) -> AsyncIterator[ServiceClient]:
        async with network_topology(topology) as network:
            yield network.client

    return embedded if request.param == "embedded" else over_sockets


async def replayed(services: Services, collect: "Collect", *, judge: str = "RecordedJudge") -> dict[bytes, Row]:
    topology = parse_topology(TOPOLOGY.replace("RecordedJudge", judge), base_dir=RECORDED)
    async with services(topology) as client:
        rows = await collect(client, RECORDED / "tasks.jsonl", RunOptions(agent="solver"))
    return by_input(rows)


def by_input(rows: list[Row]) -> dict[bytes, Row]:
    found = {canonical(normalize_input(row["responses_create_params"]["input"])): row for row in rows}
    assert len(found) == len(rows)
    return found


async def test_every_recorded_reward_is_reproduced_with_the_recorded_verdicts_of_the_judge(
    services: Services, collect: "Collect"
) -> None:
    rows = await replayed(services, collect)

    recorded = by_input(recorded_rows())
    assert rows.keys() == recorded.keys()
    for key, row in rows.items():
        assert row["reward"] == recorded[key]["reward"]
        assert row["library_reward"] == recorded[key]["library_reward"]
        told = row["judge_evaluations"]
        assert (told is None) == (recorded[key]["judge_evaluations"] is None)
        assert told is None or told[0]["text"].startswith(recorded_verdicts()[recorded[key]["expected_answer"]])
    assert {row["judge_evaluations"] is None for row in rows.values()} == {True, False}


async def test_a_judge_that_says_yes_overturns_every_no(services: Services, collect: "Collect") -> None:
    rows = (await replayed(services, collect, judge="GenerousJudge")).values()

    assert {row["reward"] for row in rows} == {1.0}
    assert {row["library_reward"] for row in rows} == {0.0, 1.0}
    assert {len(row["judge_evaluations"]) for row in rows if row["judge_evaluations"]} == {2}
