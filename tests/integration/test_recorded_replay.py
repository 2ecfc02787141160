import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pytest

from rollmill.client.service_client import ServiceClient
from rollmill.collection.embedded import embedded
from rollmill.config.topology import Topology, parse_topology
from rollmill.contracts.json import JsonObject, canonical
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row, answer_text
from rollmill.contracts.runs import RunOptions
from rollmill.openai import normalize_input
from rollmill.server.sessions import Session
from rollmill_services.resources.counter.verifier import Counter

if TYPE_CHECKING:
    from tests.integration.conftest import Collect, NetworkTopology

Services: TypeAlias = Callable[[Topology], AbstractAsyncContextManager[ServiceClient]]
RECORDED = Path(__file__).parents[2].parent / "shared/data/recorded"

pytestmark = [
    pytest.mark.recorded,
    pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded rollouts here"),
]


class Replay(NamedTuple):
    folder: str
    agent: str
    resources: str
    verdict: str = "reward"
    """Field of the recording that holds the verdict to be reproduced."""
    settings: str = "{}"


REPLAYS = [
    Replay("example_single_tool_call", "tool_loop", "weather"),
    Replay("example_session_state_mgmt", "tool_loop", "counter"),
    Replay("mcqa", "single_turn", "mcqa"),
    Replay("string_match", "single_turn", "string_match"),
    Replay("example_multi_step", "tool_loop", "multi_step_tools"),
    Replay("instruction_following", "single_turn", "instruction_following"),
    # One of its comparisons takes 6 s of CPU time: on a busy machine more than the default limit.
    Replay("math_with_judge", "single_turn", "math_answer", "library_reward", "{verify_timeout_seconds: 100}"),
]
COUNTER = REPLAYS[1]


class TellingCounter(Counter):
    """Tells on which replica a session was seeded, and on which it was graded."""

    async def seed_session(self, session: Session, row: Row) -> None:
        await super().seed_session(session, row)
        session.state["seeded_at"] = self.settings.advertise_url

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        verdict = await super().verify(rollout, session)
        places = {"seeded_at": session.state["seeded_at"], "graded_at": self.settings.advertise_url}
        return Verdict(verdict.reward, {**verdict.details, **places})


def topology_of(replay: Replay, *, use: str = "", replicas: int = 1) -> Topology:
    rollouts = RECORDED / replay.folder / "rollouts.jsonl"
    text = f"""
        services:
          policy: {{kind: model, use: recorded, settings: {{rollouts: ["{rollouts}"]}}}}
          environment:
            {{kind: resources, use: "{use or replay.resources}", replicas: {replicas}, settings: {replay.settings}}}
          solver: {{kind: agent, use: {replay.agent}, settings: {{model: policy, resources: environment}}}}
    """
    return parse_topology(text, base_dir=RECORDED)


def by_input(rows: list[Row]) -> dict[bytes, Row]:
    found = {canonical(normalize_input(row["responses_create_params"]["input"])): row for row in rows}
    assert len(found) == len(rows)
    return found


def recorded_rows(replay: Replay) -> list[JsonObject]:
    lines = (RECORDED / replay.folder / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def tasks_of(replay: Replay) -> Path:
    return RECORDED / replay.folder / "tasks.jsonl"


def assert_reproduced(collected: list[Row], replay: Replay) -> None:
    expected, actual = by_input(recorded_rows(replay)), by_input(collected)

    assert actual.keys() == expected.keys()
    for key, recording in expected.items():
        assert actual[key]["reward"] == recording[replay.verdict]
        assert answer_text(actual[key]["response"]) == answer_text(recording["response"])
        assert calls(actual[key]) == calls(recording)


def calls(row: Row) -> list[tuple[str, str]]:
    output = row["response"]["output"]
    return [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]


@pytest.fixture(params=["embedded", "over sockets"])
def services(request: pytest.FixtureRequest, network_topology: "NetworkTopology") -> Services:
    """Start a topology, in this process or each service behind a socket of its own, and hand out a client."""

    @asynccontextmanager
    async def over_sockets(topology: Topology) -> AsyncIterator[ServiceClient]:
        async with network_topology(topology) as network:
            yield network.client

    return embedded if request.param == "embedded" else over_sockets


@pytest.mark.parametrize("replay", REPLAYS, ids=lambda replay: replay.folder)
async def test_a_replay_reproduces_every_recorded_reward(
    replay: Replay, services: Services, collect: "Collect"
) -> None:
    async with services(topology_of(replay)) as client:
        collected = await collect(client, tasks_of(replay), RunOptions(agent="solver"))

    assert_reproduced(collected, replay)


async def test_some_recorded_rewards_are_1_and_some_are_0() -> None:
    rewards = {row[replay.verdict] for replay in REPLAYS for row in recorded_rows(replay)}

    assert rewards >= {0, 1}  # else the replays would prove little


async def test_the_repeats_of_a_task_replay_its_recording_again(services: Services, collect: "Collect") -> None:
    async with services(topology_of(COUNTER)) as client:
        collected = await collect(client, tasks_of(COUNTER), RunOptions(agent="solver", num_repeats=3))

    for repeat in range(3):
        assert_reproduced([row for row in collected if row["_ng_rollout_index"] == repeat], COUNTER)


async def test_sessions_stay_on_the_replica_that_seeded_them(
    network_topology: "NetworkTopology", collect: "Collect"
) -> None:
    topology = topology_of(COUNTER, use=f"{__name__}:TellingCounter", replicas=2)
    async with network_topology(topology) as network:
        collected = await collect(network.client, tasks_of(COUNTER), RunOptions(agent="solver", num_repeats=8))
        replicas = set(network.urls["environment"])

    assert len(replicas) == 2
    assert {row["seeded_at"] for row in collected} == replicas
    for row in collected:
        assert row["graded_at"] == row["seeded_at"]
        assert row["reward"] == 1.0
        assert row["final_count"] == row["expected_count"]
