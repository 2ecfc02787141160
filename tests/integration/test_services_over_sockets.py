import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import pytest
from pydantic import SecretStr

from rollmill.client.links import open_client
from rollmill.client.service_client import ServiceClient
from rollmill.client.services import AgentClient
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import Row
from rollmill.errors import UnauthorizedError
from rollmill.openai.items import function_call
from rollmill.server import Resources, ServiceApp, Session, ToolError, model_app, resources_app, tool
from rollmill.testing import FakeModel
from rollmill_services.agents.tool_loop.agent import ToolLoopSettings
from rollmill_services.agents.tool_loop.app import create_app as create_agent
from rollmill_services.head.app import create_app as create_head
from rollmill_services.head.settings import HeadSettings

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]
TOKEN = SecretStr("token")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Shop(Resources):
    """One counter per session; buying 13 is refused."""

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings)
        self.open = 0

    async def seed_session(self, session: Session, row: Row) -> None:
        self.open += 1

    async def close_session(self, session: Session) -> None:
        self.open -= 1

    async def verify(self, rollout: Rollout, session: Session) -> float:
        return float(session.state.get("count", 0))

    @tool
    async def buy(self, amount: int, session: Session) -> str:
        """Buy."""
        if amount == 13:
            raise ToolError("sold out")
        session.state["count"] = session.state.get("count", 0) + amount
        return str(session.state["count"])


def buyer(request: JsonObject) -> str | JsonObject:
    items = request["input"]
    if items[-1]["type"] == "function_call_output":
        return "done"
    return function_call("buy", f'{{"amount": {items[0]["content"]}}}', "c")


class Cluster:
    """Services that find each other through a head, each on its own socket."""

    def __init__(self, serve: Serve, stack: AsyncExitStack) -> None:
        self._serve = serve
        self._stack = stack
        self.head_url = ""
        self.shops: list[Shop] = []

    async def start_head(self, *, port: int = 0) -> None:
        app = create_head(HeadSettings(token=TOKEN, lease_seconds=1))
        self.head_url = await self._stack.enter_async_context(self._serve(app, port=port))

    @asynccontextmanager
    async def service(self, make: Callable[[JsonObject], ServiceApp], name: str) -> AsyncIterator[str]:
        port = free_port()
        common = {"name": name, "head_url": self.head_url, "advertise_url": f"http://127.0.0.1:{port}", "token": TOKEN}
        async with self._serve(make(common | {"session_secret": SecretStr("s")}), port=port) as url:
            yield url

    async def start_all(self, *, shops: int = 2) -> None:
        enter = self._stack.enter_async_context
        await enter(self.service(lambda c: model_app(FakeModel(buyer, ServiceSettings.model_validate(c))), "policy"))
        for _ in range(shops):
            await enter(self.service(self._shop, "shop"))
        await enter(self.service(agent, "shopper"))

    def _shop(self, common: JsonObject) -> ServiceApp:
        self.shops.append(Shop(ServiceSettings.model_validate(common)))
        return resources_app(self.shops[-1])


def agent(common: JsonObject) -> ServiceApp:
    return create_agent(ToolLoopSettings.model_validate(common | {"model": "policy", "resources": "shop"}))


@pytest.fixture
async def cluster(serve: Serve) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        cluster = Cluster(serve, stack)
        await cluster.start_head()
        yield cluster


async def known(client: ServiceClient, count: int) -> list[str]:
    async with asyncio.timeout(15):
        while len(found := await client.directory.services()) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return sorted(instance.name for instance in found)


async def run(client: ServiceClient, amount: int) -> JsonObject:
    row = {"responses_create_params": {"input": str(amount)}}
    verified: JsonObject = (await AgentClient(client).run("shopper", dumps(row), key=f"k{amount}")).json()
    return verified


async def test_rollouts_run_through_services_that_found_each_other(cluster: Cluster) -> None:
    await cluster.start_all()
    async with open_client(cluster.head_url, "token") as client:
        assert await known(client, 4) == ["policy", "shop", "shop", "shopper"]
        tasks = [asyncio.create_task(run(client, amount)) for amount in range(1, 31)]
        rows = [await task for task in tasks]
        assert [row["reward"] for row in rows] == [0.0 if n == 13 else float(n) for n in range(1, 31)]
        assert "sold out" in rows[12]["response"]["output"][1]["output"]
        assert [shop.open for shop in cluster.shops] == [0, 0]


async def test_a_wrong_token_opens_nothing(cluster: Cluster) -> None:
    async with open_client(cluster.head_url, "wrong") as client:
        with pytest.raises(UnauthorizedError):
            await client.directory.services()


async def test_a_service_leaves_the_head_when_it_stops(cluster: Cluster) -> None:
    async with open_client(cluster.head_url, "token") as client:
        async with cluster.service(agent, "shopper"):
            await known(client, 1)
        assert await client.directory.services() == []


async def test_running_services_go_on_while_the_head_is_away_and_register_again(serve: Serve) -> None:
    port = free_port()
    async with AsyncExitStack() as services, AsyncExitStack() as clients:
        cluster = Cluster(serve, services)
        cluster.head_url = f"http://127.0.0.1:{port}"
        async with AsyncExitStack() as heads:
            first_head = Cluster(serve, heads)
            await first_head.start_head(port=port)
            await cluster.start_all(shops=1)
            client = await clients.enter_async_context(open_client(cluster.head_url, "token"))
            await known(client, 3)
            assert (await run(client, 1))["reward"] == 1.0
        assert (await run(client, 2))["reward"] == 2.0  # no head now
        await cluster.start_head(port=port)
        assert await known(client, 3) == ["policy", "shop", "shopper"]
        assert (await run(client, 3))["reward"] == 3.0
