"""How often an engine is asked in all, when every layer above it has retries of its own."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.runs import RunOptions
from rollmill.server import AgentSettings, Resources, Session, resources_app
from rollmill.testing import service_client
from rollmill_services.agents.single_turn.app import create_app as create_agent
from rollmill_services.models.openai_compatible.app import create_app as create_model
from rollmill_services.models.openai_compatible.settings import OpenAICompatibleSettings


class Worth(Resources):
    async def verify(self, rollout: Rollout, session: Session) -> float:
        return 1.0


class BrokenEngine:
    """Answers every request with the same status, and counts them."""

    def __init__(self, status: int) -> None:
        self.requests = 0
        self._answer = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nRetry-After: 0\r\n\r\n".encode()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = next((int(h[15:]) for h in head.split(b"\r\n") if h.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                self.requests += 1
                writer.write(self._answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.mark.parametrize(("status", "most"), [(503, 3 * 4), (429, 3 * 4 * 4), (500, 3 * 4), (400, 1)])
async def test_the_requests_of_one_model_call_are_bounded_by_the_product_of_the_layers(
    tmp_path: Path, status: int, most: int
) -> None:
    engine = BrokenEngine(status)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"responses_create_params": {"input": "q"}, "agent_ref": {"name": "solver"}}) + "\n")
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(await asyncio.start_server(engine.handle, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
        model = OpenAICompatibleSettings(base_url=url, model="m", retry_base_seconds=0.001)
        apps = {
            "policy": create_model(model),
            "worth": resources_app(Worth(ServiceSettings(name="worth"))),
            "solver": create_agent(AgentSettings(name="solver", model="policy", resources="worth")),
        }
        client = await stack.enter_async_context(service_client(apps))
        status_of_run = await Collector(CollectionPlan(tasks, tmp_path / "x.jsonl", RunOptions()), client).run()

    assert (status_of_run.completed, status_of_run.failed) == (0, 1)
    assert engine.requests == most
