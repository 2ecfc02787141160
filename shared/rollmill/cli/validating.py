"""How `rollmill validate` checks environments: each is started alone in this process, or is reached by its URL."""

import asyncio
import faulthandler
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import typer

from rollmill.artifacts.reader import read_jsonl
from rollmill.collection.embedded import embedded
from rollmill.config.faults import did_you_mean
from rollmill.config.loading import service_folder
from rollmill.config.topology import Topology
from rollmill.contracts.rows import Row, agent_name
from rollmill.errors import InputError
from rollmill.local.connection import find_connection
from rollmill.server.background import background
from rollmill.testing.conformance import Check, Fixture, check_service, check_url, read_fixtures
from rollmill.testing.conformance.fixtures import FILE_NAME

MOST_TASKS: Final = 1000
"""Tasks that are looked at; a training set has many more of the same kind."""


@dataclass(frozen=True, slots=True)
class Material:
    """What an environment is checked with."""

    tasks: Path | None
    fixtures: Path | None
    timeout_seconds: float


def check_environments(topology: Topology, service: str | None, material: Material) -> list[Check]:
    """Check the resources servers of a topology, or one of them.

    Raises:
        InputError: there is no such service, or a file cannot be read.
        typer.BadParameter: files are named, but not the one environment that they are about.
    """
    names = [name for name, spec in topology.services.items() if spec.kind == "resources"]
    if service is not None and service not in names:
        raise InputError(f"no resources service is called {service!r}{did_you_mean(service, names)}")
    chosen = [service] if service else names
    if (material.tasks or material.fixtures) and len(chosen) != 1:
        raise typer.BadParameter("--tasks and --fixtures are about one environment: choose it with --service")
    return [check for name in chosen for check in asyncio.run(_check_one(topology, name, material))]


def check_server(url: str, token_file: Path | None, material: Material) -> list[Check]:
    """Check a resources server behind a URL.

    Raises:
        InputError: it is no URL, or a file cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not a URL; write it like http://127.0.0.1:8000")
    tasks = list(islice(read_jsonl(material.tasks), MOST_TASKS)) if material.tasks else []
    fixtures = read_fixtures(material.fixtures) if material.fixtures else []
    token = token_file.read_text(encoding="utf-8").strip() if token_file else find_connection(url).token
    return asyncio.run(
        check_url(url, token=token, tasks=tasks, fixtures=fixtures, timeout_seconds=material.timeout_seconds)
    )


async def _check_one(topology: Topology, name: str, material: Material) -> list[Check]:
    tasks, fixtures = _tasks(topology, name, material), _fixtures(topology, name, material)
    try:
        async with _watched(material.timeout_seconds), embedded(topology, only=name) as client:
            return await check_service(
                client, name, tasks=tasks, fixtures=fixtures, timeout_seconds=material.timeout_seconds
            )
    except Exception as error:  # an author's `startup` may raise anything at all
        return [Check(name, "start", "fail", str(error) or type(error).__name__)]


@asynccontextmanager
async def _watched(seconds: float) -> AsyncIterator[None]:
    """End the process, with the stack of what it does, when the event loop is held up for so long: no timeout could.

    An environment that computes without awaiting, say with a regular expression that never ends, shares this loop.
    """

    def wind_up() -> None:
        faulthandler.dump_traceback_later(seconds + 1.0, exit=True, file=2)  # stderr, also where Python's is replaced

    async def look() -> None:
        while True:
            await asyncio.sleep(0.5)
            wind_up()

    wind_up()
    async with background(look(), name="watch"):
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _tasks(topology: Topology, name: str, material: Material) -> list[Row]:
    found = read_jsonl(material.tasks) if material.tasks else _own_tasks(topology, name)
    return list(islice(found, MOST_TASKS))


def _own_tasks(topology: Topology, name: str) -> Iterator[Row]:
    """Yield the rows of the topology's datasets that reach an environment through their agent."""
    agents = {agent for agent, spec in topology.services.items() if spec.settings.get("resources") == name}
    for dataset in topology.datasets:
        yield from (row for row in read_jsonl(dataset.path) if (agent_name(row) or dataset.agent) in agents)


def _fixtures(topology: Topology, name: str, material: Material) -> Sequence[Fixture]:
    if material.fixtures:
        return read_fixtures(material.fixtures)
    folder = service_folder(topology.services[name].use)
    path = folder / FILE_NAME if folder else None
    return read_fixtures(path) if path and path.is_file() else []
