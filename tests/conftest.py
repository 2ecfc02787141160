import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeAlias

import pytest
import uvicorn
import uvloop
from hypothesis import settings

from rollmill.client.asgi import AsgiApp
from rollmill.observability.logging import ensure_logging

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]

settings.register_profile("rollmill", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("rollmill")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the signals belong to pytest


@asynccontextmanager
async def _serving(app: AsgiApp, *, port: int = 0) -> AsyncIterator[str]:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                await task
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Say which event loops an asynchronous test runs on."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    return loops | ({"uvloop": uvloop.new_event_loop} if item.get_closest_marker("both_loops") else {})


@pytest.fixture(autouse=True)
def logging_set_up() -> None:
    """As in every process of Rollmill; structlog's own default would draw tracebacks with all their locals."""
    ensure_logging()


@pytest.fixture(scope="session")
def serve() -> Serve:
    """Serve an application on a real loopback socket: `async with serve(app) as base_url`."""
    return _serving
