import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest

import rollmill
from rollmill import Failure
from rollmill.client.links import open_client
from rollmill.client.service_client import ServiceClient
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import Row
from rollmill.errors import InputError, OverloadedError, ServiceNotFoundError
from rollmill.server import (
    Agent,
    AgentSettings,
    Episode,
    Resources,
    ServiceApp,
    Session,
    agent_app,
    model_app,
    resources_app,
)
from rollmill.testing import FakeModel
from rollmill_services.head.app import create_app as create_head
from rollmill_services.head.settings import HeadSettings

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]

TOPOLOGY = """
services:
  policy: {kind: model, use: scripted}
  words: {kind: resources, use: string_match}
  solver: {kind: agent, use: single_turn, settings: {model: policy, resources: words}}
"""


class Solver(Agent):
    """Does what the row says."""

    at_work: int = 0
    most_at_work: int = 0
    cancelled: int = 0

    async def run(self, row: Row, episode: Episode) -> Row:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            await asyncio.sleep(row.get("seconds", 0.0))
            self._maybe_fail(row)
            return await super().run(row, episode)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_work -= 1

    def _maybe_fail(self, row: Row) -> None:
        if row.get("broken"):
            raise InputError("this task is broken")
        if row.get("_ng_attempt_index", 0) < row.get("busy", 0):
            raise OverloadedError("busy")

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        return await episode.respond(request)


class Counter(Resources):
    """Its reward says how many rollouts it has graded."""

    graded = 0

    async def verify(self, rollout: Rollout, session: Session) -> float:
        self.graded += 1
        return float(self.graded)


class Deployment:
    def __init__(self, head: str, solver: Solver) -> None:
        self.head = head
        self.solver = solver


@pytest.fixture
async def deployment(serve: Serve) -> AsyncIterator[Deployment]:
    """Services on sockets that register at a head."""
    async with AsyncExitStack() as stack:
        head = await stack.enter_async_context(serve(create_head(HeadSettings())))
        settings = AgentSettings(name="solver", model="policy", resources="counter")
        solver = Solver(settings)
        await stack.enter_async_context(_registered(serve, head, model_app(FakeModel(["42"])), "policy", "model"))
        await stack.enter_async_context(_registered(serve, head, resources_app(Counter()), "counter", "resources"))
        await stack.enter_async_context(_registered(serve, head, agent_app(solver), "solver", "agent"))
        yield Deployment(head, solver)


@asynccontextmanager
async def _registered(serve: Serve, head: str, app: ServiceApp, name: str, kind: str) -> AsyncIterator[None]:
    @asynccontextmanager
    async def connect(_: ServiceSettings) -> AsyncIterator[ServiceClient]:
        async with open_client(head, "") as client:
            yield client

    app.connector = connect
    async with serve(app) as url, httpx.AsyncClient(base_url=head) as client:
        body = {"name": name, "kind": kind, "url": url, "version": "0"}
        answer = await client.post("/v1/services", json=body)
        assert answer.status_code == 201, answer.text
        yield


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(TOPOLOGY)
    return path


def task(agent: str | None = "solver", **fields: JsonValue) -> Row:
    row: Row = {"responses_create_params": {"input": "say hello"}, "expected_answer": "hello", **fields}
    return {**row, "agent_ref": {"name": agent}} if agent else row


async def test_a_topology_runs_inside_the_process(topology: Path) -> None:
    results = [pair async for pair in rollmill.collect([task(n=n) for n in range(3)], topology=topology)]

    assert sorted(row["n"] for row, _ in results) == [0, 1, 2]
    for row, result in results:
        assert isinstance(result, dict)
        assert result["n"] == row["n"]
        assert isinstance(result["reward"], float)
        assert result["response"]["output"]
        assert (row["_ng_task_index"], row["_ng_rollout_index"]) == (row["n"], 0)


async def test_a_head_leads_to_services_over_the_network(deployment: Deployment) -> None:
    results = [result async for _, result in rollmill.collect([task(), task()], head=deployment.head)]

    assert all(isinstance(result, dict) and result["reward"] > 0 for result in results)
    assert len(results) == 2


async def test_results_come_in_order_of_completion(deployment: Deployment) -> None:
    tasks = [task(n=0, seconds=0.4), task(n=1, seconds=0.2), task(n=2)]

    assert [row["n"] async for row, _ in rollmill.collect(tasks, head=deployment.head)] == [2, 1, 0]


async def test_a_failed_rollout_is_a_failure_and_the_others_go_on(deployment: Deployment) -> None:
    tasks = [task(n=0), task(n=1, broken=True), task(n=2)]
    results = {row["n"]: result async for row, result in rollmill.collect(tasks, head=deployment.head)}

    failure = results.pop(1)
    assert isinstance(failure, Failure)
    assert (failure.boundary, failure.type, failure.retryable) == ("agent", "invalid-request", False)
    assert "this task is broken" in failure.detail
    assert all(isinstance(result, dict) for result in results.values())
    assert len(results) == 2


@pytest.mark.parametrize(("max_attempts", "graded"), [(1, False), (2, True)])
async def test_a_retryable_failure_is_tried_again(deployment: Deployment, max_attempts: int, graded: bool) -> None:
    stream = rollmill.collect([task(busy=1)], head=deployment.head, max_attempts=max_attempts, timeout_seconds=3.0)
    [result] = [result async for _, result in stream]

    assert isinstance(result, dict) is graded


