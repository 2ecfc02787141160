"""Services behind a collector, whose rollouts wait until a test lets them through."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from rollmill.client.service_client import ServiceClient
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import Row
from rollmill.errors import InputError
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
from rollmill.testing import FakeModel, service_client
from rollmill_services.collector.app import create_app
from rollmill_services.collector.settings import CollectorSettings

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]


class Desk:
    """Holds rollouts back until a test lets them through, and counts how many are at it."""

    def __init__(self) -> None:
        self.open = True
        self.started: list[str] = []
        self.at_work = 0
        self._tickets = asyncio.Semaphore(0)

    def let(self, number: int) -> None:
        for _ in range(number):
            self._tickets.release()

    async def turn(self, row: Row) -> None:
        self.started.append(f"{row['_ng_task_index']}:{row['_ng_rollout_index']}")
        self.at_work += 1
        try:
            if not self.open:
                await self._tickets.acquire()
        finally:
            self.at_work -= 1


class Solver(Agent):
    """Waits at the desk, and asks the model once."""

    def __init__(self, settings: AgentSettings, desk: Desk) -> None:
        super().__init__(settings)
        self._desk = desk

    async def run(self, row: Row, episode: Episode) -> Row:
        await self._desk.turn(row)
        if row.get("broken"):
            raise InputError("this task is broken")
        return await super().run(row, episode)

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        return await episode.respond(request)


class Worth(Resources):
    """Gives the reward that the row names, 1 without."""

    async def verify(self, rollout: Rollout, session: Session) -> float:
        return float(rollout.field("worth", 1.0))


class Bench:
    """The services behind a collector, and collectors over one data directory."""

    def __init__(self, data_dir: Path, client: ServiceClient, desk: Desk, model: FakeModel) -> None:
        self.data_dir = data_dir
        self.desk = desk
        self.model = model
        self._client = client

    def app(self, **settings: JsonValue) -> ServiceApp:
        app = create_app(CollectorSettings(data_dir=self.data_dir, **settings))

        @asynccontextmanager
        async def connect(_: ServiceSettings) -> AsyncIterator[ServiceClient]:
            yield self._client

        app.connector = connect
        return app


@asynccontextmanager
async def open_bench(data_dir: Path, answer: str) -> AsyncIterator[Bench]:
    """Agents `solver` and `other` at one desk, whose model always gives the same answer."""
    desk, model = Desk(), FakeModel([answer])
    apps = {
        "policy": model_app(model),
        "worth": resources_app(Worth()),
        "solver": agent_app(Solver(AgentSettings(name="solver", model="policy", resources="worth"), desk)),
        "other": agent_app(Solver(AgentSettings(name="other", model="policy", resources="worth"), desk)),
    }
    async with service_client(apps) as client:
        yield Bench(data_dir, client, desk, model)
        desk.open = True
        desk.let(1000)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what has no event of its own."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
