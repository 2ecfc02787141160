"""Collections over real applications in one process: agent, resources and model, reached as embedded runs reach them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rollmill.artifacts.manifest import read_manifest
from rollmill.artifacts.reader import read_rollouts
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.collection.embedded import embedded
from rollmill.collection.prompts import PromptConfig
from rollmill.config.topology import parse_topology, topology_digest
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row, answer_text, row_key
from rollmill.contracts.runs import RunOptions, RunStatus
from rollmill.errors import ConfigError, InputError, OverloadedError, UpstreamError
from rollmill.server import Agent, AgentSettings, Episode, Resources, Session, agent_app, model_app, resources_app
from rollmill.testing import FakeModel, service_client

TASKS = 12


class SumCheck(Resources):
    """Grades the sum that a task asks for, and knows which sessions are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0

    async def seed_session(self, session: Session, row: Row) -> None:
        self.open += 1

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        if rollout.field("ungradable"):
            raise InputError("this task has no right answer")
        right = rollout.text == str(rollout.require("expected"))
        return Verdict(float(right), {"length": len(rollout.text)})

    async def close_session(self, session: Session) -> None:
        self.open -= 1

    def compute_metrics(self, tasks: list[list[Row]]) -> JsonObject:
        return {"tasks_seen": len(tasks)}


class AskOnce(Agent):
    """Asks the model once, marking what the task says should be marked."""

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        return await episode.respond(request)

    async def run(self, row: Row, episode: Episode) -> Row:
        return {**await super().run(row, episode), **row.get("marks", {})}


def add_up(request: JsonObject) -> str:
    items = request["input"]
    question = items if isinstance(items, str) else items[-1]["content"]
    if "busy" in str(question):
        raise UpstreamError("the engine broke", retryable=False)
    left, _, right = str(question).partition("+")
    return str(int(left) + int(right))


