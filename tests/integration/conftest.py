"""Whole topologies over real loopback sockets, and collections that read back what they wrote."""

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import pytest
import uvicorn
from pydantic import SecretStr

from rollmill.artifacts.reader import read_rollouts
from rollmill.client.links import open_client
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.config.loading import find_service
from rollmill.config.settings import ServiceSettings
from rollmill.config.topology import Topology, service_settings, startup_order
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import RunOptions
from rollmill.local.sockets import base_url, bound_address, listen
from rollmill.local.state import ProcessRecord, StateDir
from rollmill.server.app import ServiceApp
from rollmill_services.collector.app import create_app as create_collector
from rollmill_services.collector.settings import CollectorSettings
from rollmill_services.head.app import create_app as create_head
from rollmill_services.head.settings import HeadSettings
from rollmill_services.profiler.app import create_app as create_profiler
from rollmill_services.profiler.settings import ProfilerSettings

TOKEN = "integration-token"

Collect: TypeAlias = Callable[[ServiceClient, Path, RunOptions], Awaitable[list[Row]]]
BuildApp: TypeAlias = Callable[[str], ServiceApp]
"""Makes an application, given the URL at which it will be reached."""
Settings = TypeVar("Settings", bound=ServiceSettings)


@dataclass(frozen=True, slots=True)
class Network:
    """A topology at work, each replica behind a socket of its own."""

    client: ServiceClient
    """Reaches the services through the head."""
    token: str
    urls: dict[str, list[str]]
    """Base URLs of each service's replicas; those of `head`, `collector` and `profiler` too."""


NetworkTopology: TypeAlias = Callable[..., AbstractAsyncContextManager[Network]]


@pytest.fixture
def network_topology() -> NetworkTopology:
    """Serve a topology: `async with network_topology(topology) as network`.

    With `data_dir=`, a collector and a profiler that keep their runs there are served too.
    """
    return _network


@pytest.fixture
def collect(tmp_path: Path) -> Collect:
    """Collect a task file: `rows = await collect(client, tasks, options)`; every rollout must have succeeded."""
    numbers = itertools.count()

    async def run(client: ServiceClient, tasks: Path, options: RunOptions) -> list[Row]:
        output = tmp_path / f"collected-{next(numbers)}.jsonl"
        status = await Collector(CollectionPlan(input=tasks, output=output, options=options), client).run()
        assert (status.state, status.failed, status.failed_attempts) == ("finished", 0, 0)
        rows = list(read_rollouts(output))
        assert len(rows) == status.completed == status.expected
        return rows

    return run


class Workplace:
    """A folder of its own in which `rollmill` commands run, and the services that they start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("ROLLMILL_")}
        self.environ["PYTHONPATH"] = str(path)
        self.said = ""
        """Everything that the commands wrote."""

    def run(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        command = [sys.executable, "-m", "rollmill", *words]
        environ = self.environ | variables
        done = subprocess.run(command, cwd=self.path, env=environ, capture_output=True, text=True, timeout=90)
        self.said += done.stdout + done.stderr
        return done

    def up(self) -> dict[str, ProcessRecord]:
        """Start the services of `t.yaml`; returns their processes by label."""
        ports = ("--head-port", "0", "--collector-port", "0", "--profiler-port", "0")
        done = self.run("up", "-c", "t.yaml", "--detach", *ports)
        assert done.returncode == 0, done.stderr
        deployment = StateDir(self.path / ".rollmill").load()
        assert deployment is not None
        return {process.label: process for process in deployment.processes}


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """Run commands in an empty folder; what `up` started there is taken down at the end."""
    workplace = Workplace(tmp_path)
    yield workplace
    workplace.run("down", "--grace", "5")


@asynccontextmanager
async def _network(topology: Topology, *, data_dir: Path | None = None) -> AsyncIterator[Network]:
    async with AsyncExitStack() as stack:
        urls: dict[str, list[str]] = {}

        async def start(name: str, build: BuildApp) -> None:
            urls.setdefault(name, []).append(await stack.enter_async_context(_serving(build)))

        await start("head", lambda _: create_head(HeadSettings(name="head", token=SecretStr(TOKEN))))
        head = urls["head"][0]
        for name in startup_order(topology):
            for _ in range(topology.services[name].replicas):
                await start(name, partial(_service, topology, name, head))
        if data_dir is not None:
            await start("collector", partial(_collector, head, data_dir))
            await start("profiler", partial(_profiler, head, data_dir))
        client = await stack.enter_async_context(open_client(head, TOKEN))
        await _registered(client, sum(map(len, urls.values())) - 1)  # the head itself is not registered
        yield Network(client, TOKEN, urls)


def _service(topology: Topology, name: str, head: str, url: str) -> ServiceApp:
    settings = _placed(service_settings(topology, name), head, url)
    app = find_service(topology.services[name].use).factory(settings)
    assert isinstance(app, ServiceApp)
    return app


def _collector(head: str, data_dir: Path, url: str) -> ServiceApp:
    return create_collector(_placed(CollectorSettings(name="collector", data_dir=data_dir), head, url))


def _profiler(head: str, data_dir: Path, url: str) -> ServiceApp:
    return create_profiler(_placed(ProfilerSettings(name="profiler", data_dir=data_dir), head, url))


def _placed(settings: Settings, head: str, url: str) -> Settings:
    return settings.model_copy(update={"head_url": head, "advertise_url": url, "token": SecretStr(TOKEN)})


async def _registered(client: ServiceClient, count: int) -> None:
    while True:
        if len(await client.directory.services()) >= count:
            return
        await asyncio.sleep(0.01)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the signals belong to pytest

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        except SystemExit:  # it would end pytest
            raise RuntimeError("the service did not start; the captured log says why") from None


@asynccontextmanager
async def _serving(build: BuildApp) -> AsyncIterator[str]:
    """Listen first: an application has to know its URL when it is made."""
    with listen("127.0.0.1", 0) as listener:
        url = base_url(*bound_address(listener))
        server = _Server(uvicorn.Config(build(url), log_config=None, ws="none", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                if task.done():
                    await task
                await asyncio.sleep(0.005)
            yield url
        finally:
            server.should_exit = True
            await task
