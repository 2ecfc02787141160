import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest
from fastapi import APIRouter
from pydantic import SecretStr

from rollmill.client.http import HttpTransport
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.services import Registration
from rollmill.errors import UpstreamTimeoutError
from rollmill.server.app import build_app
from rollmill_services.head.app import create_app as create_head
from rollmill_services.head.gateway import Gateway
from rollmill_services.head.registry import Registry
from rollmill_services.head.settings import HeadSettings
from rollmill_services.profiler.app import create_app as create_profiler
from rollmill_services.profiler.settings import ProfilerSettings

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]
TOKEN = SecretStr("token")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_the_gateway_answers_what_the_profiler_answers(serve: Serve, tmp_path: Path) -> None:
    port = free_port()
    async with serve(create_head(HeadSettings(token=TOKEN))) as head_url:
        settings = ProfilerSettings(
            name="profiler", head_url=head_url, advertise_url=f"http://127.0.0.1:{port}", token=TOKEN, data_dir=tmp_path
        )
        (tmp_path / "run-1").mkdir()
        headers = {"origin": head_url, "sec-fetch-site": "same-origin"}
        async with (
            serve(create_profiler(settings), port=port),
            httpx.AsyncClient(base_url=head_url, timeout=60) as browser,
        ):
            assert (await browser.post("/login", json={"token": "token"}, headers=headers)).status_code == 204
            async with asyncio.timeout(15):
                while not (await browser.get("/api/head/v1/services")).json()["services"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            answer = await browser.get("/api/profiler/v1/runs/run-1/rollouts/table?sort=-reward")
            latencies = (await browser.get("/api/head/v1/latencies")).json()["milliseconds"]

    assert (answer.status_code, answer.json()["type"]) == (404, "urn:rollmill:problem:run-not-found")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert all(milliseconds > 0 for milliseconds in latencies.values())


async def test_a_service_that_says_nothing_is_not_waited_for_without_end(serve: Serve) -> None:
    silent = APIRouter()

    @silent.get("/v1/runs")
    async def runs() -> None:
        await asyncio.sleep(60)

    app = build_app(ServiceSettings(), kind="collector", title="silent", routers=[silent])
    registry, transport = Registry(lease_seconds=60), HttpTransport()
    async with serve(app) as url:
        registry.register(Registration(name="collector", kind="collector", url=url, version="1"))
        gateway = Gateway(transport, registry, dict, most_calls=64, silence_seconds=0.1)
        with pytest.raises(UpstreamTimeoutError, match="the collector said nothing"):
            await gateway.call("collector", "GET", "/v1/runs")
        await transport.aclose()
