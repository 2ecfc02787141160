"""A run over two replicas of each service, one of which drains or dies in the middle of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from pydantic import SecretStr

from rollmill.artifacts.reader import read_rollouts
from rollmill.client.links import open_client
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.runs import RunOptions, RunStatus
from rollmill.server import AgentSettings, Resources, ServiceApp, Session, model_app, resources_app
from rollmill.testing import FakeModel
from rollmill_services.agents.single_turn.app import create_app as create_agent
from rollmill_services.head.app import create_app as create_head
from rollmill_services.head.settings import HeadSettings

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]
TOKEN = SecretStr("token")
ROLLOUTS = 200
KINDS = ("policy", "worth", "solver")


class SlowModel(FakeModel):
    async def respond(self, request: JsonObject) -> JsonObject:
        await asyncio.sleep(0.02)
        return await super().respond(request)


class Worth(Resources):
    async def verify(self, rollout: Rollout, session: Session) -> float:
        return float(rollout.require("worth"))


class Wire:
    """Passes bytes between callers and one replica, until it is cut: as if the replica's machine were gone."""

    def __init__(self) -> None:
        self.target = 0
        self.port = 0
        self._listener: asyncio.Server | None = None
        self._ends: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._ends += [writer, back]
        for source, sink in ((reader, back), (there, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()

    async def cut(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for end in self._ends:
            end.transport.abort()
        if self._pumps:
            await asyncio.wait(self._pumps)


class Cluster:
    """Two replicas of each service; the first of each can be made to leave."""

    def __init__(self, serve: Serve, head_url: str, stack: AsyncExitStack) -> None:
        self._serve = serve
        self._head_url = head_url
        self._stack = stack
        self._first: dict[str, tuple[AsyncExitStack, Wire]] = {}

    async def start(self) -> None:
        for name in KINDS:
            for number in range(2):
                own, wire = AsyncExitStack(), Wire()
                await wire.open()
                self._stack.push_async_callback(wire.cut)
                await self._stack.enter_async_context(own)
                url = await own.enter_async_context(self._serve(self._app(name, wire.port)))
                wire.target = int(url.rpartition(":")[2])
                if not number:
                    self._first[name] = own, wire

    def _app(self, name: str, port: int) -> ServiceApp:
        common = {"name": name, "head_url": self._head_url, "advertise_url": f"http://127.0.0.1:{port}", "token": TOKEN}
        if name == "policy":
            return model_app(SlowModel(lambda request: "42", settings=ServiceSettings.model_validate(common)))
        if name == "worth":
            return resources_app(Worth(ServiceSettings.model_validate(common)))
        return create_agent(AgentSettings.model_validate(common | {"model": "policy", "resources": "worth"}))

    async def drain(self, name: str) -> None:
        await self._first[name][0].aclose()

    async def kill(self, name: str) -> None:
        await self._first[name][1].cut()


@asynccontextmanager
async def running(serve: Serve) -> AsyncIterator[tuple[Cluster, ServiceClient]]:
    async with AsyncExitStack() as stack:
        head_url = await stack.enter_async_context(serve(create_head(HeadSettings(token=TOKEN, lease_seconds=30))))
        cluster = Cluster(serve, head_url, stack)
        await cluster.start()
        client = await stack.enter_async_context(open_client(head_url, "token"))
        async with asyncio.timeout(20):
            while len(await client.directory.services()) < 2 * len(KINDS):  # noqa: ASYNC110 (asked as users do)
                await asyncio.sleep(0.02)
        yield cluster, client


async def disturbed(client: ServiceClient, folder: Path, disturb: Callable[[], "asyncio.Future[None]"]) -> RunStatus:
    tasks = folder / "tasks.jsonl"
    rows: list[JsonObject] = [
        {"responses_create_params": {"input": f"{n}"}, "agent_ref": {"name": "solver"}, "worth": n % 3}
        for n in range(ROLLOUTS)
    ]
    tasks.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
    collector = Collector(CollectionPlan(tasks, folder / "x.jsonl", RunOptions(concurrency=16)), client)
    work = asyncio.create_task(collector.run())
    async with asyncio.timeout(60):
        while collector.status().completed < ROLLOUTS // 4:  # noqa: ASYNC110 (asked as users do)
            await asyncio.sleep(0.005)
        await disturb()
        return await work


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("way", ["drain", "kill"])
async def test_a_replica_that_dies_or_drains_loses_no_rollout(
    serve: Serve, tmp_path: Path, name: str, way: str
) -> None:
    async with running(serve) as (cluster, client):
        leave = cluster.drain if way == "drain" else cluster.kill
        status = await disturbed(client, tmp_path, lambda: asyncio.ensure_future(leave(name)))

    assert (status.state, status.completed, status.failed) == ("finished", ROLLOUTS, 0)
    settled = {row["_ng_task_index"]: row["reward"] for row in read_rollouts(tmp_path / "x.jsonl")}
    assert settled == {n: float(n % 3) for n in range(ROLLOUTS)}