class Bench:
    """The three services, and a plan to collect from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resources = SumCheck()
        self.model = FakeModel(add_up)
        self.plan = CollectionPlan(
            self.tasks(*[{"expected": n + 1 if n % 3 else -1} for n in range(TASKS)]),
            folder / "out" / "x.jsonl",
            RunOptions(agent="adder", num_repeats=2, concurrency=5),
        )

    def tasks(self, *extra: JsonObject) -> Path:
        path = self.folder / "tasks.jsonl"
        rows = [{"responses_create_params": {"input": f"{n}+1"}, **fields} for n, fields in enumerate(extra)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ServiceClient]:
        settings = AgentSettings(name="adder", model="policy", resources="sums")
        apps = {
            "policy": model_app(self.model),
            "sums": resources_app(self.resources),
            "adder": agent_app(AskOnce(settings)),
        }
        async with service_client(apps) as client:
            yield client

    async def collect(self, plan: CollectionPlan | None = None) -> tuple[Collector, RunStatus]:
        async with self.client() as client:
            collector = Collector(plan or self.plan, client)
            return collector, await collector.run()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def rows_of(path: Path) -> list[JsonObject]:
    return list(read_rollouts(path))


async def test_tasks_become_graded_rollouts_and_metrics(bench: Bench) -> None:
    collector, status = await bench.collect()
    rows = sorted(rows_of(collector.files.rollouts), key=row_key)

    assert (status.state, status.completed, status.failed) == ("finished", 24, 0)
    assert status.mean_reward == pytest.approx(2 / 3)
    assert [row["reward"] for row in rows] == [float(bool(n % 3)) for n in range(TASKS) for _ in range(2)]
    assert [answer_text(row["response"]) for row in rows] == [str(n + 1) for n in range(TASKS) for _ in range(2)]
    assert all(row["agent_ref"] == {"name": "adder"} and row["length"] in (1, 2) for row in rows)
    assert bench.resources.open == 0

    (metrics,) = json.loads(collector.files.aggregate_metrics.read_text())
    assert metrics["agent_ref"] == {"name": "adder"}
    assert metrics["agent_metrics"]["mean/reward"] == pytest.approx(2 / 3)
    assert metrics["agent_metrics"]["tasks_seen"] == TASKS
    assert len(metrics["group_level_metrics"]) == TASKS


async def test_request_parameters_prompts_and_seeds_reach_the_model(bench: Bench) -> None:
    bench.plan.input.write_text('{"left": 20, "expected": 21}\n')
    options = RunOptions(agent="adder", num_repeats=3, add_seed=True, temperature=0.25, max_output_tokens=7)
    plan = replace(bench.plan, options=options, prompt=PromptConfig(system="Only {{n}}.", user="{left}+1"))
    _, status = await bench.collect(plan)

    requests = bench.model.requests
    assert status.mean_reward == 1.0
    assert all(request["temperature"] == 0.25 and request["max_output_tokens"] == 7 for request in requests)
    assert {request["input"][0]["content"] for request in requests} == {"Only {n}."}
    bodies = [json.loads(request["metadata"]["extra_body"]) for request in requests]
    assert sorted(body["seed"] for body in bodies) == [0, 1, 2]


async def test_failures_name_the_service_that_failed_and_rewards_stay_clean(bench: Bench) -> None:
    path = bench.tasks(
        {"expected": 1},
        {"expected": 2, "responses_create_params": {"input": "busy"}},
        {"ungradable": True},
        {},
        {"expected": 5, "marks": {"_ng_failure_class": "killed-tool", "_ng_failure_terminal": True}},
        {"expected": 6, "marks": {"_ng_no_persist": True}},
        {"expected": 7, "marks": {"reward": None}},
    )
    collector, status = await bench.collect(replace(bench.plan, input=path, options=RunOptions(agent="adder")))
    failures = {row["_ng_task_index"]: row for row in rows_of(collector.files.failures)}

    assert [row["_ng_task_index"] for row in rows_of(collector.files.rollouts)] == [0]
    assert {task: row["failure"]["boundary"] for task, row in failures.items()} == {
        1: "model",
        2: "resources",
        3: "resources",
        4: "agent",
        6: "agent",
    }
    assert "expected" in failures[3]["failure"]["detail"]
    assert failures[4]["_ng_failure_class"] == "killed-tool"
    assert failures[4]["_ng_failure_terminal"] is True
    assert (status.completed, status.failed, status.mean_reward) == (1, 6, 1.0)
    assert bench.resources.open == 0


async def test_a_model_that_recovers_costs_attempts_but_no_rollout(bench: Bench) -> None:
    refusals = [OverloadedError("busy", retry_after=0.0) for _ in range(5)]
    bench.model = FakeModel(lambda request: refusals.pop() if refusals else add_up(request))
    collector, status = await bench.collect()

    assert (status.state, status.completed, status.failed) == ("finished", 24, 0)
    assert len({row_key(row) for row in rows_of(collector.files.rollouts)}) == 24


@pytest.mark.parametrize("after", [1, 4, 9, 17])
async def test_cancelled_runs_resume_until_every_rollout_is_settled_exactly_once(bench: Bench, after: int) -> None:
    seen = 0

    def stop_at_times(request: JsonObject) -> str:
        nonlocal seen
        seen += 1
        if seen in (after, after + 6):
            running.cancel()
        return add_up(request)

    bench.model = FakeModel(stop_at_times)
    plan = replace(bench.plan, resume=True)
    for _ in range(2):
        running = asyncio.create_task(bench.collect(plan))
        with pytest.raises(asyncio.CancelledError):
            await running
        assert bench.resources.open == 0
    collector, status = await bench.collect(plan)

    keys = [row_key(row) for row in rows_of(collector.files.rollouts)]
    assert len(keys) == len(set(keys)) == status.completed == 24
    assert [row_key(row) for row in rows_of(collector.files.inputs)] == sorted(keys)
    manifest = read_manifest(collector.files.manifest)
    assert manifest is not None
    assert (manifest.state, manifest.counts.completed) == ("finished", 24)
    assert manifest.mean_reward == pytest.approx(2 / 3)


TOPOLOGY = """
services:
  policy: {kind: model, use: scripted}
  weather: {kind: resources, use: weather}
  weather_agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: weather}}
"""


async def test_a_topology_runs_in_this_process_without_ports(tmp_path: Path) -> None:
    topology = parse_topology(TOPOLOGY, base_dir=tmp_path)
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": "What is the weather in Lima?"}]},
        "agent_ref": {"name": "weather_agent"},
    }
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    plan = CollectionPlan(
        tmp_path / "tasks.jsonl",
        tmp_path / "x.jsonl",
        RunOptions(num_repeats=3),
        topology_digest=topology_digest(topology),
    )
    async with embedded(topology) as client:
        collector = Collector(plan, client)
        status = await collector.run()

    assert (status.state, status.completed, status.failed) == ("finished", 3, 0)
    assert all(row["response"]["output"] for row in rows_of(collector.files.rollouts))
    assert json.loads(collector.files.aggregate_metrics.read_text())[0]["agent_ref"] == {"name": "weather_agent"}


async def test_a_factory_that_makes_no_service_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_service.py").write_text("def create_app(settings=None):\n    return 'not an app'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "services:\n  odd: {kind: model, use: 'odd_service:create_app'}\n"
    with pytest.raises(ConfigError, match="odd"):
        async with embedded(parse_topology(text, base_dir=tmp_path)):
            pass
