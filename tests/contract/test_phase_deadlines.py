import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from rollmill.client.directory import StaticDirectory
from rollmill.client.http import HttpTransport
from rollmill.client.service_client import ServiceClient
from rollmill.collection.agent_runner import AgentRunner
from rollmill.collection.outcomes import Assignment, Completed, Failed
from rollmill.config.settings import ServiceSettings
from rollmill.config.topology import load_topology, topology_digest
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import Row, RowKey
from rollmill.contracts.services import Instance
from rollmill.errors import ConfigError
from rollmill.openai.items import function_call
from rollmill.server import Resources, ServiceApp, Session, model_app, resources_app, tool
from rollmill.server.agent import PhaseTimeouts
from rollmill.testing import FakeModel, service_client
from rollmill_services.agents.tool_loop.agent import ToolLoopSettings
from rollmill_services.agents.tool_loop.app import create_app

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]
LONG = 30.0
SHORT = 0.2
PHASES = ("seed", "model", "tool", "verify")


class Slow:
    """Where a rollout gets stuck, and what was cancelled there."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.reached = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.closed = asyncio.Event()

    async def at(self, phase: str) -> None:
        if phase != self.phase:
            return
        self.reached.set()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class SlowResources(Resources):
    def __init__(self, slow: Slow) -> None:
        super().__init__(ServiceSettings(name="world"))
        self._slow = slow

    async def seed_session(self, session: Session, row: Row) -> None:
        await self._slow.at("seed")

    async def close_session(self, session: Session) -> None:
        self._slow.closed.set()

    async def verify(self, rollout: Rollout, session: Session) -> float:
        await self._slow.at("verify")
        return 1.0

    @tool
    async def look(self, session: Session) -> str:
        """Look around."""
        await self._slow.at("tool")
        return "a door"


class SlowModel(FakeModel):
    def __init__(self, slow: Slow) -> None:
        super().__init__(lambda request: "done" if _has_looked(request) else function_call("look", "{}", "c"))
        self._slow = slow

    async def respond(self, request: JsonObject) -> JsonObject:
        await self._slow.at("model")
        return await super().respond(request)


def _has_looked(request: JsonObject) -> bool:
    return bool(request["input"][-1].get("type") == "function_call_output")


def applications(slow: Slow, **timeouts: float) -> dict[str, ServiceApp]:
    settings = {"name": "walker", "model": "policy", "resources": "world", "timeouts": timeouts}
    return {
        "policy": model_app(SlowModel(slow)),
        "world": resources_app(SlowResources(slow)),
        "walker": create_app(ToolLoopSettings.model_validate(settings)),
    }


async def attempt(client: ServiceClient, *, seconds: float = LONG) -> Completed | Failed:
    row: Row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "walker"}}
    row["responses_create_params"] = {"input": [{"role": "user", "content": "go"}]}
    runner = AgentRunner(client, run_id="r", timeout_seconds=seconds)
    return await runner.attempt(Assignment(RowKey(0, 0), "walker", row, dumps(row)), 0)


@asynccontextmanager
async def over_sockets(serve: Serve, apps: dict[str, ServiceApp]) -> AsyncIterator[ServiceClient]:
    """Serve each application behind a socket of its own; all of them know each other."""
    transport = HttpTransport()
    client = ServiceClient(transport, StaticDirectory())

    @asynccontextmanager
    async def connect(_: ServiceSettings) -> AsyncIterator[ServiceClient]:
        yield client

    async with AsyncExitStack() as stack:
        stack.push_async_callback(transport.aclose)
        instances = []
        for name, app in apps.items():
            app.connector = connect
            url = await stack.enter_async_context(serve(app))
            told = app.runtime.capabilities
            instances.append(Instance(name=name, instance=name, kind=app.runtime.kind, url=url, capabilities=told))
        client.directory = StaticDirectory(instances)
        yield client


def failed(outcome: Completed | Failed) -> Failed:
    assert isinstance(outcome, Failed)
    return outcome


@pytest.mark.parametrize("phase", ["seed", "model", "verify"])
async def test_a_phase_that_takes_too_long_fails_the_rollout_with_its_name_and_service(phase: str) -> None:
    slow = Slow(phase)
    async with service_client(applications(slow, **{f"{phase}_seconds": SHORT})) as client:
        failure = failed(await attempt(client)).failure
    assert (failure.type, failure.phase, failure.retryable) == ("upstream-timeout", phase, True)
    assert failure.boundary == ("model" if phase == "model" else "resources")
    assert f"the 0.2 s of timeouts.{phase}_seconds passed in the phase '{phase}'" in failure.detail
    assert slow.cancelled.is_set()


async def test_a_tool_that_takes_too_long_is_told_to_the_model_and_the_rollout_goes_on() -> None:
    slow = Slow("tool")
    async with service_client(applications(slow, tool_seconds=SHORT)) as client:
        outcome = await attempt(client)
    assert isinstance(outcome, Completed)
    outputs = [item for item in outcome.row["response"]["output"] if item["type"] == "function_call_output"]
    assert [item["output"] for item in outputs] == ['{"error":"the tool look did not answer within 0.2 s"}']
    assert slow.cancelled.is_set()


@pytest.mark.parametrize("phase", PHASES)
async def test_when_the_rollouts_own_time_is_over_the_phase_and_its_service_are_told_over_sockets_too(
    serve: Serve, phase: str
) -> None:
    slow = Slow(phase)
    async with over_sockets(serve, applications(slow)) as client:
        failure = failed(await attempt(client, seconds=1.0)).failure
        assert (failure.type, failure.phase, failure.retryable) == ("upstream-timeout", phase, False)
        assert failure.boundary == ("model" if phase == "model" else "resources")
        assert "the rollout's time passed" in failure.detail
        await asyncio.wait_for(slow.cancelled.wait(), 10)
        await asyncio.wait_for(slow.closed.wait(), 10)


async def test_a_phase_over_sockets_ends_with_its_own_time(serve: Serve) -> None:
    async with over_sockets(serve, applications(Slow("model"), model_seconds=SHORT)) as client:
        failure = failed(await attempt(client)).failure
    assert (failure.boundary, failure.type, failure.phase) == ("model", "upstream-timeout", "model")


@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancelled_rollout_stops_the_work_of_its_phase_within_a_second(serve: Serve, phase: str) -> None:
    slow = Slow(phase)
    async with over_sockets(serve, applications(slow)) as client:
        rollout = asyncio.create_task(attempt(client))
        await asyncio.wait_for(slow.reached.wait(), 10)
        rollout.cancel()
        began = asyncio.get_running_loop().time()
        await asyncio.wait_for(slow.cancelled.wait(), 10)
        await asyncio.wait_for(slow.closed.wait(), 10)
        seconds = asyncio.get_running_loop().time() - began
    assert seconds < 5  # promised within one, on a machine that has nothing else to do


@pytest.mark.parametrize("value", [0, -1, "nan"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_time_that_is_not_above_zero_is_refused_by_name(phase: str, value: float | str) -> None:
    name = f"{phase}_seconds"
    with pytest.raises(ConfigError, match=rf"settings.timeouts.{name}: Input should be"):
        ToolLoopSettings.parse({"model": "m", "resources": "r", "timeouts": {name: value}}, where="settings")


def test_the_times_can_be_set_by_a_variable() -> None:
    environ = {"ROLLMILL_MODEL": "m", "ROLLMILL_RESOURCES": "r", "ROLLMILL_TIMEOUTS": '{"tool_seconds": 5}'}
    assert ToolLoopSettings.from_environment(environ).timeouts == PhaseTimeouts(tool_seconds=5)


def test_other_times_are_no_other_topology(tmp_path: Path) -> None:
    text = """
services:
  policy: {kind: model, use: scripted, settings: {answers: [a.jsonl]}}
  words: {kind: resources, use: string_match}
  solver: {kind: agent, use: single_turn, settings: {model: policy, resources: words%s}}
"""
    digests = []
    for times in ("", ", timeouts: {tool_seconds: 5}"):
        (tmp_path / "t.yaml").write_text(text % times)
        digests.append(topology_digest(load_topology(tmp_path / "t.yaml")))
    assert digests[0] == digests[1]
