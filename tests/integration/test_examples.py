"""Every example topology is valid, runs, and gives rewards worth looking at."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from rollmill import AsyncCollectorClient, AsyncProfilerClient, RunRequest, ServiceSettings
from rollmill.artifacts.reader import read_jsonl
from rollmill.cli.datasets import dataset_input
from rollmill.collection.embedded import embedded
from rollmill.config.topology import Topology, load_topology, startup_order
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import agent_name, row_key
from rollmill.contracts.runs import RunOptions
from rollmill.openai import function_call
from rollmill.server import model_app
from rollmill.testing import FakeModel

if TYPE_CHECKING:
    from tests.conftest import Serve
    from tests.integration.conftest import Collect, NetworkTopology

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRON = {"POLICY_BASE_URL": "http://127.0.0.1:9/v1", "POLICY_MODEL": "some-model"}
OFFLINE = [
    "weather",
    "counter",
    "mcqa",
    "string_match",
    "math",
    "math_forms",
    "code",
    "multi_step_tools",
    "structured_output",
    "instruction_following",
    "reasoning_gym",
    "demo",
    "dice/dice",
    "judge/judge",
    "toy_text",
]
EXTRAS = {"reasoning_gym": "reasoning_gym"}
"""Examples that need a library which is not among those for development."""
MOSTLY_RIGHT = {"weather_agent", "counter_agent"}
OWN_REWARDS = {"toy_text_agent"}  # games that count steps and falls


def load(name: str, environ: dict[str, str] | None = None) -> Topology:
    return load_topology(EXAMPLES / f"{name}.yaml", environ or ENVIRON)


@pytest.fixture(autouse=True)
def _in_the_folders_with_code_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dice", "judge"):
        monkeypatch.syspath_prepend(str(EXAMPLES / name))  # as if started there


async def rewards(topology: Topology, collect: "Collect") -> dict[str, list[float]]:
    """Run a topology's own datasets and return the rewards of each agent, in order of the rollouts."""
    options = RunOptions(add_seed=True)
    with dataset_input(topology, None, None, options) as (tasks, adjusted):
        async with embedded(topology) as client:
            rows = await collect(client, tasks, adjusted)
    by_agent: dict[str, list[float]] = {}
    for row in sorted(rows, key=row_key):
        by_agent.setdefault(agent_name(row) or "", []).append(row["reward"])
    return by_agent


def test_every_topology_in_the_folder_is_tested_here() -> None:
    files = (path for path in EXAMPLES.rglob("*.yaml") if path.stem != "fixtures")
    present = {str(path.relative_to(EXAMPLES).with_suffix("")) for path in files}

    assert present == {*OFFLINE, "openai", "reward_model"}


@pytest.mark.parametrize("name", [*OFFLINE, "openai", "reward_model"])
def test_an_example_is_a_valid_topology_with_tasks_for_each_of_its_agents(name: str) -> None:
    topology = load(name)

    agents = {name for name, spec in topology.services.items() if spec.kind == "agent"}
    assert set(startup_order(topology)) == set(topology.services)
    assert {dataset.agent for dataset in topology.datasets} == agents
    for dataset in topology.datasets:
        assert {agent_name(row) for row in read_jsonl(dataset.path)} <= {dataset.agent, None}


@pytest.mark.parametrize("name", OFFLINE)
async def test_an_example_gives_telling_rewards_and_the_same_ones_again(name: str, collect: "Collect") -> None:
    if name in EXTRAS and find_spec(EXTRAS[name]) is None:
        pytest.skip(f"{EXTRAS[name]} is not installed")
    topology = load(name)

    first = await rewards(topology, collect)
    again = await rewards(topology, collect)

    assert first == again
    assert set(first) == {dataset.agent for dataset in topology.datasets}
    for agent, values in first.items():
        if agent in OWN_REWARDS:
            assert {-1.0, 0.0, 1.0} < set(values)
            continue
        mean = sum(values) / len(values)
        if agent in MOSTLY_RIGHT:
            assert mean > 0.8
        else:
            assert 0.3 < mean < 0.9
        assert all(0.0 <= value <= 1.0 for value in values)


def weather_engine(request: JsonObject) -> JsonObject | str:
    """Ask the tool once, then answer."""
    asked = any(item.get("type") == "function_call_output" for item in request["input"])
    return "It is sunny." if asked else function_call("get_weather", '{"city": "Oslo"}')


async def test_the_openai_example_asks_the_engine_that_the_variables_name(serve: "Serve", collect: "Collect") -> None:
    engine = FakeModel(weather_engine, ServiceSettings(token=SecretStr("some-key")))
    async with serve(model_app(engine)) as url:
        environ = {"POLICY_BASE_URL": f"{url}/v1", "POLICY_MODEL": "some-model", "POLICY_API_KEY": "some-key"}
        values = await rewards(load("openai", environ), collect)

    assert values == {"weather_agent": [1.0] * 40}
    assert {request["model"] for request in engine.requests} == {"some-model"}
    assert len(engine.requests) == 80


async def test_the_services_collect_and_profile_an_example_over_sockets(
    network_topology: "NetworkTopology", tmp_path: Path
) -> None:
    topology = load("mcqa")
    tasks = list(read_jsonl(topology.datasets[0].path))
    async with network_topology(topology, data_dir=tmp_path) as network:
        [collector_url], [profiler_url] = network.urls["collector"], network.urls["profiler"]
        async with AsyncCollectorClient(collector_url, token=network.token) as collector:
            run = await collector.start(RunRequest(rows=tasks, num_repeats=4, add_seed=True))
            rows = [row async for row in collector.rollouts(run.run_id)]
            status = await collector.status(run.run_id)
        async with AsyncProfilerClient(profiler_url, token=network.token) as profiler:
            profile = await profiler.run_profile(run.run_id)

    assert (status.state, status.completed, status.failed) == ("finished", len(rows), 0)
    assert len(rows) == 4 * len(tasks)
    assert profile["completion"]["complete_tasks"] == len(tasks)
    [agent] = profile["agents"]
    assert agent["agent_ref"] == {"name": "mcqa_agent"}
    assert agent["mean/reward"] == pytest.approx(sum(row["reward"] for row in rows) / len(rows))
    assert status.mean_reward == pytest.approx(agent["mean/reward"])