async def test_a_rollout_that_takes_too_long_is_a_failure(deployment: Deployment) -> None:
    stream = rollmill.collect([task(seconds=60)], head=deployment.head, timeout_seconds=0.2, max_attempts=1)
    [result] = [result async for _, result in stream]

    assert isinstance(result, Failure)
    assert result.type in ("deadline-passed", "upstream-timeout")


async def test_no_more_than_the_concurrency_are_at_work(deployment: Deployment) -> None:
    tasks = [task(seconds=0.01) for _ in range(12)]
    results = [pair async for pair in rollmill.collect(tasks, head=deployment.head, concurrency=3)]

    assert len(results) == 12
    assert deployment.solver.most_at_work == 3


async def test_rows_are_taken_from_an_endless_source_only_as_slots_become_free(deployment: Deployment) -> None:
    taken = 0

    def source() -> Iterator[Row]:
        nonlocal taken
        while True:
            taken += 1
            yield task()

    read = 0
    async with aclosing(rollmill.collect(source(), head=deployment.head, concurrency=4)) as stream:  # type: ignore[type-var]
        async for _ in stream:
            read += 1
            await asyncio.sleep(0.01)  # a slow reader
            assert taken <= read + 2 * 4 + 1  # in flight, waiting for the reader, and the next one
            if read == 20:
                break
    assert taken >= 20


async def test_leaving_the_loop_early_cancels_what_is_in_flight(deployment: Deployment) -> None:
    tasks = [task(), *(task(seconds=60) for _ in range(3))]
    async for _, result in rollmill.collect(tasks, head=deployment.head):
        assert isinstance(result, dict)
        while deployment.solver.at_work < 3:  # noqa: ASYNC110 (the agent is on the other side of a socket)
            await asyncio.sleep(0.005)
        break
    gc.collect()

    async with asyncio.timeout(10):
        while deployment.solver.at_work:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert deployment.solver.cancelled == 3


async def test_leaving_early_stops_an_embedded_topology_cleanly(topology: Path) -> None:
    before = asyncio.all_tasks()
    async for _ in rollmill.collect([task() for _ in range(50)], topology=topology, concurrency=2):
        break
    gc.collect()

    async with asyncio.timeout(10):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_agent_option_fills_rows_that_name_none(deployment: Deployment) -> None:
    stream = rollmill.collect([task(None)], head=deployment.head, agent="solver")

    [(row, result)] = [pair async for pair in stream]
    assert row["agent_ref"] == {"name": "solver"}
    assert isinstance(result, dict)


async def test_a_row_without_an_agent_is_an_error_after_the_results_before_it(deployment: Deployment) -> None:
    def source() -> Iterator[Row]:
        yield task()
        while not finished:
            yield task(seconds=0.01)
        yield task(None)

    finished: list[Row] = []

    async def read() -> None:
        async for row, _ in rollmill.collect(source(), head=deployment.head, concurrency=1):
            finished.append(row)

    with pytest.raises(InputError, match="names no agent"):
        await read()
    assert finished


async def test_an_agent_that_is_not_there_is_a_failure_of_its_rows(topology: Path) -> None:
    [(_, result)] = [pair async for pair in rollmill.collect([task("nobody")], topology=topology, max_attempts=1)]

    assert isinstance(result, Failure)
    assert result.type == ServiceNotFoundError.slug


async def test_own_indices_are_kept_and_null_counts_as_none(deployment: Deployment) -> None:
    tasks = [task(_ng_task_index=7, _ng_rollout_index=3), task(_ng_task_index=None)]
    stream = rollmill.collect(tasks, head=deployment.head, concurrency=1)

    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) async for row, _ in stream] == [(7, 3), (1, 0)]


@pytest.mark.parametrize("index", [-1, "1", True, 1.5])
async def test_a_wrong_index_is_an_input_error(deployment: Deployment, index: JsonValue) -> None:
    with pytest.raises(InputError, match="row 0: _ng_task_index must be an integer"):
        await anext(rollmill.collect([task(_ng_task_index=index)], head=deployment.head))


async def test_rows_with_the_same_indices_are_each_a_rollout_of_their_own(deployment: Deployment) -> None:
    tasks = [task(_ng_task_index=0, n=n) for n in range(4)]
    results = [result async for _, result in rollmill.collect(tasks, head=deployment.head)]

    rows = [result for result in results if isinstance(result, dict)]
    assert sorted(row["n"] for row in rows) == [0, 1, 2, 3]
    assert sorted(row["reward"] for row in rows) == [1.0, 2.0, 3.0, 4.0]


async def test_the_callers_rows_are_left_as_they_are(deployment: Deployment) -> None:
    mine = task()
    before = dict(mine)
    [_ async for _ in rollmill.collect([mine], head=deployment.head)]

    assert mine == before


async def test_no_rows_are_no_results(topology: Path) -> None:
    assert [pair async for pair in rollmill.collect([], topology=topology)] == []


async def test_topology_or_head_is_needed_and_not_both(topology: Path) -> None:
    for given in ({}, {"topology": topology, "head": "http://127.0.0.1:1"}):
        with pytest.raises(InputError, match="exactly one of topology= and head="):
            await anext(rollmill.collect([task()], **given))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"max_attempts": 0}, {"timeout_seconds": 0.0}])
async def test_numbers_out_of_range_are_an_error_and_not_a_standstill(topology: Path, wrong: JsonObject) -> None:
    with pytest.raises(InputError, match="at least 1"):
        await anext(rollmill.collect([task()], topology=topology, **wrong))


async def test_an_error_of_the_source_reaches_the_caller(topology: Path) -> None:
    def source() -> Iterator[Row]:
        yield task()
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        [_ async for _ in rollmill.collect(source(), topology=topology)]
