import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import pytest

from rollmill.config.settings import ServiceSettings
from rollmill.local import health
from rollmill.local.sockets import bound_address, listen
from rollmill.server.app import build_app
from rollmill.server.runtime import Runtime

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]


async def asked(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the check says of a service; nothing when it is ready."""
    monkeypatch.setenv("ROLLMILL_PORT", url.rpartition(":")[2])
    try:
        await asyncio.to_thread(health.main)
    except SystemExit as ending:
        return str(ending.code)
    return ""


async def test_a_service_is_healthy_exactly_while_it_is_ready(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(ServiceSettings(), "head")
    async with serve(build_app(ServiceSettings(), kind="head", title="head", runtime=runtime)) as url:
        ready = await asked(url, monkeypatch)
        runtime.drain()
        draining = await asked(url, monkeypatch)

    assert ready == ""
    assert draining.startswith("not ready: {")
    assert "draining" in draining


async def test_a_port_without_a_service_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0) as listener:
        url = "http://{}:{}".format(*bound_address(listener))

    assert "Connection refused" in await asked(url, monkeypatch)


async def test_what_is_no_service_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        said = await asked(f"http://127.0.0.1:{port}", monkeypatch)

    assert said


def test_the_check_loads_nothing_that_takes_long() -> None:
    code = "import sys, rollmill.local.health; print(len(set(sys.modules) & {'http.client', 'asyncio', 'typer', 'pydantic'}))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "0\n"
