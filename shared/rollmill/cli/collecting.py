"""The work behind `rollmill collect`: finds services and tasks, runs the collection, shows how it goes."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from rollmill.cli.datasets import dataset_input
from rollmill.cli.progress import CollectProgress, say
from rollmill.client.file_limit import check_file_limit, raise_file_limit
from rollmill.client.links import open_client
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.collection.embedded import embedded
from rollmill.collection.prompts import load_prompt
from rollmill.config.topology import Topology, load_topology, topology_digest
from rollmill.contracts.runs import RunOptions, RunStatus
from rollmill.errors import ConnectError, RollmillError
from rollmill.local.connection import find_connection
from rollmill.local.state import StateDir


@dataclass(frozen=True, slots=True)
class Source:
    """Which services run which tasks, as the command line says."""

    config: Path | None
    head: str | None
    embedded: bool
    input: Path | None
    split: str | None


class InterruptedCollectionError(RollmillError):
    """Ctrl-C or SIGTERM ended the collection; what is settled is on disk."""

    slug, title = "interrupted", "Interrupted"


def run_collection(
    source: Source, output: Path, options: RunOptions, prompt: Path | None, *, resume: bool, overwrite: bool
) -> RunStatus:
    """Run a collection to its end and return how it went.

    Raises:
        RollmillError: nothing could be run, or the run failed.
        InterruptedCollectionError: the user stopped it.
    """
    if (source.config is None) == (source.head is None):
        raise typer.BadParameter("give a topology with -c, or a head with --head, and not both")
    if source.embedded and source.config is None:
        raise typer.BadParameter("--embedded needs a topology: -c")
    topology = load_topology(source.config) if source.config else None
    plan_for = _planner(output, options, prompt, resume=resume, overwrite=overwrite)
    with dataset_input(topology, source.input, source.split, options) as (tasks, adjusted), _new_runner() as runner:
        plan = plan_for(tasks, adjusted, topology_digest(topology) if topology else None)
        return runner.run(_collect(source, topology, plan))


def _planner(
    output: Path, options: RunOptions, prompt: Path | None, *, resume: bool, overwrite: bool
) -> Callable[[Path, RunOptions, str | None], CollectionPlan]:
    prompt_config = load_prompt(prompt) if prompt else None

    def plan(tasks: Path, adjusted: RunOptions, digest: str | None) -> CollectionPlan:
        return CollectionPlan(
            input=tasks,
            output=output,
            options=adjusted,
            prompt=prompt_config,
            topology_digest=digest,
            resume=resume,
            overwrite=overwrite,
        )

    return plan


@contextmanager
def _new_runner() -> Iterator[asyncio.Runner]:
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # not on every platform
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


async def _collect(source: Source, topology: Topology | None, plan: CollectionPlan) -> RunStatus:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(_client(source, topology, plan.options.concurrency))
        collector = Collector(plan, client)
        await collector.prepare()
        for warning in collector.warnings:
            say(f"warning: {warning}")
        work = asyncio.create_task(collector.run())
        _stop_on_signals(work)
        async with CollectProgress(collector.status):
            await asyncio.wait([work])
        status = collector.status()
        if work.cancelled():
            settled = status.completed + status.failed
            raise InterruptedCollectionError(
                f"interrupted: {settled} of {status.expected} rollouts are settled in {plan.output}; "
                "go on with the same command and --resume"
            )
        _tell(work.result(), plan)
        return status


@asynccontextmanager
async def _client(source: Source, topology: Topology | None, concurrency: int) -> AsyncIterator[ServiceClient]:
    head = source.head or ("" if source.embedded else _running_head(source.config))
    if not head and topology is not None:
        say("running the services inside this process")
        async with embedded(topology) as client:
            yield client
        return
    check_file_limit(concurrency, raise_file_limit())
    connection = find_connection(head)
    say(f"using the services at {connection.head_url}")
    async with open_client(connection.head_url, connection.token) as client:
        try:
            await client.directory.services()
        except ConnectError as error:
            raise ConnectError(f"no head answers: {error.detail}; start one with: rollmill up -c TOPOLOGY") from None
        yield client


def _running_head(config: Path | None) -> str:
    """Return the head of what `rollmill up` started here from this very topology; empty when nothing is up."""
    deployment = StateDir.default().load()
    if config is None or deployment is None or not deployment.is_alive():
        return ""
    same = Path(deployment.topology).resolve() == config.resolve()
    return deployment.head_url if same else ""


def _stop_on_signals(work: "asyncio.Task[RunStatus]") -> None:
    """The first signal stops cleanly; the rollouts file is written out before the process ends."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)


def _tell(status: RunStatus, plan: CollectionPlan) -> None:
    """Results go to stdout: where the rollouts are. The summary is for people."""
    for name, agent in sorted(status.agents.items()):
        mean = "-" if agent.mean_reward is None else f"{agent.mean_reward:.4f}"
        failed = f", {agent.failed} failed" if agent.failed else ""
        say(f"{name}: {agent.completed} of {agent.expected} rollouts{failed}, mean reward {mean}")
    if status.failed:
        failures = plan.output.with_name(f"{plan.output.stem}_failures.jsonl")
        reasons = ", ".join(f"{name} {count}x" for name, count in sorted(status.failures.items()))
        say(f"{status.failed} rollouts failed for good ({reasons}); each attempt and its reason is in {failures}")
    typer.echo(str(plan.output))
