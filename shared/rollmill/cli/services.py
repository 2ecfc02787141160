"""How commands reach services: those of a head, those that `rollmill up` started, or their own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import typer

from rollmill.cli.progress import say
from rollmill.client.file_limit import check_file_limit, raise_file_limit
from rollmill.client.links import open_client
from rollmill.client.service_client import ServiceClient
from rollmill.collection.embedded import embedded as run_embedded
from rollmill.config.topology import Topology
from rollmill.errors import ConnectError
from rollmill.local.connection import find_connection
from rollmill.local.state import StateDir
from rollmill.observability.tracing import opened_tracer

T = TypeVar("T")


def check_one_source(config: Path | None, head: str | None) -> None:
    """Refuse a command line that names both a topology and a head, or neither."""
    if (config is None) == (head is None):
        raise typer.BadParameter("give a topology with -c, or a head with --head, and not both")


@asynccontextmanager
async def open_services(
    topology: Topology | None,
    config: Path | None,
    head: str | None,
    *,
    embedded: bool = False,
    grading_only: bool = False,
    concurrency: int = 1,
) -> AsyncIterator[ServiceClient]:
    """Hand out a client of the services that the command line names.

    Args:
        topology: the loaded topology file, if one is named.
        config: its path; what `rollmill up` started from this very file is used.
        head: URL of a head instead.
        embedded: run the topology's services inside this process, whatever is up.
        concurrency: calls in flight, which the open-file limit must carry over the network.
        grading_only: of those, leave out the models that only agents ask.

    Raises:
        ConnectError: no head answers.
    """
    url = head or ("" if embedded else _running_head(config))
    if not url and topology is not None:
        say("running the services inside this process")
        with opened_tracer(os.environ, "rollmill") as tracer:
            async with run_embedded(topology, grading_only=grading_only, tracer=tracer) as client:
                yield client
        return
    check_file_limit(concurrency, raise_file_limit())
    connection = find_connection(url)
    say(f"using the services at {connection.head_url}")
    async with AsyncExitStack() as stack:
        tracer = stack.enter_context(opened_tracer(os.environ, "rollmill"))
        opened = open_client(connection.head_url, connection.token, ca_file=connection.ca_file)
        client = await stack.enter_async_context(opened)
        client.tracer = tracer
        try:
            await client.directory.services()
        except ConnectError as error:
            raise ConnectError(f"no head answers: {error.detail}; start one with: rollmill up -c TOPOLOGY") from None
        yield client


@contextmanager
def new_runner() -> Iterator[asyncio.Runner]:
    """Hand out a runner whose event loop is the fastest there is."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # not on every platform
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


def stop_on_signals(work: "asyncio.Task[T]") -> None:
    """The first signal stops cleanly; what is settled is written out before the process ends."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)


def _running_head(config: Path | None) -> str:
    """Return the head of what `rollmill up` started here from this very topology; empty when nothing is up."""
    deployment = StateDir.default().load()
    if config is None or deployment is None or not deployment.is_alive():
        return ""
    same = Path(deployment.topology).resolve() == config.resolve()
    return deployment.head_url if same else ""
